"""The schedule explorer: change any control and see Gantt charts, bubble measures and closed forms."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import ipywidgets as widgets
import numpy as np

from pipelab.display import number
from pipelab.engine.schedules import RULES, schedule
from pipelab.engine.timeline import StageCosts, Timeline, simulate
from pipelab.engine.timeline.formulas import closed_forms
from pipelab.errors import PipelabError, refuse_unknown
from pipelab.fields import whole_number
from pipelab.figures.gantts import MOST_BARS, gantt_parts, timelines_parts, within
from pipelab.figures.theme import finish
from pipelab.widgets.chart import LiveChart
from pipelab.widgets.explorer_parts import (
    LOOK,
    RELEASED,
    ControlPanel,
    CopyCode,
    Explorer,
    Words,
    integer,
    menu,
    shared,
)
from pipelab.widgets.shown_code import Script, Term, public

_NAMES = [name for name in RULES if name != "Inference"]
_NO_OTHER = "none"
# What a weight gradient still needs of a microbatch's activations, until it has run.
_SHARES_KEPT = {
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
_SIMPLE_PRESET = ("name", "microbatches", "message")  # the simple preset


@dataclass(frozen=True)
class ScheduleValues:
    """One state of the explorer; every field is a control. Times are for one microbatch on one rank."""

    name: str = "ZBH1"
    other: str = _NO_OTHER
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
    def names(self) -> list[str]:
        """The schedules in the chart."""
        return [name for name in (self.name, self.other) if name != _NO_OTHER]

    @property
    def code(self) -> str:
        """The few lines that make the same timelines."""
        return _script(self, self.names)[0].code


def timeline_for(values: ScheduleValues, name: str | None = None) -> Timeline:
    """Return the simulated schedule of these values; one rank's work takes longer by `slowness`.

    Raises
    ------
    PipelabError
        The schedule does not exist for these numbers; the message says why.

    Examples
    --------
    >>> timeline_for(ScheduleValues("1F1B", microbatches=4, slow_rank=3, slowness=2)).makespan
    33.0
    """
    return _script(values, [name or values.name])[1][0].value


def _script(values: ScheduleValues, names: Sequence[str]) -> tuple[Script, list[Term]]:
    """Return the script of the timelines of these schedules, and a term for each."""
    slow = [values.slowness if r == values.slow_rank else 1.0 for r in range(values.ranks)]
    work = []
    for seconds in (values.forward, values.backward, values.weight):
        ranks = [seconds * factor for factor in slow]
        work.append(ranks if any(one != seconds for one in ranks) else seconds)
    kept = Term("32 / 34", lambda: 32 / 34) if values.kept == 32 / 34 else values.kept
    script = Script()
    costs = public(StageCosts)(*work, comm=values.message, weight_activation=kept)
    costs, timelines = script.let("costs", costs), []
    for name in names:
        chunks = (values.chunks,) if RULES[name].chunked else ()
        order = public(schedule)(name, values.ranks, values.microbatches, *chunks)
        order = script.let("order", order)
        timelines.append(public(simulate)(order, costs.cut_for(order)))
        assigned = "timelines +=" if timelines[1:] else "timelines ="
        script.lines.append(f"{assigned} [{timelines[-1].text}]")
    return script, timelines


class Measure(NamedTuple):
    """One quantity, simulated and by closed form; `closed` is None where no closed form applies."""

    name: str
    simulated: float | tuple[int, ...]
    closed: float | tuple[int, ...] | None
    formula: str  # with the condition under which it holds; empty without a formula

    @property
    def agrees(self) -> bool | None:
        """Whether both say the same; None where there is nothing to compare."""
        if self.closed is None:
            return None
        return bool(np.allclose(self.simulated, self.closed, rtol=1e-9, atol=1e-12))


# measure: the quantity whose formula it follows from, and in words how.
_QUANTITIES = {
    "bubble_fraction": ("makespan", "1 − Σ busy / (p · makespan)"),
    "bubble_ratio": ("makespan", "(makespan − ideal) / ideal"),
    "zb_bubble_rate": ("span", "(span − ideal) / span"),
    "makespan": ("makespan", ""),
    "span": ("span", ""),
    "peak_in_flight": ("peak_in_flight", ""),
}


def _follows(name: str, timeline: Timeline, value: Any) -> Any:
    """Return what a measure comes to where its quantity has this value."""
    if name == "bubble_fraction":
        return 1 - timeline.busy.sum() / (timeline.schedule.ranks * value)
    if name in ("bubble_ratio", "zb_bubble_rate"):
        return (value - timeline.ideal) / (timeline.ideal if name == "bubble_ratio" else value)
    return value


def measures(timeline: Timeline) -> list[Measure]:
    """Return the bubble measures, makespan, span and what is in flight, each with its closed form.

    Examples
    --------
    >>> import pipelab as pl
    >>> timeline = pl.simulate(pl.schedule("1F1B", 4, 8), pl.StageCosts(1, 1, 1))
    >>> [(m.name, m.agrees) for m in measures(timeline)][:3]
    [('bubble_fraction', True), ('bubble_ratio', True), ('zb_bubble_rate', None)]
    """
    forms = closed_forms(timeline.schedule, timeline.costs)
    rows = []
    for name, (quantity, words) in _QUANTITIES.items():
        mine = [form for form in forms if form.quantity == quantity]
        holding = [form for form in mine if form.value is not None]
        closed = _follows(name, timeline, holding[0].value) if holding else None
        formula = ""
        for form in (holding or mine)[:1]:
            first = f"{words}, {quantity} = {form.formula}" if words else form.formula
            formula = f"{first} (holds: {form.holds_when})"
        rows.append(Measure(name, getattr(timeline, name), closed, formula))
    return rows


def measures_html(timeline: Timeline) -> str:
    """Return the measures as a table, and what each rank holds where that is not what is in flight."""
    left, right = (
        f"style='text-align:{side};padding:1px 10px 1px 0'" for side in ("left", "right")
    )
    rows = [f"<tr><th></th><th {right}>simulated</th><th {right}>closed form</th><th></th></tr>"]
    names = {name: name for name in _QUANTITIES}
    if timeline.columns.chunks > 1:  # beside what ranks hold, which is in microbatches
        names["peak_in_flight"] += f", chunks of 1/{timeline.columns.chunks} microbatch"
    for measure in measures(timeline):
        closed = "not claimed here" if measure.formula else "–"
        closed = closed if measure.closed is None else _shown(measure.closed)
        rows.append(
            f"<tr title='{escape(measure.formula)}'><th scope='row' {left}>{names[measure.name]}</th>"
            f"<td {right}><b>{_shown(measure.simulated)}</b></td><td {right}>{closed}</td>"
            f"{_SIGNS[measure.agrees]}</tr>"
        )
    name = escape(timeline.schedule.name)
    return (
        f"<div style='margin:4px 28px 4px 0;line-height:1.5'><b>{name}</b>"
        f"<table>{''.join(rows)}</table>{_held(timeline)}</div>"
    )


_SIGNS = {
    True: "<td style='color:#006644'>✓ agree</td>",
    False: "<td style='color:#99220B'>✗ differ</td>",
    None: "<td></td>",
}


def _held(timeline: Timeline) -> str:
    """Say the peak memory of each rank; empty where it can only be the number of microbatches in flight."""
    splits = timeline.columns.splits_backward
    if not splits and timeline.peak_memory == timeline.peak_in_flight:
        return ""
    held = " ".join(number(peak) for peak in timeline.peak_memory[:16])
    held = f"<b>{held}{' …' * (timeline.schedule.ranks > 16)}</b>"
    if splits:
        table = timeline.costs.tables(timeline.schedule)
        share = table["weight_activation"][0] / table["activation"][0]
        held += f", if W needs {number(share)} of the activations"
    return f"<div>held at most, per rank: {held}</div>"


def _shown(value: float | tuple[int, ...]) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value[:8])) + " …" * (len(value) > 8)
    return number(value)


class ScheduleExplorer(Explorer):
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
        self.chart = LiveChart(finish([], "", height=430))
        self.redraw()
        for control in self.controls.values():
            control.observe(lambda _change: self.redraw(), "value")
        self.chart.observe(self._zoomed, "zoomed")
        groups = {
            label: [self.controls[name] for name in names] for label, names in _GROUPS.items()
        }
        self.panel = ControlPanel(groups, [self.controls[name] for name in _SIMPLE_PRESET], simple)
        below = [self.words, self.chart, self.measures, self.code, shared()]
        super().__init__([self.panel, *below])

    @property
    def values(self) -> ScheduleValues:
        """What the controls say."""
        return ScheduleValues(**{name: control.value for name, control in self.controls.items()})

    def redraw(self) -> None:
        """Simulate what the controls say, and draw it."""
        self.controls["slow_rank"].max = max(self.controls["ranks"].value - 1, 0)
        values = self.values
        self.controls["chunks"].disabled = not any(RULES[name].chunked for name in values.names)
        self.timelines, refused = (), {}
        for name in values.names:
            try:
                self.timelines += (timeline_for(values, name),)
            except PipelabError as error:
                refused[name] = error
        splits = any(timeline.columns.splits_backward for timeline in self.timelines)
        self.controls["kept"].disabled = not splits
        if values.name in refused:
            self.timelines = ()
        self.words.value = ""
        for refusal in refused.values():
            self.words.explain(refusal)
        self._draw(values)  # first: the reader looks at the chart
        tables = "".join(measures_html(timeline) for timeline in self.timelines)
        self.measures.value = f"<div style='display:flex;flex-wrap:wrap'>{tables}</div>"
        self.code.code = values.code

    def _draw(self, values: ScheduleValues, seen: list[float] | None = None) -> None:
        """Draw all of the time, or the part that is seen."""
        two = len(self.timelines) == 2
        both = two and _bars(self.timelines) <= MOST_BARS
        self.controls["memory"].disabled = both  # drawn of one schedule only
        if not self.timelines:
            empty = f"There is no {values.name} for these numbers"
            self.chart.put(finish([], empty, height=430, xaxis=_HIDDEN, yaxis=_HIDDEN))
            return
        first = self.timelines[0]
        if both:
            again = " again" * (values.name == values.other)
            labels = {values.name: first, values.other + again: self.timelines[1]}
            self.chart.put(timelines_parts(labels, critical_path=values.critical_path))
            return
        if two:
            many = "Too many bars to draw both schedules"
            self.words.say(f"{many}: the chart shows the first, the tables both.")
        marks: dict[str, Any] = {"critical_path": values.critical_path, "memory": values.memory}
        window = within(first, seen) if seen else None
        self.chart.put(gantt_parts(first, window=window, **marks, zoom=_ZOOM), seen)

    def _zoomed(self, change: Any) -> None:
        """Replace the raster by bars while few enough are in view."""
        if self.timelines and _bars(self.timelines[:1]) > MOST_BARS:
            self._draw(self.values, change["new"])


_HIDDEN = {"visible": False}


def _bars(timelines: tuple[Timeline, ...]) -> int:
    return sum(int((t.end > t.start).sum()) for t in timelines)


def _controls(values: ScheduleValues) -> dict[str, widgets.Widget]:
    held = "share of a microbatch's activations that its weight gradient still needs"
    controls = {
        "name": menu("schedule", _NAMES),
        "other": menu("compare with", [_NO_OTHER, *_NAMES]),
        "ranks": integer("ranks", 1, 32),
        "microbatches": integer("microbatches", 1, 256),
        "chunks": integer("chunks per rank", 1, 4),
        "forward": _time("forward F", 0.25),
        "backward": _time("input gradient I", 0.25),
        "weight": _time("weight gradient W"),
        "message": _time("message", 0, 2, 0.05),
        "slow_rank": integer("slow rank", 0, 31),
        "slowness": _time("slowdown (×)", 1),
        "critical_path": widgets.Checkbox(description="critical path", **LOOK),
        "memory": widgets.Checkbox(description="memory over time", **LOOK),
        "kept": menu("held until W", list(_SHARES_KEPT.items()), tooltip=held),
    }
    for name, control in controls.items():
        control.value = getattr(values, name)
    return controls


def _time(label: str, least: float = 0, most: float = 3, step: float = 0.25) -> Any:
    return widgets.FloatSlider(min=least, max=most, step=step, description=label, **RELEASED)


def explore_schedules(
    name: str = "ZBH1",
    ranks: int = 4,
    microbatches: int = 8,
    other: str = _NO_OTHER,
    *,
    simple: bool = False,
) -> "ScheduleExplorer":
    """Show controls for a schedule and its costs; Gantt charts, bubble measures and closed forms below.

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
    refuse_unknown("schedule to explore named", name, _NAMES)
    refuse_unknown("schedule to compare with named", other, [_NO_OTHER, *_NAMES])
    ranks = whole_number("explore_schedules", "ranks", ranks, most=32)
    microbatches = whole_number("explore_schedules", "microbatches", microbatches, most=256)
    return ScheduleExplorer(ScheduleValues(name, other, ranks, microbatches), simple)
