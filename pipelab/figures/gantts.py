"""Timelines as Gantt charts: a lane per rank, one trace per kind of action; long ones as rasters."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipelab.display import Figure, counted, listed, number
from pipelab.engine.timeline import Timeline
from pipelab.errors import InvalidValue
from pipelab.fields import Flag, checked_value, instance, is_list, is_real
from pipelab.figures import gantt_traces as traces
from pipelab.figures.theme import LEGEND, figure_of, finish, plain, rows

MOST_BARS = 6000  # more make a browser's redraw take longer than a quarter of a second
MOST_CHARTS = 6
_MOST_NUMBERED_BARS = 500
_MOST_NAMED_LANES = 32
_KINDS: dict[str, Any] = dict.fromkeys(("transfers", "memory", "critical_path"), Flag)
_KINDS |= {"finding": str | None}


def gantt(
    timeline: Timeline,
    *,
    window: tuple[float, float] | None = None,
    transfers: bool = False,
    memory: bool = False,
    critical_path: bool = False,
    finding: str | None = None,
) -> Figure:
    """Draw when every rank does what: a bar per action, or of more than 6,000 a raster of what takes most of the time.

    Parameters
    ----------
    timeline : Timeline
        Made by `simulate`.
    window : (float, float), optional
        From when to when, in the unit of the costs: draw this part of the time only. It may be
        short enough for bars where the whole needs a raster.
    transfers : bool
        Join every action to the one on another rank that uses its result, or every send to its
        receive where these are shown; a raster has no room for it.
    memory : bool
        Activations held over time, below, on the same time axis.
    critical_path : bool
        Mark the chain of actions that decides the makespan.
    finding : str, optional
        What the chart shows, for its title; by default how much of the time is idle.

    Returns
    -------
    plotly.graph_objects.Figure
        Hover gives stage, microbatch, start, end and what was waited for, of gaps too.

    Raises
    ------
    InvalidValue
        The window is empty, an argument is of another kind, or `memory` is wanted of a split
        backward whose costs have no `weight_activation`.

    Examples
    --------
    >>> import pipelab as pl
    >>> timeline = pl.simulate(pl.schedule("1F1B", 4, 8), pl.StageCosts(1, 1, 1))
    >>> [trace.name for trace in pl.gantt(timeline).data]
    ['idle', 'forward', 'backward']
    """
    instance("gantt", "timeline", timeline, Timeline, "a Timeline; make one with pl.simulate(...)")
    marks = {"transfers": transfers, "memory": memory, "critical_path": critical_path}
    options = checked(timeline, **marks, window=window, finding=finding)
    return figure_of(gantt_parts(timeline, **options))


def checked(timeline: Timeline, **options: Any) -> dict:
    """Return these options of `gantt`; refuse what does not fit, each by its name."""
    for name in [name for name in options if name in _KINDS]:
        checked_value("gantt", name, options[name], _KINDS[name])
    if "window" in options:
        options["window"] = _checked_window(timeline, options["window"])
    return options


def _checked_window(timeline: Timeline, window: Any) -> tuple[float, float] | None:
    if window is None:
        return None
    expected = f"expected (from, to) with from < to, within 0 and {timeline.makespan:g}"
    edges = tuple(window) if is_list(window) else ()
    if len(edges) == 2 and all(map(is_real, edges)):
        low, high = max(float(edges[0]), 0.0), min(float(edges[1]), timeline.makespan)
        if low < high:
            return low, high
    raise InvalidValue("gantt", [("window", window, expected)])


def gantt_parts(
    timeline: Timeline,
    *,
    window: tuple[float, float] | None = None,
    transfers: bool = False,
    memory: bool = False,
    critical_path: bool = False,
    raster: bool | None = None,
    finding: str | None = None,
    zoom: str = "zoom with window=",
    names: Sequence[str] = (),
) -> dict:
    """Return the drawing of `gantt`, whose arguments are not checked here.

    Parameters
    ----------
    raster : bool, optional
        Whether it is one; by default where there are more than 6,000 bars.
    zoom : str
        How to see more of a raster, for the note.
    names : sequence of str
        Of the lanes; by default the number of each rank.

    Examples
    --------
    >>> import pipelab as pl
    >>> timeline = pl.simulate(pl.schedule("GPipe", 2, 2), pl.StageCosts(1, 1, 1))
    >>> [len(trace["y"]) for trace in gantt_parts(timeline)["data"]]
    [3, 4, 4]
    """
    schedule, unit = timeline.schedule, timeline.costs.unit
    seen = window or (0.0, timeline.makespan)
    names = names or [f"rank {rank}" for rank in range(schedule.ranks)]
    actions = traces.visible(timeline, window)
    if raster is None:
        raster = len(actions) > MOST_BARS
    if raster:
        data = [traces.raster_trace(timeline, window)]
        how = f"each pixel shows what takes most of its time; {zoom}"
    else:
        labels = len(actions) <= _MOST_NUMBERED_BARS
        scale = traces.width_beside(names) / (seen[1] - seen[0] or 1.0)
        data = [traces.gap_trace(timeline, window)]
        data += traces.action_traces(timeline, actions, scale, labels)
        data += [traces.message_trace(timeline, window)] if transfers else []
        how = "hover for what was waited for"
    data += [traces.critical_path_trace(timeline)] if critical_path else []
    data += traces.memory_traces(timeline) if memory else []
    spans = f"makespan {number(timeline.makespan)}, longest span of a rank {number(timeline.span)}"
    size = f"{counted(schedule.ranks, 'rank')}, {counted(schedule.microbatches, 'microbatch')}"
    below = {
        "domain": [0, 0.28],
        "rangemode": "tozero",
        "title": {"text": "activations held"},
        "anchor": "x",
    }
    return finish(
        data,
        finding or _idle(timeline),
        f"{size}; {spans}; {how}",
        x=_time_axis(seen, unit) | {"anchor": "y2" if memory else "y"},
        y=lanes_axis(names) | {"domain": [0.42 if memory else 0, 1]},
        height=min(30 * max(schedule.ranks, 3), 640) + (460 if memory else 150),
        barmode="overlay",
        showlegend=True,
        **({"yaxis2": below, "legend2": {"y": 0.29, **LEGEND}} if memory else {}),
        **({"shapes": [traces.lane_lines(schedule.ranks)]} if raster else {}),
    )


def lanes_axis(names: Sequence[str]) -> dict:
    """Return the axis of lanes; of many, every second or third has a name."""
    shown = range(0, len(names), -(-len(names) // _MOST_NAMED_LANES))
    return rows(names, tickvals=list(shown), ticktext=[names[lane] for lane in shown])


def _time_axis(seen: tuple[float, float], unit: str) -> dict:
    title = f"time ({unit})" if unit else "time"
    return {"title": title, "range": list(seen)}


def _idle(timeline: Timeline) -> str:
    share = timeline.bubble_fraction
    said = f"{share:.1%} of all ranks' time is idle" if share > 0 else "no rank is idle"
    return f"{plain(timeline.schedule.name)}: {said}"


def within(timeline: Timeline, seen: Sequence[float]) -> tuple[float, float]:
    """Return the visible part of the time, with something of it left wherever one has dragged to."""
    low, high = sorted(float(edge) for edge in seen)
    low = min(max(low, 0.0), timeline.makespan * (1 - 1e-9))
    return low, max(min(high, timeline.makespan), low * (1 + 1e-9) + 1e-12)


def plot_timelines(timelines: Mapping[str, Timeline], *, finding: str | None = None) -> Figure:
    """Draw Gantt charts one below the other on one time axis.

    Parameters
    ----------
    timelines : sequence of Timeline, or mapping of label to Timeline
        At most six.
    finding : str, optional
        The title; by default which of them ends first and by how much.

    Returns
    -------
    plotly.graph_objects.Figure
        In the unit of the first one's costs.

    Raises
    ------
    InvalidValue
        There is no timeline, two have one label, there are too many to be read, or `finding` is not
        text.

    Examples
    --------
    >>> import pipelab as pl
    >>> costs = pl.StageCosts(1, 1, 1)
    >>> two = [pl.simulate(pl.schedule(name, 4, 8), costs) for name in ("1F1B", "ZBH1")]
    >>> plot_timelines(two).layout.title.text
    'ZBH1 ends at 27, 18% before 1F1B'
    """
    timelines = _labelled(timelines)
    checked_value("plot_timelines", "finding", finding, str | None)
    if not 1 <= len(timelines) <= MOST_CHARTS:
        number = f"{len(timelines)} timelines"
        expected = f"expected 1 to {MOST_CHARTS} of them"
        raise InvalidValue("plot_timelines", [("timelines", number, expected)])
    return figure_of(timelines_parts(timelines, finding))


def timelines_parts(
    timelines: Mapping[str, Timeline], finding: str | None = None, critical_path: bool = False
) -> dict:
    """Return the drawing of `plot_timelines`, whose arguments are not checked here.

    Examples
    --------
    >>> import pipelab as pl
    >>> costs = pl.StageCosts(1, 1, 1)
    >>> two = {n: pl.simulate(pl.schedule(n, 2, 4), costs) for n in ("GPipe", "1F1B")}
    >>> {trace["yaxis"] for trace in timelines_parts(two)["data"]} == {"y", "y2"}
    True
    """
    end = max(timeline.makespan for timeline in timelines.values())
    unit = next(iter(timelines.values())).costs.unit
    # a chart and the line above it
    heights = [26 * max(3, t.schedule.ranks) + 30 for t in timelines.values()]
    total = below = sum(heights)
    data, named, axes, notes = [], set(), {}, []
    for i, (label, height) in enumerate(zip(timelines, heights, strict=True), 1):
        timeline, axis, top = timelines[label], "" if i == 1 else str(i), below
        below -= height
        single = gantt_parts(timeline, raster=False, critical_path=critical_path)
        for trace in single["data"]:
            name = trace["name"]
            shown = {"legendgroup": name, "showlegend": name not in named}
            data.append(trace | shown | {"yaxis": f"y{axis}"})
            named.add(name)
        high = (top - 30) / total
        axes[f"yaxis{axis}"] = single["layout"]["yaxis"] | {"domain": [below / total, high]}
        caption = {"text": _caption(label, timeline), "x": 0, "xanchor": "left", "xref": "paper"}
        place = {"y": high, "yanchor": "bottom", "yref": "paper", "showarrow": False}
        notes.append(caption | place)
    return finish(
        data,
        finding or _who_ends_first(timelines),
        x=_time_axis((0, end), unit) | {"anchor": f"y{axis}"},
        height=total + 120,
        margin={"l": 72},
        barmode="overlay",
        showlegend=True,
        annotations=notes,
        **axes,
    )


def _labelled(timelines: Mapping[str, Timeline]) -> dict[str, Timeline]:
    """Return timelines by label; of two with one name only one would be seen."""
    named = isinstance(timelines, Mapping)
    several = timelines.values() if named else timelines if is_list(timelines) else [timelines]
    remedy = "Timelines, or a mapping of label to Timeline; make them with pl.simulate(...)"
    found = [instance("plot_timelines", "timelines", one, Timeline, remedy) for one in several]
    labels = [str(label) for label in timelines] if named else [t.schedule.name for t in found]
    for label in labels:
        if labels.count(label) > 1:
            expected = "two timelines have this name; expected a mapping of label to Timeline"
            raise InvalidValue("plot_timelines", [("timelines", label, expected)])
    return dict(zip(map(plain, labels), found, strict=True))


def _caption(label: str, timeline: Timeline) -> str:
    known = timeline.costs.weight_activation is not None or not timeline.columns.splits_backward
    peaks = timeline.peak_memory if known else timeline.peak_in_flight
    most = ", ".join(number(peak) for peak in peaks[:8]) + ", …" * (len(peaks) > 8)
    what = "chunks in flight" if timeline.columns.chunks > 1 else "in flight"
    ends = f"makespan {number(timeline.makespan)}, longest span {number(timeline.span)}"
    return (
        f"<b>{label}</b>: {ends}, {timeline.bubble_fraction:.1%} idle, "
        f"at most {most} {'held' if known else what}"
    )


def _who_ends_first(timelines: Mapping[str, Timeline]) -> str:
    ends = {label: timeline.makespan for label, timeline in timelines.items()}
    first, last = min(ends, key=ends.__getitem__), max(ends, key=ends.__getitem__)
    if ends[last] - ends[first] > 1e-9 * ends[last]:
        sooner = f"{1 - ends[first] / ends[last]:.0%} before {last}"
        return f"{first} ends at {number(ends[first])}, {sooner}"
    return f"{listed(list(ends))} end{'s' * (len(ends) == 1)} at {number(ends[first])}"
