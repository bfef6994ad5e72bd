"""What three published programs say of themselves, each statement tried on small inputs.

Each statement is a function that is given an input, and says what the program answers there and what is
right, or None if nothing is wrong. `programs.toml` quotes the program; no input that shows a fault is
written anywhere, since the smallest one is searched for.
"""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import Any

from pipelab.course.ledger import published_programs as published
from pipelab.course.ledger.claims import Claim, ComputedClaim, Trial, entries_beside, tried
from pipelab.course.ledger.writeup import once, tiny
from pipelab.engine.schedules.named_schedules import schedule
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.timeline import Timeline, simulate
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.schedules import Schedule
from pipelab.splits import bottleneck, split_by_flops, split_even, split_exhaustive, split_minmax

Shown = tuple[str, str] | None


_INPUTS: dict[str, tuple[tuple, ...]] = {}
_KNOWN: dict[str, Callable[[], tuple]] = {}


def statement(
    inputs: Iterable[tuple], *, known: Callable[[], tuple] = tuple
) -> Callable[[Callable[..., Shown]], Callable[..., Shown]]:
    """Note on which inputs a function is tried, the smallest first, and what the remark on it needs."""

    def noted(shows: Callable[..., Shown]) -> Callable[..., Shown]:
        _INPUTS[shows.__name__], _KNOWN[shows.__name__] = tuple(sorted(inputs, key=size)), known
        return shows

    return noted


def trial(shows: Callable[..., Shown], inputs: Iterable[tuple]) -> Trial:
    """On how many inputs nothing is wrong, and the first on which something is."""
    names, found = inspect.signature(shows).parameters, []
    for arguments in inputs:
        named = ", ".join(map("{} = {}".format, names, arguments))
        wrong = shows(*arguments)
        found.append((f"{named}: {wrong[0]} (right: {wrong[1]})" if wrong else "", not wrong))
    return tried(found)


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
    except published.Panic as panic:
        return f"panic: {panic}"
    return None


def unrefused(right: str, function: Callable, *arguments: Any) -> Shown:
    """Say what a function answers, or with which panic it ends, on an input that has no answer."""
    return panics(function, *arguments) or str(function(*arguments)), right


def sizes(split: Iterable[range] | None) -> list[int]:
    """Layers of every stage."""
    return [len(part) for part in given(split)]


def differ(answer: Any, right: Any) -> Shown:
    """Both as text if they are not equal; numbers to a part in a million."""
    if isinstance(answer, float):
        same, written = abs(answer - right) < 1e-6, "{:.4g}"
    else:
        same, written = answer == right, "{}"
    return None if same else (written.format(answer), written.format(right))


def run(order: Schedule) -> Timeline:
    """A schedule against the clock, F = I = W = 1."""
    return simulate(order, StageCosts(1, 1, 1).cut_for(order))


# pmetal's layer_assignment.rs

MB = 10**6


def identical(nodes: Iterable[int], layers: Iterable[int]) -> list[tuple]:
    """Numbers of layers on identical nodes."""
    return [(n, [1] * k, [1] * k) for n, k in product(layers, nodes)]


def bandwidths(*nodes: int) -> list[tuple]:
    """Up to eight layers, on nodes with bandwidths of 1 to 3."""
    return [each for n in nodes for each in product(range(n, 9), lists(n, range(1, 4)))]


@statement([(n, [1] * k) for n, k in product(range(1, 21), range(1, 6)) if n >= k])
def uneven(layers: int, memory: list[int]) -> Shown:
    held = sizes(published.assign_layers_proportional(layers, memory))
    right = sizes(split_even(layers, len(memory)))
    return differ(held, right) if max(held) - min(held) > 1 else None


@statement(bandwidths(2, 3, 4), known=lambda: (trial(not_searched, bandwidths(2, 3)),))
def not_searched(layers: int, bandwidth: list[int]) -> Shown:
    nodes = len(bandwidth)
    megabytes = [MB] * nodes, [b * MB for b in bandwidth]
    theirs = published.assign_layers_bandwidth_aware(layers, *megabytes)
    best = split_minmax([1] * layers, nodes, speeds=bandwidth)
    found = [
        (held := sizes(split), max(n / b for n, b in zip(held, bandwidth, strict=True)))
        for split in (theirs, best)
    ]
    written = ["{}, layers / bandwidth up to {:g}".format(*each) for each in found]
    return (written[0], written[1]) if found[0][1] != found[1][1] else None


@statement([(b,) for b in ([1, 2], [3, 1], [1, 2, 3], [2, 2, 1], [1, 2, 3, 4], [4, 1, 1, 2])])
def exhaustive(bandwidth: list[int]) -> Shown:
    rules = split_exhaustive, split_minmax
    ones, nodes = [1] * 30, len(bandwidth)
    cuts = [given(rule(ones, nodes, speeds=bandwidth)) for rule in rules]
    every, quick = (bottleneck(cut, ones, bandwidth) for cut in cuts)
    return differ(every, quick)


@statement(
    [
        (layers, memory)
        for nodes in range(1, 6)
        for memory, layers in product(lists(nodes, (1, 2, 5)), range(nodes, 13))
    ]
)
def covered(layers: int, memory: list[int]) -> Shown:
    split = published.assign_layers_proportional(layers, memory)
    return differ([layer for part in split for layer in part], list(range(layers)))


@statement(
    [(layers, [1] * nodes) for nodes in range(2, 9) for layers in range(1, nodes)],
    known=lambda: (sizes(published.assign_layers_bandwidth_aware(2, [1] * 3, [1] * 3)),),
)
def refused(layers: int, memory: list[int]) -> Shown:
    answers = not panics(published.assign_layers_proportional, layers, memory)
    return ("an answer", "a panic") if answers else None


@statement(product(range(4, 9), lists(4, (1, 2))))
def truncated(layers: int, bandwidth: list[int]) -> Shown:
    theirs = sizes(published.assign_layers_bandwidth_aware(layers, [1] * 4, bandwidth))
    return differ(theirs, sizes(published.assign_layers_proportional(layers, bandwidth)))


@statement([(n, [1] * n, [1] * links) for n in range(1, 5) for links in (n - 1, n)])
def a_link_too_many(layers: int, memory: list[int], bandwidth: list[int]) -> Shown:
    panic = panics(published.assign_layers_bandwidth_aware, layers, memory, bandwidth)
    return (panic, str([1] * layers)) if panic else None


def layers_before_a_link() -> object:
    cuts = [Placement.of([(n, (0,)), (tiny().model.layers - n, (1,))]) for n in (1, 3)]
    return tuple(once(evaluate, tiny(), cut).links[0].throughput for cut in cuts)


@statement(
    bandwidths(2),
    known=lambda: (*sizes(published.assign_layers_bandwidth_aware(30, [1, 1000], [200, 100])),),
)
def two_nodes(layers: int, bandwidth: list[int]) -> Shown:
    return not_searched(layers, bandwidth)


@statement(product(range(3, 8), lists(3, range(1, 4))))
def not_weighted(layers: int, memory: list[int]) -> Shown:
    megabytes = [m * MB for m in memory], [MB] * 3
    theirs = sizes(published.assign_layers_bandwidth_aware(layers, *megabytes))
    weighed = sizes(published.assign_layers_proportional(layers, memory))
    return (str(theirs), f"{weighed}, as the comment says") if theirs != weighed else None


# trustformers' scheduler, gpipe_pp.rs

P, M = 4, 8  # ranks and microbatches of the remarks
ENOUGH = [(p, m) for p, m in product(range(2, 7), range(2, 9)) if m >= p]


def refusal(error: str, *values: int) -> str:
    """What the program defines for it and never returns."""
    return f"refused: {published.ERRORS[error].format(*values)}"


@statement(product(range(1, 4), range(4)))
def even_left_empty(layers: int, stages: int) -> Shown:
    if 0 < stages <= layers:
        return None
    right = refusal("InsufficientLayers", layers, stages) if stages else refusal("ZeroStages")
    return unrefused(right, published.seed_even, layers, stages)


@statement(product(range(1, 4), range(4)))
def stage_0(stages: int, rank: int) -> Shown:
    if rank < stages:
        return None
    right = refusal("StageRankOutOfRange", rank, stages)
    return unrefused(right, published.PipelineScheduler(stages, rank).this_stage)


def refusals() -> object:
    shows = even_left_empty, stage_0
    counterexamples = [trial(each, _INPUTS[each.__name__]).counterexample for each in shows]
    return tried((example, not example) for example in counterexamples)


@statement(
    product(range(1, 3), range(1, 3), range(1, 3)),
    known=lambda: (run(schedule("Interleaved1F1B", P, M)).makespan,),
)
def chunks_dropped(stages: int, microbatches: int, chunks: int) -> Shown:
    order = published.scheduler_interleaved(stages, microbatches, chunks)
    listed, right = kinds(order.actions[0]).count("F"), microbatches * chunks
    return differ(f"forwards: {listed}", f"forwards: {right}")


@statement(
    [each for n in range(1, 4) for each in product(lists(n, (1, 2)), range(1, 4))],
    known=lambda: tuple(bottleneck(cut, [4, 4, 1]) for cut in both_cuts([4, 4, 1])),
)
def indexes(flops: list[int], stages: int) -> Shown:
    panic = panics(published.seed_by_flops, flops, stages) if len(flops) >= stages else None
    return (panic, str(sizes(split_by_flops(flops, stages)))) if panic else None


def both_cuts(flops: list[int]) -> tuple[tuple[range, ...], ...]:
    """Its cut into two stages, and the one with the least bottleneck."""
    return published.seed_by_flops(flops, 2), given(split_minmax(flops, 2))


@statement(ENOUGH)
def gpipe_formula(ranks: int, microbatches: int) -> Shown:
    clock = run(published.scheduler_gpipe(ranks, microbatches)).bubble_fraction
    return differ(published.scheduler_bubble_fraction_gpipe(ranks, microbatches), clock)


@statement(
    product(range(1, 5), range(1, 5)), known=lambda: (trial(formula, product(range(1, 7), [1])),)
)
def formula(stages: int, microbatches: int) -> Shown:
    clock = run(schedule("1F1B", stages, microbatches)).bubble_fraction
    return differ(published.scheduler_bubble_fraction_1f1b(stages, microbatches), clock)


@statement(product(range(1, 4), range(1, 4)))
def memory_ratio(stages: int, microbatches: int) -> Shown:
    orders = (schedule(name, stages, microbatches) for name in ("1F1B", "GPipe"))
    one, gpipe = (max(run(order).peak_in_flight) for order in orders)
    return differ(published.scheduler_memory_ratio(stages, microbatches), one / gpipe)


@statement(product(range(1, 5)))
def no_optimum(stages: int) -> Shown:
    best = published.scheduler_microbatches(stages)
    figures = published.scheduler_bubble_fraction_1f1b, published.scheduler_memory_ratio
    lower = all(figure(stages, best + 1) < figure(stages, best) for figure in figures)
    right = f"none: with {best + 1} both of its own figures are lower"
    return (str(best), right) if lower else None


@statement(product(range(1, 4), range(1, 3)))
def unsent(stages: int, microbatches: int) -> Shown:
    orders = (
        published.PipelineScheduler(stages, rank).schedule_steps(microbatches)
        for rank in range(stages)
    )
    names = [step.kind for order in orders for step in order]
    waits = names.count("WaitBackward")
    sends = sum("Send" in name and name != "SendActivations" for name in names)
    written = f"waits for a gradient: {waits}, sends: {sends}"
    return (written, f"sends: {waits}") if waits > sends else None


@statement(ENOUGH)
def gpipe_time(ranks: int, microbatches: int) -> Shown:
    theirs, right = published.scheduler_gpipe, partial(schedule, "GPipe")
    return differ(*(run(order(ranks, microbatches)).makespan for order in (theirs, right)))


@statement(product(range(1, 4), range(1, 4)))
def ahead(stages: int, microbatches: int) -> Shown:
    orders = published.scheduler_1f1b, partial(schedule, "1F1B")
    held = (run(order(stages, microbatches)).peak_in_flight for order in orders)
    return differ(*(f"{' '.join(map(str, ranks))} in flight" for ranks in held))


def kinds(row: Iterable) -> str:
    """The symbols of a rank's actions."""
    return "".join(action.kind for action in row)


# boostr's PipelineClock

SIZES = list(product(range(1, 7), range(1, 9)))


def row(order: Schedule, rank: int) -> str:
    """Actions of one rank without their stage."""
    return " ".join(f"{action.kind}{action.microbatch}" for action in order.actions[rank])


@statement(product(range(1, 4), range(1, 4)))
def unmarked(stages: int, microbatches: int) -> Shown:
    order = published.clock_1f1b(stages, microbatches)
    listed = any("IDLE" in row(order, rank) for rank in range(stages))
    idle = run(schedule("1F1B", stages, microbatches)).bubble_fraction
    return ("no Idle", f"{idle:.0%} of the time is Idle") if idle and not listed else None


@statement(product(range(1, 4), range(1, 4)))
def drawn(stages: int, microbatches: int) -> Shown:
    batches = range(microbatches)
    drawing = " ".join([f"F{m}" for m in batches] + [f"B{m}" for m in reversed(batches)])
    return differ(drawing, row(published.clock_1f1b(stages, microbatches), stages - 1))


@statement(ENOUGH)
def warm_up(stages: int, microbatches: int) -> Shown:
    rows = published.clock_1f1b(stages, microbatches).actions
    return differ([kinds(row).index("B") - 1 for row in rows], [*reversed(range(stages))])


@statement(SIZES)
def steady_state(stages: int, microbatches: int) -> Shown:
    theirs, right = published.clock_1f1b, partial(schedule, "1F1B")
    return differ(*(order(stages, microbatches).actions for order in (theirs, right)))


@statement(ENOUGH)
def bubble_of_1f1b(stages: int, microbatches: int) -> Shown:
    ratio = run(published.clock_1f1b(stages, microbatches)).bubble_ratio
    return differ(ratio, (stages - 1) / microbatches)


@statement(
    [(p, m, v) for p, m, v in product(range(1, 4), range(1, 5), range(1, 3)) if m % p == 0],
    known=lambda: (
        *(P, M),
        *(run(published.clock_interleaved(P, M, v)).bubble_ratio for v in (4, 2)),
        run(schedule("Interleaved1F1B", P, M)).bubble_ratio,
    ),
)
def serial(stages: int, microbatches: int, chunks: int) -> Shown:
    ratio = run(published.clock_interleaved(stages, microbatches, chunks)).bubble_ratio
    claimed = (stages - 1) / (microbatches * chunks)
    written = f"bubble ratio {ratio:.4g}", f"bubble ratio {claimed:.4g}, as claimed"
    return written if ratio > claimed + 1e-9 else None


@statement(ENOUGH)
def chunk_order(stages: int, microbatches: int) -> Shown:
    for actions in published.clock_interleaved(stages, microbatches, 3).actions:
        for kind, mb in product("FB", range(microbatches)):
            chunks = [a.stage for a in actions if (a.kind, a.microbatch) == (kind, mb)]
            if chunks != sorted(chunks, reverse=kind == "B"):
                return f"{kind}{mb} on {chunks}", "in order"
    return None


@statement(
    ENOUGH,
    known=lambda: (
        *(P, M),
        run(published.clock_zero_bubble(P, M)).makespan,
        run(published.clock_1f1b(P, M)).makespan,
        run(schedule("ZBH1", P, M)).makespan,
    ),
)
def weights_in_bubbles(stages: int, microbatches: int) -> Shown:
    orders = published.clock_zero_bubble, published.clock_1f1b
    zero, one = (run(order(stages, microbatches)).makespan for order in orders)
    return None if zero < one else (f"ends at {zero:g}", f"before {one:g}")


@statement(ENOUGH)
def near_zero(stages: int, microbatches: int) -> Shown:
    ratio = run(published.clock_zero_bubble(stages, microbatches)).bubble_ratio
    return (f"{ratio:.4g}", "below 0.1") if ratio >= 0.1 else None


@statement(ENOUGH)
def weights_in_warm_up(stages: int, microbatches: int) -> Shown:
    rows = published.clock_zero_bubble(stages, microbatches).actions
    early = any("W" in kinds(row).partition("I")[0] for row in rows)
    return None if early else ("no W", "some W")


def _claim(name: str, said: dict[str, str]) -> Claim:
    compute = globals()[name]
    if name in _INPUTS:
        compute = partial(_computed, compute, _INPUTS[name], _KNOWN[name])
    return Claim(**said, compute=compute)


def _computed(
    shows: Callable[..., Shown], inputs: Iterable[tuple], known: Callable[[], tuple]
) -> ComputedClaim:
    return ComputedClaim(trial(shows, inputs), known())


CLAIMS = [_claim(name, said) for name, said in entries_beside(__file__).items()]
