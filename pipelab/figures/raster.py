"""Many thousand actions as a picture of fixed size: for every rank and moment what it does most."""

from typing import TYPE_CHECKING

import numpy as np

from pipelab.display import KIND_COLOURS
from pipelab.engine.schedules.columns import IDLE, B, F, I, W

if TYPE_CHECKING:
    from pipelab.engine.timeline.timeline import Timeline

COLUMNS = 1800  # about as many as a wide figure has pixels
_SHOWN = (
    ("idle", (IDLE,), "#F2F2F2"),
    ("forward", (F,), KIND_COLOURS["F"]),
    ("backward", (B,), KIND_COLOURS["B"]),
    ("input gradient", (I,), KIND_COLOURS["I"]),
    ("weight gradient", (W,), KIND_COLOURS["W"]),
)


def busiest_kind(
    timeline: "Timeline", low: float, high: float, columns: int = COLUMNS
) -> np.ndarray:
    """For every rank and column of time, what takes most of it.

    Returns
    -------
    int array, shape (ranks, columns)
        0 idle, 1 forward, 2 full backward, 3 input gradient, 4 weight gradient.
    """
    ranks, edges = timeline.schedule.ranks, np.linspace(low, high, columns + 1)
    place = np.zeros(IDLE + 1, dtype=np.int64)
    for row, (_, kinds, _) in enumerate(_SHOWN):
        place[list(kinds)] = row
    row_of = place[timeline.columns.kind[timeline.node_entry]]
    result = np.zeros((ranks, columns), dtype=np.int8)
    present = np.unique(row_of[timeline.node_end > timeline.node_start])
    for rank in range(ranks):
        mine = slice(timeline.graph.first[rank], timeline.graph.first[rank + 1])
        start, end, kind = timeline.node_start[mine], timeline.node_end[mine], row_of[mine]
        took, most = np.zeros((len(_SHOWN), columns)), np.full(columns, edges[1] - edges[0])
        for row in present[present > 0]:
            s, e = start[kind == row], end[kind == row]
            # Time spent on this kind until t is a broken line through the starts and ends.
            knots, spent = np.stack([s, e], axis=1).ravel(), np.repeat(np.cumsum(e - s), 2)
            spent[::2] -= e - s
            took[row] = np.diff(np.interp(edges, knots, spent)) if len(s) else 0.0
        took[0] = most - took.sum(axis=0)
        result[rank] = took.argmax(axis=0)
    return result


def lane_lines(ranks: int) -> dict:
    """Return white lines between the lanes as one shape: gaps in the raster would cost more."""
    path = "".join(f"M0,{rank + 0.5}L1,{rank + 0.5}" for rank in range(ranks - 1)) or "M0,0"
    line = {"color": "white", "width": 1}
    return {"type": "path", "path": path, "xref": "paper", "yref": "y", "line": line}


def raster_trace(
    timeline: "Timeline", window: tuple[float, float] | None, columns: int = COLUMNS
) -> dict:
    """Return a heatmap of `busiest_kind` with one colour per kind."""
    low, high = window or (0.0, timeline.makespan)
    n = len(_SHOWN)
    step = (high - low) / columns
    return {
        "type": "heatmap",
        "z": busiest_kind(timeline, low, high, columns),
        "x0": low + step / 2,
        "dx": step,
        "y0": 0,
        "dy": 1,
        "zmin": -0.5,
        "zmax": n - 0.5,
        # In steps: a colour from i/n to (i+1)/n.
        "colorscale": [
            [(i + end) / n, colour] for i, (_, _, colour) in enumerate(_SHOWN) for end in (0, 1)
        ],
        "hoverongaps": False,
        "colorbar": {
            "tickvals": list(range(n)),
            "ticktext": [name for name, _, _ in _SHOWN],
            "thickness": 12,
            "title": {"text": "most of<br>the time"},
        },
        "hovertemplate": f"rank %{{y}}, about %{{x:.6g}} {timeline.costs.unit}<extra></extra>",
    }
