"""The schedule explorer: change any control and see Gantt charts, bubble measures and closed forms."""

from dataclasses import dataclass, replace
from typing import Any

import ipywidgets as widgets

from pipelab.engine.schedules import RULES, schedule
from pipelab.engine.timeline import StageCosts, Timeline, simulate
from pipelab.errors import PipelabError, UnknownName, nearest, shown
from pipelab.fields import whole_number
from pipelab.figures.gantt_chart import MOST_BARS, GanttView, gantt_parts
from pipelab.figures.makespans import timelines_parts
from pipelab.widgets.chart import LiveChart
from pipelab.widgets.panel import LOOK, RELEASED, ControlPanel
from pipelab.widgets.parts import CopyCode, Words, reload_note, shared
from pipelab.widgets.schedule_sentences import measures_html

_NONE = "none"
# What a weight gradient still needs of a microbatch's activations, until it has run.
_KEPT = {
    "0: nothing": 0.0,
    "1/4": 1 / 4,
    "1/2": 1 / 2,
    "3/4": 3 / 4,
    "32/34: Zero Bubble's": 32 / 34,
    "1: all": 1.0,
}
_ZOOM = "drag across a part to see its bars, double-click for all of it"
_GROUPS = {
    "Pipeline": ("name", "other", "ranks", "microbatches", "chunks"),
    "Times": ("forward", "backward", "weight", "message", "slow_rank", "slowness"),
    "Memory and display": ("kept", "memory", "critical_path"),
}
_FEW = ("name", "microbatches", "message")  # the simple preset


@dataclass(frozen=True)
class ScheduleValues:
    """One state of the explorer; every field is a control. Times are for one microbatch on one rank."""

    name: str = "ZBH1"
    other: str = _NONE
    ranks: int = 4
    microbatches: int = 8
    chunks: int = 2
    forward: float = 1.0
    backward: float = 1.0
    weight: float = 1.0
    message: float = 0.0
    slow_rank: int = 0
    slowness: float = 1.0
    critical_path: bool = False
    memory: bool = False
    kept: float = 32 / 34

    @property
    def costs_code(self) -> str:
        """The costs as code."""
        parts = []
        for each in (self.forward, self.backward, self.weight):
            slow = [
                each * (self.slowness if rank == self.slow_rank else 1.0)
                for rank in range(self.ranks)
            ]
            parts.append(f"{each:g}" if len(set(slow)) == 1 and slow[0] == each else f"{slow!r}")
        kept = "32 / 34" if self.kept == 32 / 34 else f"{self.kept!r}"
        return f"pl.StageCosts({', '.join(parts)}, comm={self.message:g}, weight_activation={kept})"

    @property
    def code(self) -> str:
        """The few lines that make the same timelines."""
        lines = ["import pipelab as pl", "", f"costs = {self.costs_code}", "timelines = []"]
        names = [name for name in (self.name, self.other) if name != _NONE]
        lines += [f"for name in {names!r}:"]
        chunks = ", ".join(repr(name) for name in names if RULES[name].chunked)
        given = f"{self.chunks} if name in ({chunks},) else None" if chunks else "None"
        lines += [f"    order = pl.schedule(name, {self.ranks}, {self.microbatches}, {given})"]
        lines += ["    timelines.append(pl.simulate(order, costs.cut_for(order)))"]
        return "\n".join(lines) + "\n"


def timeline_for(values: ScheduleValues, name: str | None = None) -> Timeline:
    """The simulated schedule of these values; one rank's work takes longer by `slowness`.

    Raises
    ------
    PipelabError
        The schedule does not exist for these numbers; the message says why.

    Examples
    --------
    >>> timeline_for(ScheduleValues("1F1B", microbatches=4, slow_rank=3, slowness=2)).makespan
    33.0
    """
    name = name or values.name
    order = schedule(
        name, values.ranks, values.microbatches, values.chunks if RULES[name].chunked else None
    )
    factors = [values.slowness if rank == values.slow_rank else 1.0 for rank in range(values.ranks)]
    forward, backward, weight = (
        [each * factor for factor in factors]
        for each in (values.forward, values.backward, values.weight)
    )
    costs = StageCosts(forward, backward, weight, values.message, weight_activation=values.kept)
    return simulate(order, costs.cut_for(order))


class ScheduleExplorer(widgets.VBox):
    """What `pl.explore_schedules` returns; shows itself at the end of a cell.

    Attributes
    ----------
    timelines : tuple of Timeline
        The schedules in the chart; empty where one does not exist for these numbers.
    panel : ControlPanel
        Its checkbox `more` shows all controls or only three.
    """

    def __init__(self, values: ScheduleValues, simple: bool = False) -> None:
        self.timelines: tuple[Timeline, ...] = ()
        self.controls = _controls(values)
        self.measures, self.words, self.code = widgets.HTML(), Words(), CopyCode()
        self.chart = LiveChart(gantt_parts(timeline_for(replace(values, other=_NONE))))
        self.redraw()
        for control in self.controls.values():
            control.observe(lambda _change: self.redraw(), "value")
        self.chart.observe(self._zoomed, "zoomed")
        groups = {
            label: [self.controls[name] for name in names] for label, names in _GROUPS.items()
        }
        self.panel = ControlPanel(groups, [self.controls[name] for name in _FEW], simple)
        super().__init__(
            [self.panel, self.words, self.chart, self.measures, self.code, reload_note(), shared()]
        )

    @property
    def values(self) -> ScheduleValues:
        """What the controls say."""
        return ScheduleValues(**{name: control.value for name, control in self.controls.items()})

    def redraw(self) -> None:
        """Simulate what the controls say, and draw it."""
        self.controls["slow_rank"].max = max(self.controls["ranks"].value - 1, 0)
        values = self.values
        self.controls["chunks"].disabled = not any(
            RULES[n].chunked for n in (values.name, values.other) if n != _NONE
        )
        self.timelines, refused = (), {}
        for name in (values.name, values.other):
            if name != _NONE:
                try:
                    self.timelines += (timeline_for(values, name),)
                except PipelabError as error:
                    refused[name] = error
        self.controls["kept"].disabled = not any(
            timeline.columns.splits_backward for timeline in self.timelines
        )
        if values.name in refused:
            self.timelines = ()
        self.words.value = ""
        for refusal in refused.values():
            self.words.explain(refusal)
        self._draw(values)  # first: the reader looks at the chart
        tables = "".join(measures_html(timeline) for timeline in self.timelines)
        self.measures.value = f"<div style='display:flex;flex-wrap:wrap'>{tables}</div>"
        self.code.code = values.code

    def _draw(self, values: ScheduleValues) -> None:
        if not self.timelines:
            empty = f"There is no {values.name} for these numbers"
            self.chart.put({"data": [], "layout": {"title": {"text": empty}, "height": 430}})
        elif len(self.timelines) == 2 and _bars(self.timelines) <= MOST_BARS:
            labels = {
                t.schedule.name + (" again" if i else ""): t for i, t in enumerate(self.timelines)
            }
            if len({t.schedule.name for t in self.timelines}) == 2:
                labels = {t.schedule.name: t for t in self.timelines}
            self.chart.put(timelines_parts(labels, critical_path=values.critical_path))
        else:
            if len(self.timelines) == 2:
                self.words.say(
                    "Too many bars to draw both schedules: the chart shows the first, the tables both."
                )
            view = GanttView(critical_path=values.critical_path, memory=values.memory, zoom=_ZOOM)
            self.chart.put(gantt_parts(self.timelines[0], view))

    def _zoomed(self, change: Any) -> None:
        """Replace the raster by bars while few enough are in view."""
        if not self.timelines or _bars(self.timelines[:1]) <= MOST_BARS:
            return
        timeline, values, seen = self.timelines[0], self.values, change["new"]
        window = None
        if seen:
            low, high = sorted(min(max(float(edge), 0.0), timeline.makespan) for edge in seen)
            window = (low, high)
        if window is None or window[0] < window[1]:
            view = GanttView(window, critical_path=values.critical_path, zoom=_ZOOM)
            self.chart.put(gantt_parts(timeline, view), seen)


def _bars(timelines: tuple[Timeline, ...]) -> int:
    return sum(int((t.end > t.start).sum()) for t in timelines)


def _controls(values: ScheduleValues) -> dict[str, widgets.Widget]:
    names = [known for known in RULES if known != "Inference"]

    def number(
        description: str, value: float, low: float = 0, high: float = 3, step: float = 0.25
    ) -> Any:
        return widgets.FloatSlider(
            value=value, min=low, max=high, step=step, description=description, **RELEASED
        )

    def count(description: str, value: int, low: int, high: int) -> Any:
        return widgets.IntSlider(
            value=value, min=low, max=max(high, value), description=description, **RELEASED
        )

    return {
        "name": widgets.Dropdown(options=names, value=values.name, description="schedule", **LOOK),
        "other": widgets.Dropdown(
            options=[_NONE, *names], value=values.other, description="compare with", **LOOK
        ),
        "ranks": count("ranks", values.ranks, 1, 32),
        "microbatches": count("microbatches", values.microbatches, 1, 256),
        "chunks": count("chunks per rank", values.chunks, 1, 4),
        "forward": number("forward F", values.forward, 0.25),
        "backward": number("input gradient I", values.backward, 0.25),
        "weight": number("weight gradient W", values.weight),
        "message": number("message", values.message, 0, 2, 0.05),
        "slow_rank": count("slow rank", values.slow_rank, 0, 31),
        "slowness": number("slowdown (×)", values.slowness, 1),
        "critical_path": widgets.Checkbox(
            value=values.critical_path, description="critical path", **LOOK
        ),
        "memory": widgets.Checkbox(value=values.memory, description="memory over time", **LOOK),
        "kept": widgets.Dropdown(
            options=list(_KEPT.items()),
            value=values.kept,
            description="held until W",
            **LOOK,
            tooltip="share of a microbatch's activations that its weight gradient still needs",
        ),
    }


def explore_schedules(
    name: str = "ZBH1",
    ranks: int = 4,
    microbatches: int = 8,
    other: str = _NONE,
    *,
    simple: bool = False,
) -> "ScheduleExplorer":
    """Controls for a schedule and its costs; Gantt charts, bubble measures and closed forms below.

    Two schedules share one time axis. Measures are ticked where simulation and closed form agree;
    hover over one for its formula and when that holds. What a rank holds depends on the share of a
    microbatch's activations that its weight gradient still needs ("held until W"): initially Zero
    Bubble's 32/34.

    Parameters
    ----------
    name : str
        The schedule to begin with.
    ranks : int
        At most 32.
    microbatches : int
        At most 256.
    other : str
        A second schedule, or "none".
    simple : bool
        Begin with three controls: schedule, microbatches and message time. All others keep their
        values until "more controls" shows them.

    Returns
    -------
    ScheduleExplorer
        A widget; `timelines` holds the simulated schedules.

    Raises
    ------
    UnknownName
        The schedule is unknown.
    InvalidValue
        A number is beyond its slider's range.

    Examples
    --------
    >>> import pipelab as pl
    >>> both = pl.explore_schedules("1F1B", other="ZBH1")
    >>> both.chart.layout.title.text
    'ZBH1 ends at 27, 18% before 1F1B'
    """
    names = [known for known in RULES if known != "Inference"]
    for wanted, known in ((name, names), (other, [_NONE, *names])):
        if not isinstance(wanted, str) or wanted not in known:
            raise UnknownName(
                f"schedule {shown(wanted)} is not known here; {nearest(wanted, known)}"
            )
    ranks = whole_number("explore_schedules", "ranks", ranks, most=32)
    microbatches = whole_number("explore_schedules", "microbatches", microbatches, most=256)
    return ScheduleExplorer(ScheduleValues(name, other, ranks, microbatches), simple)
