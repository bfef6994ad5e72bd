"""The training half of the pipeline explorer: the step that takes least, its Gantt chart, memory, words and code."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import ipywidgets as widgets
import traitlets

from pipelab.display import duration, ending, rate
from pipelab.engine.schedules import RULES
from pipelab.engine.solving import solve
from pipelab.engine.training import TrainingResult
from pipelab.errors import PipelabError
from pipelab.fields import given
from pipelab.figures.placements import placement_parts
from pipelab.figures.theme import plain
from pipelab.figures.training_step import training_gantt_parts, training_memory_parts
from pipelab.problem import Problem
from pipelab.widgets.background import Beside, running_loop
from pipelab.widgets.chart import LiveChart
from pipelab.widgets.explorer_parts import COLUMNS, Busy, CopyCode, Words, choice, menu
from pipelab.widgets.mix_answers import PROVEN_STATUSES, keep, kept
from pipelab.widgets.mix_controls import MixControls
from pipelab.widgets.mix_values import Mix, problem_of, script_of, trained_by
from pipelab.widgets.shown_code import Script, Term

_FIRST_S = 0.8  # for a first answer
_LIMIT_S = 30.0  # for the proof
_IDLE_S = 0.4  # without a change before that begins
_MICROBATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_SEQUENCES = (1, 2, 4, 8, 16, 32)
_RECOMPUTE = {
    "nothing": "none",
    "attention's scores": "selective",
    "whole layers": "full",
    "layers where memory binds": "auto",
}
_BEST = "best"  # of the published rules, for each placement
_SCHEDULES = (*(name for name in RULES if name != "Inference"), _BEST)


@dataclass(frozen=True)
class TrainingValues:
    """The controls for training in one state.

    Parameters
    ----------
    schedule : str
        A name of `pl.schedule`, or "best".
    microbatches : int
        Of one step.
    sequences : int
        Of one microbatch.
    recompute : {"none", "selective", "full", "auto"}
    """

    schedule: str = "1F1B"
    microbatches: int = 16
    sequences: int = 1
    recompute: str = "none"

    @property
    def options(self) -> dict[str, Any]:
        """Options of `pl.solve`: recomputation only where there is any, since not all cost models know it."""
        again = {} if self.recompute == "none" else {"recompute": self.recompute}
        return {"schedule": self.schedule, **again}


def for_training(mix: Mix, values: TrainingValues) -> Mix:
    """Return the mix without what only serving has."""
    # in flight and output tokens as they are by default: they mean nothing here
    return replace(mix, phase="prefill", batch=values.sequences, in_flight=None, output_tokens=256)


def training_problem(mix: Mix, values: TrainingValues) -> Problem:
    """Return the problem of the mix's cluster and model, trained.

    Raises
    ------
    InvalidValue
        The values contradict each other.
    """
    problem_of(for_training(mix, values))  # raises what is wrong with the mix
    return _script(mix, values)[1].value


def _script(mix: Mix, values: TrainingValues) -> tuple[Script, Term]:
    script, problem = script_of(for_training(mix, values))
    load = mix.context, values.sequences
    return script, trained_by(script, problem, *load, microbatches=values.microbatches)


def trained(
    mix: Mix,
    values: TrainingValues,
    stop: threading.Event | None = None,
    time_limit: float | None = None,
) -> TrainingResult:
    """Find the placement whose training step takes least, as far as time allows.

    Raises
    ------
    PipelabError
        The values contradict each other.
    """
    key = for_training(mix, values), values
    if (known := kept(key)) is not None:
        return known
    result = solve(
        training_problem(mix, values),
        objective="step_time",
        **values.options,
        stop=stop,
        time_limit=time_limit,
    )
    keep(key, result, result.status)
    return result


def headline(found: TrainingResult, at_work: bool) -> str:
    """Return in one line what was found, and how far it is proven."""
    if found.placement is None:
        return ""
    stages, step = len(found.placement), duration(given(given(found.objective).value))
    head = f"{found.schedule}: a step takes {step} on {stages} stages, "
    if found.status == "optimal":
        return f"{head}proven least"
    far = f"up to {found.gap:.1%} less may be possible" if found.gap is not None else "no bound yet"
    state = "being proven" if at_work else ending(found.stopped_by) or "not proven"
    return f"{head}{state}: {far}"


def facts(found: TrainingResult, at_work: bool) -> list[str]:
    """Return lines for a reader: tokens/s, idle share, what is recomputed."""
    if found.step is None:
        return [] if at_work else [found.reason or found.sentence]
    idle = f"{found.bubble:.1%} of the stages' time is idle (the bubble)."
    lines = [f"{rate(given(found.throughput))}; {idle}"]
    modes = found.recompute or ()
    if len(set(modes)) > 1:
        again = [str(i) for i, mode in enumerate(modes, 1) if mode != "none"]
        lines.append(f"Recomputed in stages {', '.join(again)} only.")
    return lines


def code_of_training(mix: Mix, values: TrainingValues) -> str:
    """Return the lines that make the problem and its answer."""
    script, _ = _script(mix, values)
    options = ", ".join(f"{name}={value!r}" for name, value in values.options.items())
    script.lines.append(f'result = pl.solve(problem, objective="step_time", {options})')
    script.lines.append("step = result.step")
    return script.code


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

    def __init__(self, controls: MixControls) -> None:
        self._controls, begins = controls, TrainingValues()
        self.found: TrainingResult | None = None
        names = [("the best rule" if name == _BEST else name, name) for name in _SCHEDULES]
        self.schedule = menu("schedule", names, value=begins.schedule)
        self.microbatches = choice("microbatches", _MICROBATCHES, value=begins.microbatches)
        self.sequences = choice("sequences in each", _SEQUENCES, value=begins.sequences)
        self.recompute = menu("recomputed", list(_RECOMPUTE.items()), value=begins.recompute)
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
        limit = _FIRST_S if running_loop() else _LIMIT_S
        self._beside.run(lambda stop: trained(mix, values, stop, limit), self._arrived)

    def _arrived(self, found: "TrainingResult | None", error: BaseException | None) -> None:
        if found is None:
            self.found = None
            if not isinstance(error, PipelabError):
                raise error or RuntimeError("neither an answer nor an error")
            self.words.explain(error)
            self._show_nothing("These values contradict each other")
            return
        proven = found.status in PROVEN_STATUSES
        self._show(found, at_work=not proven)
        if not proven:
            self._beside.later(self._proof, lambda better: self._show(better, False), _IDLE_S)

    def _proof(self, stop: threading.Event) -> "Iterator[TrainingResult]":
        mix, values = self._controls.mix, self.values
        found = trained(mix, values, stop, _LIMIT_S)
        if not stop.is_set():
            yield found

    def _show(self, found: TrainingResult, at_work: bool) -> None:
        self.found = found
        self.words.say(*facts(found, at_work))
        step = found.step
        if step is None:
            none = f"{plain(found.problem.name)}: no placement "
            infeasible = found.status == "infeasible"
            self._show_nothing(none + ("can be trained" if infeasible else "found yet …"))
            return
        finding = f"{plain(step.problem.name)}, {headline(found, at_work)}"
        self.gantt.put(training_gantt_parts(step, finding=finding))
        self.memory.put(training_memory_parts(step))

    def _show_nothing(self, title: str) -> None:
        self.gantt.put(placement_parts(None, None, title))
        unheld = "Nothing is held in memory without a placement"
        self.memory.put(placement_parts(None, None, unheld))
