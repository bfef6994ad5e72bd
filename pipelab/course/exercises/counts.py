"""Exercises of notebook 06: a certificate checked by hand, one that fails, and the number of mixes."""

import math
import random
from collections.abc import Callable, Iterable
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.puzzle import Failure, Puzzle
from pipelab.display import counted

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_INPUTS = 300
_A100, _L4, _T4 = range(3)


class Prices(NamedTuple):
    """A claim to check: prices in layers, every stage that reaches the rate, GPUs, layers."""

    prices: tuple[float, ...]
    stages: tuple[tuple[tuple[int, ...], int], ...]  # (class of each GPU, most layers)
    counts: tuple[int, ...]
    layers: int

    def __repr__(self) -> str:
        stages = ", ".join(f"({list(gpus)}, {most})" for gpus, most in self.stages)
        rest = f"counts={list(self.counts)}, layers={self.layers}"
        return f"prices={list(self.prices)}, stages=[{stages}], {rest}"

    @property
    def total(self) -> float:
        return math.fsum(n * u for n, u in zip(self.counts, self.prices, strict=True))

    @property
    def holds_too_much(self) -> bool:
        """Some stage holds more layers than its GPUs cost."""
        return any(most > sum(self.prices[k] for k in gpus) for gpus, most in self.stages)


class Pool(NamedTuple):
    """So many GPUs of each class, and at most so many of them in a stage."""

    counts: tuple[int, ...]
    most: int

    def __repr__(self) -> str:
        return f"counts={list(self.counts)}, most={self.most}"


def _refutes(claim: Prices) -> bool:
    return min(claim.prices) >= 0 and not claim.holds_too_much and claim.total < claim.layers


@cache
def _claims() -> tuple[Prices, ...]:
    """Proofs, and claims that fail in one of three respects, often only just."""
    chance, found = random.Random(2), set[Prices]()
    while len(found) < _INPUTS:
        kinds = range(chance.randint(1, 3))
        low = chance.choice((0, 0, 0, -1))
        prices = tuple(chance.randint(2 * low, 6) / 2 for _ in kinds)
        counts = tuple(chance.randint(1, 4) for _ in kinds)
        mixes = {tuple(sorted(chance.choices(kinds, k=chance.randint(1, 2)))) for _ in range(3)}
        more = chance.choice((0, 0, 0, 1))
        stages = tuple(
            (mix, max(1, math.floor(sum(prices[k] for k in mix)) + more * chance.randint(0, 1)))
            for mix in sorted(mixes)
        )
        claim = Prices(prices, stages, counts, 0)
        layers = math.ceil(claim.total) + chance.choice((0, 0, 1, 2, 3))
        if layers > 0:
            found.add(claim._replace(layers=layers))
    return tuple(
        sorted(found, key=lambda x: (len(x.counts) + len(x.stages), sum(x.counts), repr(x)))
    )


def _look_at_claim(claim: Prices) -> str:
    if min(claim.prices) < 0:
        return "a price is below 0 here; what does a GPU that stays idle do to the total?"
    if claim.holds_too_much:
        return "compare each stage's layers with what its GPUs cost; what about the last ones?"
    return (
        "every stage is covered here; what must the total of all GPUs be, compared with the layers?"
    )


def _draw_claim(failure: Failure) -> "Figure":
    """What every stage's GPUs cost, beside what it holds; and what all GPUs cost, beside the model."""
    from pipelab.course.figures.rows import Block, Row, colour_of, plot_rows

    claim: Prices = failure.given

    def row(name: str, gpus: Iterable[int], mark: float, wrong: bool) -> Row:
        prices = claim.prices
        return Row(
            name,
            [Block(prices[k], colour_of(k), f"{prices[k]:g}") for k in gpus],
            mark,
            wrong=wrong,
        )

    rows = []
    for gpus, most in claim.stages:
        short = most > sum(claim.prices[k] for k in gpus)
        rows.append(row(f"a stage of {' + '.join(map(str, gpus))} holds {most}", gpus, most, short))
    everything = [k for k, count in enumerate(claim.counts) for _ in range(count)]
    enough = claim.total >= claim.layers or min(claim.prices) < 0
    rows.append(
        row(f"all GPUs; {counted(claim.layers, 'layer')}", everything, claim.layers, enough)
    )
    if min(claim.prices) < 0:
        title = f"No proof: a GPU of class {claim.prices.index(min(claim.prices))} costs less than nothing"
    elif claim.holds_too_much:
        title = "No proof: a stage holds more layers than its GPUs cost"
    elif claim.total >= claim.layers:
        title = f"No proof: all GPUs cost {claim.total:g} layers, and the model has {claim.layers}"
    else:
        title = f"A proof: every stage is paid for, and all GPUs cost {claim.total:g} of {claim.layers} layers"
    note = "a block: the price of a GPU; black line: layers held, last of all the model's; red: why it is no proof"
    return plot_rows(rows, title, "layers", note)


def _mixes_by_name(pool: Pool) -> set[tuple[int, ...]]:
    """By naming every GPU, as far as the pool is small."""
    names = [k for k, count in enumerate(pool.counts) for _ in range(count)]
    return {mix for size in range(1, pool.most + 1) for mix in combinations(names, size)}


def _draw_pool(failure: Failure) -> "Figure":
    """A row per mix."""
    from pipelab.course.figures.rows import Block, Row, colour_of, plot_rows

    mixes = sorted(_mixes_by_name(failure.given), key=lambda mix: (len(mix), mix))
    rows = [Row("", [Block(1, colour_of(k), f"{k}") for k in mix]) for mix in mixes]
    counts, most = failure.given
    gpus = f"{' + '.join(map(str, counts))} GPU{'s' * (sum(counts) > 1)}"
    pool = f"{gpus}, at most {most} in a mix"
    title = f"{pool}: {len(rows)} mix{'es' * (len(rows) != 1)}"
    return plot_rows(
        rows, title + failure.yours, "GPUs", "a row: a mix; a block: a GPU, with its class"
    )


@cache
def _pools() -> tuple[Pool, ...]:
    chance, found = random.Random(3), set[Pool]()
    while len(found) < _INPUTS:
        counts = tuple(chance.randint(1, 5) for _ in range(chance.randint(1, 4)))
        found.add(Pool(counts, chance.randint(1, 5)))
    return tuple(sorted(found, key=lambda x: (len(x.counts), sum(x.counts), repr(x))))


def _look_at_pool(pool: Pool) -> str:
    if max(pool.counts) < pool.most:
        return (
            "no class has enough GPUs for a whole stage here; does a mix take more than there are?"
        )
    if len(pool.counts) == 1:
        return "one class only; which numbers of its GPUs are a mix?"
    return "a mix has at least one GPU, and at most the limit; is each counted once?"


@cache
def _out_of_reach() -> float:
    """Return the lowest rate in tokens/s that no placement of two GPUs per stage reaches."""
    from pipelab.counting import rates_of_mixes
    from pipelab.course.main_problem import one_network
    from pipelab.solving import solve

    problem = one_network(2)
    best = solve(problem).throughput or 0.0
    rates = [rate for of_mix in rates_of_mixes(problem).values() for rate in of_mix]
    return min(rate for rate in rates if rate > best * (1 + 1e-9))


@cache
def _least_price(per_stage: int) -> float:
    """Of an L4, in layers, so that no stage at the rate holds more than its GPUs cost.

    An A100 and a T4 cost what one of them holds alone.
    """
    from pipelab.counting import rates_of_mixes
    from pipelab.course.main_problem import one_network

    rates, least = rates_of_mixes(one_network(per_stage)), _out_of_reach() * (1 - 1e-9)
    most = {mix: sum(rate >= least for rate in of_mix) for mix, of_mix in rates.items()}
    price = {_A100: most[_A100,], _T4: most[_T4,]}
    return max(
        (held - sum(price.get(k, 0) for k in mix)) / mix.count(_L4)
        for mix, held in most.items()
        if _L4 in mix
    )


def _with_lists(mine: Callable[..., Any], claim: Prices) -> Any:
    stages = [(list(gpus), most) for gpus, most in claim.stages]
    return mine(list(claim.prices), stages, list(claim.counts), claim.layers)


COUNTS: dict[str, Exercise | Puzzle] = {
    "06.1": Puzzle(
        "refutes(prices, stages, counts, layers)",
        _claims,
        _refutes,
        _look_at_claim,
        apply=_with_lists,
        picture=_draw_claim,
    ),
    "06.2": Exercise(
        lambda: _least_price(3),
        "layers",
        "which stage is the first to hold more than its GPUs cost, and how many L4s has it?",
        (
            Mistake(lambda: _least_price(2), "that is for two GPUs per stage; allow three"),
            Mistake(lambda: _least_price(1), "that is what one L4 holds alone"),
            Mistake(
                lambda: math.ceil(_least_price(3)),
                "that covers every stage, but a price need not be a whole number",
            ),
        ),
        rel=1e-3,
    ),
    "06.3": Puzzle(
        "count_mixes(counts, most)",
        _pools,
        lambda pool: len(_mixes_by_name(pool)),
        _look_at_pool,
        apply=lambda mine, pool: mine(list(pool.counts), pool.most),
        picture=_draw_pool,
    ),
}
