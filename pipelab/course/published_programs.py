"""Three published Rust programs restated in Python, faults included, and their answers as splits and schedules.

Item by item in the order of each original; `ledger.programs` has their faults and what they say of
themselves. Where an original would stop with a panic, `Panic` is raised. Without the faults:
`pl.split_proportional`, `pl.split_bandwidth_aware`, `pl.split_even`, `pl.split_by_flops`,
`pl.schedule` and `pl.closed_forms`.

References
----------
pmetal-distributed 0.3.13, `layer_assignment.rs`; trustformers-core 0.1.1, `gpipe_pp.rs`; boostr 0.1.0,
`clock.rs`. `pipelab.course.ledger.DOCUMENTS` has their addresses.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipelab.schedules import Schedule

Split = tuple[range, ...]

# What the programs need of Rust


class Panic(Exception):
    """The original program would stop here."""


def unsigned(value: int, what: str) -> int:
    """Return a `usize` or `u64` of a 64-bit debug build.

    A value out of range is a panic; `what` is the expression.
    """
    if 0 <= value < 2**64:
        return value
    operation = "subtract" if value < 0 else "multiply" if "*" in what else "add"
    raise Panic(f"attempt to {operation} with overflow: {what}")


def _nearest_whole(value: float) -> int:
    """`value.round() as usize`: halves away from zero, and 0 if the value is not a number."""
    if value != value:
        return 0
    below = int(value)
    return below + (value - below >= 0.5)


# pmetal, layer_assignment.rs: layers by memory, and by bandwidth


def assign_layers_proportional(num_layers: int, available_ram: Sequence[int]) -> Split:
    """Layers in proportion to memory, rounded in turn; the last node gets what is left."""
    world_size = len(available_ram)
    if world_size == 0:
        raise Panic("need at least one node")
    if num_layers == 0:
        raise Panic("need at least one layer")
    if num_layers < world_size:
        raise Panic(f"more nodes ({world_size}) than layers ({num_layers})")
    if world_size == 1:
        return (range(num_layers),)
    total_ram = float(unsigned(sum(available_ram), "the sum of available_ram"))
    assignments, start = [], 0
    for i, ram in enumerate(available_ram[:-1]):
        proportion = float(ram) / total_ram if total_ram else float("nan")  # 0 / 0
        # leave a layer for each remaining node
        max_for_this = num_layers - start - (world_size - i - 1)
        count = min(max(_nearest_whole(proportion * num_layers), 1), max_for_this)
        assignments.append(range(start, start + count))
        start += count
    return (*assignments, range(start, num_layers))


def assign_layers_bandwidth_aware(
    num_layers: int, available_ram: Sequence[int], bandwidths: Sequence[int]
) -> Split:
    """Two or three nodes: the least of the largest layers / bandwidth. More: in proportion to memory × bandwidth.

    In bytes and bytes per second; from four nodes on in whole megabytes, at least 1.
    """
    world_size = len(available_ram)
    if world_size != len(bandwidths):
        raise Panic(
            f"assertion `left == right` failed: left: {world_size}, right: {len(bandwidths)}"
        )
    if world_size <= 1:
        return assign_layers_proportional(num_layers, available_ram)
    if world_size == 2:
        return _assign_two_nodes(num_layers, bandwidths)
    if world_size == 3:
        return _assign_three_nodes(num_layers, bandwidths)
    megabytes = [
        (max(r // 10**6, 1), max(b // 10**6, 1))
        for r, b in zip(available_ram, bandwidths, strict=True)
    ]
    weights = [unsigned(r_mb * b_mb, "r_mb * b_mb") for r_mb, b_mb in megabytes]
    return assign_layers_proportional(num_layers, weights)


# The original passes available_ram to these two as well, under a name that says it is not used.


def _assign_two_nodes(num_layers: int, bandwidths: Sequence[int]) -> Split:
    b0, b1 = (float(max(b, 1)) for b in bandwidths)
    best_split, best_cost = 1, float("inf")
    for split in range(1, num_layers):
        cost = max(split / b0, (num_layers - split) / b1)
        if cost < best_cost:
            best_split, best_cost = split, cost
    return range(best_split), range(best_split, num_layers)


def _assign_three_nodes(num_layers: int, bandwidths: Sequence[int]) -> Split:
    b0, b1, b2 = (float(max(b, 1)) for b in bandwidths)
    best, best_cost = (1, 2), float("inf")
    for s1 in range(1, unsigned(num_layers - 1, "num_layers - 1")):
        for s2 in range(s1 + 1, num_layers):
            cost = max(s1 / b0, (s2 - s1) / b1, (num_layers - s2) / b2)
            if cost < best_cost:
                best, best_cost = (s1, s2), cost
    return range(best[0]), range(*best), range(best[1], num_layers)


# The scheduler, gpipe_pp.rs: errors, partitions, steps, bubble statistics


class PpError(Exception):
    """The program's errors. It never raises any of the four: no function of it can fail but by a panic."""

    text = ""

    def __init__(self, *values: int) -> None:
        super().__init__(self.text.format(*values))


class ZeroStages(PpError):
    """Variant 1."""

    text = "num_stages must be at least 1"


class StageRankOutOfRange(PpError):
    """Variant 2."""

    text = "stage_rank {} is out of range for num_stages {}"


class InsufficientLayers(PpError):
    """Variant 3."""

    text = "cannot partition {} layers into {} stages"


class InvalidMicroBatch(PpError):
    """Variant 4."""

    text = "invalid micro-batch id: {}"


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
    boundaries, cumulative = [0], 0
    for idx, flops in enumerate(layer_flops):
        cumulative += flops
        remaining_layers, remaining_stages = total_layers - idx - 1, num_stages - len(boundaries)
        if cumulative >= target and 0 < remaining_stages <= remaining_layers:
            boundaries.append(idx + 1)
            cumulative = 0
    if len(boundaries) < num_stages:
        opened = len(boundaries)
        raise Panic(f"index out of bounds: the len is {opened} but the index is {opened}")
    ends = [*boundaries[1:], total_layers]
    return [
        PipelineStageInfo(stage_id, layer_end - layer_start, layer_start, layer_end)
        for stage_id, (layer_start, layer_end) in enumerate(zip(boundaries, ends, strict=True))
    ]


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

    Numbers are returned as Python's own.
    """

    num_stages: int
    num_micro_batches: int
    schedule: PipelineSchedule = GPipe()

    def bubble_fraction_gpipe(self) -> float:
        """(p - 1) / (m + p - 1)."""
        return self._quotient(lambda p, m, one: (p - one, m + p - one))

    def bubble_fraction_1f1b(self) -> float:
        """(p - 1) / (2(m - 1) + p)."""
        return self._quotient(lambda p, m, one: (p - one, np.float32(2) * (m - one) + p))

    def memory_footprint_ratio(self) -> float:
        """(p + m) / (p m)."""
        return self._quotient(lambda p, m, one: (p + m, p * m))

    def optimal_num_micro_batches(self) -> int:
        """4 p."""
        return unsigned(4 * self.num_stages, "4 * num_stages")

    def _quotient(self, parts: Callable) -> float:
        """Divide two expressions of p, m and 1 in single precision."""
        with np.errstate(all="ignore"):
            over, under = parts(*map(np.float32, (self.num_stages, self.num_micro_batches, 1)))
            return float(over / under)


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
        """The rank's stage, and stage 0 if there is no such rank."""
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
        """The rank's steps for this number of microbatches, whatever the configuration says."""
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


# boostr, clock.rs: what one stage does, tick by tick


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
        m, warmup = self.num_micro_batches, self._warmup
        actions = [PipelineAction("Forward", fwd_id) for fwd_id in range(warmup)]
        for bwd_id in range(m - warmup):
            actions.append(PipelineAction("Forward", warmup + bwd_id))
            actions.append(PipelineAction("Backward", bwd_id))
        return actions + [PipelineAction("Backward", bwd_id) for bwd_id in range(m - warmup, m)]

    def schedule_interleaved(self, num_virtual: int) -> list[tuple[int, PipelineAction]]:
        """Pairs of virtual stage and action: all forwards, then all backwards, the same on every stage."""
        m, chunks = range(self.num_micro_batches), range(num_virtual)
        forwards = [(v, PipelineAction("Forward", mb)) for mb in m for v in chunks]
        return forwards + [
            (v, PipelineAction("Backward", mb)) for mb in m for v in reversed(chunks)
        ]

    def schedule_zero_bubble(self) -> list[PipelineAction]:
        """As 1F1B with the backward in two: every weight gradient right after its input gradient."""
        m, warmup = self.num_micro_batches, self._warmup
        actions: list[PipelineAction] = []
        done = {"Forward": 0, "BackwardInput": 0, "BackwardWeights": 0}

        def run(kind: str) -> None:
            actions.append(PipelineAction(kind, done[kind]))
            done[kind] += 1

        def run_weights() -> None:
            if done["BackwardWeights"] < done["BackwardInput"]:
                run("BackwardWeights")

        for i in range(warmup):
            run("Forward")
            if i > 0:
                run_weights()  # never runs one: there is no input gradient yet
        for _ in range(m - warmup):
            run("Forward")
            run("BackwardInput")
            run_weights()  # always runs one
        while done["BackwardInput"] < m:
            run("BackwardInput")
            run_weights()  # always runs one
        while done["BackwardWeights"] < m:  # never: none is left
            run("BackwardWeights")
        return actions


# Their answers as splits and schedules that pipelab can check, time and draw. An answer without any
# action is not a schedule, and is refused as one.


class Failure(NamedTuple):
    """The first input on which a function fails, and how."""

    arguments: tuple
    what: str


def smallest_failure(function: Callable, inputs: Iterable[tuple]) -> Failure | None:
    """The first of `inputs` (smallest first) on which a published split panics or leaves a stage without layers.

    Examples
    --------
    >>> smallest_failure(seed_by_flops, [([1, 1], 2), ([1, 2], 2)])
    Failure(arguments=([1, 2], 2), what='panic: index out of bounds: the len is 1 but the index is
    1')
    """
    for arguments in inputs:
        try:
            split = function(*arguments)
        except Panic as panic:
            return Failure(arguments, f"panic: {panic}")
        if not split:
            return Failure(arguments, "an empty answer instead of an error")
        empty = [i + 1 for i, part in enumerate(split) if part.stop <= part.start]
        if empty:
            return Failure(arguments, f"stage {empty[0]} has no layer")
    return None


def seed_even(layers: int, stages: int) -> Split:
    """The scheduler's `partition_layers_evenly` as ranges."""
    return _ranges(partition_layers_evenly(layers, stages))


def seed_by_flops(flops: Sequence[int], stages: int) -> Split:
    """The scheduler's `partition_layers_by_flops` as ranges."""
    return _ranges(partition_layers_by_flops(flops, stages))


def _ranges(stages: list[PipelineStageInfo]) -> Split:
    return tuple(range(stage.layer_start, stage.layer_end) for stage in stages)


def scheduler_bubble_fraction_1f1b(ranks: int, microbatches: int) -> float:
    """The scheduler's (p-1)/(2(m-1)+p); for m ≥ 1 right where p = 1 or m = 1, and nowhere else."""
    return PipelineBubbleStats(ranks, microbatches).bubble_fraction_1f1b()


def scheduler_memory_ratio(ranks: int, microbatches: int) -> float:
    """The scheduler's (p+m)/(pm)."""
    return PipelineBubbleStats(ranks, microbatches).memory_footprint_ratio()


def scheduler_microbatches(ranks: int) -> int:
    """The scheduler's "optimal" number of microbatches, 4p, which optimises nothing."""
    return PipelineBubbleStats(ranks, 0).optimal_num_micro_batches()


def scheduler_gpipe(ranks: int, microbatches: int) -> Schedule:
    """The scheduler's GPipe: right, backwards in reverse."""
    return _scheduled("the scheduler's GPipe", ranks, microbatches, GPipe())


def scheduler_1f1b(ranks: int, microbatches: int) -> Schedule:
    """The scheduler's 1F1B: p-r forwards first and then a forward before every backward, one too many in flight."""
    return _scheduled("the scheduler's 1F1B", ranks, microbatches, OneFOneBubble())


def scheduler_interleaved(ranks: int, microbatches: int, chunks: int) -> Schedule:
    """The scheduler's interleaved schedule, which ignores the number of chunks: its 1F1B, name and all."""
    return _scheduled("the scheduler's 1F1B", ranks, microbatches, Interleaved(chunks))


def _scheduled(name: str, ranks: int, microbatches: int, schedule: PipelineSchedule) -> Schedule:
    """The forwards and backwards of all ranks, without the messages."""
    rows = []
    for rank in range(ranks):
        config = PipelineConfig(ranks, microbatches, rank, schedule)
        steps = PipelineScheduler(config, ranks).schedule_steps(microbatches)
        work = [step for step in steps if isinstance(step, Forward | Backward)]
        rows.append([f"{rank}{type(step).__name__[0]}{step.micro_batch_id}" for step in work])
    return Schedule.of(name, rows, microbatches=microbatches)


def scheduler_steps(
    ranks: int, microbatches: int, rank: int, schedule: PipelineSchedule | None = None
) -> list[str]:
    """The scheduler's steps of one rank, messages included, as text; GPipe's, if no other schedule is given.

    A rank that does not exist gets an order all the same.
    """
    config = PipelineConfig(ranks, microbatches, rank, schedule or GPipe())
    return [str(step) for step in PipelineScheduler(config, ranks).schedule_steps(microbatches)]


def clock_1f1b(ranks: int, microbatches: int, stages: Sequence[int] | None = None) -> Schedule:
    """boostr's 1F1B: right; a stage that does not exist makes it panic."""
    rows = []
    for stage in range(ranks) if stages is None else stages:
        rows.append(_letters(stage, PipelineClock(ranks, microbatches, stage).schedule_1f1b()))
    return Schedule.of("boostr's 1F1B", rows, microbatches=microbatches)


def clock_interleaved(ranks: int, microbatches: int, chunks: int) -> Schedule:
    """boostr's interleaved schedule: every microbatch through all chunks, the same on every rank; almost serial."""
    rows = []
    for rank in range(ranks):
        order = PipelineClock(ranks, microbatches, rank).schedule_interleaved(chunks)
        rows.append([text for v, action in order for text in _letters(v * ranks + rank, [action])])
    return Schedule.of("boostr's interleaved", rows, microbatches=microbatches)


def clock_zero_bubble(ranks: int, microbatches: int) -> Schedule:
    """boostr's zero-bubble schedule: every weight gradient right after its input gradient, so none fills a bubble."""
    clocks = [PipelineClock(ranks, microbatches, stage) for stage in range(ranks)]
    rows = [_letters(clock.stage_id, clock.schedule_zero_bubble()) for clock in clocks]
    return Schedule.of("boostr's zero bubble", rows, microbatches=microbatches)


def _letters(stage: int, actions: list[PipelineAction]) -> list[str]:
    """Actions as pipelab writes them: F, B, I (input gradient) and W (weight gradient)."""
    letters = {"Forward": "F", "Backward": "B", "BackwardInput": "I", "BackwardWeights": "W"}
    return [f"{stage}{letters[action.kind]}{action.id}" for action in actions]
