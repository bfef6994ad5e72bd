"""Schedules side by side: Gantt charts on one time axis, and makespans while something changes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipelab.display import listed
from pipelab.engine.schedules import RULES
from pipelab.engine.timeline import Timeline
from pipelab.errors import InvalidValue
from pipelab.fields import instance, is_list, real_number
from pipelab.figures.gantt_chart import GanttView, check_options, gantt_parts
from pipelab.figures.theme import GRID, TYPE_COLOURS, plain, template

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_CHARTS = 6
# yellow is too pale
_LINES = (*(colour for colour in TYPE_COLOURS if colour != "#F0E442"), "#B34700", "#111111")
_SYMBOLS = (
    "circle",
    "diamond",
    "square",
    "x",
    "triangle-up",
    "star",
    "cross",
    "hexagon",
    "triangle-down",
)


def plot_timelines(
    timelines: Mapping[str, Timeline], *, finding: str | None = None, **options: Any
) -> "Figure":
    """Gantt charts one below the other on one time axis.

    Parameters
    ----------
    timelines : sequence of Timeline, or mapping of label to Timeline
        At most six.
    finding : str, optional
        The title; by default which of them ends first and by how much.
    **options
        `transfers`, `critical_path` and `follow`, as for `gantt`.

    Returns
    -------
    plotly.graph_objects.Figure
        In the unit of the first one's costs.

    Raises
    ------
    InvalidValue
        There is no timeline, two have one label, there are too many to be read, or an option does
        not fit.

    Examples
    --------
    >>> import pipelab as pl
    >>> costs = pl.StageCosts(1, 1, 1)
    >>> two = [pl.simulate(pl.schedule(name, 4, 8), costs) for name in ("1F1B", "ZBH1")]
    >>> plot_timelines(two).layout.title.text
    'ZBH1 ends at 27, 18% before 1F1B'
    """
    import plotly.graph_objects as go

    timelines = _labelled(timelines)
    _check_finding("plot_timelines", finding)
    for option in options.keys() - {"transfers", "critical_path", "follow"}:
        expected = "expected transfers, critical_path or follow"
        raise InvalidValue("plot_timelines", [(option, options[option], expected)])
    if not 1 <= len(timelines) <= MOST_CHARTS:
        expected = f"expected 1 to {MOST_CHARTS} of them"
        raise InvalidValue(
            "plot_timelines", [("timelines", f"{len(timelines)} timelines", expected)]
        )
    for timeline in timelines.values():
        check_options(timeline, **options)
    parts = timelines_parts(timelines, finding, **options)
    return go.Figure(parts["data"], {**parts["layout"], "template": template()})


def timelines_parts(
    timelines: Mapping[str, Timeline], finding: str | None = None, **options: Any
) -> dict:
    """What `plot_timelines` draws, as plain dicts and arrays, for a chart that is redrawn often.

    Examples
    --------
    >>> import pipelab as pl
    >>> two = {n: pl.simulate(pl.schedule(n, 2, 4), pl.StageCosts(1, 1, 1)) for n in ("GPipe", "1F1B")}
    >>> {trace["yaxis"] for trace in timelines_parts(two)["data"]} == {"y", "y2"}
    True
    """
    end, unit = (
        max(t.makespan for t in timelines.values()),
        next(iter(timelines.values())).costs.unit,
    )
    # a chart and the line above it
    heights = [26 * max(3, t.schedule.ranks) + 30 for t in timelines.values()]
    data, named, below = [], set(), sum(heights)
    axes = {"xaxis": {"range": [0, end], "zeroline": False, "gridcolor": GRID}}
    notes = []
    for i, (label, height) in enumerate(zip(timelines, heights, strict=True), 1):
        timeline, axis, top = timelines[label], "" if i == 1 else str(i), below
        below -= height
        single = gantt_parts(timeline, GanttView(overview=False, **options))
        for trace in single["data"]:
            name = trace["name"]
            data.append(
                trace | {"yaxis": f"y{axis}", "legendgroup": name, "showlegend": name not in named}
            )
            named.add(name)
        low, high = below / sum(heights), (top - 30) / sum(heights)
        axes[f"yaxis{axis}"] = single["layout"]["yaxis"] | {"domain": [low, high]}
        notes.append({
            "text": _caption(label, timeline), "x": 0, "xref": "paper", "xanchor": "left", "y": high, "yref": "paper",
            "yanchor": "bottom", "showarrow": False,
        })  # fmt: skip
    axes["xaxis"] |= {"anchor": f"y{axis}", "title": {"text": f"time ({unit})" if unit else "time"}}
    layout = {
        "barmode": "overlay", "hovermode": "closest", "height": sum(heights) + 120,
        "uniformtext": {"minsize": 8, "mode": "hide"}, "annotations": notes, "legend": {"traceorder": "normal"},
        "margin": {"t": 72, "b": 48}, "title": {"text": finding or _who_ends_first(timelines)}, **axes,
    }  # fmt: skip
    return {"data": data, "layout": layout}


def _labelled(timelines: Mapping[str, Timeline]) -> dict:
    """Timelines by label; of two with one name only one would be seen."""
    expected = (
        "expected Timelines, or a mapping of label to Timeline; make them with pl.simulate(...)"
    )
    if not isinstance(timelines, Mapping) and not is_list(timelines):
        raise InvalidValue("plot_timelines", [("timelines", timelines, expected)])
    found = list(timelines.values() if isinstance(timelines, Mapping) else timelines)
    for timeline in found:
        if not isinstance(timeline, Timeline):
            raise InvalidValue("plot_timelines", [("timelines", timeline, expected)])
    labels = (
        [str(k) for k in timelines]
        if isinstance(timelines, Mapping)
        else [t.schedule.name for t in found]
    )
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        expected = "two timelines have this name; expected a mapping of label to Timeline"
        raise InvalidValue("plot_timelines", [("timelines", twice, expected)])
    return dict(zip(map(plain, labels), found, strict=True))


def _caption(label: str, timeline: Timeline) -> str:
    known = timeline.costs.weight_activation is not None or not timeline.columns.splits_backward
    peaks, what = (
        (timeline.peak_memory, "held") if known else (timeline.peak_in_flight, "in flight")
    )
    most = ", ".join(f"{peak:.4g}" for peak in peaks[:8]) + (
        ", …" if timeline.schedule.ranks > 8 else ""
    )
    return (
        f"<b>{label}</b>: makespan {timeline.makespan:.6g}, longest span {timeline.span:.6g}, "
        f"{timeline.bubble_fraction:.1%} idle, at most {most} {what}"
    )


def _who_ends_first(timelines: Mapping[str, Timeline]) -> str:
    ends = {label: t.makespan for label, t in timelines.items()}
    first, last = min(ends, key=ends.__getitem__), max(ends, key=ends.__getitem__)
    if ends[last] - ends[first] > 1e-9 * ends[last]:
        return (
            f"{first} ends at {ends[first]:.6g}, {1 - ends[first] / ends[last]:.0%} before {last}"
        )
    return f"{listed(list(ends))} end{'s' * (len(ends) == 1)} at {ends[first]:.6g}"


def plot_makespans(
    values: Any, makespans: Mapping[str, Sequence[float]], axis: str, *, finding: str | None = None
) -> "Figure":
    """Makespans of several schedules while something changes; a line that is called a bound is dotted.

    Parameters
    ----------
    values : sequence
        Of what changes: numbers, or labels.
    makespans : mapping of name to sequence of float
        One number per value, at least 0, of at most nine schedules.
    axis : str
        What changes.
    finding : str, optional
        The title; by default who is fastest at both ends, and who is slowest in the end.

    Returns
    -------
    plotly.graph_objects.Figure
        A line per name, in the unit of the makespans.

    Raises
    ------
    InvalidValue
        There are too many lines or none, a line has not one number per value, or an argument is of
        another kind.

    Examples
    --------
    >>> import pipelab as pl
    >>> plot_makespans([0, 1], {"GPipe": [33, 39], "1F1B": [33, 49], "bound": [33, 39]}, "comm").layout.title.text
    'comm 0: GPipe and 1F1B are fastest; comm 1: GPipe is, and 1F1B takes 1.26 times as long'
    """
    import plotly.graph_objects as go

    values, lines = _lines(values, makespans)
    instance("plot_makespans", "axis", axis, str, "text")
    _check_finding("plot_makespans", finding)
    figure, bounds = go.Figure(), {name: ends for name, ends in lines.items() if "bound" in name}
    runners = {name: ends for name, ends in lines.items() if name not in bounds}
    if not runners:
        raise InvalidValue(
            "plot_makespans", [("makespans", lines, "expected at least one line that is no bound")]
        )
    if len(runners) > len(_LINES):
        expected = f"expected at most {len(_LINES)} lines"
        raise InvalidValue("plot_makespans", [("makespans", f"{len(runners)} schedules", expected)])
    looks = _looks(list(runners))
    # The legend is beside the right end, in its order; a line that others cover is the
    # wider one.
    ordered = sorted(runners, key=lambda name: -runners[name][-1])
    for i, name in enumerate(ordered):
        covered = sum(list(runners[other]) == list(runners[name]) for other in ordered[i + 1 :])
        colour, symbol = looks[name]
        figure.add_trace(
            go.Scatter(
                x=list(values), y=list(runners[name]), name=name, mode="lines+markers",
                line={"color": colour, "width": 2 + 6 * covered},
                marker={"symbol": symbol, "size": 9 + 7 * covered},
                hovertemplate=f"{name}: %{{y:.6g}} at {axis} %{{x}}<extra></extra>",
            )
        )  # fmt: skip
    for name, ends in bounds.items():
        line = {"color": "#111111", "width": 2, "dash": "dot"}
        hover = f"{name}: %{{y:.6g}}<extra></extra>"
        figure.add_trace(
            go.Scatter(
                x=list(values),
                y=list(ends),
                name=name,
                line=line,
                mode="lines",
                hovertemplate=hover,
            )
        )
    figure.update_layout(
        template=template(), height=430, title=finding or _who_changes(values, lines, axis),
        xaxis={"title": {"text": axis}, "zeroline": False}, yaxis={"title": {"text": "makespan"}},
        legend={"orientation": "v", "x": 1.01, "xanchor": "left", "y": 1, "yanchor": "top"},
    )  # fmt: skip
    return figure


def _looks(names: list[str]) -> dict[str, tuple[str, str]]:
    """Colour and symbol of each line: a schedule's own, and for other names what is left."""
    free = dict(zip(RULES, zip(_LINES, _SYMBOLS, strict=True), strict=False))
    own = {name: free.pop(name) for name in names if name in free}
    return own | dict(zip((n for n in names if n not in own), free.values(), strict=False))


def _lines(values: Any, makespans: Any) -> tuple[list, dict[str, list[float]]]:
    """Both as plain lists, every makespan a number."""
    instance("plot_makespans", "makespans", makespans, Mapping, "a mapping of name to makespans")
    if not is_list(values):
        raise InvalidValue(
            "plot_makespans", [("values", values, "expected a list of numbers or labels")]
        )
    values, found = list(values), {}
    for name, ends in makespans.items():
        numbers = list(ends) if is_list(ends) else []
        if len(numbers) != len(values) or not values:
            expected = f"expected one number for each of {len(values)} values, and at least one; got {len(numbers)}"
            raise InvalidValue("plot_makespans", [(f"makespans[{name!r}]", ends, expected)])
        found[plain(name)] = [
            real_number("plot_makespans", f"makespans[{name!r}]", number) for number in numbers
        ]
        if min(found[plain(name)]) < 0:
            raise InvalidValue(
                "plot_makespans", [(f"makespans[{name!r}]", ends, "expected numbers of at least 0")]
            )
    return values, found


def _check_finding(what: str, finding: Any) -> None:
    if finding is not None:
        instance(what, "finding", finding, str, "text")


def _who_changes(values: Any, makespans: dict[str, list[float]], axis: str) -> str:
    runners = {name: ends for name, ends in makespans.items() if "bound" not in name}

    def fastest(i: int) -> list[str]:
        best = min(ends[i] for ends in runners.values())
        return [name for name, ends in runners.items() if ends[i] <= best * (1 + 1e-9)]

    one, two = fastest(0), fastest(-1)
    slowest = max(runners, key=lambda name: runners[name][-1])
    best, worst = runners[two[0]][-1], runners[slowest][-1]
    takes = f"{worst / best:.3g} times as long" if best > 0 else f"{worst:.6g}"
    verbs = ["are" if len(names) > 1 else "is" for names in (one, two)]
    return (
        f"{axis} {values[0]}: {listed(one)} {verbs[0]} fastest; {axis} {values[-1]}: {listed(two)} {verbs[1]}, "
        f"and {slowest} takes {takes}"
    )
