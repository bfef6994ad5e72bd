"""trustformers-core 0.1.1's `gpipe_pp.rs` as published: errors, partitions, steps, bubble statistics.

Item by item in the order of the original; its faults are in `published_faults`. Numbers are
unsigned: where the original would stop with a panic, `Panic` is raised. The right ones are
`pl.split_even`, `pl.split_by_flops`, `pl.closed_forms` and `pl.schedule`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipelab.course.rust_numbers import Panic, single, unsigned


class PpError(Exception):
    """The program's errors. It never raises any of the four: no function of it can fail but by a panic."""


@dataclass(unsafe_hash=True)
class ZeroStages(PpError):
    """Variant 1."""

    def __str__(self) -> str:
        return "num_stages must be at least 1"


@dataclass(unsafe_hash=True)
class StageRankOutOfRange(PpError):
    """Variant 2."""

    stage_rank: int
    num_stages: int

    def __str__(self) -> str:
        return f"stage_rank {self.stage_rank} is out of range for num_stages {self.num_stages}"


@dataclass(unsafe_hash=True)
class InsufficientLayers(PpError):
    """Variant 3."""

    total_layers: int
    num_stages: int

    def __str__(self) -> str:
        return f"cannot partition {self.total_layers} layers into {self.num_stages} stages"


@dataclass(unsafe_hash=True)
class InvalidMicroBatch(PpError):
    """Variant 4."""

    id: int

    def __str__(self) -> str:
        return f"invalid micro-batch id: {self.id}"


@dataclass(frozen=True)
class GPipe:
    """A `PipelineSchedule`."""


@dataclass(frozen=True)
class OneFOneBubble:
    """A `PipelineSchedule`: 1F1B."""


@dataclass(frozen=True)
class Interleaved:
    """A `PipelineSchedule`, whose number nothing reads."""

    num_virtual_stages: int


PipelineSchedule = GPipe | OneFOneBubble | Interleaved


@dataclass
class PipelineConfig:
    """What a rank is given; nothing in it is checked."""

    num_stages: int = 1
    num_micro_batches: int = 8
    stage_rank: int = 0
    schedule: PipelineSchedule = GPipe()


@dataclass
class PipelineStageInfo:
    """A stage holds the layers from `layer_start` up to `layer_end`, which is not among them."""

    stage_id: int
    num_layers: int
    layer_start: int
    layer_end: int


def partition_layers_evenly(total_layers: int, num_stages: int) -> list[PipelineStageInfo]:
    """Equally many layers per stage, the remainder to the first ones; an empty list without stages or layers."""
    if num_stages == 0 or total_layers == 0:
        return []
    base, remainder = divmod(total_layers, num_stages)
    stages, layer_start = [], 0
    for stage_id in range(num_stages):
        num_layers = base + (1 if stage_id < remainder else 0)
        stages.append(
            PipelineStageInfo(stage_id, num_layers, layer_start, layer_start + num_layers)
        )
        layer_start += num_layers
    return stages


def partition_layers_by_flops(
    layer_flops: Sequence[int], num_stages: int
) -> list[PipelineStageInfo]:
    """Close a stage once it holds its share of the FLOPs; an empty list without stages or layers."""
    total_layers = len(layer_flops)
    if num_stages == 0 or total_layers == 0:
        return []
    if num_stages == 1:
        return [PipelineStageInfo(0, total_layers, 0, total_layers)]
    total_flops = unsigned(sum(layer_flops), "the sum of layer_flops")
    target = (unsigned(total_flops + num_stages, "total_flops + num_stages") - 1) // num_stages
    boundaries, cumulative, stages_opened = [0], 0, 1
    for idx, flops in enumerate(layer_flops):
        cumulative += flops
        remaining_layers, remaining_stages = total_layers - idx - 1, num_stages - stages_opened
        if (
            cumulative >= target
            and stages_opened < num_stages
            and remaining_layers >= remaining_stages
        ):
            boundaries.append(idx + 1)
            stages_opened += 1
            cumulative = 0
    stages = []
    for stage_id in range(num_stages):
        if stage_id >= len(boundaries):
            raise Panic(
                f"index out of bounds: the len is {len(boundaries)} but the index is {stage_id}"
            )
        layer_start = boundaries[stage_id]
        layer_end = boundaries[stage_id + 1] if stage_id + 1 < len(boundaries) else total_layers
        stages.append(PipelineStageInfo(stage_id, layer_end - layer_start, layer_start, layer_end))
    return stages


@dataclass
class MicroBatch:
    """A part of a batch, which nothing else in the program uses; whether data and shape agree is not checked."""

    micro_batch_id: int
    data: list[float]
    shape: tuple[int, int]
    is_last: bool


@dataclass
class PipelineBubbleStats:
    """Formulas of p stages and m microbatches in single precision, infinite and NaN where that is; no use of schedule.

    Numbers are handed out as Python's own.
    """

    num_stages: int
    num_micro_batches: int
    schedule: PipelineSchedule = GPipe()

    def bubble_fraction_gpipe(self) -> float:
        """(p - 1) / (m + p - 1)."""
        p, m, one = self._singles()
        with np.errstate(all="ignore"):
            return float((p - one) / (m + p - one))

    def bubble_fraction_1f1b(self) -> float:
        """(p - 1) / (2(m - 1) + p)."""
        p, m, one = self._singles()
        with np.errstate(all="ignore"):
            return float((p - one) / (np.float32(2) * (m - one) + p))

    def memory_footprint_ratio(self) -> float:
        """(p + m) / (p m)."""
        p, m, _ = self._singles()
        with np.errstate(all="ignore"):
            return float((p + m) / (p * m))

    def optimal_num_micro_batches(self) -> int:
        """4 p."""
        return unsigned(4 * self.num_stages, "4 * num_stages")

    def _singles(self) -> tuple[np.float32, np.float32, np.float32]:
        return single(self.num_stages), single(self.num_micro_batches), np.float32(1)


@dataclass(frozen=True)
class Forward:
    """A `PipelineStep`."""

    micro_batch_id: int


@dataclass(frozen=True)
class Backward:
    """A `PipelineStep`."""

    micro_batch_id: int


@dataclass(frozen=True)
class WaitForward:
    """A `PipelineStep` that no schedule contains."""

    from_stage: int


@dataclass(frozen=True)
class WaitBackward:
    """A `PipelineStep`: a gradient arrives, of which microbatch it does not say."""

    from_stage: int


@dataclass(frozen=True)
class SendActivations:
    """A `PipelineStep`."""

    to_stage: int
    micro_batch_id: int


@dataclass(frozen=True)
class RecvActivations:
    """A `PipelineStep`."""

    from_stage: int
    micro_batch_id: int


PipelineStep = Forward | Backward | WaitForward | WaitBackward | SendActivations | RecvActivations


class PipelineScheduler:
    """The steps of one rank, `config.stage_rank`."""

    def __init__(self, config: PipelineConfig, total_layers: int) -> None:
        self.config = config
        self.stages = partition_layers_evenly(total_layers, config.num_stages)

    def this_stage(self) -> PipelineStageInfo:
        """The rank's stage, and stage 0 where there is no such rank."""
        if self.config.stage_rank < len(self.stages):
            return self.stages[self.config.stage_rank]
        if not self.stages:
            raise Panic("pipeline must have at least one stage")
        return self.stages[0]

    def is_first_stage(self) -> bool:
        """Whether the rank is 0."""
        return self.config.stage_rank == 0

    def is_last_stage(self) -> bool:
        """Whether the rank is the number of stages less one."""
        return unsigned(self.config.stage_rank + 1, "stage_rank + 1") == self.config.num_stages

    def schedule_steps(self, num_micro_batches: int) -> list[PipelineStep]:
        """The rank's steps for so many microbatches, whatever the configuration says."""
        if isinstance(self.config.schedule, GPipe):
            return list(self._schedule_gpipe(num_micro_batches))
        # interleaved, too: it drops its number and calls this
        return list(self._schedule_1f1b(num_micro_batches))

    def _schedule_gpipe(self, num_micro_batches: int) -> Iterator[PipelineStep]:
        for mb in range(num_micro_batches):
            yield from self._forward(mb)
        for mb in reversed(range(num_micro_batches)):
            yield from self._backward(mb)

    def _schedule_1f1b(self, num_micro_batches: int) -> Iterator[PipelineStep]:
        behind = unsigned(self.config.num_stages - self.config.stage_rank, "num_stages - rank")
        warmup_steps = min(behind, num_micro_batches)
        steady_count = num_micro_batches - warmup_steps
        for mb in range(warmup_steps):
            yield from self._forward(mb)
        for i in range(steady_count):
            yield from self._forward(warmup_steps + i)
            yield from self._backward(i)
        for i in range(warmup_steps):
            yield from self._backward(steady_count + i)

    def _forward(self, mb: int) -> Iterator[PipelineStep]:
        rank = self.config.stage_rank
        if not self.is_first_stage():
            yield RecvActivations(rank - 1, mb)
        yield Forward(mb)
        if not self.is_last_stage():
            yield SendActivations(rank + 1, mb)

    def _backward(self, mb: int) -> Iterator[PipelineStep]:
        if not self.is_last_stage():
            yield WaitBackward(self.config.stage_rank + 1)
        yield Backward(mb)
