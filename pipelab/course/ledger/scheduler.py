"""What the scheduler of trustformers-core says of itself, in names, formulas, error texts and tests."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product
from typing import TYPE_CHECKING, Any

import pipelab as pl
from pipelab.course import published_orders as published
from pipelab.course import published_scheduler as program
from pipelab.course.ledger.claims import FAILS, HOLDS, TRIED, Claim, shown
from pipelab.course.ledger.comparisons import AT_LEAST, DIFFERENT, EVERY, QUOTIENT, Trial, tried
from pipelab.course.rust_numbers import Panic

if TYPE_CHECKING:
    from pipelab.course.ledger.shared_results import SharedResults
    from pipelab.schedules import Schedule

TESTS, STATS, ERRORS, FLOPS = (
    "mod tests", "impl PipelineBubbleStats", "impl fmt::Display for PpError", "pub fn partition_layers_by_flops",
)  # fmt: skip
P, M = 4, 8  # ranks and microbatches of its tests
SIZES = [(p, m) for p, m in product(range(2, 7), range(2, 9)) if m >= p]


def _held_by_1f1b(shared: "SharedResults", p: int, m: int) -> float:
    """Most microbatches in flight on any rank of 1F1B, as a share of GPipe's m."""
    return max(shared.run(pl.schedule("1F1B", p, m)).peak_in_flight) / m


def _sizes(split: Iterable[range]) -> tuple[int, ...]:
    return tuple(len(part) for part in split)


def _kinds(schedule: "Schedule", rank: int) -> Counter:
    return Counter(action.kind for action in schedule.actions[rank])


def _steps(rank: int, ranks: int = 3, microbatches: int = 3) -> Counter:
    """Its list of steps on one rank, counted by name."""
    return Counter(
        step.split("(")[0] for step in published.scheduler_steps(ranks, microbatches, rank)
    )


def _by_size(
    answer: "Callable[[int, int], tuple[Any, Any]]", sizes: Iterable[tuple[int, int]] = SIZES
) -> Trial:
    """Over sizes: whether two computed things are equal."""
    found = []
    for p, m in sizes:
        one, other = answer(p, m)
        # its formulas are in 32 bits
        same = abs(one - other) < 1e-6 if isinstance(one, float) else one == other
        found.append((f"{p} ranks, {m} microbatches: {shown(one)} and {shown(other)}", same))
    return tried(found)


def _bubbles(shared: "SharedResults", sizes: Iterable[tuple[int, int]]) -> Trial:
    """Its formula for 1F1B, and its 1F1B against the clock."""
    return _by_size(
        lambda p, m: (
            published.scheduler_bubble_fraction_1f1b(p, m), shared.run(published.scheduler_1f1b(p, m)).bubble_fraction
        ),
        sizes,
    )  # fmt: skip


def _scheduler(rank: int, schedule: Any = None) -> "program.PipelineScheduler":
    """8 layers on 4 stages, 8 microbatches, as in its tests."""
    return program.PipelineScheduler(
        program.PipelineConfig(P, M, rank, schedule or program.GPipe()), 8
    )


def _refused(shared: "SharedResults") -> Trial:
    """Inputs of which its own error texts speak, and whether any of them is an error."""
    inputs: tuple[tuple[str, Callable[[], object]], ...] = (
        ("0 stages: the answer is {}", lambda: program.partition_layers_evenly(M, 0)),
        ("rank 5 of 4: the answer is stage {}", lambda: _scheduler(5).this_stage().stage_id),
        ("2 layers in 4 stages: the answer is {}", lambda: program.partition_layers_evenly(2, P)),
    )
    found = []
    for what, ask in inputs:
        try:
            found.append((what.format(ask()), False))
        except (Panic, program.PpError):
            found.append((what, True))
    return tried(found)


def _messages(shared: "SharedResults") -> Trial:
    """The two texts that its test looks at."""
    rank = program.StageRankOutOfRange(5, P)
    return tried(
        [("num_stages", "num_stages" in str(program.ZeroStages())), ("5", "5" in str(rank))],
        whole=True,
    )


def _micro_batch(shared: "SharedResults") -> tuple[int, ...]:
    """Number, shape and length of the micro-batch of its test."""
    made = program.MicroBatch(3, [1.0, 2.0, 3.0], (1, 3), True)
    return made.micro_batch_id, *made.shape, len(made.data)


def _answered(shared: "SharedResults") -> Trial:
    """Equal layers: whether every stage gets one."""
    failures = (
        (n, stages, published.smallest_failure(published.seed_by_flops, [([1] * n, stages)]))
        for stages in range(2, 17) for n in range(stages, 65)
    )  # fmt: skip
    return tried(
        (f"{n} equal layers in {s} stages: {f.what if f else ''}", f is None)
        for n, s, f in failures
    )


def _flops_cut(amounts: list[int], stages: int) -> tuple[float, float]:
    """Its most expensive stage and the least possible."""
    best = pl.split_minmax(amounts, stages)
    return pl.bottleneck(published.seed_by_flops(amounts, stages), amounts), pl.bottleneck(
        best, amounts
    ) if best else 0.0


def _ranks_that_send_gradients() -> tuple[int, int]:
    """Ranks whose list has a step that sends a gradient, and ranks that wait for one."""
    steps = [_steps(rank, P, M) for rank in range(P)]
    sends = [any("Send" in name and "Activations" not in name for name in s) for s in steps]
    return sum(sends), sum(s["WaitBackward"] > 0 for s in steps)


def _merit(microbatches: int) -> tuple[float, float]:
    """Its own two figures for 8 ranks, idle share (by the clock) and memory ratio."""
    idle = pl.simulate(pl.schedule("1F1B", 8, microbatches), pl.StageCosts(1, 1, 1)).bubble_fraction
    return round(idle, 9), round(published.scheduler_memory_ratio(8, microbatches), 9)


def _ends(shared: "SharedResults") -> Trial:
    """Ranks 0 and 3 of 4."""
    first, last = _scheduler(0), _scheduler(3)
    answers = {
        "rank 0 is the first": first.is_first_stage(), "rank 0 is not the last": not first.is_last_stage(),
        "rank 3 is not the first": not last.is_first_stage(), "rank 3 is the last": last.is_last_stage(),
    }  # fmt: skip
    return tried(answers.items(), whole=True)


def _stage(shared: "SharedResults") -> tuple[int, int, int, int]:
    stage = _scheduler(2).this_stage()
    return stage.stage_id, stage.num_layers, stage.layer_start, stage.layer_end


CLAIMS = (
    Claim(
        ERRORS, "num_stages must be at least 1 … stage_rank {stage_rank} is out of range for num_stages {num_stages} … "
        "cannot partition {total_layers} layers into {num_stages} stages", "such inputs are refused", _refused,
        "0 stages, rank 5 of 4, 2 layers in 4 stages, by the restated program", FAILS, EVERY,
        note="The texts are there; no function returns a PpError.",
    ),
    Claim(
        "pub enum PipelineSchedule", "Interleaved { num_virtual_stages: usize }", "the number of virtual stages counts",
        lambda shared: tuple(shared.run(published.scheduler_interleaved(P, M, v)).makespan for v in (1, 4)),
        "makespan of its order with 1 and with 4 virtual stages, by scheduler_interleaved", FAILS, DIFFERENT,
        note="The number is ignored: the order is its 1F1B. Interleaved 1F1B with 2 virtual stages takes {}.",
        known=lambda shared: (shared.run(pl.schedule("Interleaved1F1B", P, M)).makespan,),
    ),
    Claim(
        FLOPS, "layer_flops: &[u64], num_stages: usize", "every stage gets a layer",
        lambda shared: shared.once(_answered, shared),
        "equal layers, 2 to 16 stages, up to 64 layers, by seed_by_flops",
        FAILS, EVERY,
        note="And where it answers, the stages need not be balanced: costs 4, 4, 1 in 2 stages make a stage of {}, "
        "where {} is possible.",
        known=lambda shared: _flops_cut([4, 4, 1], 2),
    ),
    Claim(
        STATS, "bubble_fraction_gpipe … (p - 1.0) / (m + p - 1.0)", "the clock's",
        lambda shared: _by_size(lambda p, m: (
            program.PipelineBubbleStats(p, m).bubble_fraction_gpipe(),
            shared.run(published.scheduler_gpipe(p, m)).bubble_fraction,
        )),
        "the formula, and its GPipe against the clock; 2 to 6 ranks, up to 8 microbatches", TRIED, EVERY,
    ),
    Claim(
        STATS, "bubble_fraction_1f1b … (p - 1.0) / (2.0 * (m - 1.0) + p)", "the clock's",
        lambda shared: _bubbles(shared, SIZES),
        "the formula, and its 1F1B against the clock; 2 to 6 ranks, up to 8 microbatches", FAILS, EVERY,
        note="1F1B saves memory, no time: its bubble is GPipe's. With one microbatch the formula is right ({}).",
        known=lambda shared: (_bubbles(shared, [(p, 1) for p in range(1, 7)]),),
    ),
    Claim(
        STATS, "memory_footprint_ratio … (p + m) / (p * m)", "1F1B's microbatches in flight over GPipe's",
        lambda shared: _by_size(lambda p, m: (
            published.scheduler_memory_ratio(p, m), _held_by_1f1b(shared, p, m),
        )),
        "the formula, and the most microbatches in flight; 2 to 6 ranks, up to 8 microbatches", FAILS, EVERY,
        note="On one rank it exceeds 1.",
    ),
    Claim(
        STATS, "optimal_num_micro_batches(&self) -> usize { 4 * self.num_stages", "no other number is better",
        lambda shared: (min(_merit(m) for m in range(8, 129, 8)), _merit(published.scheduler_microbatches(8))),
        "idle share and memory ratio of 8 ranks, the best of 8, 16 … 128 microbatches and at its optimum", FAILS,
        AT_LEAST,
        note="By both its figures more is always better: the number optimises nothing. A comment of the published "
        "file, which is not taken apart here, calls it a rule of thumb.",
    ),
    Claim(
        "pub enum PipelineStep", "WaitBackward { from_stage: usize }", "what is waited for is sent",
        lambda shared: _ranks_that_send_gradients(), "ranks of 4 that send a gradient, and ranks that wait for one",
        FAILS,
        AT_LEAST, note="Run as listed, two ranks or more wait for ever.",
    ),
    Claim(
        "fn schedule_gpipe", "for mb in (0..num_micro_batches).rev()", "GPipe's makespan",
        lambda shared: _by_size(lambda p, m: (
            shared.run(published.scheduler_gpipe(p, m)).makespan, shared.run(pl.schedule("GPipe", p, m)).makespan,
        )),
        "its order and pipelab's against the clock; 2 to 6 ranks, up to 8 microbatches", TRIED, EVERY,
    ),
    Claim(
        "fn schedule_1f1b", "let warmup_steps = (num_stages - rank).min(num_micro_batches)", "1F1B's memory",
        lambda shared: _by_size(lambda p, m: (
            shared.run(published.scheduler_1f1b(p, m)).peak_in_flight,
            shared.run(pl.schedule("1F1B", p, m)).peak_in_flight,
        )),
        "microbatches in flight by rank, its and 1F1B's; 2 to 6 ranks, up to 8 microbatches", FAILS, EVERY,
        note="One forward too many runs ahead.",
    ),
    Claim(TESTS, "partition_layers_evenly(12, 4) … assert_eq!(s.num_layers, 3)", "3, 3, 3 and 3",
          lambda shared: _sizes(published.seed_even(12, 4)), "seed_even", "exact"),
    Claim(TESTS, "partition_layers_evenly(10, 3) … stages[0].num_layers, 4 … stages[1].num_layers, 3 … "
          "stages[2].num_layers, 3", "4, 3 and 3",
          lambda shared: _sizes(published.seed_even(10, 3)), "seed_even", "exact"),
    Claim(TESTS, "vec![100u64; 8] … partition_layers_by_flops(&flops, 4) … assert_eq!(s.num_layers, 2)",
          "2, 2, 2 and 2", lambda shared: _sizes(published.seed_by_flops([100] * 8, 4)), "seed_by_flops", "exact"),
    Claim(TESTS, "vec![100u64, 100, 100, 100, 400] … stages[0].num_layers, 4 … stages[1].num_layers, 1", "4 and 1",
          lambda shared: _sizes(published.seed_by_flops([100] * 4 + [400], 2)), "seed_by_flops", "exact"),
    Claim(TESTS, "vec![100u64, 200, 300, 400] … partition_layers_by_flops(&flops, 1) … stages[0].num_layers, 4", "4",
          lambda shared: _sizes(published.seed_by_flops([100, 200, 300, 400], 1)), "seed_by_flops", "exact"),
    Claim(TESTS, "let expected = 3.0f32 / 11.0", "3.0 / 11.0",
          lambda shared: program.PipelineBubbleStats(P, M).bubble_fraction_gpipe(), "its own formula, 4 ranks and 8 "
          "microbatches", "exact", QUOTIENT, note="Run, its GPipe idles {} of the time, too.",
          known=lambda shared: (shared.run(published.scheduler_gpipe(P, M)).bubble_fraction,)),
    Claim(TESTS, "let expected = 3.0f32 / 18.0", "3.0 / 18.0",
          lambda shared: published.scheduler_bubble_fraction_1f1b(P, M), "its own formula, 4 ranks and 8 microbatches",
          "exact", QUOTIENT, note="The formula against itself. Run, its 1F1B idles {} of the time.",
          known=lambda shared: (shared.run(published.scheduler_1f1b(P, M)).bubble_fraction,)),
    Claim(TESTS, "let expected = 12.0f32 / 32.0", "12.0 / 32.0",
          lambda shared: published.scheduler_memory_ratio(P, M), "its own formula, 4 ranks and 8 microbatches", "exact",
          QUOTIENT, note="The formula against itself. Counted, 1F1B keeps {} of GPipe's microbatches.",
          known=lambda shared: (_held_by_1f1b(shared, P, M),)),
    Claim(TESTS, "assert_eq!(stats.optimal_num_micro_batches(), 32)", "32",
          lambda shared: published.scheduler_microbatches(8), "its own formula, 8 ranks", "exact"),
    Claim(TESTS, "assert!(sched_first.is_first_stage()) … assert!(!sched_first.is_last_stage()) … "
          "assert!(!sched_last.is_first_stage()) … assert!(sched_last.is_last_stage())", "ranks 0 and 3 of 4",
          _ends, "is_first_stage and is_last_stage", HOLDS, EVERY,
          note="A rank that does not exist is neither, and gets the first stage."),
    Claim(TESTS, "assert_eq!(fwd_count, 4) … assert_eq!(bwd_count, 4)", "4 and 4",
          lambda shared: tuple(_kinds(published.scheduler_gpipe(2, 4), 0)[k] for k in "FB"), "actions of rank 0 of 2",
          "exact"),
    Claim(TESTS, "PipelineStep::Forward { .. })).count(), 3 … PipelineStep::SendActivations { .. })) .count(), 3",
          "3 and 3", lambda shared: tuple(_steps(0)[s] for s in ("Forward", "SendActivations")),
          "scheduler_steps, rank 0 of 3", "exact"),
    Claim(TESTS, "assert_eq!(stage.stage_id, 2) … assert_eq!(stage.num_layers, 2) … assert_eq!(stage.layer_start, 4) … "
          "assert_eq!(stage.layer_end, 6)", "2, 2, 4 and 6", _stage, "this_stage, rank 2 of 4", "exact"),
    Claim(TESTS, "assert_eq!(fwd, 8) … assert_eq!(bwd, 8)", "8 and 8",
          lambda shared: tuple(_kinds(published.scheduler_1f1b(P, M), 1)[k] for k in "FB"), "actions of rank 1 of 4",
          "exact", note="So would any order, right or wrong: the tests count and never run."),
    Claim(TESTS, "MicroBatch::new(3, vec![1.0f32, 2.0, 3.0], (1, 3), true) … assert_eq!(mb.micro_batch_id, 3) … "
          "assert_eq!(mb.shape, (1, 3)) … assert_eq!(mb.data.len(), 3)", "3, 1, 3 and 3", _micro_batch,
          "MicroBatch: number, shape and length", "exact", note="Nothing else in the program uses it."),
    Claim(TESTS, "assert!(e.to_string().contains(\"num_stages\")) … StageRankOutOfRange { stage_rank: 5, "
          "num_stages: 4 } … assert!(e2.to_string().contains(\"5\"))", "both texts hold it", _messages,
          "the texts of the two errors", HOLDS, EVERY),
)  # fmt: skip
