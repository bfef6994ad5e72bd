"""What the restated programs answer, as splits and schedules that pipelab can check, time and draw.

`published_scheduler` and `published_clock` hand out lists of one rank's steps; here these become a
`Schedule` of all ranks, without the messages. An answer without any action is no schedule, and is
refused as one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pipelab.course.published_clock import PipelineAction, PipelineClock
from pipelab.course.published_scheduler import (
    Backward,
    Forward,
    GPipe,
    Interleaved,
    OneFOneBubble,
    PipelineBubbleStats,
    PipelineConfig,
    PipelineSchedule,
    PipelineScheduler,
    PipelineStageInfo,
    partition_layers_by_flops,
    partition_layers_evenly,
)
from pipelab.course.rust_numbers import Panic
from pipelab.schedules import Schedule

Split = tuple[range, ...]
_LETTERS = {"Forward": "F", "Backward": "B", "BackwardInput": "I", "BackwardWeights": "W"}


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
    rows = [
        _letters(k, PipelineClock(ranks, microbatches, k).schedule_zero_bubble())
        for k in range(ranks)
    ]
    return Schedule.of("boostr's zero bubble", rows, microbatches=microbatches)


def _ranges(stages: list[PipelineStageInfo]) -> Split:
    return tuple(range(stage.layer_start, stage.layer_end) for stage in stages)


def _letters(stage: int, actions: list[PipelineAction]) -> list[str]:
    return [f"{stage}{_LETTERS[action.kind]}{action.id}" for action in actions]


def _scheduled(name: str, ranks: int, microbatches: int, schedule: PipelineSchedule) -> Schedule:
    rows = []
    for rank in range(ranks):
        config = PipelineConfig(ranks, microbatches, rank, schedule)
        steps = PipelineScheduler(config, ranks).schedule_steps(microbatches)
        work = [step for step in steps if isinstance(step, Forward | Backward)]
        rows.append(
            [f"{rank}{_LETTERS[type(step).__name__]}{step.micro_batch_id}" for step in work]
        )
    return Schedule.of(name, rows, microbatches=microbatches)
