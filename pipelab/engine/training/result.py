"""Answers: which placement trains fastest under a schedule, and which rule is best for one placement."""

import math
from dataclasses import dataclass
from typing import Any

from pipelab.display import DataFrame, data_frame
from pipelab.engine.answers import Result
from pipelab.engine.objective_and_bound import Objective
from pipelab.engine.timeline import TrainingTimeline, training_timeline
from pipelab.engine.training.bounds import TRAINED_BY
from pipelab.errors import InvalidValue
from pipelab.placement import Placement
from pipelab.problem import Problem

_COLUMNS = (
    "schedule",
    "chunks",
    "seconds_per_step",
    "tokens_per_s",
    "mfu",
    "bubble",
    "memory_needed_gb",
    "fits",
    "reason",
)


@dataclass(frozen=True, kw_only=True)
class StepTime(Objective):
    """Seconds of a training step, and the placements among which they are the least."""

    schedule: str = ""

    @property
    def scope(self) -> str:
        """The schedule that the proof covers."""
        return f" under {self.schedule}"


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingResult(Result):
    """What `pl.solve(problem, objective="step_time")` returns: a `Result` with the step itself.

    Attributes
    ----------
    schedule : str or None
        The rule of the best step; None without a placement.
    recompute : tuple of str or None
        For each stage, which activations are computed a second time; None if the cost model does not
        say, and without a placement.
    step : TrainingTimeline or None
        The step, simulated: `pl.gantt(result.step.timeline)`.

    Notes
    -----
    `throughput` counts the tokens of all microbatches over the time of a step.
    """

    schedule: str | None = None
    recompute: tuple[str, ...] | None = None
    step: TrainingTimeline | None = None

    @property
    def bubble(self) -> float | None:
        """Idle share of all ranks' time."""
        return None if self.step is None else self.step.timeline.bubble_fraction

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization; None if the cost model does not count FLOPs."""
        return None if self.step is None else self.step.mfu

    def to_dict(self) -> dict:
        """Plain data for JSON, numbers unrounded.

        Returns
        -------
        dict
            As `Result.to_dict`, and the schedule, the microbatches, the bubble, the MFU, and what
            is recomputed.
        """
        return super().to_dict() | {
            "schedule": self.schedule,
            "microbatches": self.problem.workload.microbatches,
            "bubble": self.bubble,
            "mfu": self.mfu,
            "recompute": None if self.recompute is None else list(self.recompute),
        }

    def to_frame(self) -> DataFrame:
        """Return the answer as a table of one row.

        Returns
        -------
        pandas.DataFrame
            As `Result.to_frame`, and `schedule`, `bubble` and `mfu`.
        """
        frame = super().to_frame()
        frame["schedule"], frame["bubble"], frame["mfu"] = self.schedule, self.bubble, self.mfu
        return frame

    def _repr_html_(self) -> str:
        return self._shown(self._title, self.step._repr_html_() if self.step else "")


def schedules_for(problem: Problem, placement: Placement | Result, **options: Any) -> DataFrame:
    """Simulate a training step of one placement under every published rule, the best first.

    Parameters
    ----------
    problem : Problem
        With a workload of training.
    placement : Placement or Result
        The pipeline.
    **options
        As for `pl.timeline_of`: `recompute`, `bytes_per_parameter`, `microbatches`, …

    Returns
    -------
    pandas.DataFrame
        One row per rule: `schedule`, `chunks` (stages per rank), `seconds_per_step`,
        `tokens_per_s`, `mfu` (None where the cost model counts no FLOPs), `bubble` (idle share of
        all ranks' time), `memory_needed_gb` (of the rank with least to spare, NaN where the cost
        model does not say), `fits`, and the `reason` where it
        does not, or where there is no such schedule on so many ranks. What fits comes first.

    Raises
    ------
    InvalidPlacement, InvalidValue
        As `pl.timeline_of`, but for rules that do not exist here.

    Examples
    --------
    >>> import dataclasses, pipelab as pl
    >>> tiny = pl.load_case("tiny", link_units="tokens")
    >>> load = dataclasses.replace(tiny.workload, phase="training", microbatches=8)
    >>> problem = dataclasses.replace(tiny, workload=load)
    >>> table = schedules_for(problem, pl.Placement.of([(2, (0,)), (2, (1,))]))
    >>> table.schedule[0], bool(table.fits.all())
    ('ZBH2', True)
    """
    rows = []
    for name in TRAINED_BY:
        row: dict[str, Any] = dict.fromkeys(_COLUMNS) | {"schedule": name, "fits": False}
        try:
            step = training_timeline(problem, placement, schedule=name, **options)
        except InvalidValue as error:
            if not str(error).startswith("schedule"):
                raise
            rows.append(row | {"reason": str(error)})
            continue
        needed = zip(step.memory_gb or (), step.limits_gb, strict=False)
        row |= {
            "chunks": step.timeline.schedule.chunks,
            "seconds_per_step": step.timeline.iteration_time,
            "tokens_per_s": step.rate,
            "mfu": step.mfu,
            "bubble": step.timeline.bubble_fraction,
            "memory_needed_gb": max(needed, key=lambda x: x[0] / x[1], default=(None,))[0],
            "fits": not step.shortfall,
            "reason": step.shortfall,
        }
        rows.append(row)
    rows.sort(key=lambda row: (not row["fits"], row["seconds_per_step"] or math.inf))
    return data_frame(rows, columns=_COLUMNS).astype({"memory_needed_gb": float})
