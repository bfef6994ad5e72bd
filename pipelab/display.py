"""How things are shown: small words, tables, and how a solve ended.

One word, one symbol and one look stand for each of five outcomes, in every table and figure.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame, Series
    from plotly.graph_objects import Figure  # noqa: TID251 - the type alone
else:  # for annotations: pandas and plotly are imported when the first frame or figure is made
    DataFrame, Figure, Series = "DataFrame", "Figure", "Series"

__all__ = [
    "DOES_NOT_FIT", "KIND_COLOURS", "NOT_PROVEN", "NO_FORMULAS", "OUTCOMES", "PROVEN", "REFUSED",
    "STOPPED", "DataFrame", "Figure", "Outcome", "Series", "breakable", "coloured_rows", "counted", "data_frame",
    "duration", "ended", "ending", "listed", "named", "number", "outcome_of", "outcome_of_row", "proven_among", "rate",
    "show_ids", "table",
]  # fmt: skip

_YEAR = 365.25 * 24 * 3600
# (below so many seconds, use a unit of so many seconds, its name)
_UNITS = (
    (1e-3, 1e-6, "µs"), (1, 1e-3, "ms"), (120, 1, "s"), (7200, 60, "minutes"),
    (172_800, 3600, "hours"), (2 * _YEAR, 86_400, "days"),
)  # fmt: skip


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural where there is not exactly one.

    Examples
    --------
    >>> counted(1, "stage"), counted(3, "GPU"), counted(0, "microbatch")
    ('1 stage', '3 GPUs', '0 microbatches')
    """
    ending = "es" if noun.endswith(("ch", "x")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def duration(seconds: float) -> str:
    """A length of time in the unit that fits.

    Parameters
    ----------
    seconds : float
        At least 0.

    Returns
    -------
    str
        Three digits, from microseconds to billions of years; beyond that a power of ten.

    Examples
    --------
    >>> duration(2.15e-5), duration(1.927), duration(5400), duration(86_400 * 365.25 * 40)
    ('21.5 µs', '1.93 s', '90 minutes', '40 years')
    >>> duration(3.7e14), duration(1e25)
    ('11.7 million years', '3.17·10¹⁷ years')
    """
    for limit, unit, name in _UNITS:
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}" if seconds else "0 s"
    years = seconds / _YEAR
    if years < 1e6:
        return f"{years:,.3g} years" if years < 1000 else f"{years:,.0f} years"
    for size, word in ((1e6, "million"), (1e9, "billion")):
        if years < 999.5 * size:
            return f"{years / size:.3g} {word} years"
    digits, power = f"{years:.2e}".split("e")
    return f"{digits}·10{str(int(power)).translate(_RAISED)} years"


def listed(names: Sequence[str]) -> str:
    """One or more names as a sentence has them.

    Examples
    --------
    >>> listed(["GPipe"]), listed(["model", "workload", "cost model"])
    ('GPipe', 'model, workload and cost model')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def named(names: Sequence[str], one: str = "loses", several: str = "lose") -> str:
    """Up to two by name and the others by number, with the verb.

    Examples
    --------
    >>> named(["a"]), named(["a", "b"]), named(["a", "b", "c", "d"], "keeps", "keep")
    ('a loses', 'a and b lose', 'a, b and 2 more keep')
    """
    if len(names) == 1:
        return f"{names[0]} {one}"
    if len(names) == 2:
        return f"{names[0]} and {names[1]} {several}"
    return f"{names[0]}, {names[1]} and {len(names) - 2} more {several}"


def show_ids(ids: np.ndarray) -> str:
    """Ids, ascending, as people write them.

    >>> show_ids(np.array([0, 1, 2, 3, 7]))
    '0–3, 7'
    """
    runs = np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1)
    return ", ".join(f"{r[0]}–{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


def ending(stopped_by: str | None) -> str:
    """How a run ended before its proof, in words; nothing where it did not.

    Examples
    --------
    >>> ending("time limit"), ending("stop"), ending(None)
    ('stopped by time limit', 'stopped on request', '')
    """
    if stopped_by == "stop":
        return "stopped on request"
    return f"stopped by {stopped_by}" if stopped_by else ""


# The class with which MathJax leaves an element alone: what stands between two dollars is no
# formula there.
NO_FORMULAS = "tex2jax_ignore mathjax_ignore"


def number(value: float, digits: int = 4) -> str:
    """A number with as many digits as a reader can use; whole ones are never rounded away.

    Examples
    --------
    >>> number(82.56289), number(6320.98), number(1234567.8), number(28.5)
    ('82.56', '6,321', '1,234,568', '28.5')
    """
    whole = len(f"{abs(value):.0f}") if np.isfinite(value) else 0
    return f"{value:,.{max(digits, whole)}g}"


def rate(per_second: float, unit: str = "tokens") -> str:
    """A rate with its unit.

    >>> rate(82.56289), rate(6320.98), rate(1234567.8, "transfers")
    ('82.56 tokens/s', '6,321 tokens/s', '1,234,568 transfers/s')
    """
    return f"{number(per_second)} {unit}/s"


def data_frame(data: Any, columns: Sequence[str] | None = None) -> DataFrame:
    """Return a data frame of rows or columns, as `pandas.DataFrame` takes them."""
    import pandas as pd

    return pd.DataFrame(data, columns=columns)


def table(
    frame: DataFrame,
    *,
    raw: bool = False,
    digits: int = 4,
    narrow: bool = False,
    html: Sequence[str] = (),
) -> str:
    """A data frame as HTML: numbers to the right, also those that are written with a sign or a unit.

    Parameters
    ----------
    frame : pandas.DataFrame
    raw : bool
        Cells hold HTML already; otherwise their text is escaped.
    digits : int
        Of numbers that are not whole, at most; see `number`.
    narrow : bool
        Columns closer together, to make space for formulas.
    html : sequence of str
        Columns whose cells hold HTML where others do not.
    """
    cells = {
        column: [_cell(value, raw or column in html, digits) for value in frame[column]]
        for column in frame.columns
    }
    sides = {
        column: "right" if all(map(_NUMBER.fullmatch, texts)) else "left"
        for column, texts in cells.items()
    }
    look = [{"selector": "th, td", "props": [("padding", "0.5em 0.25em")]}] if narrow else []
    style = type(frame)(cells).style.set_table_styles(look)
    style = style.set_table_styles(
        {c: [{"selector": "", "props": [("text-align", side)]}] for c, side in sides.items()},
        overwrite=False,
    )
    return style.format_index(breakable, axis="columns").hide(axis="index").to_html()


# A number with its sign and unit, or the dash of a cell that holds nothing.
_NUMBER = re.compile(r"[-+±−]?\d[\d,.]*(e[-+]?\d+|/\d+)?( ?%)?|–")


def breakable(name: object) -> str:
    """A name as HTML that may wrap after an underscore, so that tables fit a narrow page."""
    return escape(str(name)).replace("_", "_<wbr>")


def _cell(value: Any, raw: bool, digits: int) -> str:
    """The text of a cell: numbers alone or several as people write them, nothing as a dash."""
    if isinstance(value, tuple | list | np.ndarray) and len(value):
        parts = [_cell(part, False, digits) for part in value]
        if all(map(_NUMBER.fullmatch, parts)):
            return ("; " if any("," in part for part in parts) else ", ").join(parts)
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    if isinstance(value, float):
        return number(value, digits)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value) if raw else escape(str(value))


# plotly's patterns in CSS, white on the fill.
_CSS = {
    "": "background:{}",
    "/": "background:repeating-linear-gradient(-45deg,{} 0 4px,#FFF 4px 6px)",
    ".": "background:radial-gradient(#FFF 25%,{} 30%) 0 0/6px 6px",
    "x": "background:conic-gradient({0} 25%,#FFF 0 50%,{0} 0 75%,#FFF 0) 0 0/6px 6px",
    "-": "background:repeating-linear-gradient(0deg,{} 0 3px,#FFF 3px 5px)",
}


# Kinds of pipeline actions; light and dark alternate, so that grey print keeps them apart too.
# Black text reads well on all of them.
KIND_COLOURS = {
    "F": "#56B4E9", "B": "#E69F00", "I": "#F0E442", "W": "#009E73", "OVERLAP_F_B": "#DDDDDD",
    "message": "#CC79A7",
}  # fmt: skip


def coloured_rows(title: str, rows: Sequence[Sequence[Any]]) -> str:
    """A schedule's actions in HTML: a line per rank, a colour per kind; long lines are cut."""
    lines, most_rows, most_cells = [escape(title)], 32, 60
    for rank, row in enumerate(rows[:most_rows]):
        cells = []
        for action in row[:most_cells]:
            text = "+".join(map(str, action.parts)) or str(action).replace("IDLE", "·")
            colour = KIND_COLOURS.get(action.kind, "#FFFFFF")
            style = f"background:{colour};color:black;padding:1px 4px;border:1px solid white"
            cells.append(f'<span style="{style}" title="{action}">{text}</span>')
        more = f" … {len(row) - most_cells} more" if len(row) > most_cells else ""
        lines.append(f"rank {rank}: {''.join(cells)}{more}")
    if len(rows) > most_rows:
        lines.append(f"… {len(rows) - most_rows} more ranks")
    style = "font-family:monospace;line-height:1.7;white-space:nowrap;overflow-x:auto"
    return f'<div style="{style}">{"<br>".join(lines)}</div>'


@dataclass(frozen=True)
class Outcome:
    """How a solve can end.

    Attributes
    ----------
    word, symbol : str
        As tables, labels and legends show it.
    fill, pattern : str
        Of bars and cells: a colour, and a pattern as plotly names it, so that print and the
        colour-blind see it too.
    marker : str
        Of points, as plotly names it.
    ink : str
        Colour of the word on white.
    """

    word: str
    symbol: str
    fill: str
    pattern: str
    marker: str
    ink: str

    def __str__(self) -> str:
        return f"{self.symbol} {self.word}"

    @property
    def bar(self) -> dict:
        """The marker of a plotly bar."""
        return {"color": self.fill, "pattern": self.hatch}

    @property
    def hatch(self) -> dict:
        """The pattern of a plotly bar, white on its fill."""
        return {"shape": self.pattern, "fgcolor": "#FFFFFF", "size": 6, "solidity": 0.2}

    @property
    def html(self) -> str:
        """A swatch as bars have it, symbol and word, for the HTML of results."""
        fill = _CSS[self.pattern].format(self.fill)
        swatch = f"display:inline-block;width:1.4em;height:0.8em;{fill}"
        word = f"<b style='color:{self.ink}'>{escape(str(self))}</b>"
        return f"<span style='white-space:nowrap'><span style='{swatch}'></span> {word}</span>"


PROVEN = Outcome("proven", "✓", "#0072B2", "", "circle", "#004C78")
# a rule or heuristic: no bound
NOT_PROVEN = Outcome("not proven", "○", "#56B4E9", "/", "circle-open", "#2B5C7A")
# by time, a gap or the reader
STOPPED = Outcome("stopped early", "◇", "#E69F00", ".", "diamond-open", "#7A5200")
DOES_NOT_FIT = Outcome("does not fit", "✗", "#CC3311", "x", "x", "#99220B")
# too large, or not applicable
REFUSED = Outcome("refused", "⊘", "#999999", "-", "square-open", "#555555")
OUTCOMES = (PROVEN, NOT_PROVEN, STOPPED, DOES_NOT_FIT, REFUSED)
_BY_STATUS = {"optimal": PROVEN, "infeasible": DOES_NOT_FIT}
_BY_WORD = {outcome.word: outcome for outcome in OUTCOMES}


def proven_among(result: Any) -> str:
    """The placements a proof covers if not all, such as "one GPU per stage"; else empty.

    Examples
    --------
    >>> import pipelab as pl
    >>> proven_among(pl.solve(pl.load_case("tiny", max_gpus_per_stage=2), "single_gpu"))
    'one GPU per stage'
    """
    return getattr(result, "details", {}).get("proven_among", "")


def outcome_of(result: Any) -> Outcome:
    """How a solve ended.

    A method that proves its answer among fewer placements than all has proven it; `proven_among`
    names these.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny")
    >>> [str(outcome_of(pl.solve(tiny, method))) for method in ("aggregated", "even", "type_count")]
    ['✓ proven', '○ not proven', '○ not proven']
    >>> str(outcome_of(pl.solve(pl.load_case("medium"), time_limit=0, method="aggregated")))
    '◇ stopped early'
    """
    details: Mapping[str, Any] = getattr(result, "details", {})
    if proven_among(result):
        return PROVEN
    if details.get("not_applicable"):
        return REFUSED
    if details.get("misfit"):  # the one placement that a rule makes; others may fit
        return DOES_NOT_FIT
    if result.status in _BY_STATUS:  # only "infeasible" says that nothing fits
        return _BY_STATUS[result.status]
    return STOPPED if result.stopped_by else NOT_PROVEN


def ended(result: Any, *, html: bool = False) -> str:
    """The outcome as text or HTML, with what a proof is for where it is not for all placements.

    Examples
    --------
    >>> import pipelab as pl
    >>> ended(pl.solve(pl.load_case("tiny", max_gpus_per_stage=2), "single_gpu"))
    '✓ proven for one GPU per stage'
    """
    return _ended(outcome_of(result), proven_among(result), html)


def outcome_of_row(row: Mapping[str, Any]) -> Outcome:
    """How a point of a sweep ended: its row has the word of `outcome_of`.

    Examples
    --------
    >>> str(outcome_of_row({"outcome": "stopped early"}))
    '◇ stopped early'
    """
    return _BY_WORD[row["outcome"]]


def ended_row(row: Mapping[str, Any], *, html: bool = False) -> str:
    """Return what `ended` does, for a point of a sweep.

    Examples
    --------
    >>> ended_row({"outcome": "proven", "proven_among": "one GPU per stage"})
    '✓ proven for one GPU per stage'
    """
    return _ended(outcome_of_row(row), row.get("proven_among", ""), html)


def _ended(outcome: Outcome, among: str, html: bool) -> str:
    parts = (outcome.html, escape(among)) if html else (str(outcome), among)
    return " for ".join(filter(None, parts))
