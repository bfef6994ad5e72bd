"""An exercise with a schedule as its answer: it has to beat another schedule within the memory there is."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelab.engine.timeline.costs import StageCosts


@dataclass(frozen=True)
class Contest:
    """A schedule to beat: on these stages, with so much memory for activations on every rank."""

    baseline: str
    microbatches: int
    times: tuple[float, ...]  # F = I = W of every stage
    memory: tuple[float, ...]
    weight_activation: float  # of a microbatch's activations, kept until W has run
    none = ""  # None means not attempted, always

    def costs(self) -> "StageCosts":
        """The stages as costs."""
        from pipelab.engine.timeline import StageCosts

        return StageCosts(
            self.times, self.times, self.times, weight_activation=self.weight_activation
        )

    def grade(self, mine: object) -> tuple[bool, str]:
        """Whether `mine` wins, and a sentence that says why or why not."""
        from pipelab.engine.schedules import schedule
        from pipelab.engine.schedules.columns import columns_of
        from pipelab.engine.timeline import simulate
        from pipelab.engine.timeline.formulas import lower_bound
        from pipelab.errors import InvalidSchedule, shown
        from pipelab.schedules import Schedule

        ranks, costs = len(self.times), self.costs()
        if not isinstance(mine, Schedule):
            return (
                False,
                f"expected a schedule, as pl.Schedule.of('mine', rows) makes it; yours is {shown(mine)}",
            )
        if (mine.microbatches, mine.stage_rank) != (
            self.microbatches,
            tuple(range(ranks)),
        ) or columns_of(mine).forward_only:
            expected = (
                f"{self.microbatches} microbatches forward and back, stage s on rank s of {ranks}"
            )
            return False, f"expected {expected}"
        try:
            timeline = simulate(mine, costs)
        except InvalidSchedule as error:
            return False, str(error)
        for rank, (held, most) in enumerate(zip(timeline.peak_memory, self.memory, strict=True)):
            if held > most + 1e-9:
                return False, f"rank {rank} holds {held:g} at its peak and has room for {most:g}"
        end = timeline.makespan
        baseline = simulate(schedule(self.baseline, ranks, self.microbatches), costs).makespan
        bound = lower_bound(
            ranks, self.microbatches, costs, in_flight=[int(most) for most in self.memory]
        )
        if end >= baseline - 1e-9:
            last = ranks - 1
            hint = f"split backwards (I, then W), and let rank {last}, which all others wait for, put W off"
            return False, f"makespan {end:g}, and {self.baseline} takes {baseline:g}. Hint: {hint}"
        best = (
            "no order takes less"
            if end <= bound + 1e-9
            else f"no order takes less than {bound:g}; how near can you get?"
        )
        return True, f"makespan {end:g} against {baseline:g}; {best}"
