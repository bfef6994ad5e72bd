"""A timeline as a Gantt chart: a lane per rank, one trace per kind of action; very long ones as an overview."""

from typing import TYPE_CHECKING, Any

from pipelab.display import counted
from pipelab.engine.timeline import Timeline
from pipelab.errors import InvalidValue
from pipelab.fields import instance, is_list, numbered, real_number, true_or_false
from pipelab.figures import gantt_bars as bars
from pipelab.figures.raster import lane_lines, raster_trace
from pipelab.figures.theme import GRID, plain, template

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

__all__ = ["MOST_BARS", "check_options", "gantt", "gantt_parts"]

MOST_BARS = 6000  # more make a browser's redraw take longer than a quarter of a second
MOST_LABELS = 500


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
        From when to when, in the unit of the costs: draw this part of the time only, for which bars
        may do where the whole needs an overview.
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
    parts = gantt_parts(
        timeline, window, transfers, memory, critical_path, follow, overview, finding
    )
    return go.Figure(parts["data"], {**parts["layout"], "template": template()})


def gantt_parts(
    timeline: Timeline,
    window: tuple[float, float] | None = None,
    transfers: bool = False,
    memory: bool = False,
    critical_path: bool = False,
    follow: int | None = None,
    overview: bool | None = None,
    finding: str | None = None,
    zoom: str = "zoom with window=",
) -> dict:
    """What `gantt` draws, as plain dicts and arrays, for a chart that is redrawn often; nothing is checked.

    Parameters
    ----------
    As for `gantt`; `window` lies within the makespan, and `zoom` is what an overview says of how to
    see more.

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
    chosen = bars.visible(timeline, window)
    if overview is None:
        overview = len(chosen) > MOST_BARS
    if overview:
        data = [raster_trace(timeline, window)]
    else:
        data = [bars.gap_trace(timeline, window)]
        data += bars.action_traces(timeline, chosen, len(chosen) <= MOST_LABELS, follow)
    if transfers and not overview:
        data.append(bars.message_trace(timeline, window))
    if critical_path:
        data.append(bars.critical_path_trace(timeline))
    if follow is not None:
        data.append(bars.microbatch_trace(timeline, follow))
    if memory:
        data += bars.memory_traces(timeline)
    layout = _layout(timeline, window, memory) | {
        "title": {"text": _title(timeline, overview and zoom, finding)}
    }
    if overview:
        layout["shapes"] = [lane_lines(timeline.schedule.ranks)]
    return {"data": data, "layout": layout}


def check_options(timeline: Timeline, follow: int | None = None, **switches: bool) -> int | None:
    """Refuse what is no switch, and a microbatch that is not there; the microbatch as a plain number."""
    for name, value in switches.items():
        true_or_false("gantt", name, value)
    return (
        None
        if follow is None
        else numbered("gantt", "follow", follow, timeline.schedule.microbatches, "microbatch")
    )


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
        "uniformtext": {"minsize": 8, "mode": "hide"},  # a label too small to read is none
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


def _title(timeline: Timeline, zoom: str | bool, finding: str | None) -> str:
    schedule = timeline.schedule
    idle = timeline.bubble_fraction
    text = f"{plain(schedule.name)}: " + (
        f"{idle:.1%} of all ranks' time is idle" if idle > 0 else "no rank is idle"
    )
    ranks = counted(schedule.ranks, "rank")
    size = f"{ranks}, {schedule.microbatches} microbatch{'es' * (schedule.microbatches > 1)}"
    spans = f"makespan {timeline.makespan:.6g}, longest span of a rank {timeline.span:.6g}"
    note = (
        f"each pixel shows what takes most of its time; {zoom}"
        if zoom
        else "hover for what was waited for"
    )
    return f"{finding or text}<br><sup>{size}; {spans}; {note}</sup>"
