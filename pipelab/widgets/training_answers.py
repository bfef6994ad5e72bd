"""From the mix explorer's cluster and model to a training step: problem, best placement, words, code."""

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipelab.display import duration, ending, rate
from pipelab.engine.schedules import RULES
from pipelab.engine.solving import solve
from pipelab.fields import given
from pipelab.problem import Problem
from pipelab.widgets.mix_answers import keep, kept
from pipelab.widgets.mix_values import Mix, problem_of, script_of, trained_by
from pipelab.widgets.shown_code import Script, Term

if TYPE_CHECKING:
    from pipelab.engine.training import TrainingResult

BEST = "best"  # of the published rules, for each placement
SCHEDULES = (*(name for name in RULES if name != "Inference"), BEST)


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
) -> "TrainingResult":
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


def headline(found: "TrainingResult", at_work: bool) -> str:
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


def facts(found: "TrainingResult", at_work: bool) -> list[str]:
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
