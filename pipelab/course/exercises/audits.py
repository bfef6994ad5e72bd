"""Exercises of notebook 14: a property that tells right orders from faulty ones, and a rule to repair."""

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate, permutations, product
from typing import TYPE_CHECKING

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.puzzle import Puzzle
from pipelab.course.exercises.requirement import Requirement

if TYPE_CHECKING:
    from pipelab.schedules import Schedule

_INPUTS = 300
Row = tuple[str, ...]  # of one rank, such as ("F0", "B0")


class Order(tuple[Row, ...]):
    """One row per rank; shows itself as a reader would write it."""

    def __repr__(self) -> str:
        return "; ".join(f"rank {rank}: {' '.join(row)}" for rank, row in enumerate(self))

    def schedule(self) -> "Schedule":
        """Stage s on rank s."""
        from pipelab.schedules import Schedule

        return Schedule.of(
            "to check", [[f"{rank}{step}" for step in row] for rank, row in enumerate(self)]
        )


def _runs(order: Order) -> bool:
    """Whether every rank gets to its end: repeat, each rank runs what it can."""
    rows, stuck = [list(row) for row in order], False
    done: set[tuple[int, str]] = set()
    while not stuck:
        stuck = True
        for rank, row in enumerate(rows):
            while row and _needs(row[0], rank, len(rows)) <= done:
                done.add((rank, row.pop(0)))
                stuck = False
    return not any(rows)


def _needs(step: str, rank: int, ranks: int) -> set[tuple[int, str]]:
    kind, batch = step[0], step[1:]
    if kind == "F":
        return {(rank - 1, step)} if rank else set()
    return {(rank, f"F{batch}"), *([(rank + 1, step)] if rank + 1 < ranks else [])}


def _held(row: Row) -> int:
    return max(accumulate(1 if step[0] == "F" else -1 for step in row))


def _frugal(order: Order) -> bool:
    return all(_held(row) <= len(order) - rank for rank, row in enumerate(order))


def _fits(order: Order) -> bool:
    return _runs(order) and _frugal(order)


def _steps(microbatches: int) -> list[str]:
    return [f"{kind}{i}" for kind in "FB" for i in range(microbatches)]


def _one_forward_ahead(ranks: int, microbatches: int, extra: int) -> Order:
    """1F1B, or with `extra` forwards ahead of it what the scheduler publishes."""
    rows = []
    for rank in range(ranks):
        ahead = min(ranks - rank - 1 + extra, microbatches)
        row = [f"F{i}" for i in range(ahead)]
        for i in range(microbatches - ahead):
            row += [f"F{ahead + i}", f"B{i}"]
        rows.append((*row, *(f"B{i}" for i in range(microbatches - ahead, microbatches))))
    return Order(rows)


@cache
def _orders() -> tuple[Order, ...]:
    """Right and faulty ones; every rank of each runs all forwards and all backwards once."""
    chance, found = random.Random(2), set[Order]()
    while len(found) < _INPUTS:
        ranks, microbatches = chance.randint(1, 4), chance.randint(1, 5)
        order = _one_forward_ahead(ranks, microbatches, chance.choice((0, 0, 1)))
        rows = [list(row) for row in order]
        for _ in range(chance.choice((0, 1, 1, 2))):  # two neighbours that change places
            row = chance.choice(rows)
            i = chance.randrange(1, len(row))
            row[i - 1 : i + 1] = row[i], row[i - 1]
        found.add(Order(map(tuple, rows)))
    return tuple(sorted(found, key=lambda order: (sum(map(len, order)), len(order), order)))


def _look_at_order(order: Order) -> str:
    if not _runs(order):
        return "here some step waits for ever; what does each one need before it can begin?"
    if not _frugal(order):
        return "here a rank holds more than it may; count the forwards whose backward is still due"
    return "this one is right: it runs to its end, and rank r of p never holds more than p - r"


def _accepted(test: Callable[[Order], bool], rows: Iterable[Row]) -> int:
    """Of all orders for two ranks with such rows."""
    listed = list(rows)
    return sum(test(Order(pair)) for pair in product(listed, repeat=2))


def _all_rows() -> list[Row]:
    return list(permutations(_steps(2)))


def _forward_first() -> list[Row]:
    return [
        row for row in _all_rows() if all(row.index(f"F{i}") < row.index(f"B{i}") for i in (0, 1))
    ]


@cache
def _runnable() -> int:
    return _accepted(_runs, _all_rows())


@cache
def _cuts() -> tuple[tuple[list[int], int], ...]:
    """Costs of layers, and a number of stages that there are layers for."""
    chance = random.Random(3)
    found: list[tuple[list[int], int]] = []
    while len(found) < _INPUTS:
        costs = [chance.randint(1, 9) for _ in range(chance.randint(1, 8))]
        found.append((costs, chance.randint(1, len(costs))))
    return tuple(sorted(found, key=lambda given: (len(given[0]), sum(given[0]), given)))


def _broken_cut(answer: Sequence[int], costs: list[int], stages: int) -> str:
    sizes = [int(layers) for layers in answer]
    if len(sizes) != stages:
        return f"that is {len(sizes)} of {stages} stages"
    if min(sizes) < 1:
        return f"stage {sizes.index(min(sizes)) + 1} has no layer"
    if sum(sizes) != len(costs):
        return f"that is {sum(sizes)} of {len(costs)} layers"
    ends = list(accumulate(sizes))
    loads = [sum(costs[end - n : end]) for n, end in zip(sizes, ends, strict=True)]
    share, largest = sum(costs) / stages, max(costs)
    if max(loads) > share + largest:
        return f"a stage costs {max(loads)}, a fair share and the largest layer {share + largest:g}"
    return ""


AUDITS: dict[str, Exercise | Puzzle | Requirement] = {
    "14.1": Puzzle(
        "fits(order)",
        _orders,
        _fits,
        _look_at_order,
        apply=lambda mine, order: mine(order.schedule()),
    ),
    "14.2": Requirement("cut(costs, stages)", _cuts, _broken_cut),
    "14.3": Exercise(
        _runnable,
        "orders",
        "permutations of F0, F1, B0, B1 on each rank; `ends` says which of these orders stall",
        (
            Mistake(
                lambda: len(_all_rows()) ** 2,
                "that is how many pass the count; many of them stall",
            ),
            Mistake(
                lambda: len(_forward_first()) ** 2,
                "a rank's own forward before its backward is not enough; the other rank has to send, too",
            ),
            Mistake(
                lambda: _accepted(_fits, _all_rows()),
                "those also hold no more than p - r; count all that run",
            ),
        ),
    ),
}
