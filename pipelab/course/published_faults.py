"""Every fault found in the three restated programs: its name, and the smallest input that shows it, searched for.

Each is looked for by a function that says what the program answers on an input and what is right,
or None where nothing is wrong. No input that will be found is written here.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from pipelab.course import published_scheduler as rust
from pipelab.course.fault_search import (
    COMPLETE,
    FORMULA,
    REFUSES,
    RUN,
    SLOWER_TRUTH,
    Fault,
    lists,
    panicking,
    panics,
    sizes,
)
from pipelab.course.layer_assignment_faults import LAYER_ASSIGNMENT_FAULTS, Shown
from pipelab.course.published_clock import PipelineClock
from pipelab.course.published_orders import (
    clock_interleaved,
    clock_zero_bubble,
    scheduler_1f1b,
    seed_by_flops,
    seed_even,
)
from pipelab.engine.schedules import schedule
from pipelab.engine.timeline import StageCosts, Timeline, simulate
from pipelab.splits import bottleneck, split_by_flops, split_minmax

_ONES = StageCosts(1, 1, 1)


def _time(name: str, ranks: int, microbatches: int, chunks: int | None = None) -> Timeline:
    order = schedule(name, ranks, microbatches, chunks)
    return simulate(order, _ONES.cut_for(order))


# The scheduler


def _scheduler(
    stages: int, rank: int = 0, plan: Any = None, configured: int = 8, layers: int = 1
) -> rust.PipelineScheduler:
    return rust.PipelineScheduler(
        rust.PipelineConfig(stages, configured, rank, plan or rust.GPipe()), layers
    )


def _no_rank(stages: int, rank: int) -> str:
    """What the program defines for it and never returns."""
    return f"refused: {rust.StageRankOutOfRange(rank, stages)}"


def _even_without_stages(layers: int, stages: int) -> Shown:
    return None if seed_even(layers, stages) else ("an empty list", f"refused: {rust.ZeroStages()}")


def _even_left_empty(layers: int, stages: int) -> Shown:
    held = sizes(seed_even(layers, stages))
    return (str(held), f"refused: {rust.InsufficientLayers(layers, stages)}") if 0 in held else None


def _indexes(flops: list[int], stages: int) -> Shown:
    panic = panics(seed_by_flops, flops, stages) if len(flops) >= stages else None
    return (panic, str(sizes(split_by_flops(flops, stages)))) if panic else None


def _not_least(flops: list[int]) -> Shown:
    if panics(seed_by_flops, flops, 2):
        return None
    own, best = (bottleneck(cut(flops, 2) or (), flops) for cut in (seed_by_flops, split_minmax))
    return (f"a stage of {own:g}", f"no stage above {best:g}") if own > best else None


def _stage_0(stages: int, rank: int) -> Shown:
    found = _scheduler(stages, rank).this_stage().stage_id
    return (f"stage {found}", _no_rank(stages, rank)) if found != rank else None


def _order_for_nobody(stages: int, rank: int) -> Shown:
    steps = _scheduler(stages, rank).schedule_steps(1)
    return (f"{len(steps)} steps", _no_rank(stages, rank)) if rank >= stages else None


def _ahead(stages: int, microbatches: int) -> Shown:
    own = simulate(scheduler_1f1b(stages, microbatches), _ONES).peak_in_flight
    right = _time("1F1B", stages, microbatches).peak_in_flight
    told = [f"{' '.join(map(str, held))} in flight" for held in (own, right)]
    return (told[0], told[1]) if own != right else None


def _forwards(scheduler: rust.PipelineScheduler, microbatches: int, expected: int) -> Shown:
    found = sum(isinstance(step, rust.Forward) for step in scheduler.schedule_steps(microbatches))
    return (f"forwards: {found}", f"forwards: {expected}") if found != expected else None


def _unsent(stages: int, microbatches: int) -> Shown:
    steps = [
        step
        for rank in range(stages)
        for step in _scheduler(stages, rank).schedule_steps(microbatches)
    ]
    waits = sum(isinstance(step, rust.WaitBackward) for step in steps)
    sends = [
        step
        for step in steps
        if "Send" in type(step).__name__ and not isinstance(step, rust.SendActivations)
    ]
    told = f"waits for a gradient: {waits}, sends: {len(sends)}"
    return (told, f"sends: {waits}") if waits > len(sends) else None


def _formula(stages: int, microbatches: int) -> Shown:
    told = rust.PipelineBubbleStats(stages, microbatches).bubble_fraction_1f1b()
    clock = _time("1F1B", stages, microbatches).bubble_fraction
    return (f"{told:.4g}", f"{clock:.4g}") if abs(told - clock) > 1e-6 else None


def _no_fraction(stages: int, microbatches: int) -> Shown:
    stats = rust.PipelineBubbleStats(stages, microbatches)
    told = stats.bubble_fraction_gpipe(), stats.bubble_fraction_1f1b()
    wrong = not all(0 <= fraction <= 1 for fraction in told)
    return (f"{told[0]:g} and {told[1]:g}", "refused: no microbatch") if wrong else None


def _memory_ratio(stages: int, microbatches: int) -> Shown:
    told = rust.PipelineBubbleStats(stages, microbatches).memory_footprint_ratio()
    held = [max(_time(name, stages, microbatches).peak_in_flight) for name in ("1F1B", "GPipe")]
    clock = held[0] / held[1]
    return (f"{told:.4g}", f"{clock:.4g}") if abs(told - clock) > 1e-6 else None


def _no_optimum(stages: int) -> Shown:
    best = rust.PipelineBubbleStats(stages, 0).optimal_num_micro_batches()
    at, beyond = (rust.PipelineBubbleStats(stages, m) for m in (best, best + 1))
    lower = beyond.bubble_fraction_1f1b() < at.bubble_fraction_1f1b()
    lower &= beyond.memory_footprint_ratio() < at.memory_footprint_ratio()
    right = f"none: with {best + 1} both of its own figures are lower"
    return (str(best), right) if lower else None


def _shapeless(rows: int, columns: int) -> Shown:
    made = rust.MicroBatch(0, [], (rows, columns), False)
    wrong = len(made.data) != rows * columns
    told = f"shape {made.shape} with {len(made.data)} numbers"
    return (told, "refused: shape and data do not agree") if wrong else None


# boostr's PipelineClock


def _drawn(stages: int, microbatches: int) -> Shown:
    drawing = [f"F{m}" for m in range(microbatches)]
    drawing += [f"B{m}" for m in reversed(range(microbatches))]
    made = PipelineClock(stages, microbatches, stages - 1).schedule_1f1b()
    order = [f"{action.kind[0]}{action.id}" for action in made]
    return (" ".join(drawing), " ".join(order)) if drawing != order else None


def _no_stage(stages: int, _: int, stage: int) -> str:
    return f"refused: there is no stage {stage} of {stages}"


def _clock_for_nobody(stages: int, microbatches: int, stage: int) -> Shown:
    order = PipelineClock(stages, microbatches, stage).schedule_interleaved(1)
    right = _no_stage(stages, microbatches, stage)
    return (f"{len(order)} actions", right) if stage >= stages and order else None


def _without_chunks(stages: int, microbatches: int, chunks: int) -> Shown:
    order = PipelineClock(stages, microbatches, 0).schedule_interleaved(chunks)
    return None if order else ("an empty list", "refused: no chunk")


def _serial(stages: int, microbatches: int, chunks: int) -> Shown:
    order = clock_interleaved(stages, microbatches, chunks)
    ratio = simulate(order, _ONES.cut_for(order)).bubble_ratio
    claim = (stages - 1) / (microbatches * chunks)
    told = f"bubble ratio {ratio:.4g}", f"bubble ratio {claim:.4g}, as claimed"
    return told if ratio > claim + 1e-9 else None


def _unfilled(stages: int, microbatches: int) -> Shown:
    own = simulate(clock_zero_bubble(stages, microbatches), _ONES).makespan
    right = _time("ZBH1", stages, microbatches).makespan
    return (f"ends at {own:g}", f"ends at {right:g}") if own > right else None


def _unmarked(stages: int, microbatches: int) -> Shown:
    kinds = {
        action.kind
        for k in range(stages)
        for action in PipelineClock(stages, microbatches, k).schedule_1f1b()
    }
    idle = _time("1F1B", stages, microbatches).bubble_fraction
    wrong = idle and "Idle" not in kinds
    return ("no Idle", f"{idle:.0%} of the time is Idle") if wrong else None


def _faults() -> Iterator[Fault]:
    """In the order of the programs."""

    def of(program: str, found: dict[str, tuple[str, Callable, Callable]]) -> Iterator[Fault]:
        return (Fault(program, name, *each) for name, each in found.items())

    yield from of("pmetal", LAYER_ASSIGNMENT_FAULTS)
    yield from of("scheduler", {
        "partition_layers_evenly: zero stages are not refused with ZeroStages":
            (REFUSES, lambda: product(range(1, 3), range(3)), _even_without_stages),
        "partition_layers_evenly: too few layers are not refused with InsufficientLayers":
            (REFUSES, lambda: product(range(1, 4), range(1, 4)), _even_left_empty),
        "partition_layers_by_flops: an index out of bounds, though there are layers enough":
            (COMPLETE, lambda: [each for n in range(1, 4) for each in product(lists(n, (1, 2)), range(1, 4))],
             _indexes),
        "partition_layers_by_flops: not the least bottleneck":
            (SLOWER_TRUTH, lambda: [(f,) for n in (2, 3) for f in lists(n, range(1, 5))], _not_least),
        "partition_layers_by_flops: the sum of the FLOPs overflows":
            (COMPLETE, lambda: [([2**k] * 2, 2) for k in range(64)],
             panicking(seed_by_flops, lambda flops, stages: str(sizes(split_by_flops(flops, stages))))),
        "this_stage: a rank that does not exist gets stage 0":
            (REFUSES, lambda: product(range(1, 4), range(4)), _stage_0),
        "this_stage: without layers it says that there are no stages":
            (REFUSES, lambda: product(range(1, 3), range(2)),
             panicking(lambda p, n: _scheduler(p, layers=n).this_stage(),
                       lambda p, n: f"refused: {rust.InsufficientLayers(n, p)}")),
        "GPipe: a rank that does not exist gets an order":
            (REFUSES, lambda: product(range(3), range(3)), _order_for_nobody),
        "1F1B: a rank that does not exist panics by arithmetic":
            (REFUSES, lambda: product(range(1, 3), range(4)),
             panicking(lambda p, r: _scheduler(p, r, rust.OneFOneBubble()).schedule_steps(1), _no_rank)),
        "1F1B: one forward too many runs ahead":
            (RUN, lambda: product(range(1, 4), range(1, 4)), _ahead),
        "interleaved: the number of virtual stages is dropped":
            (COMPLETE, lambda: product(range(1, 3), range(1, 3), range(1, 3)),
             lambda p, m, v: _forwards(_scheduler(p, plan=rust.Interleaved(v)), m, m * v)),
        "schedule_steps: the configured number of microbatches is ignored":
            (COMPLETE, lambda: product(range(1, 3), range(1, 3)),
             lambda c, m: _forwards(_scheduler(1, configured=c), m, c)),
        "a gradient is waited for and never sent":
            (COMPLETE, lambda: product(range(1, 4), range(1, 3)), _unsent),
        "bubble_fraction_1f1b: (p - 1) / (2(m - 1) + p) is not 1F1B's bubble":
            (FORMULA, lambda: product(range(1, 5), range(1, 5)), _formula),
        "bubble fractions of zero microbatches are not between 0 and 1":
            (REFUSES, lambda: product(range(1, 4), range(3)), _no_fraction),
        "memory_footprint_ratio: (p + m) / (p m) is not 1F1B's memory over GPipe's":
            (FORMULA, lambda: product(range(1, 4), range(1, 4)), _memory_ratio),
        "optimal_num_micro_batches: 4 p minimises none of its figures":
            (FORMULA, lambda: product(range(1, 5)), _no_optimum),
        "MicroBatch: data and shape need not agree":
            (REFUSES, lambda: product(range(3), range(3)), _shapeless),
    })  # fmt: skip
    yield from of("boostr", {
        "1F1B: a stage that does not exist panics by arithmetic":
            (REFUSES, lambda: product(range(1, 3), range(3), range(3)),
             panicking(lambda p, m, k: PipelineClock(p, m, k).schedule_1f1b(), _no_stage)),
        "1F1B: the drawing above it shows another order":
            (RUN, lambda: product(range(1, 4), range(1, 4)), _drawn),
        "interleaved: a stage that does not exist gets an order":
            (REFUSES, lambda: product(range(1, 3), range(3), range(3)), _clock_for_nobody),
        "interleaved: zero chunks are not refused":
            (REFUSES, lambda: product(range(1, 3), range(1, 3), range(2)), _without_chunks),
        "interleaved: almost serial, its bubble above the claimed (S-1)/(M*V)":
            (RUN, lambda: [(p, m, v) for p, m, v in product(range(1, 4), range(1, 5), range(1, 3)) if m % p == 0],
             _serial),
        "zero bubble: no weight gradient fills a bubble":
            (RUN, lambda: product(range(1, 4), range(1, 4)), _unfilled),
        "Idle is never listed":
            (COMPLETE, lambda: product(range(1, 4), range(1, 4)), _unmarked),
    })  # fmt: skip


FAULTS = tuple(_faults())
