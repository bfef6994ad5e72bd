"""The traces of a Gantt chart: actions, gaps, messages, the critical path, memory, a raster."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipelab.display import KIND_COLOURS
from pipelab.engine.schedules.columns import IDLE, B, F, I, W
from pipelab.engine.timeline.timeline import Timeline
from pipelab.figures.theme import BOTTLENECK, bar, ink_on, line, room_for

# One trace per entry: legend, kinds, colour, hatch. Hatches keep them apart in grey print.
_TRACES = (
    ("forward", (F,), KIND_COLOURS["F"], ""),
    ("backward", (B,), KIND_COLOURS["B"], ""),
    ("input gradient", (I,), KIND_COLOURS["I"], ""),
    ("weight gradient", (W,), KIND_COLOURS["W"], "/"),
)
_HATCH = {"fgcolor": "#66C4AB", "size": 5, "solidity": 0.25}  # pale enough for a number on it
_PALE = "#F2F2F2"
_IDLE = {"color": _PALE, "line": {"width": 0}}
# Of a page for a chart and the names of its lanes; numbers stay on one a little narrower.
_PAGE_PIXELS = 960
_EVER = (-np.inf, np.inf)
Window = tuple[float, float]


def idle(lane: Any, start: Any, end: Any, **more: Any) -> dict:
    """Return pale bars where nothing is done."""
    return bar("idle", lane, start, end, marker=_IDLE, **more)


def width_beside(names: Sequence[str]) -> int:
    """Return the pixels that a page leaves for the time axis beside these names of lanes."""
    return _PAGE_PIXELS - room_for(names, 13)


def numbered(colour: str, batch: np.ndarray, lane: np.ndarray, pixels: np.ndarray) -> dict:
    """Return the numbers of microbatches in bars, lane by lane where all of a lane's fit.

    Parameters
    ----------
    colour : str
        Of the bars.
    batch, lane, pixels : array
        Of every bar: what to write, in which lane, and how wide it is on a page.
    """
    narrowest = np.full(int(lane.max()) + 1, np.inf)
    np.minimum.at(narrowest, lane, pixels)
    wide = narrowest[lane] >= 8 + 5.5 * len(str(batch.max()))
    return {
        "text": np.where(wide, batch.astype(str), ""),
        "textposition": "inside",
        "textangle": 0,
        "insidetextanchor": "middle",
        "textfont": {"color": ink_on(colour), "size": 11},
        "constraintext": "both",
    }


def visible(timeline: Timeline, window: Window | None) -> np.ndarray:
    """Return the entries that take time and touch the window."""
    low, high = window or _EVER
    long = timeline.end > timeline.start
    return np.flatnonzero(long & (timeline.end > low) & (timeline.start < high))


def action_traces(timeline: Timeline, chosen: np.ndarray, scale: float, labels: bool) -> list[dict]:
    """Return one bar trace per kind of action that occurs; `scale` is in pixels per unit of time."""
    columns, unit = timeline.columns, timeline.costs.unit
    # the parts of a pair share their lane, forward above backward
    lane = columns.rank + np.where(columns.paired, -0.2, 0.0) + np.where(columns.second, 0.2, 0.0)
    height = np.where(columns.paired | columns.second, 0.4, 0.8)
    traces = []
    for name, kinds, colour, hatch in _TRACES:
        mine = chosen[np.isin(columns.kind[chosen], kinds)]
        if not len(mine):
            continue
        batch, stage, rank = columns.microbatch[mine], columns.stage[mine], columns.rank[mine]
        start, end = timeline.start[mine], timeline.end[mine]
        marker: dict[str, Any] = {"color": _shades(colour, columns.chunk[stage], columns.chunks)}
        if hatch and labels:  # of many bars it could not be seen, and doubles the browser's time
            marker["pattern"] = {"shape": hatch, **_HATCH}
        marker["line"] = {"color": "white", "width": 1 if len(chosen) <= 500 else 0}
        numbers = numbered(colour, batch, rank, scale * (end - start)) if labels else {}
        hover = (
            f"<b>{name}</b>, stage %{{customdata[0]}}, microbatch %{{customdata[1]}}, "
            f"rank %{{customdata[2]}}<br>%{{base:.6g}} to %{{value:.6g}} {unit}"
            "<br>%{hovertext}<extra></extra>"
        )
        traces.append(
            bar(
                name,
                lane[mine],
                start,
                end,
                width=height[mine],
                legendgroup=name,
                marker=marker,
                customdata=np.stack([stage, batch, rank], axis=1),
                hovertext=_waits(timeline, mine),
                hovertemplate=hover,
                **(numbers or {"textposition": "none"}),
            )
        )
    return traces


def _shades(colour: str, chunk: np.ndarray, chunks: int) -> Any:
    """Return one colour, or with several chunks a lighter shade for every later chunk."""
    if chunks == 1:
        return colour
    base = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    tints = [base + (255 - base) * 0.6 * c / (chunks - 1) for c in range(chunks)]
    names = np.array(["#" + "".join(f"{round(v):02X}" for v in tint) for tint in tints])
    return names[chunk]


def _waits(timeline: Timeline, entries: np.ndarray) -> list[str]:
    """Say of each entry what it waited for last."""
    ranks = timeline.columns.rank
    before = ranks[timeline.waited_for[entries]]
    far = np.where(before == ranks[entries], -1, before)
    return [
        "waited for nothing"
        if not name
        else f"its rank was busy with {name}"
        if rank < 0
        else f"waited for {name} on rank {rank}"
        for name, rank in zip(timeline.names_waited_for(entries), far.tolist(), strict=True)
    ]


def gap_trace(timeline: Timeline, window: Window | None) -> dict:
    """Return idle time: before an action it says what it waits for, after the last that all is done."""
    low, high = window or _EVER
    ranks, end = timeline.schedule.ranks, timeline.makespan
    before = timeline.arrivals[0]
    last = np.zeros(ranks)
    np.maximum.at(last, timeline.node_rank, timeline.node_end)
    begin, stop = np.append(before, last), np.append(timeline.node_start, np.full(ranks, end))
    lane = np.append(timeline.node_rank, np.arange(ranks))
    shown = np.flatnonzero((stop - begin > 1e-9 * end) & (stop > low) & (begin < high))
    inner = timeline.node_entry[shown[shown < len(before)]]
    done = len(shown) - len(inner)
    names = [f"before {timeline.columns.whole(i)}" for i in inner.tolist()] + ["at the end"] * done
    return idle(
        lane[shown],
        begin[shown],
        stop[shown],
        width=0.8,
        text=_waits(timeline, inner) + ["nothing left to do"] * done,
        textposition="none",
        hovertext=[
            f"rank {r} idle {name}" for r, name in zip(lane[shown].tolist(), names, strict=True)
        ],
        hovertemplate=f"<b>%{{hovertext}}</b><br>%{{base:.6g}} to %{{value:.6g}} "
        f"{timeline.costs.unit}<br>%{{text}}<extra></extra>",
    )


def message_trace(timeline: Timeline, window: Window | None) -> dict:
    """Return a line for every message, from rank to rank, from when it leaves to when it is used."""
    low, high = window or _EVER
    rank, sent = timeline.columns.rank, timeline.messages
    seen = (sent.arrives >= low) & (sent.leaves <= high)
    times = sent.leaves[seen], sent.arrives[seen]
    lanes = rank[sent.maker[seen]], rank[sent.taker[seen]]
    return line("message", broken(times), broken(lanes), "#555555", 1)


def broken(points: Sequence[np.ndarray]) -> np.ndarray:
    """Return the coordinates of many short lines in one trace, a gap after each."""
    return np.stack([*points, np.full(len(points[0]), np.nan)], axis=1).ravel()


def critical_path_trace(timeline: Timeline) -> dict:
    """Return the chain that decides the makespan: a black line along the lower edge of its bars."""
    path = timeline.critical_entries
    times = np.stack([timeline.start[path], timeline.end[path]], axis=1).ravel()
    lanes = np.repeat(timeline.columns.rank[path] + 0.44, 2)
    return line("critical path", times, lanes, BOTTLENECK, 4)


def memory_traces(timeline: Timeline) -> list[dict]:
    """Return activation memory over time: of a few ranks each, else the highest and lowest peak."""
    ranks, peaks = timeline.schedule.ranks, timeline.peak_memory
    ends = sorted({int(np.argmax(peaks)), int(np.argmin(peaks))})
    shown = list(range(ranks)) if ranks <= 8 else ends
    dashes = ("solid", "dash", "dot", "dashdot")
    traces = []
    for rank in shown:
        steps = timeline.memory(rank)
        shade = int(150 * rank / max(ranks - 1, 1))
        traces.append(
            line(
                f"memory of rank {rank}",
                np.append(steps.time, timeline.makespan),
                np.append(steps.amount, steps.amount[-1]),
                f"rgb({shade},{shade},{shade})",
                look={"shape": "hv", "dash": dashes[rank % 4]},
                yaxis="y2",
                legend="legend2",
                showlegend=len(shown) <= 4,
                hovertemplate=f"rank {rank} holds %{{y:.6g}} from %{{x:.6g}}<extra></extra>",
            )
        )
    return traces


# Of many thousand actions, a raster: for every rank and moment what it does most.
COLUMNS = 1800  # about as many as a wide figure has pixels
_SHOWN = (("idle", (IDLE,), _PALE), *(entry[:3] for entry in _TRACES))


def busiest_kind(timeline: Timeline, low: float, high: float, columns: int = COLUMNS) -> np.ndarray:
    """Return what takes most of every column of time, for every rank.

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


def raster_trace(timeline: Timeline, window: Window | None, columns: int = COLUMNS) -> dict:
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
