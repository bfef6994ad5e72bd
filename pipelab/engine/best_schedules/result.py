"""What `best_schedule` returns."""

from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any

from pipelab.answers import Answer
from pipelab.display import NO_FORMULAS, table
from pipelab.engine.best_schedules.question import Question
from pipelab.engine.timeline.timeline import Timeline
from pipelab.schedules import Schedule

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class BestSchedule(Answer):
    """A schedule, how long it takes, and the proof that none of these costs and limits is shorter.

    Attributes
    ----------
    question : Question
        Costs, ranks, microbatches and limits.
    objective : {"makespan", "span"}
        What was minimised.
    status : str
        "optimal": proven, the bound is reached. "feasible": a schedule without that proof.
        "infeasible": not even one microbatch fits, see `reason`.
    timeline : Timeline or None
        The schedule, simulated with buffered transfers; None where there is none.
    value : float or None
        Its makespan, or the time of each of many steps, in the unit of the costs. A rank may start
        later than in `timeline` without delaying others, so that this is no longer than
        `timeline.span`.
    bound : float or None
        No schedule within the limits is shorter, in the unit of the costs.
    first : dict of str to float
        What each schedule took that the search could begin with, by name.
    seconds : float
        From the call to the answer.
    reason : str
        Why there is no schedule.
    stopped_by : str or None
        "time limit", "stop" or "interrupt" where it ended early.
    solver : str
        What searched; empty where the first schedule reached a bound known by formula.

    Examples
    --------
    >>> import pipelab as pl
    >>> best = pl.best_schedule(pl.StageCosts(1, 1, 1), ranks=4, microbatches=8, max_in_flight=4)
    >>> print(best.sentence.split(":")[0])
    27 for 8 microbatches on 4 ranks, proven
    >>> best.among
    'one stage per rank and at most 4 microbatches in flight'
    """

    question: Question
    objective: str
    status: str
    timeline: Timeline | None
    bound: float | None
    first: dict[str, float]
    seconds: float
    value: float | None = None
    reason: str = ""
    stopped_by: str | None = None
    solver: str = ""

    @property
    def schedule(self) -> Schedule | None:
        """What every rank does, in order; `pl.save` writes it as a table that torch runs."""
        return None if self.timeline is None else self.timeline.schedule

    @property
    def makespan(self) -> float | None:
        """From the first start to the last end."""
        return None if self.timeline is None else self.timeline.makespan

    @property
    def _goal(self) -> tuple[float | None, float | None, bool]:
        return self.value, self.bound, True

    @cached_property
    def among(self) -> str:
        """What the proof is about, in words."""
        words = ["one stage per rank"]
        asked = self.question
        if min(asked.in_flight) < asked.microbatches:
            most = sorted(set(asked.in_flight))
            number = f"{most[0]}" if len(most) == 1 else f"{most[0]} to {most[-1]}"
            words.append(f"at most {number} microbatches in flight")
        if asked.memory is not None:
            words.append("within the memory given")
        if not asked.split_backward:
            words.append("full backwards")
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"

    @property
    def sentence(self) -> str:
        """The answer in words."""
        asked = self.question
        if self.status == "infeasible":
            return self._none_found("schedule")
        unit = f" {asked.costs.unit}" if asked.costs.unit else ""
        what = "" if self.objective == "makespan" else " a step"
        head = f"{self.value:,.7g}{unit}{what} for {asked.microbatches} microbatches on {asked.ranks} ranks"
        if self.status == "optimal":
            return f"{head}, proven: no schedule with {self.among} is shorter."
        far = self._up_to(f": one with {self.among}", "shorter")
        return f"{head}, not proven best{self._why}{far}."

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain values."""
        return {
            "status": self.status,
            "objective": self.objective,
            "value": self.value,
            "bound": self.bound,
            "gap": self.gap,
            "first": dict(self.first),
            "seconds": self.seconds,
            "stopped_by": self.stopped_by,
            "reason": self.reason,
        }

    def to_frame(self) -> "DataFrame":
        """This schedule beside those it began with, the shortest first.

        Returns
        -------
        pandas.DataFrame
            One row per schedule: `schedule`, `value` in the unit of the costs, and `above_bound`, a
            share.
        """
        import pandas as pd

        rows = dict(self.first)
        if self.schedule is not None and self.value is not None:
            rows[self.schedule.name] = self.value
        frame = pd.DataFrame({"schedule": list(rows), "value": list(rows.values())})
        frame["above_bound"] = frame["value"] / self.bound - 1 if self.bound else None
        return frame.sort_values("value", kind="stable", ignore_index=True)

    def __repr__(self) -> str:
        return f"<BestSchedule: {self.sentence}>"

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        frame["above_bound"] = [
            "" if share is None else f"{share:.1%}" for share in frame["above_bound"]
        ]
        return f"<p class='{NO_FORMULAS}'>{escape(self.sentence)}</p>" + table(frame)
