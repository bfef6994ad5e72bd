"""How a method ended: five outcomes, each with one word, one symbol and one look in every table and figure."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from pipelab.figures.theme import WRONG

if TYPE_CHECKING:
    from pipelab.engine.in_flight_result import SteadyResult
    from pipelab.result import Result

__all__ = [
    "DOES_NOT_FIT", "NOT_PROVEN", "OUTCOMES", "PROVEN", "REFUSED", "STOPPED", "Outcome", "ended",
    "ended_row", "outcome_of", "outcome_of_row", "outcome_of_status", "proven_among",
]  # fmt: skip


# plotly's patterns in CSS, white on the fill.
_CSS = {
    "": "background:{}",
    "/": "background:repeating-linear-gradient(-45deg,{} 0 4px,#FFF 4px 6px)",
    ".": "background:radial-gradient(#FFF 25%,{} 30%) 0 0/6px 6px",
    "x": "background:conic-gradient({0} 25%,#FFF 0 50%,{0} 0 75%,#FFF 0) 0 0/6px 6px",
    "-": "background:repeating-linear-gradient(0deg,{} 0 3px,#FFF 3px 5px)",
}


@dataclass(frozen=True)
class Outcome:
    """One way to end.

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
        swatch = (
            f"display:inline-block;width:1.4em;height:0.8em;{_CSS[self.pattern].format(self.fill)}"
        )
        word = f"<b style='color:{self.ink}'>{escape(str(self))}</b>"
        return f"<span style='white-space:nowrap'><span style='{swatch}'></span> {word}</span>"


PROVEN = Outcome("proven", "✓", "#0072B2", "", "circle", "#004C78")
# a rule or heuristic: no bound
NOT_PROVEN = Outcome("not proven", "○", "#56B4E9", "/", "circle-open", "#2B5C7A")
# by time, a gap or the reader
STOPPED = Outcome("stopped early", "◔", "#E69F00", ".", "diamond-open", "#7A5200")
DOES_NOT_FIT = Outcome("does not fit", "✗", WRONG, "x", "x", "#8A3A00")
# too large, or not applicable
REFUSED = Outcome("refused", "⊘", "#999999", "-", "square-open", "#555555")
OUTCOMES = (PROVEN, NOT_PROVEN, STOPPED, DOES_NOT_FIT, REFUSED)
# a sweep's points may have failed
_BY_STATUS = {"optimal": PROVEN, "infeasible": DOES_NOT_FIT, "failed": REFUSED}
_BY_WORD = {outcome.word: outcome for outcome in OUTCOMES}


def proven_among(result: "Result | SteadyResult") -> str:
    """The placements that a proof speaks of where these are not all, such as "one GPU per stage"; else empty.

    Examples
    --------
    >>> import pipelab as pl
    >>> proven_among(pl.solve(pl.load_case("tiny", max_gpus_per_stage=2), "single_gpu"))
    'one GPU per stage'
    """
    return getattr(result, "details", {}).get("proven_among", "")


def outcome_of(result: "Result | SteadyResult") -> Outcome:
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
    '◔ stopped early'
    """
    details: Mapping[str, Any] = getattr(result, "details", {})
    if proven_among(result):
        return PROVEN
    if details.get("not_applicable"):
        return REFUSED
    if details.get("misfit"):  # the one placement that a rule makes; others may fit
        return DOES_NOT_FIT
    return outcome_of_status(result.status, stopped=bool(result.stopped_by))


def outcome_of_status(status: str, *, stopped: bool) -> Outcome:
    """How a solve with this status ended: only "infeasible" says that nothing fits.

    Examples
    --------
    >>> [str(outcome_of_status("unknown", stopped=stopped)) for stopped in (True, False)]
    ['◔ stopped early', '○ not proven']
    """
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return STOPPED if stopped else NOT_PROVEN


def ended(result: "Result | SteadyResult", *, html: bool = False) -> str:
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
    '◔ stopped early'
    """
    return _BY_WORD[row["outcome"]]


def ended_row(row: Mapping[str, Any], *, html: bool = False) -> str:
    """The same as `ended` for a point of a sweep.

    Examples
    --------
    >>> ended_row({"outcome": "proven", "proven_among": "one GPU per stage"})
    '✓ proven for one GPU per stage'
    """
    return _ended(outcome_of_row(row), row.get("proven_among", ""), html)


def _ended(outcome: Outcome, among: str, html: bool) -> str:
    return (outcome.html if html else str(outcome)) + (
        f" for {escape(among) if html else among}" if among else ""
    )
