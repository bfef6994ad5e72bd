"""Every fault found in the three restated programs: what is wrong, what catches it, and where to look.

Each fault is a function that says what the program answers on an input and what is right, or None where
nothing is wrong. The smallest input that shows it is searched for; none is written here.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from pipelab.course import published_scheduler as rust
from pipelab.course.published_clock import PipelineClock
from pipelab.course.published_layer_assignment import (
    assign_layers_bandwidth_aware,
    assign_layers_proportional,
)
from pipelab.course.published_orders import (
    clock_interleaved,
    clock_zero_bubble,
    scheduler_1f1b,
    seed_by_flops,
    seed_even,
)
from pipelab.course.rust_numbers import Panic
from pipelab.engine.schedules import schedule
from pipelab.engine.timeline import StageCosts, Timeline, simulate
from pipelab.splits import (
    bottleneck,
    split_bandwidth_aware,
    split_by_flops,
    split_even,
    split_minmax,
    split_proportional,
)

# What must hold of any program that lays out a pipeline, and would have caught the faults.
REFUSES = "an input without an answer is refused"
COMPLETE = "an input with an answer gets one, with nothing left out"
SLOWER_TRUTH = "a slower, plainer computation agrees"
RUN = "the steps, run, end in time and hold no more than they should"
FORMULA = "a formula gives what a run gives"
PROPERTIES = (REFUSES, COMPLETE, SLOWER_TRUTH, RUN, FORMULA)


class Example(NamedTuple):
    """An input that shows a fault: what the program answers there, and what is right."""

    arguments: tuple
    answers: str
    right: str

    @property
    def written(self) -> str:
        """The arguments as text, large powers of two as powers."""
        return re.sub(r"\d{9,}", lambda found: _as_power(int(found[0])), str(self.arguments))


def _as_power(number: int) -> str:
    return f"2**{number.bit_length() - 1}" if number.bit_count() == 1 else str(number)


@dataclass(frozen=True, eq=False)  # inputs have lists: each fault is a key as itself
class Fault:
    """What is wrong, the property that is broken, and where to look for it."""

    program: str
    name: str
    caught_by: str  # one of PROPERTIES
    inputs: tuple[tuple, ...]  # all of them, in any order
    # what the program answers on one of them, and what is right; None where nothing is wrong
    shows: Callable[..., tuple[str, str] | None]

    def smallest(self) -> Example | None:
        """The smallest input that shows it; None where none does. Numbers and lengths of lists count as its size."""
        found = ((arguments, self.shows(*arguments)) for arguments in sorted(self.inputs, key=size))
        return next(
            (Example(arguments, *shown) for arguments, shown in found if shown is not None), None
        )


def size(value: Any) -> int:
    """The sum of all numbers in it and of the lengths of its lists."""
    return len(value) + sum(map(size, value)) if isinstance(value, list | tuple) else value


def lists(length: int, values: Iterable[int]) -> list[list[int]]:
    """Every list of this length."""
    return [list(each) for each in product(values, repeat=length)]


def panics(function: Callable, *arguments: Any) -> str | None:
    """The panic that this call ends with; None if it answers."""
    try:
        function(*arguments)
    except Panic as panic:
        return f"panic: {panic}"
    return None


def panicking(
    function: Callable, right: Callable[..., str]
) -> Callable[..., tuple[str, str] | None]:
    """For `Fault.shows`: the panic of a call, and what would be right there."""

    def shows(*arguments: Any) -> tuple[str, str] | None:
        panic = panics(function, *arguments)
        return (panic, right(*arguments)) if panic else None

    return shows


def sizes(split: Iterable[range]) -> list[int]:
    """Layers of every stage."""
    return [len(part) for part in split]


_MB = 10**6
Shown = tuple[str, str] | None
_ONES = StageCosts(1, 1, 1)
_FAULTS: list[Fault] = []


def _fault(
    program: str, says: str, caught_by: str, inputs: Iterable[tuple]
) -> Callable[[Callable[..., Shown]], Callable[..., Shown]]:
    """Enter a fault into the table, with the function that shows it."""

    def entered(shows: Callable[..., Shown]) -> Callable[..., Shown]:
        _FAULTS.append(Fault(program, says, caught_by, tuple(inputs), shows))
        return shows

    return entered


# pmetal's layer_assignment.rs

_of_pmetal = partial(_fault, "pmetal")


def _identical(nodes: Iterable[int], layers: Iterable[int]) -> list[tuple]:
    return [(n, [1] * k, [1] * k) for n, k in product(layers, nodes)]


def _too_few(layers: int, memory: list[int]) -> str:
    """What its own proportional rule says there."""
    return str(panics(assign_layers_proportional, layers, memory)).replace("panic", "refused")


def _one_each(layers: int, *_: list[int]) -> str:
    return str([1] * layers)


def _in_proportion(layers: int, memory: list[int], *_: list[int]) -> str:
    return str(sizes(split_proportional(layers, memory)))


@_of_pmetal(
    "two or three nodes: available_ram is never used",
    SLOWER_TRUTH,
    product(range(2, 6), lists(2, range(1, 4)), [[1, 1]]),
)
def _memory_unused(layers: int, memory: list[int], bandwidth: list[int]) -> Shown:
    first, second = sizes(assign_layers_bandwidth_aware(layers, memory, bandwidth))
    wrong = (first - second) * (memory[0] - memory[1]) < 0
    right = sizes(split_bandwidth_aware(layers, memory, bandwidth) or ())
    return (str([first, second]), str(right)) if wrong else None


@_of_pmetal(
    "three nodes: not weighted by bandwidth * ram, as the comment says of 3+ nodes",
    SLOWER_TRUTH,
    product(range(3, 8), lists(3, range(1, 4))),
)
def _not_weighted(layers: int, memory: list[int]) -> Shown:
    own = sizes(assign_layers_bandwidth_aware(layers, [m * _MB for m in memory], [_MB] * 3))
    weighed = sizes(assign_layers_proportional(layers, memory))
    return (str(own), f"{weighed}, as the comment says") if own != weighed else None


@_of_pmetal(
    "two or three nodes: fewer layers than nodes are not refused",
    REFUSES,
    _identical((2, 3), range(1, 4)),
)
def _left_empty(layers: int, memory: list[int], bandwidth: list[int]) -> Shown:
    held = sizes(assign_layers_bandwidth_aware(layers, memory, bandwidth))
    return (str(held), _too_few(layers, memory)) if 0 in held else None


@_of_pmetal(
    "two or three nodes: layers that do not exist are handed out",
    REFUSES,
    _identical((2,), range(3)),
)
def _invented(layers: int, memory: list[int], bandwidth: list[int]) -> Shown:
    ends = [part.stop for part in assign_layers_bandwidth_aware(layers, memory, bandwidth)]
    right = _too_few(layers, memory)
    return (f"ranges that end at {ends}", right) if max(ends) > layers else None


@_of_pmetal(
    "three nodes: zero layers panic by arithmetic, not by an assertion",
    REFUSES,
    _identical((2, 3), range(3)),
)
def _no_layers(layers: int, memory: list[int], bandwidth: list[int]) -> Shown:
    panic = panics(assign_layers_bandwidth_aware, layers, memory, bandwidth)
    return (panic, _too_few(layers, memory)) if panic else None


@_of_pmetal(
    "four nodes or more: memory and bandwidth below a megabyte count as one",
    SLOWER_TRUTH,
    product(range(4, 9), lists(4, (1, 2))),
)
def _truncated(layers: int, bandwidth: list[int]) -> Shown:
    own = sizes(assign_layers_bandwidth_aware(layers, [1] * 4, bandwidth))
    exact = sizes(assign_layers_proportional(layers, bandwidth))
    return (str(own), str(exact)) if own != exact else None


@_of_pmetal(
    "four nodes: no exhaustive search, which the comment calls feasible, and not its optimum",
    SLOWER_TRUTH,
    product(range(4, 9), lists(4, range(1, 4))),
)
def _no_search(layers: int, bandwidth: list[int]) -> Shown:
    own = assign_layers_bandwidth_aware(layers, [_MB] * 4, [b * _MB for b in bandwidth])
    best = split_minmax([1] * layers, 4, speeds=bandwidth) or own
    theirs, least = (bottleneck(split, [1] * layers, bandwidth) for split in (own, best))
    told, right = (
        f"{sizes(split)}, layers / bandwidth up to {most:g}"
        for split, most in ((own, theirs), (best, least))
    )
    return (told, right) if theirs > least else None


_of_pmetal(
    "four nodes or more: memory × bandwidth, or its sum, overflows",
    COMPLETE,
    [(4, [2**k] * 4, [2**k] * 4) for k in range(64)],
)(panicking(assign_layers_bandwidth_aware, _one_each))


@_of_pmetal(
    "four nodes or more: a fast link outweighs a small memory",
    SLOWER_TRUTH,
    product(range(4, 10), [[1, 2, 2, 2]], [[fast, 1, 1, 1] for fast in range(1, 5)]),
)
def _outweighed(layers: int, memory: list[int], bandwidth: list[int]) -> Shown:
    megabytes = ([each * _MB for each in given] for given in (memory, bandwidth))
    held = sizes(assign_layers_bandwidth_aware(layers, *megabytes))
    right = "no more where there is less memory"
    return (str(held), right) if held[0] > max(held[1:]) else None


_of_pmetal(
    "the last node, which has no link, needs a bandwidth",
    COMPLETE,
    [(n, [1] * n, [1] * links) for n in range(1, 5) for links in (n - 1, n)],
)(panicking(assign_layers_bandwidth_aware, _one_each))


@_of_pmetal(
    "proportional: the last node pays for the rounding of all others",
    SLOWER_TRUTH,
    [(n, [1] * k) for n, k in product(range(1, 13), range(1, 6)) if n >= k],
)
def _uneven(layers: int, memory: list[int]) -> Shown:
    held = sizes(assign_layers_proportional(layers, memory))
    right = sizes(split_even(layers, len(memory)))
    return (str(held), str(right)) if max(held) - min(held) > 1 else None


@_of_pmetal(
    "proportional: zero memory on every node is not refused",
    REFUSES,
    [(n, [0] * k) for n, k in product(range(1, 9), range(1, 4)) if n >= k],
)
def _no_memory(layers: int, memory: list[int]) -> Shown:
    held = sizes(assign_layers_proportional(layers, memory))
    return (str(held), "refused: no memory") if max(held) - min(held) > 1 else None


_of_pmetal(
    "proportional: the sum of the memory overflows", COMPLETE, [(2, [2**k] * 2) for k in range(64)]
)(panicking(assign_layers_proportional, _in_proportion))


# The scheduler

_of_scheduler = partial(_fault, "scheduler")


def _time(name: str, ranks: int, microbatches: int, chunks: int | None = None) -> Timeline:
    order = schedule(name, ranks, microbatches, chunks)
    return simulate(order, _ONES.cut_for(order))


def _scheduler(
    stages: int, rank: int = 0, plan: Any = None, configured: int = 8, layers: int = 1
) -> rust.PipelineScheduler:
    return rust.PipelineScheduler(
        rust.PipelineConfig(stages, configured, rank, plan or rust.GPipe()), layers
    )


def _no_rank(stages: int, rank: int) -> str:
    """What the program defines for it and never returns."""
    return f"refused: {rust.StageRankOutOfRange(rank, stages)}"


def _forwards(scheduler: rust.PipelineScheduler, microbatches: int, expected: int) -> Shown:
    found = sum(isinstance(step, rust.Forward) for step in scheduler.schedule_steps(microbatches))
    return (f"forwards: {found}", f"forwards: {expected}") if found != expected else None


@_of_scheduler(
    "partition_layers_evenly: zero stages are not refused with ZeroStages",
    REFUSES,
    product(range(1, 3), range(3)),
)
def _even_without_stages(layers: int, stages: int) -> Shown:
    return None if seed_even(layers, stages) else ("an empty list", f"refused: {rust.ZeroStages()}")


@_of_scheduler(
    "partition_layers_evenly: too few layers are not refused with InsufficientLayers",
    REFUSES,
    product(range(1, 4), range(1, 4)),
)
def _even_left_empty(layers: int, stages: int) -> Shown:
    held = sizes(seed_even(layers, stages))
    return (str(held), f"refused: {rust.InsufficientLayers(layers, stages)}") if 0 in held else None


@_of_scheduler(
    "partition_layers_by_flops: an index out of bounds, though there are layers enough",
    COMPLETE,
    [each for n in range(1, 4) for each in product(lists(n, (1, 2)), range(1, 4))],
)
def _indexes(flops: list[int], stages: int) -> Shown:
    panic = panics(seed_by_flops, flops, stages) if len(flops) >= stages else None
    return (panic, str(sizes(split_by_flops(flops, stages)))) if panic else None


@_of_scheduler(
    "partition_layers_by_flops: not the least bottleneck",
    SLOWER_TRUTH,
    [(f,) for n in (2, 3) for f in lists(n, range(1, 5))],
)
def _not_least(flops: list[int]) -> Shown:
    if panics(seed_by_flops, flops, 2):
        return None
    own, best = (bottleneck(cut(flops, 2) or (), flops) for cut in (seed_by_flops, split_minmax))
    return (f"a stage of {own:g}", f"no stage above {best:g}") if own > best else None


_of_scheduler(
    "partition_layers_by_flops: the sum of the FLOPs overflows",
    COMPLETE,
    [([2**k] * 2, 2) for k in range(64)],
)(panicking(seed_by_flops, lambda flops, stages: str(sizes(split_by_flops(flops, stages)))))


@_of_scheduler(
    "this_stage: a rank that does not exist gets stage 0", REFUSES, product(range(1, 4), range(4))
)
def _stage_0(stages: int, rank: int) -> Shown:
    found = _scheduler(stages, rank).this_stage().stage_id
    return (f"stage {found}", _no_rank(stages, rank)) if found != rank else None


_of_scheduler(
    "this_stage: without layers it says that there are no stages",
    REFUSES,
    product(range(1, 3), range(2)),
)(
    panicking(
        lambda p, n: _scheduler(p, layers=n).this_stage(),
        lambda p, n: f"refused: {rust.InsufficientLayers(n, p)}",
    )
)


@_of_scheduler(
    "GPipe: a rank that does not exist gets an order", REFUSES, product(range(3), range(3))
)
def _order_for_nobody(stages: int, rank: int) -> Shown:
    steps = _scheduler(stages, rank).schedule_steps(1)
    return (f"{len(steps)} steps", _no_rank(stages, rank)) if rank >= stages else None


_of_scheduler(
    "1F1B: a rank that does not exist panics by arithmetic", REFUSES, product(range(1, 3), range(4))
)(panicking(lambda p, r: _scheduler(p, r, rust.OneFOneBubble()).schedule_steps(1), _no_rank))


@_of_scheduler("1F1B: one forward too many runs ahead", RUN, product(range(1, 4), range(1, 4)))
def _ahead(stages: int, microbatches: int) -> Shown:
    own = simulate(scheduler_1f1b(stages, microbatches), _ONES).peak_in_flight
    right = _time("1F1B", stages, microbatches).peak_in_flight
    told = [f"{' '.join(map(str, held))} in flight" for held in (own, right)]
    return (told[0], told[1]) if own != right else None


_of_scheduler(
    "interleaved: the number of virtual stages is dropped",
    COMPLETE,
    product(range(1, 3), range(1, 3), range(1, 3)),
)(lambda p, m, v: _forwards(_scheduler(p, plan=rust.Interleaved(v)), m, m * v))


_of_scheduler(
    "schedule_steps: the configured number of microbatches is ignored",
    COMPLETE,
    product(range(1, 3), range(1, 3)),
)(lambda c, m: _forwards(_scheduler(1, configured=c), m, c))


@_of_scheduler(
    "a gradient is waited for and never sent", COMPLETE, product(range(1, 4), range(1, 3))
)
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


@_of_scheduler(
    "bubble_fraction_1f1b: (p - 1) / (2(m - 1) + p) is not 1F1B's bubble",
    FORMULA,
    product(range(1, 5), range(1, 5)),
)
def _formula(stages: int, microbatches: int) -> Shown:
    told = rust.PipelineBubbleStats(stages, microbatches).bubble_fraction_1f1b()
    clock = _time("1F1B", stages, microbatches).bubble_fraction
    return (f"{told:.4g}", f"{clock:.4g}") if abs(told - clock) > 1e-6 else None


@_of_scheduler(
    "bubble fractions of zero microbatches are not between 0 and 1",
    REFUSES,
    product(range(1, 4), range(3)),
)
def _no_fraction(stages: int, microbatches: int) -> Shown:
    stats = rust.PipelineBubbleStats(stages, microbatches)
    told = stats.bubble_fraction_gpipe(), stats.bubble_fraction_1f1b()
    wrong = not all(0 <= fraction <= 1 for fraction in told)
    return (f"{told[0]:g} and {told[1]:g}", "refused: no microbatch") if wrong else None


@_of_scheduler(
    "memory_footprint_ratio: (p + m) / (p m) is not 1F1B's memory over GPipe's",
    FORMULA,
    product(range(1, 4), range(1, 4)),
)
def _memory_ratio(stages: int, microbatches: int) -> Shown:
    told = rust.PipelineBubbleStats(stages, microbatches).memory_footprint_ratio()
    held = [max(_time(name, stages, microbatches).peak_in_flight) for name in ("1F1B", "GPipe")]
    clock = held[0] / held[1]
    return (f"{told:.4g}", f"{clock:.4g}") if abs(told - clock) > 1e-6 else None


@_of_scheduler(
    "optimal_num_micro_batches: 4 p minimises none of its figures", FORMULA, product(range(1, 5))
)
def _no_optimum(stages: int) -> Shown:
    best = rust.PipelineBubbleStats(stages, 0).optimal_num_micro_batches()
    at, beyond = (rust.PipelineBubbleStats(stages, m) for m in (best, best + 1))
    lower = beyond.bubble_fraction_1f1b() < at.bubble_fraction_1f1b()
    lower &= beyond.memory_footprint_ratio() < at.memory_footprint_ratio()
    right = f"none: with {best + 1} both of its own figures are lower"
    return (str(best), right) if lower else None


@_of_scheduler("MicroBatch: data and shape need not agree", REFUSES, product(range(3), range(3)))
def _shapeless(rows: int, columns: int) -> Shown:
    made = rust.MicroBatch(0, [], (rows, columns), False)
    wrong = len(made.data) != rows * columns
    told = f"shape {made.shape} with {len(made.data)} numbers"
    return (told, "refused: shape and data do not agree") if wrong else None


# boostr's PipelineClock

_of_boostr = partial(_fault, "boostr")


def _no_stage(stages: int, _: int, stage: int) -> str:
    return f"refused: there is no stage {stage} of {stages}"


_of_boostr(
    "1F1B: a stage that does not exist panics by arithmetic",
    REFUSES,
    product(range(1, 3), range(3), range(3)),
)(panicking(lambda p, m, k: PipelineClock(p, m, k).schedule_1f1b(), _no_stage))


@_of_boostr(
    "1F1B: the drawing above it shows another order", RUN, product(range(1, 4), range(1, 4))
)
def _drawn(stages: int, microbatches: int) -> Shown:
    drawing = [f"F{m}" for m in range(microbatches)]
    drawing += [f"B{m}" for m in reversed(range(microbatches))]
    made = PipelineClock(stages, microbatches, stages - 1).schedule_1f1b()
    order = [f"{action.kind[0]}{action.id}" for action in made]
    return (" ".join(drawing), " ".join(order)) if drawing != order else None


@_of_boostr(
    "interleaved: a stage that does not exist gets an order",
    REFUSES,
    product(range(1, 3), range(3), range(3)),
)
def _clock_for_nobody(stages: int, microbatches: int, stage: int) -> Shown:
    order = PipelineClock(stages, microbatches, stage).schedule_interleaved(1)
    right = _no_stage(stages, microbatches, stage)
    return (f"{len(order)} actions", right) if stage >= stages and order else None


@_of_boostr(
    "interleaved: zero chunks are not refused", REFUSES, product(range(1, 3), range(1, 3), range(2))
)
def _without_chunks(stages: int, microbatches: int, chunks: int) -> Shown:
    order = PipelineClock(stages, microbatches, 0).schedule_interleaved(chunks)
    return None if order else ("an empty list", "refused: no chunk")


@_of_boostr(
    "interleaved: almost serial, its bubble above the claimed (S-1)/(M*V)",
    RUN,
    [(p, m, v) for p, m, v in product(range(1, 4), range(1, 5), range(1, 3)) if m % p == 0],
)
def _serial(stages: int, microbatches: int, chunks: int) -> Shown:
    order = clock_interleaved(stages, microbatches, chunks)
    ratio = simulate(order, _ONES.cut_for(order)).bubble_ratio
    claim = (stages - 1) / (microbatches * chunks)
    told = f"bubble ratio {ratio:.4g}", f"bubble ratio {claim:.4g}, as claimed"
    return told if ratio > claim + 1e-9 else None


@_of_boostr(
    "zero bubble: no weight gradient fills a bubble", RUN, product(range(1, 4), range(1, 4))
)
def _unfilled(stages: int, microbatches: int) -> Shown:
    own = simulate(clock_zero_bubble(stages, microbatches), _ONES).makespan
    right = _time("ZBH1", stages, microbatches).makespan
    return (f"ends at {own:g}", f"ends at {right:g}") if own > right else None


@_of_boostr("Idle is never listed", COMPLETE, product(range(1, 4), range(1, 4)))
def _unmarked(stages: int, microbatches: int) -> Shown:
    kinds = {
        action.kind
        for k in range(stages)
        for action in PipelineClock(stages, microbatches, k).schedule_1f1b()
    }
    idle = _time("1F1B", stages, microbatches).bubble_fraction
    wrong = idle and "Idle" not in kinds
    return ("no Idle", f"{idle:.0%} of the time is Idle") if wrong else None


FAULTS = tuple(_FAULTS)
