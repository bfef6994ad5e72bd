"""Placements of one problem as bars against the proven optimum, marked by outcome. Always the same traces."""

from collections.abc import Sequence
from typing import NamedTuple

from pipelab.display import NOT_PROVEN, OUTCOMES, REFUSED, Outcome, named
from pipelab.figures.theme import BOTTLENECK, GRID, ink_on, plain, room_for


class Row(NamedTuple):
    """One placement, or why there is none."""

    name: str
    throughput: float | None  # tokens/s
    outcome: Outcome | None  # None while it is being solved
    note: str = ""  # without a rate: why; else what hovering shows


def baseline_parts(rows: Sequence[Row], optimum: float | None) -> dict:
    """Throughput of every row as a bar, or why there is none.

    Parameters
    ----------
    rows : sequence of Row
        From top to bottom. A row without a rate shows its note instead of a bar.
    optimum : float or None
        Where the line of the proven optimum is drawn.

    Returns
    -------
    dict
        "data": seven traces (bars of every outcome, notes, the optimum's line); and "layout".

    Examples
    --------
    >>> from pipelab.display import DOES_NOT_FIT, PROVEN
    >>> rows = [Row("optimum", 100.0, PROVEN), Row("even", 60.0, NOT_PROVEN), Row("x", None, DOES_NOT_FIT, "too heavy")]
    >>> parts = baseline_parts(rows, 100.0)
    >>> [len(trace["y"]) for trace in parts["data"]], parts["layout"]["title"]["text"]
    ([1, 1, 0, 0, 0, 1, 2], 'even is closest without a proof: 40% below the optimum (dotted)')
    """
    bars = [_bars(rows, optimum, outcome) for outcome in OUTCOMES]
    none = [(y, row) for y, row in enumerate(rows) if row.throughput is None]
    notes = {
        "type": "scatter", "name": "no placement", "mode": "text", "x": [0] * len(none), "y": [y for y, _ in none],
        "text": [plain(_short(row)) for _, row in none], "textposition": "middle right",
        "textfont": {"color": [(row.outcome or REFUSED).ink for _, row in none] or REFUSED.ink}, "showlegend": False,
        "hovertext": [plain(row.note) for _, row in none], "hoverinfo": "text", "cliponaxis": False,
    }  # fmt: skip
    line = {
        "type": "scatter", "name": "proven optimum", "mode": "lines", "x": [optimum, optimum],
        "y": [-0.5, len(rows) - 0.5], "hoverinfo": "skip", "line": {"color": BOTTLENECK, "width": 2, "dash": "dot"},
        "showlegend": False,
    }  # fmt: skip
    return {"data": [*bars, notes, line], "layout": _layout(rows, optimum)}


def _bars(rows: Sequence[Row], optimum: float | None, outcome: Outcome) -> dict:
    mine = [
        (y, row.throughput, row)
        for y, row in enumerate(rows)
        if row.throughput and row.outcome is outcome
    ]
    share = [f" ({rate / optimum:.0%})" if optimum else "" for _, rate, _ in mine]
    return {
        "type": "bar", "name": str(outcome), "orientation": "h", "width": 0.8, "showlegend": bool(mine),
        "y": [y for y, _, _ in mine], "x": [rate for _, rate, _ in mine],
        "text": [f"{outcome.symbol} {rate:,.5g}{s}" for (_, rate, _), s in zip(mine, share, strict=True)],
        "textposition": "auto", "insidetextanchor": "end", "hoverinfo": "x+text",
        "hovertext": [plain("; ".join(filter(None, [outcome.word, row.note]))) for *_, row in mine],
        "insidetextfont": {"color": ink_on(outcome.fill)}, "outsidetextfont": {"color": "#222222"},
        "marker": outcome.bar,
    }  # fmt: skip


def _short(row: Row, most: int = 90) -> str:
    """Symbol, word and the first reason."""
    text = ": ".join(filter(None, [str(row.outcome or ""), row.note.split(";")[0]]))
    return text if len(text) <= most else text[: most - 1] + "…"


def _layout(rows: Sequence[Row], optimum: float | None) -> dict:
    rates = [row.throughput for row in rows if row.throughput is not None]
    names = [plain(row.name) for row in rows]
    return {
        "title": {"text": _title(rows, optimum)}, "height": 130 + 26 * max(6, len(rows)), "barmode": "overlay",
        "bargap": 0.2, "showlegend": True,
        "margin": {"t": 68, "b": 48, "l": room_for(names, 13)},
        "xaxis": {
            "title": {"text": "tokens/s"}, "range": [0, 1.04 * max([*rates, optimum or 0.0], default=0.0) or 1.0],
            "tickformat": ",", "gridcolor": GRID, "ticklabeloverflow": "allow",
        },
        "yaxis": {
            "tickvals": list(range(len(rows))), "ticktext": names, "showgrid": False,
            "range": [max(6, len(rows)) - 0.5, -0.5], "ticklabelstandoff": 8, "zeroline": False,
            "ticklabeloverflow": "allow",
        },
    }  # fmt: skip


def _title(rows: Sequence[Row], optimum: float | None) -> str:
    if not optimum:
        return "No proven optimum to compare with"
    others = [
        (row.throughput, row.name)
        for row in rows
        if row.throughput is not None and row.outcome is NOT_PROVEN
    ]
    if not others:
        return "No rule of thumb finds a placement that fits"
    rate = max(rate for rate, _ in others)
    best = [plain(name) for other, name in others if other >= rate * (1 - 1e-9)]
    if rate >= optimum * (1 - 1e-9):
        return f"{named(best, 'reaches', 'reach')} the optimum, without a proof"
    lost = f"{1 - rate / optimum:.0%}" if 1 - rate / optimum >= 0.005 else "less than 1%"
    nearest = named(best, "is closest", "are closest")
    return f"{nearest} without a proof: {lost} below the optimum (dotted)"
