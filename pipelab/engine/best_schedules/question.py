"""What is asked: p ranks with one stage each, m microbatches, and what each rank may hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.timeline import Timeline
from pipelab.schedules import Action, Schedule

# A limit that is missed by the last bits of a sum is kept.
MEMORY_SLACK = 1e-9


@dataclass(frozen=True)
class Question:
    """Costs and limits, one number per rank.

    Attributes
    ----------
    costs : StageCosts
        Of one stage per rank.
    ranks, microbatches : int
        p and m.
    in_flight : tuple of int
        Most microbatches each rank holds from forward to input gradient (or full backward).
    memory : tuple of float or None
        Most each rank holds of what `costs.activation` counts; None without such a limit.
    split_backward : bool
        Whether input and weight gradients are actions of their own.
    """

    costs: StageCosts
    ranks: int
    microbatches: int
    in_flight: tuple[int, ...]
    memory: tuple[float, ...] | None
    split_backward: bool

    @cached_property
    def table(self) -> dict[str, np.ndarray]:
        """Costs per rank and link, as arrays."""
        return self.costs.arrays(self.ranks, "training")

    @property
    def kinds(self) -> tuple[str, ...]:
        """What a rank does with each microbatch, in this order."""
        return ("F", "I", "W") if self.split_backward else ("F", "B")

    @property
    def actions(self) -> int:
        """Of all ranks."""
        return self.ranks * self.microbatches * len(self.kinds)

    @cached_property
    def length(self) -> dict[str, np.ndarray]:
        """How long an action of each kind takes on each rank."""
        forward, back, weight = (
            self.table[n] for n in ("forward", "backward_input", "backward_weight")
        )
        return {"F": forward, "I": back, "W": weight, "B": back + weight}

    @cached_property
    def takes(self) -> dict[str, np.ndarray]:
        """What an action of each kind adds to the memory held, per rank; negative where it frees."""
        whole = self.table["activation"]
        kept = self.table.get("weight_activation", np.zeros(self.ranks))
        return {"F": whole, "I": kept - whole, "W": -kept, "B": -whole}

    @property
    def work(self) -> float:
        """What the busiest rank has to do, in the unit of the costs."""
        per_microbatch = sum(self.length[kind] for kind in self.kinds)
        return float(self.microbatches * np.max(per_microbatch))

    def with_costs(self, costs: StageCosts) -> "Question":
        """The same with other times."""
        return replace(self, costs=costs)

    def schedule(self, name: str, rows: Sequence[Sequence[tuple[str, int]]]) -> Schedule:
        """The schedule with these kinds and microbatches on each rank, in order."""
        actions = [[Action(rank, *action) for action in row] for rank, row in enumerate(rows)]
        return Schedule.of(
            name, actions, microbatches=self.microbatches, stage_rank=range(self.ranks)
        )

    def keeps(self, timeline: Timeline) -> bool:
        """Whether a schedule stays within the limits. A rank's own order decides that."""
        if any(n > most for n, most in zip(timeline.peak_in_flight, self.in_flight, strict=True)):
            return False
        if self.memory is None:
            return True
        return all(
            held <= most * (1 + MEMORY_SLACK)
            for held, most in zip(self.peak_memory(timeline.schedule), self.memory, strict=True)
        )

    def peak_memory(self, schedule: Schedule) -> Iterator[float]:
        """The most that each rank holds. Sums of microbatches, so that nothing is lost in rounding."""
        columns = columns_of(schedule)
        whole, kept = -self.takes["B"], -self.takes["W"]
        for rank, row in enumerate(columns.schedule.actions):
            full = rest = 0
            peak = 0.0
            for _, kind, _, _ in row:
                full += (kind == "F") - (kind in ("I", "B"))
                rest += (kind == "I") - (kind == "W")
                # An input gradient holds the whole until it ends: its step down comes after.
                peak = max(peak, full * whole[rank] + rest * kept[rank])
            yield float(peak)
