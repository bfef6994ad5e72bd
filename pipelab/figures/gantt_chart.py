"""A timeline as a Gantt chart: a lane per rank, one trace per kind of action; very long ones as an overview."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelab.display import counted
from pipelab.engine.timeline import Timeline
from pipelab.errors import InvalidValue
from pipelab.fields import instance, is_list, numbered, real_number, true_or_false
from pipelab.figures import gantt_bars as bars
from pipelab.figures.raster import lane_lines, raster_trace
from pipelab.figures.theme import GRID, plain, template

if TYPE_CHECKING:
    import numpy as np
    from plotly.graph_objects import Figure

MOST_BARS = 6000  # more make a browser's redraw take longer than a quarter of a second
MOST_LABELS = 500


@dataclass(frozen=True)
class GanttView:
    """What a Gantt chart shows of a timeline; the fields are those of `gantt`, and nothing is checked.

    Attributes
    ----------
    zoom : str
        How to see more of an overview, for its title.
    """

    window: tuple[float, float] | None = None  # within the makespan
    transfers: bool = False
    memory: bool = False
    critical_path: bool = False
    follow: int | None = None
    overview: bool | None = None
    finding: str | None = None
    zoom: str = "zoom with window="


_EVERYTHING = GanttView()


def gantt(
    timeline: Timeline,
    *,
    window: tuple[float, float] | None = None,
    transfers: bool = False,
    memory: bool = False,
    critical_path: bool = False,
    follow: int | None = None,
    overview: bool | None = None,
    finding: str | None = None,
) -> "Figure":
    """When every rank does what.

    Parameters
    ----------
    timeline : Timeline
        Made by `simulate`.
    window : (float, float), optional
        From when to when, in the unit of the costs: draw this part of the time only. It may be
        short enough for bars where the whole needs an overview.
    transfers : bool
        Join every action to the one on another rank that uses its result, or every send to its
        receive where these are shown; an overview has no room for it.
    memory : bool
        Activations held over time, below, on the same time axis.
    critical_path : bool
        Mark the chain of actions that decides the makespan.
    follow : int, optional
        A microbatch to follow across the ranks; the others fade.
    overview : bool, optional
        True for a raster that shows what each rank does most at each moment, False for a bar per
        action; by default a raster from 6,000 visible actions on.
    finding : str, optional
        What the chart shows, for its title; by default how much of the time is idle.

    Returns
    -------
    plotly.graph_objects.Figure
        Hover gives stage, microbatch, start, end and what was waited for, of gaps too.

    Raises
    ------
    InvalidValue
        The window is empty, there is no such microbatch, an argument is of another kind, or
        `memory` is wanted of a split backward whose costs have no `weight_activation`.

    Examples
    --------
    >>> import pipelab as pl
    >>> timeline = pl.simulate(pl.schedule("1F1B", 4, 8), pl.StageCosts(1, 1, 1))
    >>> [trace.name for trace in pl.gantt(timeline).data]
    ['idle', 'forward', 'backward']
    """
    import plotly.graph_objects as go

    instance("gantt", "timeline", timeline, Timeline, "a Timeline; make one with pl.simulate(...)")
    window = _check_window(timeline, window)
    follow = check_options(
        timeline, follow, transfers=transfers, memory=memory, critical_path=critical_path
    )
    if overview is not None:
        true_or_false("gantt", "overview", overview)
    if finding is not None:
        instance("gantt", "finding", finding, str, "text")
    view = GanttView(window, transfers, memory, critical_path, follow, overview, finding)
    parts = gantt_parts(timeline, view)
    return go.Figure(parts["data"], {**parts["layout"], "template": template()})


def gantt_parts(timeline: Timeline, view: GanttView = _EVERYTHING) -> dict:
    """What `gantt` draws, as plain dicts and arrays, for a chart that is redrawn often.

    Returns
    -------
    dict
        "data": traces; and "layout", without the template.

    Examples
    --------
    >>> import pipelab as pl
    >>> timeline = pl.simulate(pl.schedule("GPipe", 2, 2), pl.StageCosts(1, 1, 1))
    >>> [len(trace["y"]) for trace in gantt_parts(timeline)["data"]]
    [3, 4, 4]
    """
    actions = bars.visible(timeline, view.window)
    overview = len(actions) > MOST_BARS if view.overview is None else view.overview
    title = _title(timeline, view.finding, _how_to_read(overview, view.zoom))
    layout = _layout(timeline, view.window, view.memory) | {"title": {"text": title}}
    if overview:
        layout["shapes"] = [lane_lines(timeline.schedule.ranks)]
        lanes = [raster_trace(timeline, view.window)]
    else:
        lanes = _bar_traces(timeline, view, actions)
    return {"data": lanes + _marks(timeline, view), "layout": layout}


def _bar_traces(timeline: Timeline, view: GanttView, actions: "np.ndarray") -> list[dict]:
    """A bar for each of these actions and for every gap, and lines for the messages."""
    labels = len(actions) <= MOST_LABELS
    traces = [bars.gap_trace(timeline, view.window)]
    traces += bars.action_traces(timeline, actions, labels, view.follow)
    if view.transfers:
        traces.append(bars.message_trace(timeline, view.window))
    return traces


def _marks(timeline: Timeline, view: GanttView) -> list[dict]:
    """What is drawn over both bars and overview, and the memory below."""
    traces = []
    if view.critical_path:
        traces.append(bars.critical_path_trace(timeline))
    if view.follow is not None:
        traces.append(bars.microbatch_trace(timeline, view.follow))
    if view.memory:
        traces += bars.memory_traces(timeline)
    return traces


def check_options(timeline: Timeline, follow: int | None = None, **switches: bool) -> int | None:
    """Refuse what is not True or False, and a microbatch that does not exist; `follow` as a plain number."""
    for name, value in switches.items():
        true_or_false("gantt", name, value)
    if follow is None:
        return None
    return numbered("gantt", "follow", follow, timeline.schedule.microbatches, "microbatch")


def _check_window(timeline: Timeline, window: Any) -> tuple[float, float] | None:
    if window is None:
        return None
    expected = f"expected (from, to) with from < to, within 0 and {timeline.makespan:g}"
    edges = tuple(window) if is_list(window) else ()
    if len(edges) != 2:
        raise InvalidValue("gantt", [("window", window, expected)])
    low, high = (real_number("gantt", "window", edge, expected) for edge in edges)
    low, high = max(low, 0.0), min(high, timeline.makespan)
    if not low < high:
        raise InvalidValue("gantt", [("window", window, expected)])
    return low, high


def _layout(timeline: Timeline, window: tuple[float, float] | None, memory: bool) -> dict:
    """Lanes above, memory below on the same time axis."""
    ranks, unit = timeline.schedule.ranks, timeline.costs.unit
    every = -(-ranks // 32)
    shown = range(0, ranks, every)
    lanes = min(30 * max(ranks, 3), 640)
    layout = {
        "barmode": "overlay", "hovermode": "closest",
        "uniformtext": {"minsize": 8, "mode": "hide"},  # hides labels too small to read
        "height": lanes + 150 + (250 if memory else 0), "legend": {"traceorder": "normal"},
        "xaxis": {
            "range": list(window or (0.0, timeline.makespan)), "gridcolor": GRID, "zeroline": False,
            "title": {"text": f"time ({unit})" if unit else "time"}, "anchor": "y2" if memory else "y",
            "ticklabeloverflow": "allow",
        },
        "yaxis": {
            "range": [ranks - 0.4, -0.6], "tickvals": list(shown), "ticktext": [f"rank {r}" for r in shown],
            "showgrid": False, "zeroline": False, "ticklabelstandoff": 8, "domain": [0.38 if memory else 0, 1],
            "ticklabeloverflow": "allow",  # measuring every label takes longer than drawing it
        },
    }  # fmt: skip
    if memory:
        layout["margin"] = {"t": 104}  # the legend may need two lines
        layout["yaxis2"] = {
            "domain": [0, 0.3], "rangemode": "tozero", "gridcolor": GRID, "ticklabelstandoff": 8,
            "title": {"text": "activations held"},
        }  # fmt: skip
    return layout


def _how_to_read(overview: bool, zoom: str) -> str:
    if overview:
        return f"each pixel shows what takes most of its time; {zoom}"
    return "hover for what was waited for"


def _title(timeline: Timeline, finding: str | None, how_to_read: str) -> str:
    schedule, idle = timeline.schedule, timeline.bubble_fraction
    if not finding:
        share = f"{idle:.1%} of all ranks' time is idle" if idle > 0 else "no rank is idle"
        finding = f"{plain(schedule.name)}: {share}"
    ranks = counted(schedule.ranks, "rank")
    size = f"{ranks}, {schedule.microbatches} microbatch{'es' * (schedule.microbatches > 1)}"
    spans = f"makespan {timeline.makespan:.6g}, longest span of a rank {timeline.span:.6g}"
    return f"{finding}<br><sup>{size}; {spans}; {how_to_read}</sup>"
