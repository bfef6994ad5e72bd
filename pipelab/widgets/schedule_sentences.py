"""What the schedule explorer says of a timeline: its measures beside their closed forms, ticked where they agree."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from pipelab.engine.timeline import Timeline
from pipelab.engine.timeline.formulas import ClosedForm, closed_forms


class Measure(NamedTuple):
    """One quantity, simulated and by closed form; `closed` is None where no closed form applies."""

    name: str
    simulated: float | tuple[int, ...]
    closed: float | tuple[int, ...] | None
    formula: str  # with the condition under which it holds; empty without a formula

    @property
    def agrees(self) -> bool | None:
        """Whether both say the same; None where there is nothing to compare."""
        return (
            None
            if self.closed is None
            else bool(np.allclose(self.simulated, self.closed, rtol=1e-9, atol=1e-12))
        )


# measure: the quantity whose formula it follows from, how, and that in words.
_FROM: dict[str, tuple[str, Callable[[Timeline, Any], float | tuple[int, ...]], str]] = {
    "bubble_fraction": (
        "makespan", lambda t, value: 1 - t.busy.sum() / (t.schedule.ranks * value), "1 − Σ busy / (p · makespan)",
    ),
    "bubble_ratio": ("makespan", lambda t, value: (value - t.ideal) / t.ideal, "(makespan − ideal) / ideal"),
    "zb_bubble_rate": ("span", lambda t, value: (value - t.ideal) / value, "(span − ideal) / span"),
    "makespan": ("makespan", lambda t, value: value, ""),
    "span": ("span", lambda t, value: value, ""),
    "peak_in_flight": ("peak_in_flight", lambda t, value: value, ""),
}  # fmt: skip


def measures(timeline: Timeline) -> list[Measure]:
    """The three bubble measures, makespan, span and what is in flight, each with its closed form where it holds.

    Examples
    --------
    >>> import pipelab as pl
    >>> timeline = pl.simulate(pl.schedule("1F1B", 4, 8), pl.StageCosts(1, 1, 1))
    >>> [(m.name, m.agrees) for m in measures(timeline)][:3]
    [('bubble_fraction', True), ('bubble_ratio', True), ('zb_bubble_rate', None)]
    """
    forms = closed_forms(timeline.schedule, timeline.costs)
    rows = []
    for name, (quantity, derive, words) in _FROM.items():
        mine = [form for form in forms if form.quantity == quantity]
        holding = [form for form in mine if form.value is not None]
        closed = derive(timeline, holding[0].value) if holding else None
        rows.append(
            Measure(name, getattr(timeline, name), closed, _formula(holding or mine, words))
        )
    return rows


def _formula(forms: Sequence[ClosedForm], words: str) -> str:
    if not forms:
        return ""
    form = forms[0]
    first = f"{words}, {form.quantity} = {form.formula}" if words else form.formula
    return f"{first} (holds: {form.holds_when})"


def measures_html(timeline: Timeline) -> str:
    """The measures as a table, and the peak memory of each rank where it differs from what is in flight."""
    rows = "".join(_row(measure) for measure in measures(timeline))
    head = "".join(
        f"<th scope='col' style='text-align:{side};padding:1px 10px 1px 0'>{text}</th>"
        for text, side in (
            ("", "left"),
            ("simulated", "right"),
            ("closed form", "right"),
            ("", "left"),
        )
    )
    name = escape(timeline.schedule.name)
    return (
        f"<div style='margin:4px 28px 4px 0;line-height:1.5'><b>{name}</b><table><tr>{head}</tr>{rows}</table>"
        f"{_held(timeline)}</div>"
    )


def _held(timeline: Timeline) -> str:
    """The peak memory of each rank; empty where it can only be the number of microbatches in flight."""
    splits = timeline.columns.splits_backward
    if not splits and timeline.peak_memory == timeline.peak_in_flight:
        return ""
    held = " ".join(f"{peak:.4g}" for peak in timeline.peak_memory[:16])
    held = f"<b>{held}{' …' * (timeline.schedule.ranks > 16)}</b>"
    if splits:
        table = timeline.costs.tables(timeline.schedule)
        share = table["weight_activation"][0] / table["activation"][0]
        held += f", if W needs {share:.4g} of the activations"
    return f"<div>held at most, per rank: {held}</div>"


def _row(measure: Measure) -> str:
    sign, colour = {
        True: ("✓ agree", "#006644"),
        False: ("✗ differ", "#8A3A00"),
        None: ("", "#555"),
    }[measure.agrees]
    closed = (
        _shown(measure.closed)
        if measure.closed is not None
        else "not claimed here"
        if measure.formula
        else "–"
    )
    cell = "<td style='text-align:right;padding:1px 10px 1px 0'>{}</td>"
    return (
        f"<tr title='{escape(measure.formula)}'><th scope='row' style='text-align:left;padding:1px 14px 1px 0'>"
        f"{measure.name}</th>{cell.format(f'<b>{_shown(measure.simulated)}</b>')}{cell.format(closed)}"
        f"<td style='color:{colour};padding-right:8px'>{sign}</td></tr>"
    )


def _shown(value: float | tuple[int, ...]) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value[:8])) + " …" * (len(value) > 8)
    return f"{value:.4g}"
