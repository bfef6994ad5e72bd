"""boostr 0.1.0's `PipelineClock` as published, faults included: what one stage does, tick by tick.

Method by method, branches that can never run among them; its faults are in `published_faults`.
Numbers are unsigned: where the original would stop with a panic, `Panic` is raised. The right
orders are `pl.schedule`'s.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pipelab.course.rust_numbers import unsigned


class PipelineAction(NamedTuple):
    """`kind` is Forward, Backward, BackwardInput, BackwardWeights or Idle; Idle alone has no microbatch."""

    kind: str
    id: int | None = None

    def __str__(self) -> str:
        return self.kind if self.id is None else f"{self.kind}({self.id})"


@dataclass(frozen=True)
class PipelineClock:
    """The actions of one stage; any three numbers make one."""

    num_stages: int
    num_micro_batches: int
    stage_id: int

    @property
    def _warmup(self) -> int:
        """min(s - k - 1, m), which both schedules below begin with."""
        behind = unsigned(self.num_stages - self.stage_id, "s - k")
        return min(unsigned(behind - 1, "s - k - 1"), self.num_micro_batches)

    def schedule_1f1b(self) -> list[PipelineAction]:
        """Forwards ahead, then a forward and a backward in turn, then the remaining backwards."""
        warmup, actions, fwd_id, bwd_id = self._warmup, [], 0, 0
        for _ in range(warmup):
            actions.append(PipelineAction("Forward", fwd_id))
            fwd_id += 1
        for _ in range(self.num_micro_batches - warmup):
            actions.append(PipelineAction("Forward", fwd_id))
            fwd_id += 1
            actions.append(PipelineAction("Backward", bwd_id))
            bwd_id += 1
        while bwd_id < self.num_micro_batches:
            actions.append(PipelineAction("Backward", bwd_id))
            bwd_id += 1
        return actions

    def schedule_interleaved(self, num_virtual: int) -> list[tuple[int, PipelineAction]]:
        """Pairs of virtual stage and action: all forwards, then all backwards, the same on every stage."""
        m, actions = self.num_micro_batches, []
        for mb in range(m):
            for v in range(num_virtual):
                actions.append((v, PipelineAction("Forward", mb)))
        for mb in range(m):
            for v in reversed(range(num_virtual)):
                actions.append((v, PipelineAction("Backward", mb)))
        return actions

    def schedule_zero_bubble(self) -> list[PipelineAction]:
        """As 1F1B with the backward in two: every weight gradient right after its input gradient."""
        m, warmup, actions = self.num_micro_batches, self._warmup, []
        fwd_id = b_id = w_id = 0
        for i in range(warmup):
            actions.append(PipelineAction("Forward", fwd_id))
            fwd_id += 1
            if i > 0 and w_id < b_id:  # never: there is no input gradient yet
                actions.append(PipelineAction("BackwardWeights", w_id))
                w_id += 1
        for _ in range(m - warmup):
            actions.append(PipelineAction("Forward", fwd_id))
            fwd_id += 1
            actions.append(PipelineAction("BackwardInput", b_id))
            b_id += 1
            if w_id < b_id:  # always
                actions.append(PipelineAction("BackwardWeights", w_id))
                w_id += 1
        while b_id < m:
            actions.append(PipelineAction("BackwardInput", b_id))
            b_id += 1
            if w_id < b_id:  # always
                actions.append(PipelineAction("BackwardWeights", w_id))
                w_id += 1
        while w_id < m:  # never: none is left
            actions.append(PipelineAction("BackwardWeights", w_id))
            w_id += 1
        return actions
