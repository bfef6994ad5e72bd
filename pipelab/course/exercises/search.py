"""Exercises of notebook 02: all cuts, and all placements that differ in more than identical GPUs."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise, permutations
from math import comb, factorial, perm, prod
from typing import TYPE_CHECKING, Any, NamedTuple

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.puzzle import Failure, Puzzle
from pipelab.display import counted
from pipelab.errors import shown

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_INPUTS = 200
_KINDS = (3, 4, 4)  # GPUs of `three_sites`, by type
_LAYERS, _BLOCKS = 80, 16  # and its layers, one by one or in blocks of five


class Cutting(NamedTuple):
    """Layers to cut into so many stages."""

    layers: int
    stages: int

    def __repr__(self) -> str:
        return f"layers={self.layers}, stages={self.stages}"


class Pool(NamedTuple):
    """Layers, and how many GPUs there are of each type."""

    layers: int
    kinds: tuple[int, ...]

    def __repr__(self) -> str:
        return f"layers={self.layers}, kinds={list(self.kinds)}"


@dataclass(frozen=True)
class Listing(Puzzle):
    """A function that must list everything once; the check says what is wrong with a list."""

    def smallest_failure(self, mine: Callable[..., Any]) -> Failure | None:
        """The first input on which the reader's list is wrong, and what is wrong with it."""
        for given in self.inputs():
            try:
                found = [tuple(one) for one in self.apply(mine, given)]
                off = _off(found, self.target(given))
            except Exception as error:  # whatever a reader's function raises
                return Failure(given, f"yours gives {type(error).__name__}: {error}", [])
            if off:
                return Failure(given, off, found)
        return None

    def off(self, failure: Failure) -> str:
        """What is wrong, in words."""
        return failure.says


def _off(found: Sequence[tuple[Any, ...]], wanted: Any) -> str:
    """What is wrong with a list; empty where nothing is."""
    often = Counter(found)
    wrong = [one for one in found if one not in wanted]
    twice = [one for one in found if often[one] > 1]
    missing = [one for one in wanted if one not in often]
    if wrong:
        return f"yours has {shown(list(wrong[0]))}, which is no such cut"
    if twice:
        return f"yours has {shown(list(twice[0]))} {often[twice[0]]} times"
    return f"yours lacks {shown(list(missing[0]))}" if missing else ""


def _cuts(given: Cutting) -> Any:
    """Sizes of the stages of every cut."""
    inner = combinations(range(1, given.layers), given.stages - 1)
    return [tuple(b - a for a, b in pairwise((0, *ends, given.layers))) for ends in inner]


@cache
def _cuttings() -> tuple[Cutting, ...]:
    return tuple(Cutting(layers, stages) for layers in range(1, 9) for stages in range(1, 6))


def _look_at_cuts(given: Cutting) -> str:
    if given.stages > given.layers:
        return "here are more stages than layers; how many cuts are there?"
    if given.stages == 1:
        return "one stage takes all layers; that is one cut, a list of one number"
    return (
        "the first stage takes 1, 2, … layers; what is left is a smaller problem of the same kind"
    )


def _draw_cuts(failure: Failure) -> "Figure":
    """A row per cut, and what is wrong with the reader's: red."""
    from pipelab.course.figures.rows import EMPTY, Block, Row, colour_of, plot_rows

    wanted, found = _cuts(failure.given), failure.answer
    often = Counter(found)

    def row(name: str, cut: Sequence[int], wrong: bool = False) -> Row:
        blocks = [Block(n, colour_of(stage), f"{n}") for stage, n in enumerate(cut)]
        return Row(name, blocks, wrong=wrong)

    rows = []
    for cut in wanted:
        # of a function that raises, no list is known
        name = {0: "missing", 1: "yours"}.get(often[cut], f"{often[cut]} times") if found else ""
        rows.append(row(name, cut, name not in ("", "yours")))
    for cut in often:
        if cut not in wanted and all(type(n) is int and 0 < n < 99 for n in cut):
            rows.append(row("yours: no such cut", cut, True))
    uncut = [Row("uncut", [Block(1, EMPTY)] * failure.given.layers)]
    layers, stages = failure.given
    cuts = f"{len(wanted)} cut{'s' * (len(wanted) != 1)}"
    title = f"{counted(layers, 'layer')} and {counted(stages, 'stage')} have {cuts}"
    return plot_rows(rows or uncut, title, "layers", "a row: a cut; a block: the layers of a stage")


def _orders(kinds: Sequence[int], stages: int) -> int:
    """Of so many stages, with identical GPUs not told apart: the first stage's type, then the others."""
    if not stages:
        return 1
    left = ([*kinds[:k], n - 1, *kinds[k + 1 :]] for k, n in enumerate(kinds) if n)
    return sum(_orders(rest, stages - 1) for rest in left)


def _distinct(given: Pool) -> int:
    """Placements whose types or cuts differ."""
    stages = range(1, min(given.layers, sum(given.kinds)) + 1)
    return sum(_orders(given.kinds, s) * comb(given.layers - 1, s - 1) for s in stages)


def _told_apart(layers: int, gpus: int) -> int:
    return sum(comb(layers - 1, s - 1) * perm(gpus, s) for s in range(1, gpus + 1))


@cache
def _pools() -> tuple[Pool, ...]:
    chance, found = random.Random(2), set[Pool]()
    while len(found) < _INPUTS:
        kinds = tuple(chance.randint(1, 4) for _ in range(chance.randint(1, 4)))
        if sum(kinds) <= 6:
            found.add(Pool(chance.randint(1, 9), kinds))
    return tuple(sorted(found, key=lambda pool: (sum(pool.kinds) + pool.layers, pool)))


def _look_at_pool(given: Pool) -> str:
    if sum(given.kinds) > given.layers:
        return "here are more GPUs than layers; can all of them be stages?"
    if max(given.kinds) == 1:
        return "here no two GPUs are identical, so it is the count of the text; GPUs may stay idle"
    if len(given.kinds) == 1:
        return "here all GPUs are identical; only the number of stages and the cut are left"
    return "fix how many GPUs of each type are used; in how many distinct orders can they stand?"


def _draw_pool(failure: Failure) -> "Figure":
    """A row per placement that differs in more than identical GPUs."""
    from pipelab.course.figures.rows import Block, Row, colour_of, plot_rows

    layers, kinds = failure.given
    gpus = [kind for kind, n in enumerate(kinds) for _ in range(n)]
    rows = [
        Row("", [Block(n, colour_of(kind), f"{'ABCD'[kind]}: {n}") for kind, n in zip(order, cut, strict=True)])
        for stages in range(1, min(layers, len(gpus)) + 1)
        for order in sorted(set(permutations(gpus, stages)))
        for cut in _cuts(Cutting(layers, stages))
    ]  # fmt: skip
    pool = " + ".join(f"{n} {'ABCD'[kind]}" for kind, n in enumerate(kinds))
    title = f"{counted(layers, 'layer')} on {pool}: {counted(len(rows), 'placement')}"
    note = "a row: a placement; a block: a stage, its type of GPU and its layers"
    return plot_rows(rows, title + failure.yours, "layers", note)


def _with_list(mine: Callable[..., Any], given: Pool) -> Any:
    return mine(given.layers, list(given.kinds))


SEARCH: dict[str, Exercise | Puzzle] = {
    "02.1": Listing(
        "all_cuts(layers, stages)",
        _cuttings,
        _cuts,
        _look_at_cuts,
        apply=lambda mine, given: mine(given.layers, given.stages),
        picture=_draw_cuts,
    ),
    "02.2": Puzzle(
        "distinct(layers, kinds)",
        _pools,
        _distinct,
        _look_at_pool,
        apply=_with_list,
        picture=_draw_pool,
    ),
    "02.3": Exercise(
        lambda: _distinct(Pool(_BLOCKS, _KINDS)),
        "placements",
        "how many blocks are there, and how many GPUs of each type? Your function counts the rest",
        (
            Mistake(lambda: _told_apart(_BLOCKS, sum(_KINDS)), "that distinguishes identical GPUs"),
            Mistake(
                lambda: float(_distinct(Pool(_LAYERS, _KINDS))),
                "that cuts between any two layers; the blocks have five layers each",
            ),
            Mistake(
                lambda: _told_apart(_BLOCKS, sum(_KINDS)) // prod(factorial(n) for n in _KINDS),
                "fewer GPUs can be swapped where some are idle, so no single quotient fits",
            ),
            Mistake(
                lambda: comb(_BLOCKS - 1, sum(_KINDS) - 1) * _orders(_KINDS, sum(_KINDS)),
                "those are the placements that use every GPU; GPUs may stay idle",
            ),
        ),
    ),
}
