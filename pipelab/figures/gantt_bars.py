"""The traces of a Gantt chart: bars per kind of action, gaps, messages, one microbatch, the critical path, memory."""

from typing import TYPE_CHECKING, Any

import numpy as np

from pipelab.display import KIND_COLOURS
from pipelab.engine.schedules.columns import B, F, I, W
from pipelab.figures.theme import BOTTLENECK, WRONG, ink_on

if TYPE_CHECKING:
    from pipelab.engine.schedules.columns import Columns
    from pipelab.engine.timeline.timeline import Timeline

# One trace per entry: legend, kinds, colour, hatch. Hatches keep them apart in grey print.
_TRACES = (
    ("forward", (F,), KIND_COLOURS["F"], ""),
    ("backward", (B,), KIND_COLOURS["B"], ""),
    ("input gradient", (I,), KIND_COLOURS["I"], ""),
    ("weight gradient", (W,), KIND_COLOURS["W"], "/"),
)


def visible(timeline: "Timeline", window: tuple[float, float] | None) -> np.ndarray:
    """Entries that take time and touch the window."""
    low, high = window or (-np.inf, np.inf)
    return np.flatnonzero(
        (timeline.end > timeline.start) & (timeline.end > low) & (timeline.start < high)
    )


def action_traces(
    timeline: "Timeline", chosen: np.ndarray, labels: bool, follow: int | None
) -> list[dict]:
    """One bar trace per kind of action that occurs."""
    columns, unit = timeline.columns, timeline.costs.unit
    lane, height = _lanes(columns)
    traces = []
    for name, kinds, colour, hatch in _TRACES:
        mine = chosen[np.isin(columns.kind[chosen], kinds)]
        if not len(mine):
            continue
        batch, stage = columns.microbatch[mine], columns.stage[mine]
        marker = {"color": _shades(colour, columns.chunk[stage], columns.chunks)}
        if hatch and labels:  # of many bars it could not be seen, and doubles the browser's time
            marker["pattern"] = {"shape": hatch, "fgcolor": "white", "size": 5, "solidity": 0.25}
        if follow is not None:
            marker["opacity"] = np.where(batch == follow, 1.0, 0.25)
        marker["line"] = {"color": "white", "width": 1 if len(chosen) <= 500 else 0}
        traces.append({
            "type": "bar", "name": name, "legendgroup": name, "orientation": "h", "y": lane[mine],
            "width": height[mine], "base": timeline.start[mine], "x": timeline.end[mine] - timeline.start[mine],
            "marker": marker, "text": batch.astype(str) if labels else None,
            "textposition": "inside" if labels else "none", "textangle": 0, "insidetextanchor": "middle",
            "textfont": {"color": ink_on(colour), "size": 11}, "constraintext": "both",
            "customdata": np.stack([stage, batch, columns.rank[mine]], axis=1), "hovertext": _waits(timeline, mine),
            "hovertemplate": (
                f"<b>{name}</b>, stage %{{customdata[0]}}, microbatch %{{customdata[1]}}, rank %{{customdata[2]}}"
                f"<br>%{{base:.6g}} to %{{value:.6g}} {unit}<br>%{{hovertext}}<extra></extra>"
            ),
        })  # fmt: skip
    return traces


def _lanes(columns: "Columns") -> tuple[np.ndarray, np.ndarray]:
    """The position and height of each bar: the parts of a pair share their lane, forward above backward."""
    paired, second = columns.paired, columns.second
    lane = columns.rank + np.where(paired, -0.2, 0.0) + np.where(second, 0.2, 0.0)
    return lane, np.where(paired | second, 0.4, 0.8)


def _shades(colour: str, chunk: np.ndarray, chunks: int) -> Any:
    """One colour, or with several chunks a lighter shade for every later chunk."""
    if chunks == 1:
        return colour
    base = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    tints = [base + (255 - base) * 0.6 * c / (chunks - 1) for c in range(chunks)]
    names = np.array(["#" + "".join(f"{round(v):02X}" for v in tint) for tint in tints])
    return names[chunk]


def _waits(timeline: "Timeline", entries: np.ndarray) -> list[str]:
    """For each entry what it waited for last, in words."""
    ranks, own = timeline.columns.rank, timeline.columns.rank[entries]
    far = np.where(
        ranks[timeline.waited_for[entries]] == own, -1, ranks[timeline.waited_for[entries]]
    )
    return [
        "waited for nothing"
        if not name
        else f"its rank was busy with {name}"
        if rank < 0
        else f"waited for {name} on rank {rank}"
        for name, rank in zip(timeline.names_waited_for(entries), far.tolist(), strict=True)
    ]


def gap_trace(timeline: "Timeline", window: tuple[float, float] | None) -> dict:
    """Idle time as pale bars: before an action they say what it waits for, behind the last that nothing is left."""
    low, high = window or (-np.inf, np.inf)
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
    return {
        "type": "bar", "name": "idle", "orientation": "h", "y": lane[shown], "width": 0.8,
        "base": begin[shown],
        "x": stop[shown] - begin[shown], "marker": {"color": "#F2F2F2", "line": {"width": 0}}, "textposition": "none",
        "text": _waits(timeline, inner) + ["nothing left to do"] * done,
        "hovertext": [f"rank {r} idle {name}" for r, name in zip(lane[shown].tolist(), names, strict=True)],
        "hovertemplate": (
            f"<b>%{{hovertext}}</b><br>%{{base:.6g}} to %{{value:.6g}} {timeline.costs.unit}<br>%{{text}}"
            "<extra></extra>"
        ),
    }  # fmt: skip


def message_trace(timeline: "Timeline", window: tuple[float, float] | None) -> dict:
    """A line for every message, from rank to rank and from when it leaves to when it is used."""
    low, high = window or (-np.inf, np.inf)
    rank, sent = timeline.columns.rank, timeline.messages
    seen = (sent.arrives >= low) & (sent.leaves <= high)
    return {
        "type": "scatter", "name": "message", "mode": "lines", "hoverinfo": "skip",
        "line": {"color": "#555555", "width": 1}, "x": _broken(sent.leaves[seen], sent.arrives[seen]),
        "y": _broken(rank[sent.maker[seen]], rank[sent.taker[seen]]),
    }  # fmt: skip


def _broken(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Coordinates of many short lines in one trace, a gap after each."""
    return np.stack([first, second, np.full(len(first), np.nan)], axis=1).ravel()


def critical_path_trace(timeline: "Timeline") -> dict:
    """The chain that decides the makespan: a black line along the lower edge of its bars."""
    path = timeline.critical_entries
    lane = timeline.columns.rank[path] + 0.44
    return {
        "type": "scatter", "name": "critical path", "mode": "lines", "line": {"color": BOTTLENECK, "width": 4},
        "hoverinfo": "skip",
        "x": np.stack([timeline.start[path], timeline.end[path]], axis=1).ravel(), "y": np.repeat(lane, 2),
    }  # fmt: skip


def microbatch_trace(timeline: "Timeline", microbatch: int) -> dict:
    """One microbatch's path down the ranks and back."""
    columns = timeline.columns
    mine = np.flatnonzero((columns.microbatch == microbatch) & np.isin(columns.kind, (F, I, B)))
    mine = mine[np.argsort(timeline.start[mine], kind="stable")]
    text = [
        f"{columns.action(int(i))}: {timeline.start[i]:.6g} to {timeline.end[i]:.6g}" for i in mine
    ]
    return {
        "type": "scatter", "name": f"microbatch {microbatch}", "mode": "lines+markers",
        "line": {"color": WRONG, "width": 2}, "marker": {"size": 6},
        "x": (timeline.start[mine] + timeline.end[mine]) / 2, "y": columns.rank[mine],
        "hovertext": text, "hoverinfo": "text",
    }  # fmt: skip


def memory_traces(timeline: "Timeline") -> list[dict]:
    """Activation memory over time: every rank of a few, otherwise those with the highest and the lowest peak."""
    ranks, peaks = range(timeline.schedule.ranks), timeline.peak_memory
    shown = ranks if len(ranks) <= 8 else sorted({int(np.argmax(peaks)), int(np.argmin(peaks))})
    dashes = ("solid", "dash", "dot", "dashdot")
    traces = []
    for rank in shown:
        steps = timeline.memory(rank)
        shade = 0 if len(ranks) == 1 else int(150 * rank / (len(ranks) - 1))
        traces.append({
            "type": "scatter", "name": f"memory of rank {rank}", "x": np.append(steps.time, timeline.makespan),
            "y": np.append(steps.amount, steps.amount[-1]), "line": {
                "shape": "hv", "width": 2, "dash": dashes[rank % 4], "color": f"rgb({shade},{shade},{shade})",
            },
            "hovertemplate": f"rank {rank} holds %{{y:.6g}} from %{{x:.6g}}<extra></extra>", "mode": "lines",
            "showlegend": len(shown) <= 4, "yaxis": "y2",
        })  # fmt: skip
    return traces
