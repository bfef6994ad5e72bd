"""Every fault found in the three restated programs: its name, and the smallest input that shows it, searched for.

Each is looked for by a function that says what happens on an input, or None where nothing is wrong.
No input that will be found is written here.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from pipelab.course import published_scheduler as rust
from pipelab.course.fault_search import Fault, lists, panics, sizes
from pipelab.course.layer_assignment_faults import LAYER_ASSIGNMENT_FAULTS
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
from pipelab.splits import bottleneck, split_minmax

_MB = 10**6
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


def _indexes(flops: list[int], stages: int) -> str | None:
    return panics(seed_by_flops, flops, stages) if len(flops) >= stages else None


def _not_least(flops: list[int]) -> str | None:
    if panics(seed_by_flops, flops, 2):
        return None
    own, best = (bottleneck(cut(flops, 2) or (), flops) for cut in (seed_by_flops, split_minmax))
    return f"a stage of {own:g}, {best:g} is possible" if own > best else None


def _stage_0(stages: int, rank: int) -> str | None:
    found = _scheduler(stages, rank).this_stage()
    return f"stage {found.stage_id}" if found.stage_id != rank else None


def _order_for_nobody(stages: int, rank: int) -> str | None:
    steps = _scheduler(stages, rank).schedule_steps(1)
    return ", ".join(map(str, steps)) if rank >= stages else None


def _ahead(stages: int, microbatches: int) -> str | None:
    own = simulate(scheduler_1f1b(stages, microbatches), _ONES).peak_in_flight
    right = _time("1F1B", stages, microbatches).peak_in_flight
    return f"{own} microbatches in flight, 1F1B holds {right}" if own != right else None


def _forwards(scheduler: rust.PipelineScheduler, microbatches: int, expected: int) -> str | None:
    found = sum(isinstance(step, rust.Forward) for step in scheduler.schedule_steps(microbatches))
    return f"forwards: {found}, expected {expected}" if found != expected else None


def _unsent(stages: int, microbatches: int) -> str | None:
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
    return (
        f"{waits} waits for a gradient, {len(sends)} sends of one" if waits > len(sends) else None
    )


def _formula(stages: int, microbatches: int) -> str | None:
    told = rust.PipelineBubbleStats(stages, microbatches).bubble_fraction_1f1b()
    clock = _time("1F1B", stages, microbatches).bubble_fraction
    return f"{told:.4g}, by the clock {clock:.4g}" if abs(told - clock) > 1e-6 else None


def _no_fraction(stages: int, microbatches: int) -> str | None:
    stats = rust.PipelineBubbleStats(stages, microbatches)
    told = stats.bubble_fraction_gpipe(), stats.bubble_fraction_1f1b()
    return (
        None
        if all(0 <= fraction <= 1 for fraction in told)
        else f"bubble fractions {told[0]:g} and {told[1]:g}"
    )


def _memory_ratio(stages: int, microbatches: int) -> str | None:
    told = rust.PipelineBubbleStats(stages, microbatches).memory_footprint_ratio()
    held = [max(_time(name, stages, microbatches).peak_in_flight) for name in ("1F1B", "GPipe")]
    return (
        f"{told:.4g}, by the clock {held[0] / held[1]:.4g}"
        if abs(told - held[0] / held[1]) > 1e-6
        else None
    )


def _no_optimum(stages: int) -> str | None:
    best = rust.PipelineBubbleStats(stages, 0).optimal_num_micro_batches()
    at, beyond = (rust.PipelineBubbleStats(stages, m) for m in (best, best + 1))
    lower = beyond.bubble_fraction_1f1b() < at.bubble_fraction_1f1b()
    lower &= beyond.memory_footprint_ratio() < at.memory_footprint_ratio()
    return f"{best}, and with {best + 1} both of its own figures are lower" if lower else None


def _shapeless(rows: int, columns: int) -> str | None:
    made = rust.MicroBatch(0, [], (rows, columns), False)
    wrong = len(made.data) != rows * columns
    return f"a microbatch of shape {made.shape} with {len(made.data)} numbers" if wrong else None


# boostr's PipelineClock


def _drawn(stages: int, microbatches: int) -> str | None:
    drawing = [f"Forward({m})" for m in range(microbatches)] + [
        f"Backward({m})" for m in reversed(range(microbatches))
    ]
    order = [
        str(action) for action in PipelineClock(stages, microbatches, stages - 1).schedule_1f1b()
    ]
    return f"drawn {' '.join(drawing)}; made {' '.join(order)}" if drawing != order else None


def _clock_for_nobody(stages: int, microbatches: int, stage: int) -> str | None:
    order = PipelineClock(stages, microbatches, stage).schedule_interleaved(1)
    return f"{len(order)} actions" if stage >= stages and order else None


def _serial(stages: int, microbatches: int, chunks: int) -> str | None:
    order = clock_interleaved(stages, microbatches, chunks)
    ratio, claim = (
        simulate(order, _ONES.cut_for(order)).bubble_ratio,
        (stages - 1) / (microbatches * chunks),
    )
    return f"bubble ratio {ratio:.4g}, claimed {claim:.4g}" if ratio > claim + 1e-9 else None


def _unfilled(stages: int, microbatches: int) -> str | None:
    own, right = (
        simulate(clock_zero_bubble(stages, microbatches), _ONES),
        _time("ZBH1", stages, microbatches),
    )
    return (
        f"ends at {own.makespan:g}, ZB-H1 at {right.makespan:g}"
        if own.makespan > right.makespan
        else None
    )


def _unmarked(stages: int, microbatches: int) -> str | None:
    kinds = {
        action.kind
        for k in range(stages)
        for action in PipelineClock(stages, microbatches, k).schedule_1f1b()
    }
    idle = _time("1F1B", stages, microbatches).bubble_fraction
    return f"{idle:.0%} of the time idle, no Idle listed" if idle and "Idle" not in kinds else None


def _faults() -> Iterator[Fault]:
    """In the order of the programs."""

    def of(program: str, found: dict[str, tuple[Callable, Callable]]) -> Iterator[Fault]:
        return (Fault(program, name, *each) for name, each in found.items())

    yield from of("pmetal's layer_assignment.rs", LAYER_ASSIGNMENT_FAULTS)
    yield from of("the scheduler", {
        "partition_layers_evenly: zero stages are not refused with ZeroStages":
            (lambda: product(range(1, 3), range(3)), lambda n, s: None if seed_even(n, s) else "an empty list"),
        "partition_layers_evenly: too few layers are not refused with InsufficientLayers":
            (lambda: product(range(1, 4), range(1, 4)),
             lambda n, s: f"{sizes(seed_even(n, s))} layers" if 0 in sizes(seed_even(n, s)) else None),
        "partition_layers_by_flops: an index out of bounds, though there are layers enough":
            (lambda: [each for n in range(1, 4) for each in product(lists(n, range(3)), range(1, 4))], _indexes),
        "partition_layers_by_flops: not the least bottleneck":
            (lambda: [(f,) for n in (2, 3) for f in lists(n, range(5))], _not_least),
        "partition_layers_by_flops: the sum of the FLOPs overflows":
            (lambda: [([2**k] * 2, 2) for k in range(64)], lambda *given: panics(seed_by_flops, *given)),
        "this_stage: a rank that does not exist gets stage 0":
            (lambda: product(range(1, 4), range(4)), _stage_0),
        "this_stage: without layers it says that there are no stages":
            (lambda: product(range(1, 3), range(2)), lambda p, n: panics(_scheduler(p, layers=n).this_stage)),
        "GPipe: a rank that does not exist gets an order":
            (lambda: product(range(3), range(3)), _order_for_nobody),
        "1F1B: a rank that does not exist panics by arithmetic":
            (lambda: product(range(1, 3), range(4)),
             lambda p, r: panics(_scheduler(p, r, rust.OneFOneBubble()).schedule_steps, 1)),
        "1F1B: one forward too many runs ahead":
            (lambda: product(range(1, 4), range(1, 4)), _ahead),
        "interleaved: the number of virtual stages is dropped":
            (lambda: product(range(1, 3), range(1, 3), range(1, 3)),
             lambda p, m, v: _forwards(_scheduler(p, plan=rust.Interleaved(v)), m, m * v)),
        "schedule_steps: the configured number of microbatches is ignored":
            (lambda: product(range(1, 3), range(1, 3)), lambda c, m: _forwards(_scheduler(1, configured=c), m, c)),
        "a gradient is waited for and never sent":
            (lambda: product(range(1, 4), range(1, 3)), _unsent),
        "bubble_fraction_1f1b: (p - 1) / (2(m - 1) + p) is not 1F1B's bubble":
            (lambda: product(range(1, 5), range(1, 5)), _formula),
        "bubble fractions of zero microbatches are not between 0 and 1":
            (lambda: product(range(1, 4), range(3)), _no_fraction),
        "memory_footprint_ratio: (p + m) / (p m) is not 1F1B's memory over GPipe's":
            (lambda: product(range(1, 4), range(1, 4)), _memory_ratio),
        "optimal_num_micro_batches: 4 p minimises none of its figures":
            (lambda: product(range(1, 5)), _no_optimum),
        "MicroBatch: data and shape need not agree":
            (lambda: product(range(3), range(3)), _shapeless),
    })  # fmt: skip
    yield from of("boostr's PipelineClock", {
        "1F1B: a stage that does not exist panics by arithmetic":
            (lambda: product(range(1, 3), range(3), range(3)),
             lambda p, m, k: panics(PipelineClock(p, m, k).schedule_1f1b)),
        "1F1B: the drawing above it shows another order":
            (lambda: product(range(1, 4), range(1, 4)), _drawn),
        "interleaved: a stage that does not exist gets an order":
            (lambda: product(range(1, 3), range(3), range(3)), _clock_for_nobody),
        "interleaved: zero chunks are not refused":
            (lambda: product(range(1, 3), range(1, 3), range(2)),
             lambda p, m, v: None if PipelineClock(p, m, 0).schedule_interleaved(v) else "an empty list"),
        "interleaved: almost serial, its bubble above the claimed (S-1)/(M*V)":
            (lambda: [(p, m, v) for p, m, v in product(range(1, 4), range(1, 5), range(1, 3)) if m % p == 0], _serial),
        "zero bubble: no weight gradient fills a bubble":
            (lambda: product(range(1, 4), range(1, 4)), _unfilled),
        "Idle is never listed":
            (lambda: product(range(1, 4), range(1, 4)), _unmarked),
    })  # fmt: skip


FAULTS = tuple(_faults())
