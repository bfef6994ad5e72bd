"""A placement's pipeline: lanes over time."""

from typing import TYPE_CHECKING

import numpy as np

from pipelab.display import KIND_COLOURS
from pipelab.errors import InvalidValue
from pipelab.figures.gantt_chart import MOST_BARS
from pipelab.figures.raster import lane_lines, raster_trace
from pipelab.figures.theme import (
    BOTTLENECK,
    GRID,
    WRONG,
    ink_on,
    plain,
    template,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from pipelab.engine.timeline.placed import PlacedTimeline

_IDLE = "#F2F2F2"
_MOST_LANES = 48  # with a label each


def placed_gantt(
    placed: "PlacedTimeline", *, follow: int | None = 0, links: bool = True
) -> "Figure":
    """When every stage and link of a placement works on which microbatch.

    Parameters
    ----------
    placed : PlacedTimeline
        Made by `timeline_of`.
    follow : int or None
        A microbatch whose path is drawn as a line; in decode round after round.
    links : bool
        Whether links have lanes of their own; without, the note says how busy the busiest is. A
        raster has them always.

    Returns
    -------
    plotly.graph_objects.Figure
        Lanes from first stage to last, the bottleneck framed; of long runs the first microbatches;
        of pipelines too long for bars a raster.

    Raises
    ------
    InvalidValue
        The microbatch is unknown.
    """
    import plotly.graph_objects as go

    most = min(placed.in_flight, placed.microbatches) if placed.returns else placed.microbatches
    if follow is not None and (not isinstance(follow, int | np.integer) or not 0 <= follow < most):
        raise InvalidValue(
            "placed_gantt",
            [("follow", follow, f"expected None or a microbatch from 0 to {most - 1}")],
        )
    links = links or _too_many(placed)
    figure = go.Figure(layout=_gantt_layout(placed, links))
    shown = _shown_passes(placed)
    if _too_many(placed):
        figure.add_trace(raster_trace(placed.timeline, None))
        figure.layout.shapes = [lane_lines(len(placed.lanes))]
    else:
        _add_idle(figure, placed, links)
        _add_lane_bars(figure, placed, links, False, "stage computes", KIND_COLOURS["F"], shown)
        if links:
            _add_lane_bars(
                figure, placed, links, True, "link sends", KIND_COLOURS["message"], shown
            )
        if follow is not None:
            _add_path(figure, placed, links, int(follow), shown)
        _add_frames(figure, placed, links, shown)
    figure.layout.title.text = _gantt_title(placed, links)
    return figure


def _drawn(placed: "PlacedTimeline", links: bool) -> np.ndarray:
    """Lanes that are drawn, from top to bottom: all, or the stages alone."""
    return np.flatnonzero([links or not lane.link for lane in placed.lanes])


def _row(placed: "PlacedTimeline", links: bool, lane: np.ndarray) -> np.ndarray:
    """The rows of these lanes."""
    return np.searchsorted(_drawn(placed, links), lane)


def _gantt_layout(placed: "PlacedTimeline", links: bool) -> dict:
    lanes = [placed.lanes[i] for i in _drawn(placed, links)]
    end = _last_end(placed)
    every = -(-len(lanes) // _MOST_LANES)
    # If there are many lanes, stages get labels and links do not.
    shown = range(0, len(lanes), 1 if every == 1 else every * (1 + links))
    texts = [plain(lanes[i].label) for i in shown]
    names = [
        f"<b>{text} ◀</b>" if lanes[i].bottleneck else text
        for i, text in zip(shown, texts, strict=True)
    ]
    return {
        "template": template(), "barmode": "overlay", "hovermode": "closest", "legend": {"traceorder": "normal"},
        "height": 150 + min(960, 26 * max(3, len(lanes))), "uniformtext": {"minsize": 8, "mode": "hide"},
        "xaxis": {"range": [0, end], "gridcolor": GRID, "zeroline": False, "title": {"text": "time (s)"}},
        "yaxis": {
            "range": [len(lanes) - 0.4, -0.6], "tickvals": list(shown), "ticktext": names, "showgrid": False,
            "zeroline": False, "automargin": True, "ticklabelstandoff": 8,
        },
    }  # fmt: skip


def _last_end(placed: "PlacedTimeline") -> float:
    """When the last pass that is drawn is over."""
    return float(placed.timeline.end.reshape(len(placed.lanes), -1)[-1, _shown_passes(placed) - 1])


def _shown_passes(placed: "PlacedTimeline") -> int:
    """How many passes are drawn: few enough to read and redraw, but three rounds if possible."""
    if _too_many(placed):
        return placed.microbatches
    return min(placed.microbatches, max(120, 3 * placed.in_flight), MOST_BARS // len(placed.lanes))


def _too_many(placed: "PlacedTimeline") -> bool:
    """Whether not even two rounds could be drawn bar by bar."""
    return len(placed.lanes) * min(placed.microbatches, 2 * placed.in_flight) > MOST_BARS


def _height(placed: "PlacedTimeline", lane: np.ndarray) -> np.ndarray:
    """Links are drawn thinner than stages."""
    return np.where(np.array([each.link for each in placed.lanes])[lane], 0.45, 0.8)


def _add_idle(figure: "Figure", placed: "PlacedTimeline", links: bool) -> None:
    """A pale ground in every lane: what shows of it is idle time."""
    import plotly.graph_objects as go

    lanes = _drawn(placed, links)
    figure.add_trace(
        go.Bar(
            name="idle", orientation="h", y=np.arange(len(lanes)), x=np.full(len(lanes), placed.timeline.makespan),
            base=0, width=_height(placed, lanes), marker={"color": _IDLE, "line": {"width": 0}}, hoverinfo="skip",
        )
    )  # fmt: skip


def _add_lane_bars(
    figure: "Figure",
    placed: "PlacedTimeline",
    links: bool,
    link: bool,
    name: str,
    colour: str,
    shown: int,
) -> None:
    import plotly.graph_objects as go

    timeline, columns = placed.timeline, placed.timeline.columns
    of_kind = np.array([lane.link for lane in placed.lanes]) == link
    mine = np.flatnonzero(of_kind[columns.rank] & (columns.microbatch < shown))
    if not len(mine):
        return
    passes, lane = columns.microbatch[mine], columns.rank[mine]
    batch, token = _microbatch(placed, passes)
    taken = timeline.end[mine] - timeline.start[mine]
    hover = [
        f"<b>{plain(placed.lanes[r].label)}</b><br>microbatch {b}" + (f", token {t + 1}" if placed.returns else "")
        + f"<br>{timeline.start[i]:.6g} to {timeline.end[i]:.6g} s<br>{why}"
        for i, r, b, t, why in zip(mine.tolist(), lane.tolist(), batch.tolist(), token.tolist(),
                                   _reasons(placed, mine), strict=True)
    ]  # fmt: skip
    figure.add_trace(
        go.Bar(
            name=name, orientation="h", y=_row(placed, links, lane), width=_height(placed, lane),
            base=timeline.start[mine], x=taken, text=_numbers(placed, batch, taken), textposition="inside",
            textangle=0, insidetextanchor="middle", textfont={"color": ink_on(colour), "size": 11},
            constraintext="both",
            # The outline of a link's own colour keeps one that takes next to no time in sight.
            marker={"color": colour, "line": {"color": colour if link else "white", "width": 1}},
            hovertext=hover, hoverinfo="text",
        )
    )  # fmt: skip


def _numbers(placed: "PlacedTimeline", batch: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Microbatches' numbers, in bars that are long enough for any of them: a lane with some would puzzle."""
    needed = 6 + 6 * len(str(batch.max()))  # pixels, of about 900 for all of the time
    return np.where(900 * taken / _last_end(placed) >= needed, batch.astype(str), "")


def _microbatch(placed: "PlacedTimeline", passes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The microbatch of each pass, and the index of the pass in it; in prefill every pass is a microbatch."""
    if placed.returns:
        return passes % placed.in_flight, passes // placed.in_flight
    return passes, np.zeros_like(passes)


def _reasons(placed: "PlacedTimeline", entries: np.ndarray) -> list[str]:
    """What each pass waited for last, in words."""
    timeline, columns = placed.timeline, placed.timeline.columns
    reasons = []
    for i, waited in zip(entries.tolist(), timeline.waited_for[entries].tolist(), strict=True):
        before = placed.lanes[int(columns.rank[waited])]
        own, lane = int(columns.rank[i]), before.name
        batch = int(_microbatch(placed, columns.microbatch[[waited]])[0][0])
        if waited < 0:
            reasons.append("waited for nothing")
        elif columns.rank[waited] == own and (
            own or columns.microbatch[waited] == columns.microbatch[i] - 1
        ):
            reasons.append(f"waited until {lane} was done with microbatch {batch}")
        elif own == 0:
            reasons.append(f"waited for microbatch {batch} to leave {lane}")
        else:
            late = f", {before.wait:.3g} s after that was free again" if before.wait else ""
            reasons.append(f"handed on by {lane}{late}" if late else f"went on at once from {lane}")
    return reasons


def _add_path(
    figure: "Figure", placed: "PlacedTimeline", links: bool, follow: int, shown: int
) -> None:
    """The path of one microbatch down the lanes and, where it goes round, back to the first."""
    import plotly.graph_objects as go

    timeline, lanes = placed.timeline, _drawn(placed, links)
    batch, _ = _microbatch(placed, np.arange(shown))
    passes = np.flatnonzero(batch == follow)
    start, end = (
        times.reshape(len(placed.lanes), -1)[np.ix_(lanes, passes)].T.ravel()
        for times in (timeline.start, timeline.end)
    )
    # Along the lower edge of the bars, below their numbers.
    rows = np.arange(len(lanes)) + 0.4 * _height(placed, lanes)
    figure.add_trace(
        go.Scatter(
            name=f"path of microbatch {follow}", mode="lines", hoverinfo="skip", line={"color": WRONG, "width": 2},
            x=np.stack([start, end], axis=1).ravel(), y=np.repeat(np.tile(rows, len(passes)), 2),
        )
    )  # fmt: skip


def _add_frames(figure: "Figure", placed: "PlacedTimeline", links: bool, shown: int) -> None:
    """A black frame around each bottleneck, all in one trace."""
    import plotly.graph_objects as go

    slowest = np.array([i for i in _drawn(placed, links) if placed.lanes[i].bottleneck], dtype=int)
    timeline, lanes, rows = placed.timeline, len(placed.lanes), _row(placed, links, slowest)
    left = timeline.start.reshape(lanes, -1)[slowest, 0]
    right = timeline.end.reshape(lanes, -1)[slowest, shown - 1]
    up, down, gap = rows - 0.46, rows + 0.46, np.full(len(rows), np.nan)
    figure.add_trace(
        go.Scatter(
            name="bottleneck", mode="lines", hoverinfo="skip", line={"color": BOTTLENECK, "width": 3},
            x=np.stack([left, right, right, left, left, gap], axis=1).ravel(),
            y=np.stack([up, up, down, down, up, gap], axis=1).ravel(), cliponaxis=False,
        )
    )  # fmt: skip


def _gantt_title(placed: "PlacedTimeline", links: bool) -> str:
    full = f"{placed.in_flight} in flight: {placed.steady_rate:,.6g} tokens/s once the pipeline is full"
    slowest = [lane.name for lane in placed.lanes if lane.bottleneck]
    named = (
        " and ".join(slowest)
        if len(slowest) < 3
        else f"{slowest[0]}, {slowest[1]} and {len(slowest) - 2} more"
    )
    if placed.reaches_predicted_rate:
        note = f"its rate: {named} (framed) never idle{'s' * (len(slowest) == 1)} then"
    else:
        share = placed.steady_rate / placed.predicted_rate
        work = "works" if len(slowest) == 1 else "work"
        note = f"{share:.0%} of its rate: {named} (framed) {work} {share:.0%} of the time"
    if not placed.fits:
        note += f"; memory does not hold {placed.in_flight}"
    shown = _shown_passes(placed)
    batch, _ = _microbatch(placed, np.arange(shown))
    room = _numbers(placed, batch, np.full(shown, max(lane.seconds for lane in placed.lanes)))
    number = "the number in a bar is its microbatch" if room.any() else "each bar is a microbatch"
    if shown < placed.microbatches:
        number += f", the first {shown} of {placed.microbatches} shown"
    if not links and any(lane.link for lane in placed.lanes):
        tokens = placed.problem.workload.tokens
        busiest = (
            max(lane.seconds for lane in placed.lanes if lane.link) * placed.steady_rate / tokens
        )
        number += f"; links, busy at most {busiest:.1%} of the time, are left out"
    if _too_many(placed):
        note, number = (
            note.replace(" (framed)", " (◀)"),
            "each pixel shows what takes most of its time",
        )
        return f"{plain(placed.problem.name)}, {full}<br><sup>{note}; {number}</sup>"
    return f"{plain(placed.problem.name)}, {full}<br><sup>{note}; {number}; hover for what was waited for</sup>"
