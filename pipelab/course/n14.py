"""Notebook 14, Reading other schedulers: a property to write, a rule to repair, and orders to count."""

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import accumulate, permutations, product
from typing import Any

from pipelab.course.exercises import Exercise, Function, Given, Number, drawn
from pipelab.course.ledger.published_programs import scheduler_1f1b
from pipelab.engine.schedules import schedule
from pipelab.engine.schedules.columns import columns_of
from pipelab.errors import shown
from pipelab.schedules import Schedule

# Exercises


Row = tuple[str, ...]  # of one rank, such as ("F0", "B0")


class Order(tuple[Row, ...]):
    """One row per rank; shows itself as a reader would write it."""

    def __repr__(self) -> str:
        return "; ".join(f"rank {rank}: {' '.join(row)}" for rank, row in enumerate(self))

    def schedule(self) -> Schedule:
        """Stage s on rank s."""
        rows = [[f"{rank}{step}" for step in row] for rank, row in enumerate(self)]
        return Schedule.of("to check", rows)


def _runs(order: Order) -> bool:
    """Whether every rank gets to its end."""
    return not columns_of(order.schedule()).defects


def _held(row: Row) -> int:
    return max(accumulate(1 if step[0] == "F" else -1 for step in row))


def _frugal(order: Order) -> bool:
    return all(_held(row) <= len(order) - rank for rank, row in enumerate(order))


def _fits(order: Order) -> bool:
    return _runs(order) and _frugal(order)


def _steps(microbatches: int) -> list[str]:
    return [f"{kind}{i}" for kind in "FB" for i in range(microbatches)]


def _order(chance: random.Random) -> Order:
    """Right or faulty; every rank runs all forwards and all backwards once."""
    ranks, microbatches = chance.randint(1, 4), chance.randint(1, 5)
    right = partial(schedule, "1F1B")
    order = chance.choice((right, right, scheduler_1f1b))(ranks, microbatches)
    rows = [[f"{step.kind}{step.microbatch}" for step in row] for row in order.actions]
    for _ in range(chance.choice((0, 1, 1, 2))):  # two neighbours that change places
        row = chance.choice(rows)
        i = chance.randrange(1, len(row))
        row[i - 1 : i + 1] = row[i], row[i - 1]
    return Order(map(tuple, rows))


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


def _layers(chance: random.Random) -> Given:
    """Costs of layers, and a number of stages that there are layers for."""
    costs = [chance.randint(1, 9) for _ in range(chance.randint(1, 8))]
    return Given(costs=costs, stages=chance.randint(1, len(costs)))


def _off_cut(given: Given, answer: Any) -> str:
    broken = _broken_cut(answer, given.costs, given.stages)
    return broken and f"yours gives {shown(answer)}: {broken}"


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


EXERCISES: dict[str, Exercise] = {
    "14.1": Function(
        signature="fits(order)",
        inputs=drawn(2, 300, _order, lambda order: (sum(map(len, order)), len(order))),
        target=_fits,
        hint=_look_at_order,
        call=lambda mine, order: mine(order.schedule()),
        half=lambda order, _: _runs(order) != _frugal(order),
    ),
    "14.2": Function(
        signature="cut(costs, stages)",
        inputs=drawn(3, 300, _layers, lambda given: (len(given.costs), sum(given.costs))),
        off=_off_cut,
        half=lambda given, answer: "fair share" in _off_cut(given, answer),
        advice=(
            "when does the rule start a new stage, and what if too few layers are left for the others?",
            "try as many stages as layers, and equal layers: is any stage missing or empty?",
        ),
    ),
    "14.3": Number(
        target=_runnable,
        unit="orders",
        hint="permutations of F0, F1, B0, B1 on each rank; `ends` says which of these orders stall",
        half={
            "a rank's own forward before its backward is not enough; the other rank has to send, "
            "too": (lambda: len(_forward_first()) ** 2),
            "those also hold no more than p - r; count all that run": (
                lambda: _accepted(_fits, _all_rows())
            ),
        },
        mistakes={
            "that is how many pass the count; many of them stall": (lambda: len(_all_rows()) ** 2)
        },
    ),
}
