"""Ways to place one problem as bars against the proven optimum, for the mix explorer. Always the same traces."""

from collections.abc import Sequence
from typing import Any

from pipelab.plots.comparing import named
from pipelab.theme import BOTTLENECK, GRID, ink_on, room_for

__all__ = ["rival_parts"]

_LOOKS = (("proven optimal", True, "#0072B2", ""), ("not proven", False, "#56B4E9", "/"))


def rival_parts(rows: Sequence[tuple[str, float | None, bool, str]], optimum: float | None) -> dict:
    """Throughput of every row as a bar, or why there is none.

    Parameters
    ----------
    rows : sequence of (name, tokens/s or None, proven, note)
        From top to bottom. Without a rate the note stands in the bar's place.
    optimum : float or None
        Where the line of the proven optimum is drawn.

    Returns
    -------
    dict
        "data": four traces (proven bars, others hatched, notes, the optimum's line); and "layout".

    Examples
    --------
    >>> parts = rival_parts([("optimum", 100.0, True, ""), ("even", 60.0, False, ""), ("x", None, False, "no")], 100.0)
    >>> [len(trace["y"]) for trace in parts["data"]], parts["layout"]["title"]["text"]
    ([1, 1, 1, 2], 'Of the hatched, even comes nearest and loses 40% against the optimum (dotted)')
    """
    bars = [_bars(rows, optimum, *look) for look in _LOOKS]
    none = [(y, note) for y, (_, rate, _, note) in enumerate(rows) if rate is None]
    notes = {
        "type": "scatter", "name": "no placement", "mode": "text", "x": [0] * len(none), "y": [y for y, _ in none],
        "text": [_short(note) for _, note in none], "textposition": "middle right", "textfont": {"color": "#8A3A00"},
        "hovertext": [note for _, note in none], "hoverinfo": "text", "cliponaxis": False,
    }  # fmt: skip
    line = {
        "type": "scatter", "name": "proven optimum", "mode": "lines", "x": [optimum, optimum],
        "y": [-0.5, len(rows) - 0.5], "hoverinfo": "skip", "line": {"color": BOTTLENECK, "width": 2, "dash": "dot"},
    }  # fmt: skip
    return {"data": [*bars, notes, line], "layout": _layout(rows, optimum)}


def _bars(rows: Any, optimum: float | None, name: str, proven: bool, colour: str, shape: str) -> dict:
    mine = [(y, rate) for y, (_, rate, sure, _) in enumerate(rows) if rate is not None and sure == proven]
    share = [f" ({rate / optimum:.0%})" if optimum else "" for _, rate in mine]
    return {
        "type": "bar", "name": name, "orientation": "h", "width": 0.8,
        "y": [y for y, _ in mine], "x": [rate for _, rate in mine],
        "text": [f"{rate:.5g}{s}" for (_, rate), s in zip(mine, share, strict=True)], "textposition": "auto",
        "insidetextanchor": "end", "hoverinfo": "x+name", "insidetextfont": {"color": ink_on(colour)},
        "outsidetextfont": {"color": "#222222"},
        "marker": {"color": colour, "pattern": {"shape": shape, "fgcolor": "#FFFFFF", "size": 6, "solidity": 0.2}},
    }  # fmt: skip


def _short(note: str, most: int = 90) -> str:
    first = note.split(";")[0]
    return first if len(first) <= most else first[: most - 1] + "…"


def _layout(rows: Any, optimum: float | None) -> dict:
    rates = [rate for _, rate, _, _ in rows if rate is not None]
    return {
        "title": {"text": _title(rows, optimum)}, "height": 118 + 26 * max(6, len(rows)), "barmode": "overlay",
        "bargap": 0.2, "showlegend": False,
        "margin": {"t": 56, "b": 48, "l": room_for([name for name, *_ in rows], 13)},
        "xaxis": {
            "title": {"text": "tokens/s"}, "range": [0, 1.04 * max([*rates, optimum or 0.0], default=0.0) or 1.0],
            "gridcolor": GRID, "ticklabeloverflow": "allow",
        },
        "yaxis": {
            "tickvals": list(range(len(rows))), "ticktext": [name for name, *_ in rows], "showgrid": False,
            "range": [max(6, len(rows)) - 0.5, -0.5], "ticklabelstandoff": 8, "zeroline": False,
            "ticklabeloverflow": "allow",
        },
    }  # fmt: skip


def _title(rows: Any, optimum: float | None) -> str:
    if not optimum:
        return "No proven optimum to compare with"
    others = [(rate, name) for name, rate, proven, _ in rows if rate is not None and not proven]
    if not others:
        return "No rule of thumb finds a placement that fits"
    rate = max(rate for rate, _ in others)
    best = [name for other, name in others if other >= rate * (1 - 1e-9)]
    every = len(best) == len(others) > 1
    if rate >= optimum * (1 - 1e-9):
        return f"{'All hatched bars reach' if every else named(best, 'reaches', 'reach')} the optimum, too"
    nearest = f"Of the hatched, {named(best, 'comes nearest and loses', 'come nearest and lose')}"
    lost = f"{1 - rate / optimum:.0%}" if 1 - rate / optimum >= 0.005 else "less than 1%"
    return f"{'All hatched bars lose' if every else nearest} {lost} against the optimum (dotted)"
