"""What the schedule explorer says of a timeline: measures beside closed forms, ticked if equal."""

from html import escape
from typing import Any, NamedTuple

import numpy as np

from pipelab.display import number
from pipelab.engine.timeline import Timeline
from pipelab.engine.timeline.formulas import closed_forms


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
_FROM = {
    "bubble_fraction": ("makespan", "1 − Σ busy / (p · makespan)"),
    "bubble_ratio": ("makespan", "(makespan − ideal) / ideal"),
    "zb_bubble_rate": ("span", "(span − ideal) / span"),
    "makespan": ("makespan", ""),
    "span": ("span", ""),
    "peak_in_flight": ("peak_in_flight", ""),
}


def _follows(name: str, timeline: Timeline, value: Any) -> Any:
    """What a measure comes to where its quantity has this value."""
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
    for name, (quantity, words) in _FROM.items():
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
    names = {name: name for name in _FROM}
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
    """The peak memory of each rank; empty where it can only be the number of microbatches in flight."""
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
