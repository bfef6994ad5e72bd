"""Three published Rust programs restated in Python, faults included, and their answers as splits and schedules.

Item by item in the order of each original; `ledger.programs` has their faults and what they say of
themselves. Where an original would stop with a panic, `Panic` is raised. Without the faults:
`pl.splits.split_proportional`, `pl.splits.split_bandwidth_aware`, `pl.splits.split_even`, `pl.splits.split_by_flops`,
`pl.schedule` and `pl.closed_forms`.

References
----------
pmetal-distributed 0.3.13, `layer_assignment.rs`; trustformers-core 0.1.1, `gpipe_pp.rs`; boostr 0.1.0,
`clock.rs`. `pipelab.course.ledger.DOCUMENTS` has their addresses.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

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


# The scheduler, gpipe_pp.rs: errors, partitions, bubble statistics, steps

# The texts of its errors. It never raises any of the four: no function of it can fail but by a panic.
ERRORS = {
    "ZeroStages": "num_stages must be at least 1",
    "StageRankOutOfRange": "stage_rank {} is out of range for num_stages {}",
    "InsufficientLayers": "cannot partition {} layers into {} stages",
    "InvalidMicroBatch": "invalid micro-batch id: {}",
}


def seed_even(total_layers: int, num_stages: int) -> Split:
    """`partition_layers_evenly`: the remainder to the first stages; nothing without stages or layers."""
    if num_stages == 0 or total_layers == 0:
        return ()
    base, remainder = divmod(total_layers, num_stages)
    stages, layer_start = [], 0
    for stage_id in range(num_stages):
        layer_end = layer_start + base + (1 if stage_id < remainder else 0)
        stages.append(range(layer_start, layer_end))
        layer_start = layer_end
    return tuple(stages)


def seed_by_flops(layer_flops: Sequence[int], num_stages: int) -> Split:
    """`partition_layers_by_flops`: a stage closes once it holds its share; nothing without stages or layers."""
    total_layers = len(layer_flops)
    if num_stages == 0 or total_layers == 0:
        return ()
    if num_stages == 1:
        return (range(total_layers),)
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
    return tuple(range(*ends) for ends in pairwise([*boundaries, total_layers]))


def scheduler_bubble_fraction_gpipe(ranks: int, microbatches: int) -> float:
    """Compute the scheduler's (p-1)/(m+p-1), which is right."""
    return (ranks - 1) / (microbatches + ranks - 1)


def scheduler_bubble_fraction_1f1b(ranks: int, microbatches: int) -> float:
    """Compute the scheduler's (p-1)/(2(m-1)+p); for m ≥ 1 right where p = 1 or m = 1, and nowhere else."""
    return (ranks - 1) / (2 * (microbatches - 1) + ranks)


def scheduler_memory_ratio(ranks: int, microbatches: int) -> float:
    """Compute the scheduler's (p+m)/(pm)."""
    return (ranks + microbatches) / (ranks * microbatches)


def scheduler_microbatches(ranks: int) -> int:
    """Compute the scheduler's "optimal" number of microbatches, 4p, which optimises nothing."""
    return 4 * ranks


class Step(NamedTuple):
    """A `PipelineStep`: Forward, Backward, WaitBackward, SendActivations or RecvActivations.

    A gradient arrives (WaitBackward), of which microbatch it does not say. No schedule has the sixth
    kind, WaitForward.
    """

    kind: str
    microbatch: int | None
    stage: int | None = None  # at the other end of a message


@dataclass(frozen=True)
class PipelineScheduler:
    """The steps of one rank; nothing that it is given is checked.

    `schedule` is "GPipe", "1F1B" or "interleaved", whose number of virtual stages nothing reads either.
    """

    num_stages: int = 1
    stage_rank: int = 0
    schedule: str = "GPipe"
    total_layers: int = 1

    def this_stage(self) -> tuple[int, range]:
        """The rank's stage and its layers, and stage 0 if there is no such rank."""
        stages = seed_even(self.total_layers, self.num_stages)
        if not stages:
            raise Panic("pipeline must have at least one stage")
        stage_id = self.stage_rank if self.stage_rank < len(stages) else 0
        return stage_id, stages[stage_id]

    def is_first_stage(self) -> bool:
        """Whether the rank is 0."""
        return self.stage_rank == 0

    def is_last_stage(self) -> bool:
        """Whether the rank is the number of stages less one."""
        return unsigned(self.stage_rank + 1, "stage_rank + 1") == self.num_stages

    def schedule_steps(self, num_micro_batches: int) -> list[Step]:
        """The rank's steps for this number of microbatches."""
        if self.schedule == "GPipe":
            return list(self._schedule_gpipe(num_micro_batches))
        # interleaved, too: it drops its number and calls this
        return list(self._schedule_1f1b(num_micro_batches))

    def _schedule_gpipe(self, num_micro_batches: int) -> Iterator[Step]:
        for mb in range(num_micro_batches):
            yield from self._forward(mb)
        for mb in reversed(range(num_micro_batches)):
            yield from self._backward(mb)

    def _schedule_1f1b(self, num_micro_batches: int) -> Iterator[Step]:
        behind = unsigned(self.num_stages - self.stage_rank, "num_stages - rank")
        warmup_steps = min(behind, num_micro_batches)
        steady_count = num_micro_batches - warmup_steps
        for mb in range(warmup_steps):
            yield from self._forward(mb)
        for i in range(steady_count):
            yield from self._forward(warmup_steps + i)
            yield from self._backward(i)
        for i in range(warmup_steps):
            yield from self._backward(steady_count + i)

    def _forward(self, mb: int) -> Iterator[Step]:
        if not self.is_first_stage():
            yield Step("RecvActivations", mb, self.stage_rank - 1)
        yield Step("Forward", mb)
        if not self.is_last_stage():
            yield Step("SendActivations", mb, self.stage_rank + 1)

    def _backward(self, mb: int) -> Iterator[Step]:
        if not self.is_last_stage():
            yield Step("WaitBackward", None, self.stage_rank + 1)
        yield Step("Backward", mb)


# boostr, clock.rs: what one stage does, tick by tick


@dataclass(frozen=True)
class PipelineClock:
    """The actions of one stage; any three numbers make one.

    An action is a letter and its microbatch: F for its Forward, B for Backward, I for BackwardInput and W
    for BackwardWeights. No order has its Idle.
    """

    num_stages: int
    num_micro_batches: int
    stage_id: int

    @property
    def _warmup(self) -> int:
        """min(s - k - 1, m), which both schedules below begin with."""
        behind = unsigned(self.num_stages - self.stage_id, "s - k")
        return min(unsigned(behind - 1, "s - k - 1"), self.num_micro_batches)

    def schedule_1f1b(self) -> list[str]:
        """Forwards ahead, then a forward and a backward in turn, then the remaining backwards."""
        m, warmup = self.num_micro_batches, self._warmup
        actions = [f"F{fwd_id}" for fwd_id in range(warmup)]
        for bwd_id in range(m - warmup):
            actions += [f"F{warmup + bwd_id}", f"B{bwd_id}"]
        return actions + [f"B{bwd_id}" for bwd_id in range(m - warmup, m)]

    def schedule_interleaved(self, num_virtual: int) -> list[tuple[int, str]]:
        """Pairs of virtual stage and action: all forwards, then all backwards, the same on every stage."""
        m, chunks = range(self.num_micro_batches), range(num_virtual)
        forwards = [(v, f"F{mb}") for mb in m for v in chunks]
        return forwards + [(v, f"B{mb}") for mb in m for v in reversed(chunks)]

    def schedule_zero_bubble(self) -> list[str]:
        """As 1F1B with the backward in two: every weight gradient right after its input gradient."""
        m, warmup = self.num_micro_batches, self._warmup
        actions, done = list[str](), Counter[str]()

        def run(kind: str) -> None:
            actions.append(f"{kind}{done[kind]}")
            done[kind] += 1

        def run_weights() -> None:
            if done["W"] < done["I"]:
                run("W")

        for i in range(warmup):
            run("F")
            if i > 0:
                run_weights()  # never runs one: there is no input gradient yet
        for _ in range(m - warmup):
            run("F")
            run("I")
            run_weights()  # always runs one
        while done["I"] < m:
            run("I")
            run_weights()  # always runs one
        while done["W"] < m:  # never: none is left
            run("W")
        return actions


# Their answers as splits and schedules that pipelab can check, time and draw. An answer without any
# action is not a schedule, and is refused as one.


def scheduler_gpipe(ranks: int, microbatches: int) -> Schedule:
    """The scheduler's GPipe: right, backwards in reverse."""
    return _scheduled("GPipe", ranks, microbatches)


def scheduler_1f1b(ranks: int, microbatches: int) -> Schedule:
    """The scheduler's 1F1B: p-r forwards first and then a forward before every backward, one too many in flight."""
    return _scheduled("1F1B", ranks, microbatches)


def scheduler_interleaved(ranks: int, microbatches: int, chunks: int) -> Schedule:
    """The scheduler's interleaved schedule, which ignores the number of chunks: its 1F1B, name and all."""
    return _scheduled("interleaved", ranks, microbatches)


def _scheduled(schedule: str, ranks: int, microbatches: int) -> Schedule:
    """The forwards and backwards of all ranks, without the messages."""
    rows = []
    for rank in range(ranks):
        steps = PipelineScheduler(ranks, rank, schedule).schedule_steps(microbatches)
        work = [step for step in steps if step.stage is None]
        rows.append([f"{rank}{step.kind[0]}{step.microbatch}" for step in work])
    name = "1F1B" if schedule == "interleaved" else schedule
    return Schedule.of(f"the scheduler's {name}", rows, microbatches=microbatches)


def clock_1f1b(ranks: int, microbatches: int) -> Schedule:
    """boostr's 1F1B, which is right."""
    clocks = [PipelineClock(ranks, microbatches, k) for k in range(ranks)]
    return _clocked("1F1B", [clock.schedule_1f1b() for clock in clocks], microbatches)


def clock_interleaved(ranks: int, microbatches: int, chunks: int) -> Schedule:
    """boostr's interleaved schedule: every microbatch through all chunks, the same on every rank; almost serial."""
    rows = []
    for rank in range(ranks):
        order = PipelineClock(ranks, microbatches, rank).schedule_interleaved(chunks)
        rows.append([f"{v * ranks + rank}{action}" for v, action in order])
    return Schedule.of("boostr's interleaved", rows, microbatches=microbatches)


def clock_zero_bubble(ranks: int, microbatches: int) -> Schedule:
    """boostr's zero-bubble schedule: every weight gradient right after its input gradient, so none fills a bubble."""
    clocks = [PipelineClock(ranks, microbatches, k) for k in range(ranks)]
    return _clocked("zero bubble", [clock.schedule_zero_bubble() for clock in clocks], microbatches)


def _clocked(name: str, orders: Sequence[list[str]], microbatches: int) -> Schedule:
    rows = [[f"{stage}{action}" for action in order] for stage, order in enumerate(orders)]
    return Schedule.of(f"boostr's {name}", rows, microbatches=microbatches)
