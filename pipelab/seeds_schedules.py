"""Two published schedule generators, faults included, so that a notebook can hold them against the clock.

Restated from two Rust programs: a pipeline scheduler (`PipelineScheduler`, `PipelineBubbleStats`) and
boostr's `PipelineClock`. Numbers are unsigned there; where the original would stop with a panic, `Panic`
is raised. The right ones are `pl.schedule`, `pl.simulate` and `pl.closed_forms`.
"""

from collections.abc import Sequence

import numpy as np

from pipelab.schedules import Schedule
from pipelab.seeds import Panic
from pipelab.timeline import StageCosts, simulate

__all__ = [
    "NoActions",
    "clock_1f1b",
    "clock_interleaved",
    "clock_zero_bubble",
    "published_interleaved_rate",
    "scheduler_1f1b",
    "scheduler_bubble_fraction_1f1b",
    "scheduler_gpipe",
    "scheduler_interleaved",
    "scheduler_memory_ratio",
    "scheduler_microbatches",
    "scheduler_steps",
]


class NoActions(Exception):
    """The original goes on here, with nothing to do."""


def scheduler_bubble_fraction_1f1b(ranks: int, microbatches: int) -> float:
    """The scheduler's formula, (p-1)/(2(m-1)+p); right only for p = 1 (and, like all of them, not for m = 0)."""
    below = 2 * (microbatches - 1) + ranks
    return (ranks - 1) / below if below else float("inf")


def scheduler_memory_ratio(ranks: int, microbatches: int) -> float:
    """The scheduler's (p+m)/(pm)."""
    return (ranks + microbatches) / (ranks * microbatches)


def scheduler_microbatches(ranks: int) -> int:
    """The scheduler's "optimal" number of microbatches, 4p, which optimises nothing."""
    return 4 * ranks


def scheduler_gpipe(ranks: int, microbatches: int) -> Schedule:
    """The scheduler's GPipe: right, backwards in reverse."""
    order = [f"F{m}" for m in range(microbatches)] + [f"B{m}" for m in reversed(range(microbatches))]
    return _same_on_every_rank("the scheduler's GPipe", order, ranks, microbatches)


def scheduler_1f1b(ranks: int, microbatches: int) -> Schedule:
    """The scheduler's 1F1B: p-r forwards first and then a forward before every backward, one too many in flight."""
    rows = []
    for rank in range(ranks):
        lead = min(ranks - rank, microbatches)
        steady = microbatches - lead
        row = [f"{rank}F{m}" for m in range(lead)]
        for i in range(steady):
            row += [f"{rank}F{lead + i}", f"{rank}B{i}"]
        rows.append(row + [f"{rank}B{m}" for m in range(steady, microbatches)])
    return Schedule.of("the scheduler's 1F1B", rows, microbatches=microbatches)


def scheduler_interleaved(ranks: int, microbatches: int, chunks: int) -> Schedule:
    """The scheduler's interleaved schedule, which ignores the number of chunks."""
    return scheduler_1f1b(ranks, microbatches)


def scheduler_steps(ranks: int, microbatches: int, rank: int) -> list[str]:
    """The scheduler's GPipe steps of one rank as it lists them: the gradient is waited for, and never sent.

    A rank that does not exist gets an order all the same.
    """
    steps = []
    for m in range(microbatches):
        steps += [f"RecvActivations({rank - 1}, {m})"] if rank else []
        steps.append(f"Forward({m})")
        steps += [f"SendActivations({rank + 1}, {m})"] if rank + 1 != ranks else []
    for m in reversed(range(microbatches)):
        steps += [f"WaitBackward({rank + 1})"] if rank + 1 != ranks else []
        steps.append(f"Backward({m})")
    return steps


def clock_1f1b(ranks: int, microbatches: int, stages: Sequence[int] | None = None) -> Schedule:
    """boostr's 1F1B: right; a stage that does not exist makes it panic."""
    rows = []
    for stage in range(ranks) if stages is None else stages:
        lead = _lead(ranks, stage, microbatches)
        row = [f"{stage}F{m}" for m in range(lead)]
        for i in range(microbatches - lead):
            row += [f"{stage}F{lead + i}", f"{stage}B{i}"]
        rows.append(row + [f"{stage}B{m}" for m in range(microbatches - lead, microbatches)])
    return Schedule.of("boostr's 1F1B", rows, microbatches=microbatches)


def clock_interleaved(ranks: int, microbatches: int, chunks: int) -> Schedule:
    """boostr's interleaved schedule: every microbatch through all chunks, alike on every rank; almost serial."""
    if chunks == 0:
        raise NoActions("an empty schedule, without a word")
    rows = []
    for rank in range(ranks):
        down = [f"{v * ranks + rank}F{m}" for m in range(microbatches) for v in range(chunks)]
        back = [f"{v * ranks + rank}B{m}" for m in range(microbatches) for v in reversed(range(chunks))]
        rows.append(down + back)
    return Schedule.of("boostr's interleaved", rows, microbatches=microbatches)


def clock_zero_bubble(ranks: int, microbatches: int) -> Schedule:
    """boostr's zero-bubble schedule: every weight gradient right after its input gradient, so none fills a bubble."""
    rows = []
    for stage in range(ranks):
        lead = _lead(ranks, stage, microbatches)
        row = [f"{stage}F{m}" for m in range(lead)]
        for i in range(microbatches):
            row += [f"{stage}F{lead + i}"] if lead + i < microbatches else []
            row += [f"{stage}I{i}", f"{stage}W{i}"]
        rows.append(row)
    return Schedule.of("boostr's zero bubble", rows, microbatches=microbatches)


def published_interleaved_rate(
    ranks: int, microbatches: int, chunks: int, costs: StageCosts, *, as_printed: bool
) -> float:
    """The interleaved column of Zero Bubble's table 5: as printed, or with every dependency kept.

    Parameters
    ----------
    costs : StageCosts
        Of one chunk.
    as_printed : bool
        True drops the dependency from the last rank back to the first for all but the first microbatch of each
        group of p, which is what the printed figures come out of.

    Returns
    -------
    float
        zb_bubble_rate.
    """
    from pipelab import schedule

    whole = schedule("Interleaved1F1B", ranks, microbatches, chunks)
    timeline = simulate(whole, costs)
    if not as_printed:
        return timeline.zb_bubble_rate
    graph, (above, delay) = timeline.graph, timeline.delays
    stage, kind = whole.stage, whole.kind
    around = np.where(kind == 0, (stage > 0) & (stage % ranks == 0), stage % ranks == ranks - 1)
    dropped = around & (whole.microbatch % ranks != 0)
    waits = np.where(dropped, len(graph), graph.waits[1])
    free = type(graph)(graph.first, graph.node, (graph.waits[0], waits))
    duration = timeline.node_end - timeline.node_start
    late = None if delay is None else np.where(dropped, 0.0, delay)
    end = free.order.finish(duration, (above, late))
    first, last = (end - duration).reshape(ranks, -1)[:, 0], end.reshape(ranks, -1)[:, -1]
    span = float((last - first).max())
    return (span - timeline.ideal) / span


def _lead(ranks: int, stage: int, microbatches: int) -> int:
    if ranks - stage - 1 < 0:
        raise Panic("attempt to subtract with overflow: num_stages - stage_id - 1")
    return min(ranks - stage - 1, microbatches)


def _same_on_every_rank(name: str, order: list[str], ranks: int, microbatches: int) -> Schedule:
    rows = [[f"{rank}{action}" for action in order] for rank in range(ranks)]
    return Schedule.of(name, rows, microbatches=microbatches)
