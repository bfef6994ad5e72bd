"""Placements of one problem as bars against the proven optimum, marked by outcome."""

from collections.abc import Sequence
from typing import NamedTuple

from pipelab.display import NOT_PROVEN, OUTCOMES, REFUSED, Outcome, named, outcome_of, rate
from pipelab.engine.answers import Result
from pipelab.figures.theme import BOTTLENECK, finish, folded, ink_on, line, plain, points, rows

_LEAST_ROWS = 6  # rows that a chart on a page has room for, so that it keeps its height


class MethodRow(NamedTuple):
    """One placement, or why there is none."""

    name: str
    throughput: float | None  # tokens/s
    outcome: Outcome | None  # None while it is being solved
    note: str = ""  # without a rate: why; else what hovering shows


def row_of(name: str, result: Result) -> MethodRow:
    """Return a result as a row."""
    return MethodRow(name, result.throughput, outcome_of(result), result.reason)


def baseline_parts(rows_of: Sequence[MethodRow], optimum: float | None) -> dict:
    """Return the throughput of every row as a bar, or why there is none.

    Parameters
    ----------
    rows_of : sequence of MethodRow
        From top to bottom. A row without a rate shows its note instead of a bar.
    optimum : float or None
        Where the line of the proven optimum is drawn.

    Returns
    -------
    dict
        "data": seven traces (bars of every outcome, notes, the optimum's line); and "layout", whose title
        says which row is closest without a proof.

    Examples
    --------
    >>> from pipelab.display import DOES_NOT_FIT, PROVEN
    >>> heavy = MethodRow("x", None, DOES_NOT_FIT, "too heavy")
    >>> rows_of = [MethodRow("optimum", 100.0, PROVEN), MethodRow("even", 60.0, NOT_PROVEN), heavy]
    >>> parts = baseline_parts(rows_of, 100.0)
    >>> [len(trace["y"]) for trace in parts["data"]], parts["layout"]["title"]["text"]
    ([1, 1, 0, 0, 0, 1, 2], 'even is closest without a proof: 40% below the optimum (dotted)')
    """
    none = [(y, row) for y, row in enumerate(rows_of) if row.throughput is None]
    inks = [(row.outcome or REFUSED).ink for _, row in none] or REFUSED.ink
    notes = points(
        "no placement",
        [0] * len(none),
        [y for y, _ in none],
        "text",
        text=[_why(row) for _, row in none],
        textposition="middle right",
        textfont={"size": 11, "color": inks},
        showlegend=False,
        hovertext=[plain(row.note) for _, row in none],
        hoverinfo="text",
        cliponaxis=False,
    )
    x, y, dots = [optimum, optimum], [-0.5, len(rows_of) - 0.5], {"dash": "dot"}
    best = line("proven optimum", x, y, BOTTLENECK, look=dots, showlegend=False)
    most = max([optimum or 0.0, *(row.throughput or 0.0 for row in rows_of)])
    return finish(
        [*(_bars(rows_of, optimum, outcome) for outcome in OUTCOMES), notes, best],
        _closest(rows_of, optimum),
        # without a rate, an axis would count nothing
        x={"title": "tokens/s", "range": [0, 1.04 * most or 1.0], "visible": bool(most)},
        y=rows([plain(row.name) for row in rows_of])
        | {"range": [max(_LEAST_ROWS, len(rows_of)) - 0.5, -0.5]},
        height=130 + 26 * max(_LEAST_ROWS, len(rows_of)),
        barmode="overlay",
        bargap=0.2,
        showlegend=True,
    )


def _bars(rows_of: Sequence[MethodRow], optimum: float | None, outcome: Outcome) -> dict:
    mine = [
        (y, row.throughput, row)
        for y, row in enumerate(rows_of)
        if row.throughput and row.outcome is outcome
    ]
    share = [f" ({reached / optimum:.0%})" if optimum else "" for _, reached, _ in mine]
    return {
        "type": "bar",
        "name": str(outcome),
        "orientation": "h",
        "width": 0.8,
        "showlegend": bool(mine),
        "y": [y for y, *_ in mine],
        "x": [reached for _, reached, _ in mine],
        "text": [
            f"{outcome.symbol} {rate(reached).split()[0]}{part}"
            for (_, reached, _), part in zip(mine, share, strict=True)
        ],
        "textposition": "auto",
        "insidetextanchor": "end",
        "hoverinfo": "x+text",
        "hovertext": [plain("; ".join(filter(None, [outcome.word, r.note]))) for *_, r in mine],
        "insidetextfont": {"color": ink_on(outcome.fill)},
        "outsidetextfont": {"color": "#222222"},
        "marker": outcome.bar,
    }


def _why(row: MethodRow) -> str:
    """Return symbol, word and the first reason, in lines."""
    text = ": ".join(filter(None, [str(row.outcome or ""), row.note.split(";")[0]]))
    return "<br>".join(folded(plain(text), 105))


def _closest(rows_of: Sequence[MethodRow], optimum: float | None) -> str:
    if not any(row.throughput for row in rows_of):
        return "There is no placement to compare with"
    if not optimum:
        return "No proven optimum to compare with"
    others = [
        (row.throughput, row.name)
        for row in rows_of
        if row.throughput is not None and row.outcome is NOT_PROVEN
    ]
    if not others:
        return "No rule of thumb finds a placement that fits"
    most = max(others)[0]
    best = [plain(name) for other, name in others if other >= most * (1 - 1e-9)]
    if most >= optimum * (1 - 1e-9):
        return f"{named(best, 'reaches', 'reach')} the optimum, without a proof"
    lost = f"{1 - most / optimum:.0%}" if 1 - most / optimum >= 0.005 else "less than 1%"
    nearest = named(best, "is closest", "are closest")
    return f"{nearest} without a proof: {lost} below the optimum (dotted)"
