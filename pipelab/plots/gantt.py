"""A timeline as a Gantt chart: a lane per rank, one trace per kind of action; very long ones as an overview."""

from typing import TYPE_CHECKING, Any

from pipelab.checked import instance, is_list, numbered, real_number, true_or_false
from pipelab.errors import InvalidValue
from pipelab.plots import gantt_bars as bars
from pipelab.plots.raster import add_raster
from pipelab.theme import GRID, template
from pipelab.timeline import Timeline

if TYPE_CHECKING:
    from pipelab.kinds import Figure

__all__ = ["MOST_BARS", "gantt"]

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
    window : (from, to), optional
        Draw this part of the time only, for which bars may do where the whole needs an overview.
    transfers : bool
        Join every action to the one on another rank that uses its result, or every send to its receive where
        these are shown; an overview has no room for it.
    memory : bool
        Activations held over time, below, on the same time axis.
    critical_path : bool
        Mark the chain of actions that decides the makespan.
    follow : int, optional
        A microbatch to follow across the ranks; the others fade.
    overview : bool, optional
        True for a raster that shows what each rank does most at each moment, False for a bar per action;
        by default a raster from 6,000 visible actions on.
    finding : str, optional
        What the chart shows, for its title; by default how much of the time is idle.

    Returns
    -------
    plotly.graph_objects.Figure
        Hover gives stage, microbatch, start, end and what was waited for, of gaps too.

    Raises
    ------
    InvalidValue
        The window is empty, there is no such microbatch, or an option is none.

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
    if follow is not None:
        follow = numbered("gantt", "follow", follow, timeline.schedule.microbatches, "microbatch")
    given = {"transfers": transfers, "memory": memory, "critical_path": critical_path}
    for name, value in (given if overview is None else given | {"overview": overview}).items():
        true_or_false("gantt", name, value)
    if finding is not None:
        instance("gantt", "finding", finding, str, "text")
    figure = go.Figure(layout=_layout(timeline, window, memory))
    chosen = bars.visible(timeline, window)
    if overview is None:
        overview = len(chosen) > MOST_BARS
    if overview:
        add_raster(figure, timeline, window)
    else:
        bars.add_gaps(figure, timeline, window)
        bars.add_bars(figure, timeline, chosen, len(chosen) <= MOST_LABELS, follow)
    if transfers and not overview:
        bars.add_messages(figure, timeline, window)
    if critical_path:
        bars.add_critical_path(figure, timeline)
    if follow is not None:
        bars.add_microbatch(figure, timeline, follow)
    if memory:
        bars.add_memory(figure, timeline)
    figure.layout.title.text = _title(timeline, overview, finding)
    return figure


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


def _layout(timeline: Timeline, window: Any, memory: bool) -> dict:
    """Lanes above, memory below on the same time axis; given to the figure at once, which is quicker than updates."""
    ranks, unit = timeline.schedule.ranks, timeline.costs.unit
    every = -(-ranks // 32)
    shown = range(0, ranks, every)
    lanes = min(30 * max(ranks, 3), 640)
    layout = {
        "template": template(), "barmode": "overlay", "hovermode": "closest",
        "uniformtext": {"minsize": 8, "mode": "hide"},  # a label too small to read is none
        "height": lanes + 150 + (250 if memory else 0), "legend": {"traceorder": "normal"},
        "xaxis": {
            "range": list(window or (0.0, timeline.makespan)), "gridcolor": GRID, "zeroline": False,
            "title": {"text": f"time ({unit})" if unit else "time"}, "anchor": "y2" if memory else "y",
        },
        "yaxis": {
            "range": [ranks - 0.4, -0.6], "tickvals": list(shown), "ticktext": [f"rank {r}" for r in shown],
            "showgrid": False, "zeroline": False, "ticklabelstandoff": 8, "domain": [0.38 if memory else 0, 1],
        },
    }  # fmt: skip
    if memory:
        layout["margin"] = {"t": 104}  # the legend may need two lines
        layout["yaxis2"] = {
            "domain": [0, 0.3], "rangemode": "tozero", "gridcolor": GRID, "ticklabelstandoff": 8,
            "title": {"text": "activations held"},
        }  # fmt: skip
    return layout


def _title(timeline: Timeline, overview: bool, finding: str | None) -> str:
    schedule = timeline.schedule
    idle = timeline.bubble_fraction
    text = (
        f"{schedule.name}: {idle:.1%} of all ranks' time is idle" if idle > 0 else f"{schedule.name}: no rank is idle"
    )
    size = f"{schedule.ranks} ranks, {schedule.microbatches} microbatch{'es' * (schedule.microbatches > 1)}"
    spans = f"makespan {timeline.makespan:.6g}, longest span of a rank {timeline.span:.6g}"
    note = (
        "each pixel shows what takes most of its time; zoom with window="
        if overview
        else "hover for what was waited for"
    )
    return f"{finding or text}<br><sup>{size}; {spans}; {note}</sup>"
