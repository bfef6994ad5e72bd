"""What the Rust pipeline scheduler says of itself, in names, formulas, error texts and tests."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pipelab as pl
from pipelab import seeds
from pipelab import seeds_schedules as published
from pipelab.checked import given
from pipelab.ledger.claims import Claim
from pipelab.ledger.comparisons import EQUAL, NUMBERS

if TYPE_CHECKING:
    from pipelab.schedules.schedule import Schedule

__all__ = ["CLAIMS"]

TESTS, STATS, ERRORS, FLOPS = "tests", "PipelineBubbleStats", "PpError", "partition_layers_by_flops"
P, M = 4, 8  # ranks and microbatches of its tests


def _sizes(split: Iterable[range]) -> tuple[int, ...]:
    return tuple(len(part) for part in split)


def _kinds(schedule: "Schedule", rank: int) -> Counter:
    return Counter(action.kind for action in schedule.actions[rank])


def _steps(rank: int, ranks: int = 3, microbatches: int = 3) -> Counter:
    """Its list of steps on one rank, counted by name."""
    return Counter(step.split("(")[0] for step in published.scheduler_steps(ranks, microbatches, rank))


def _outcome(attempt: Callable, *arguments: Any) -> str:
    try:
        return f"{attempt(*arguments)}"
    except (seeds.Panic, ZeroDivisionError) as error:
        return f"{type(error).__name__}"


def _refused(attempt: Callable, *arguments: Any) -> str:
    """How pipelab takes the same input."""
    try:
        return f"{attempt(*arguments)}"
    except pl.PipelabError as error:
        return type(error).__name__


def _flops_cut(amounts: list[int], stages: int) -> tuple[float, float]:
    """Its most expensive stage and the least possible."""
    return pl.bottleneck(seeds.seed_by_flops(amounts, stages), amounts), pl.bottleneck(
        given(pl.split_minmax(amounts, stages)), amounts
    )


def _answered() -> tuple[int, int]:
    """Equal layers: inputs with one non-empty stage each, and inputs."""
    inputs = [([1] * n, stages) for stages in range(2, 17) for n in range(stages, 65)]
    return len(inputs) - sum(seeds.smallest_failure(seeds.seed_by_flops, [i]) is not None for i in inputs), len(inputs)


def _ranks_that_send_gradients() -> tuple[int, int]:
    """Ranks whose list has a step that sends a gradient, and ranks that wait for one."""
    steps = [_steps(rank, P, M) for rank in range(P)]
    sends = [any("Send" in name and "Activations" not in name for name in s) for s in steps]
    return sum(sends), sum(s["WaitBackward"] > 0 for s in steps)


def _merit(microbatches: int) -> tuple[float, float]:
    """Its own two figures for 8 ranks, idle share (by the clock) and memory ratio."""
    idle = pl.simulate(pl.schedule("1F1B", 8, microbatches), pl.StageCosts(1, 1, 1)).bubble_fraction
    return round(idle, 9), round(published.scheduler_memory_ratio(8, microbatches), 9)


CLAIMS = (
    Claim(
        ERRORS, "num_stages must be at least 1", "an error",
        lambda desk: (_outcome(seeds.seed_even, 8, 0), _refused(pl.split_even, 8, 0)),
        "0 stages: its answer and split_even's", "wrong", EQUAL, note="No function returns a PpError.",
    ),
    Claim(
        ERRORS, "stage_rank {stage_rank} is out of range for num_stages {num_stages}", "an error",
        lambda desk: (sum(_steps(5, P, M).values()), 0), "steps that rank 5 of 4 is given, and that it should be",
        "wrong", EQUAL,
    ),
    Claim(
        ERRORS, "cannot partition {total_layers} layers into {num_stages} stages", "an error",
        lambda desk: (_outcome(seeds.seed_even, 2, P), _refused(pl.split_even, 2, P)),
        "2 layers in 4 stages: its answer and split_even's", "wrong", EQUAL,
    ),
    Claim(
        "PipelineSchedule", "Interleaved { num_virtual_stages }", "v matters",
        lambda desk: (
            desk.run(published.scheduler_interleaved(P, M, 2)).makespan,
            desk.run(pl.schedule("Interleaved1F1B", P, M)).makespan,
        ),
        "makespan with 2 chunks, its and pipelab's", "wrong", EQUAL,
        note="The number is ignored: the order is its 1F1B.",
    ),
    Claim(
        FLOPS, "partition into num_stages stages", "every input",
        lambda desk: desk.once(_answered), "equal layers, 2 to 16 stages: inputs answered, and inputs", "wrong", EQUAL,
        note="The others index out of bounds.",
    ),
    Claim(
        FLOPS, "by FLOPs: stages of equal cost as far as can be", "the least possible",
        lambda desk: _flops_cut([4, 4, 1], 2), "costs 4, 4, 1 in 2 stages: its bottleneck and the least", "wrong",
        EQUAL,
    ),
    Claim(
        STATS, "bubble_fraction_gpipe = (p - 1) / (m + p - 1)", "the clock's",
        lambda desk: (
            desk.run(published.scheduler_gpipe(P, M)).bubble_fraction,
            float(pl.PipelineBubbleStats(P, M).bubble_fraction_gpipe),
        ),
        "its GPipe against the clock, and the formula", "exact", EQUAL,
    ),
    Claim(
        STATS, "bubble_fraction_1f1b = (p - 1) / (2(m - 1) + p)", "the clock's",
        lambda desk: (
            published.scheduler_bubble_fraction_1f1b(P, M),
            desk.run(published.scheduler_1f1b(P, M)).bubble_fraction,
        ),
        "its formula and its own order against the clock", "wrong", EQUAL,
        note="1F1B saves memory, no time: its bubble is GPipe's.",
    ),
    Claim(
        STATS, "memory_footprint_ratio = (p + m) / (p m)", "the clock's",
        lambda desk: (published.scheduler_memory_ratio(P, M), float(pl.PipelineBubbleStats(P, M).memory_ratio_1f1b)),
        "its formula, and 1F1B's most microbatches in flight over GPipe's", "wrong", EQUAL,
        note="On one rank it exceeds 1.",
    ),
    Claim(
        STATS, "optimal_num_micro_batches = 4 p", "nothing is better",
        lambda desk: (_merit(published.scheduler_microbatches(8)), min(_merit(m) for m in range(8, 129, 8))),
        "idle share and memory ratio of 8 ranks at its optimum, and at the best of 8, 16 … 128", "wrong", EQUAL,
        note="By both its figures more is always better: it optimises nothing.",
    ),
    Claim(
        "PipelineStep", "WaitBackward { from_stage }: a gradient arrives", "somebody sends it",
        lambda desk: _ranks_that_send_gradients(), "ranks that send a gradient, and ranks that wait for one", "wrong",
        EQUAL, note="Run as listed, two ranks or more wait for ever.",
    ),
    Claim(
        "schedule_gpipe", "all forwards, then all backwards reversed", "GPipe's makespan",
        lambda desk: (
            desk.run(published.scheduler_gpipe(P, M)).makespan,
            desk.run(pl.schedule("GPipe", P, M)).makespan,
        ),
        "its order and pipelab's against the clock", "exact", EQUAL,
    ),
    Claim(
        "schedule_1f1b", "1F1B", "1F1B's memory",
        lambda desk: (
            desk.run(published.scheduler_1f1b(P, M)).peak_in_flight,
            desk.run(pl.schedule("1F1B", P, M)).peak_in_flight,
        ),
        "microbatches in flight by rank, its and 1F1B's", "wrong", EQUAL, note="One forward too many runs ahead.",
    ),
    Claim(TESTS, "evenly: 12 layers in 4 stages, 3 each", "3, 3, 3 and 3",
          lambda desk: _sizes(seeds.seed_even(12, 4)), "seed_even", "exact"),
    Claim(TESTS, "evenly: 10 layers in 3 stages, 4, 3, 3", "4, 3 and 3",
          lambda desk: _sizes(seeds.seed_even(10, 3)), "seed_even", "exact"),
    Claim(TESTS, "by_flops_balanced: 8 equal layers in 4, 2 each", "2, 2, 2 and 2",
          lambda desk: _sizes(seeds.seed_by_flops([100] * 8, 4)), "seed_by_flops", "exact"),
    Claim(TESTS, "by_flops_uneven: 100 × 4 and 400 in 2, 4 and 1 layers", "4 and 1",
          lambda desk: _sizes(seeds.seed_by_flops([100] * 4 + [400], 2)), "seed_by_flops", "exact"),
    Claim(TESTS, "flops_partition_single_stage: 4 layers in 1", "4",
          lambda desk: _sizes(seeds.seed_by_flops([100, 200, 300, 400], 1)), "seed_by_flops", "exact"),
    Claim(TESTS, "bubble_fraction_gpipe, 4 stages, 8 micro-batches, is 3 / 11", "3 / 11",
          lambda desk: pl.PipelineBubbleStats(P, M).bubble_fraction_gpipe.as_integer_ratio(), "bubble_fraction_gpipe",
          "exact"),
    Claim(TESTS, "bubble_fraction_1f1b, 4 stages, 8 micro-batches, is 3 / 18", "0.1667",
          lambda desk: desk.run(pl.schedule("1F1B", P, M)).bubble_fraction, "1F1B against the clock", "wrong", NUMBERS),
    Claim(TESTS, "memory_footprint_ratio, 4 stages, 8 micro-batches, is 12 / 32", "0.375",
          lambda desk: float(pl.PipelineBubbleStats(P, M).memory_ratio_1f1b), "memory_ratio_1f1b", "wrong", NUMBERS),
    Claim(TESTS, "optimal_num_micro_batches of 8 stages", "32",
          lambda desk: published.scheduler_microbatches(8), "scheduler_microbatches, its own formula", "exact",
          note="The test holds the formula against itself."),
    Claim(TESTS, "4 forwards and 4 backwards, 2 stages, 4 micro-batches", "4 and 4",
          lambda desk: tuple(_kinds(published.scheduler_gpipe(2, 4), 0)[k] for k in "FB"), "actions of rank 0",
          "exact"),
    Claim(TESTS, "stage 0 of 3 receives nothing and sends 3 activations in 3 forwards", "0, 3 and 3",
          lambda desk: tuple(_steps(0)[s] for s in ("RecvActivations", "Forward", "SendActivations")),
          "scheduler_steps, rank 0", "exact"),
    Claim(TESTS, "this_stage: stage 2 of 4 on 8 layers holds layers 4 to 5", "4 and 6",
          lambda desk: (seeds.seed_even(8, P)[2].start, seeds.seed_even(8, P)[2].stop), "seed_even", "exact"),
    Claim(TESTS, "1f1b_schedule_has_fwd_and_bwd: 8 of each on rank 1 of 4", "8 and 8",
          lambda desk: tuple(_kinds(published.scheduler_1f1b(P, M), 1)[k] for k in "FB"), "actions of rank 1", "exact",
          note="So would any order, right or wrong: the tests count and never run."),
)  # fmt: skip
