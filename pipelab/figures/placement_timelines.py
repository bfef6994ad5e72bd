"""A placement's pipeline in serving: a lane for every stage and link, over time."""

import numpy as np

from pipelab.display import KIND_COLOURS, Figure, rate
from pipelab.engine.timeline.placement_timelines import PlacedTimeline
from pipelab.figures.gantt_traces import (
    broken,
    idle,
    lane_lines,
    numbered,
    raster_trace,
    width_beside,
)
from pipelab.figures.gantts import MOST_BARS
from pipelab.figures.placements import first_of
from pipelab.figures.theme import BOTTLENECK, WRONG, bar, figure_of, finish, line, plain, rows

_MOST_LANES = 48  # with a label each


def placed_gantt(placed: PlacedTimeline, *, links: bool = True) -> Figure:
    """Draw when every stage and link of a placement works on which microbatch.

    Parameters
    ----------
    placed : PlacedTimeline
        Made by `timeline_of`.
    links : bool
        Whether links have lanes of their own; without, the note says how busy the busiest is. A
        raster has them always.

    Returns
    -------
    plotly.graph_objects.Figure
        Lanes from first stage to last, the bottleneck framed, and the path of the first microbatch, in
        decode round after round; of long runs the first microbatches; of pipelines too long for bars a
        raster.
    """
    return figure_of(_Lanes(placed, links).parts())


class _Lanes:
    """The lanes that are drawn of a pipeline, and the traversals (`passes`) that are."""

    def __init__(self, placed: PlacedTimeline, links: bool) -> None:
        self.placed, lanes = placed, len(placed.lanes)
        # not even two rounds could be drawn bar by bar
        rounds = min(placed.microbatches, 2 * placed.in_flight)
        self.raster = lanes * rounds > MOST_BARS
        self.is_link = np.array([lane.link for lane in placed.lanes])
        self.shown = np.flatnonzero(~self.is_link | links | self.raster)
        # few enough to read and redraw, but three rounds if possible
        some = min(placed.microbatches, max(120, 3 * placed.in_flight), MOST_BARS // lanes)
        self.passes = placed.microbatches if self.raster else some
        timeline = placed.timeline
        self.start, self.end = timeline.start.reshape(lanes, -1), timeline.end.reshape(lanes, -1)
        self.last = float(self.end[-1, self.passes - 1])
        self.names = [
            f"<b>{plain(lane.label)} ◀</b>" if lane.bottleneck else plain(lane.label)
            for lane in (placed.lanes[i] for i in self.shown)
        ]
        self.scale = width_beside(self.names) / self.last

    def parts(self) -> dict:
        """Return the drawing."""
        lanes, names = len(self.shown), self.names
        if self.raster:
            data = [raster_trace(self.placed.timeline, None)]
        else:
            data = [self._idle(), *self._bars(), self._path(), self._frames()]
        every = -(-lanes // _MOST_LANES)
        # If there are many lanes, stages get labels and links do not.
        step = 1 if every == 1 else every * (1 + bool(self.is_link[self.shown].any()))
        named = {"tickvals": list(range(0, lanes, step)), "ticktext": names[::step]}
        return finish(
            data,
            *self._title(data),
            x={"title": "time (s)", "range": [0, self.last]},
            y=rows(names, **named),
            height=150 + min(960, 26 * max(3, lanes)),
            barmode="overlay",
            shapes=[lane_lines(lanes)] if self.raster else [],
        )

    def _height(self, lane: np.ndarray) -> np.ndarray:
        """Draw links thinner than stages."""
        return np.where(self.is_link[lane], 0.45, 0.8)

    def _idle(self) -> dict:
        """Return a pale ground in every lane: what shows of it is idle time."""
        row = np.arange(len(self.shown))
        ends = np.full(len(row), self.placed.timeline.makespan)
        look = {"width": self._height(self.shown), "hoverinfo": "skip", "showlegend": False}
        return idle(row, 0 * ends, ends, **look)

    def _bars(self) -> list[dict]:
        """Return a trace of what stages compute, and one of what links send."""
        timeline, columns = self.placed.timeline, self.placed.timeline.columns
        traces = []
        for link, name, kind in ((False, "stage computes", "F"), (True, "link sends", "message")):
            drawn = np.isin(columns.rank, self.shown[self.is_link[self.shown] == link])
            mine = np.flatnonzero(drawn & (columns.microbatch < self.passes))
            if not len(mine):
                continue
            lane, (batch, _) = columns.rank[mine], self._microbatch(columns.microbatch[mine])
            start, end, colour = timeline.start[mine], timeline.end[mine], KIND_COLOURS[kind]
            # The outline of a link's own colour keeps one that takes next to no time in sight.
            outline = {"color": colour if link else "white", "width": 1}
            traces.append(
                bar(
                    name,
                    np.searchsorted(self.shown, lane),
                    start,
                    end,
                    width=self._height(lane),
                    marker={"color": colour, "line": outline},
                    hovertext=self._hover(mine),
                    hoverinfo="text",
                    **numbered(colour, batch, lane, self.scale * (end - start)),
                )
            )
        return traces

    def _microbatch(self, passes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the microbatch of each pass, and its index in it; in prefill each is a microbatch."""
        if self.placed.returns:
            return passes % self.placed.in_flight, passes // self.placed.in_flight
        return passes, np.zeros_like(passes)

    def _hover(self, entries: np.ndarray) -> list[str]:
        """Say of each entry its lane, microbatch and times, and what it waited for last."""
        placed, timeline = self.placed, self.placed.timeline
        rank, passes = timeline.columns.rank, timeline.columns.microbatch
        batches, tokens = self._microbatch(passes)
        texts = []
        for i, before in zip(entries.tolist(), timeline.waited_for[entries].tolist(), strict=True):
            here, lane = int(rank[i]), placed.lanes[int(rank[before])]
            if before < 0:
                why = "waited for nothing"
            elif rank[before] == here and (here or passes[before] == passes[i] - 1):
                why = f"waited until {lane.name} was done with microbatch {batches[before]}"
            elif here == 0:
                why = f"waited for microbatch {batches[before]} to leave {lane.name}"
            elif lane.wait:
                why = f"handed on by {lane.name}, {lane.wait:.3g} s after that was free again"
            else:
                why = f"went on at once from {lane.name}"
            token = f", token {tokens[i] + 1}" if placed.returns else ""
            texts.append(
                f"<b>{plain(placed.lanes[here].label)}</b><br>microbatch {batches[i]}{token}"
                f"<br>{timeline.start[i]:.6g} to {timeline.end[i]:.6g} s<br>{why}"
            )
        return texts

    def _path(self) -> dict:
        """Return the path of microbatch 0 down the lanes and, where it goes round, back to the first."""
        passes = np.flatnonzero(self._microbatch(np.arange(self.passes))[0] == 0)
        times = (times[np.ix_(self.shown, passes)].T.ravel() for times in (self.start, self.end))
        # Along the lower edge of the bars, below their numbers.
        row = np.arange(len(self.shown)) + 0.4 * self._height(self.shown)
        x, y = np.stack([*times], axis=1).ravel(), np.repeat(np.tile(row, len(passes)), 2)
        return line("path of microbatch 0", x, y, WRONG, 2)

    def _frames(self) -> dict:
        """Return a black frame around each bottleneck, all in one trace."""
        slow = np.flatnonzero([self.placed.lanes[i].bottleneck for i in self.shown])
        lane = self.shown[slow]
        left, right = self.start[lane, 0], self.end[lane, self.passes - 1]
        up, down = slow - 0.46, slow + 0.46
        x, y = broken([left, right, right, left, left]), broken([up, up, down, down, up])
        return line("bottleneck", x, y, BOTTLENECK, 3, cliponaxis=False)

    def _title(self, data: list[dict]) -> tuple[str, str]:
        placed, full = self.placed, rate(self.placed.steady_rate)
        title = f"{plain(placed.problem.name)}, {placed.in_flight} in flight: {full}"
        title += " once the pipeline is full"
        slowest = [lane.name for lane in placed.lanes if lane.bottleneck]
        named, one = first_of(slowest), len(slowest) == 1
        mark = "(◀)" if self.raster else "(framed)"
        if placed.reaches_predicted_rate:
            notes = [f"its rate: {named} {mark} never idle{'s' * one} then"]
        else:
            share = f"{placed.steady_rate / placed.predicted_rate:.0%}"
            work = f"work{'s' * one} {share} of the time"
            notes = [f"{share} of its rate: {named} {mark} {work}"]
        if not placed.fits:
            notes.append(f"memory does not hold {placed.in_flight}")
        if self.raster:
            return title, "; ".join([*notes, "each pixel shows what takes most of its time"])
        some = any(text for trace in data for text in trace.get("text", ()))
        number = "the number in a bar is its microbatch" if some else "each bar is a microbatch"
        if self.passes < placed.microbatches:
            number += f", the first {self.passes} of {placed.microbatches} shown"
        notes.append(number)
        if len(self.shown) < len(placed.lanes):
            busiest = max(lane.seconds for lane in placed.lanes if lane.link)
            busy = busiest * placed.steady_rate / placed.problem.workload.tokens
            notes.append(f"links, busy at most {busy:.1%} of the time, are left out")
        return title, "; ".join([*notes, "hover for what was waited for"])
