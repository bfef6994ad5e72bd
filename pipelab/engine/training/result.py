"""The answer to which placement trains fastest under a schedule."""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from pipelab.display import NO_FORMULAS, ended
from pipelab.engine.objective import Objective
from pipelab.engine.timeline import TrainingTimeline
from pipelab.solving import Result

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class StepTime(Objective):
    """Seconds of a training step, and among which placements they are the least."""

    schedule: str = ""

    @property
    def among(self) -> str:
        """Under which schedule."""
        return f" among placements under {self.schedule}"


@dataclass(frozen=True, eq=False)
class TrainingResult(Result):
    """What `pl.solve(problem, objective="step_time")` returns: a `Result` with the step itself.

    Attributes
    ----------
    schedule : str or None
        The rule that the answer runs under; None without a placement.
    recompute : tuple of str or None
        For every stage which activations are computed a second time; None where the cost model does
        not say, and without a placement.
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
    def tokens_per_s(self) -> float | None:
        """Tokens of all microbatches over the time of a step."""
        return self.throughput

    @property
    def bubble(self) -> float | None:
        """Idle share of all ranks' time."""
        return None if self.step is None else self.step.timeline.bubble_fraction

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilization; None where the cost model does not count FLOPs."""
        return None if self.step is None else self.step.mfu

    @property
    def memory_gb(self) -> tuple[float, ...] | None:
        """On each rank's fullest GPU; None where the cost model does not say."""
        return None if self.step is None else self.step.memory_gb

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

    def to_frame(self) -> "DataFrame":
        """The answer as a table of one row.

        Returns
        -------
        pandas.DataFrame
            As `Result.to_frame`, and `schedule`, `bubble` and `mfu`.
        """
        frame = super().to_frame()
        frame["schedule"], frame["bubble"], frame["mfu"] = self.schedule, self.bubble, self.mfu
        return frame

    def _repr_html_(self) -> str:
        name = f"<b>{escape(self.problem.name)}, {escape(self.method)}:</b>"
        html = (
            f"<p class='{NO_FORMULAS}'>{name} {ended(self, html=True)}: {escape(self.sentence)}</p>"
        )
        return html + (self.step._repr_html_() if self.step else "")
