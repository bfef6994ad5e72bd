"""The training half of the pipeline explorer: schedule, microbatches, recomputation; Gantt and memory."""

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import traitlets

from pipelab.errors import PipelabError
from pipelab.figures.placements import placement_parts
from pipelab.figures.theme import plain
from pipelab.figures.training_step import training_gantt_parts, training_memory_parts
from pipelab.widgets.background import Beside
from pipelab.widgets.chart import LiveChart
from pipelab.widgets.explorer_parts import COLUMNS, Busy, CopyCode, Words, choice, menu
from pipelab.widgets.training_answers import (
    BEST,
    SCHEDULES,
    TrainingValues,
    code_of_training,
    facts,
    headline,
    trained,
)

if TYPE_CHECKING:
    from pipelab.engine.timeline import TrainingTimeline
    from pipelab.engine.training import TrainingResult
    from pipelab.widgets.mix_controls import MixControls

_FIRST_S = 0.8  # for a first answer
_LIMIT_S = 30.0  # for the proof
_IDLE_S = 0.4  # without a change before that begins
_MICROBATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_SEQUENCES = (1, 2, 4, 8, 16, 32)
_RECOMPUTE = {
    "none": "nothing",
    "selective": "attention's scores",
    "full": "whole layers",
    "auto": "layers where memory binds",
}


class TrainingHalf(widgets.VBox):
    """Follows the controls of a mix while `at_work` is true.

    Parameters
    ----------
    controls : MixControls
        Cluster, model, context and rules of the stages.

    Attributes
    ----------
    found : TrainingResult or None
        The best placement known; None where the values contradict each other, and before the first.
    """

    at_work = traitlets.Bool(False)

    def __init__(self, controls: "MixControls") -> None:
        self._controls, begins = controls, TrainingValues()
        self.found: TrainingResult | None = None
        names = [("the best rule" if name == BEST else name, name) for name in SCHEDULES]
        self.schedule = menu("schedule", names, value=begins.schedule)
        self.microbatches = choice("microbatches", _MICROBATCHES, value=begins.microbatches)
        self.sequences = choice("sequences in each", _SEQUENCES, value=begins.sequences)
        names = [(label, kind) for kind, label in _RECOMPUTE.items()]
        self.recompute = menu("recomputed", names, value=begins.recompute)
        fields = [self.schedule, self.microbatches, self.sequences, self.recompute]
        self.busy, self.words, self.code = Busy(), Words(), CopyCode()
        empty = placement_parts(None, None, "The training step is being solved …")
        self.gantt, self.memory = LiveChart(empty), LiveChart(empty)
        self._beside = Beside(self.busy.show)
        for control in fields:
            control.observe(self._follow, "value")
        controls.observe(self._follow, "mix")
        self.observe(self._follow, "at_work")
        head = widgets.HTML(
            "<b>The placement whose training step takes least</b>, and what its GPUs do and hold"
        )
        grid = widgets.GridBox(fields, layout=COLUMNS)
        below = [self.words, self.gantt, self.memory, self.code]
        super().__init__([head, grid, self.busy, *below])

    @property
    def values(self) -> TrainingValues:
        """What its controls say."""
        return TrainingValues(
            self.schedule.value, self.microbatches.value, self.sequences.value, self.recompute.value
        )

    def _follow(self, _change: Any = None) -> None:
        """Draw a first answer, prove it later."""
        if not self.at_work:
            self._beside.cancel()
            return
        mix, values = self._controls.mix, self.values
        self.code.code = code_of_training(mix, values)
        # where nothing follows, in a script, all of the time is given to the first answer
        limit = _FIRST_S if self._beside.follows else _LIMIT_S
        self._beside.run(lambda stop: trained(mix, values, stop, limit), self._arrived)

    def _arrived(self, found: "TrainingResult | None", error: BaseException | None) -> None:
        if found is None:
            self.found = None
            if not isinstance(error, PipelabError):
                raise error or RuntimeError("neither an answer nor an error")
            self.words.explain(error)
            self._show_nothing("These values contradict each other")
            return
        proven = found.status in ("optimal", "infeasible")
        self._show(found, at_work=not proven)
        if not proven:
            self._beside.later(self._proof, lambda better: self._show(better, False), _IDLE_S)

    def _proof(self, stop: threading.Event) -> "Iterator[TrainingResult]":
        mix, values = self._controls.mix, self.values
        found = trained(mix, values, stop, _LIMIT_S)
        if not stop.is_set():
            yield found

    def _show(self, found: "TrainingResult", at_work: bool) -> None:
        self.found = found
        self.words.say(*facts(found, at_work))
        step = found.step
        if step is None:
            none = f"{plain(found.problem.name)}: no placement "
            infeasible = found.status == "infeasible"
            self._show_nothing(none + ("can be trained" if infeasible else "found yet …"))
            return
        self._draw(step, headline(found, at_work))

    def _draw(self, step: "TrainingTimeline", finding: str) -> None:
        """Draw the charts of a step."""
        self.gantt.put(training_gantt_parts(step, finding=f"{plain(step.problem.name)}, {finding}"))
        self.memory.put(training_memory_parts(step))

    def _show_nothing(self, title: str) -> None:
        self.gantt.put(placement_parts(None, None, title))
        self.memory.put(
            placement_parts(None, None, "Nothing is held in memory without a placement")
        )
