"""The stages that a pipeline may have, which of them may follow which, and GPU ids for those that are chosen.

A stage takes GPUs of classes; which ones does not matter. What it takes may be stated class by class, or as
"so many out of these classes, freely mixed": "any 3 of the 20 GPUs of types A10 and T4, for 2 to 4 layers" is one
entry, which stands for 1,140 GPU sets times 3 sizes. A span that a stage with fewer of the same GPUs holds in no
more time is left out: that stage can replace it in any placement.

A message takes what the slowest pair of GPUs takes, so stages whose classes have the same links *from* all others
are entered in one way, and those whose classes have the same links *to* all others are left in one way. Three classes
A, B and C; the links A→A, A→B, B→B and B→C may be used:

    stage of     may be followed by a stage of     may follow a stage of
    A            A, B, A and B                     A
    B            B, C, B and C                     A, B, A and B
    C            nothing                           B
    A and B      B                                 A
    B and C      nothing                           B
    A and C      nothing                           nothing
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Any, NamedTuple

import numpy as np

from pipelab.engine.classes import Classes
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.packing import Packing
from pipelab.engine.solvers.linear_program import incidence
from pipelab.engine.stage_table import FreeGPUs, holdable, ways_through
from pipelab.engine.tolerances import SOLVER
from pipelab.errors import PipelabError
from pipelab.problem import Problem

# sets of classes that are listed; 24 classes in stages of up to 3 have 2,324
MOST_SUPPORTS = 4_000
OUTSIDE = -1  # where a pipeline comes from and goes to


class Links(NamedTuple):
    """Which stage may follow which. Stages of one *link kind* are entered in one way and left in one.

    Attributes
    ----------
    enter, leave : int arrays, shape (J,)
        Of each link kind: its number as the stage that follows, and as the one that is followed.
    seconds : float array, shape (largest `leave` + 1, largest `enter` + 1)
        Of a message; infinite where the one may not follow the other.
    support, kind_of : bool array (Q, A), int array (Q,)
        Sets of classes that a stage may use, and the link kind of each.
    narrowed : bool
        Sets of more classes were left out, as there would have been too many.
    """

    enter: np.ndarray
    leave: np.ndarray
    seconds: np.ndarray
    support: np.ndarray
    kind_of: np.ndarray
    narrowed: bool = False

    @property
    def free(self) -> bool:
        """Whether any stage may follow any other, in the same time."""
        return self.seconds.size == 1 and bool(np.isfinite(self.seconds).all())

    def closed_supports(
        self, eligible: np.ndarray, parts: list[tuple[int, np.ndarray]]
    ) -> list[tuple[np.ndarray, int]]:
        """Largest sets of classes per link kind, among the eligible ones.

        Parameters
        ----------
        eligible : bool array, shape (A,)
        parts : list of (int, bool array of shape (A,))
            The stage draws so many GPUs from each of these disjoint sets of classes, at least one
            class and at most so many of them.

        Returns
        -------
        list of (bool array of shape (A,), link kind)
            Two sets of one link kind are as good as their union: wherever the one may come, so
            may the other, and any mixture of both.
        """
        if self.free:
            return [(eligible, 0)]
        inside = ~(self.support & ~eligible).any(axis=1)
        for number, classes in parts:
            used = (self.support & classes).sum(axis=1)
            inside &= (used >= 1) & (used <= number)
        unions: dict[int, np.ndarray] = {}
        for q in np.flatnonzero(inside):
            j = int(self.kind_of[q])
            unions[j] = unions[j] | self.support[q] if j in unions else self.support[q]
        return [(union, j) for j, union in sorted(unions.items())]


def _number_of_sets(classes: int, largest: int) -> int:
    """How many sets of 1 … `largest` classes there are."""
    return sum(comb(classes, k) for k in range(1, min(largest, classes) + 1))


def free_links(classes: int, seconds: float) -> Links:
    """Any stage may follow any other, in so many seconds."""
    none = np.zeros(1, dtype=int)
    support = np.ones((1, classes), dtype=bool)
    return Links(
        enter=none,
        leave=none,
        seconds=np.full((1, 1), seconds),
        support=support,
        kind_of=none,
    )


def links_of(
    hop: np.ndarray, groups: Sequence[np.ndarray], largest: int, deadline: Deadline = NEVER
) -> Links:
    """Link kinds of every set of up to `largest` classes that a stage may use.

    Parameters
    ----------
    hop : float array, shape (A, A)
        Seconds from class to class; infinite where there is no hop.
    groups : sequence of bool arrays, shape (A,)
        Classes that a stage may mix.

    Raises
    ------
    TooLarge
    """
    there = np.any([*groups, np.zeros(len(hop), dtype=bool)], axis=0)
    among = hop[np.ix_(there, there)]
    if (among == among.ravel()[:1]).all() and np.isfinite(among).all():
        return free_links(len(hop), float(among.max(initial=0.0)))
    widest = [
        group
        for i, group in enumerate(groups)
        if not any(
            (group <= other).all() and (i > j or (group < other).any())
            for j, other in enumerate(groups)
        )
    ]
    sizes = [int(group.sum()) for group in widest]
    wanted = largest = min(largest, max(sizes))
    while largest > 1 and sum(_number_of_sets(n, largest) for n in sizes) > MOST_SUPPORTS:
        largest -= 1
    parts = [_sets_of_classes(group, largest, deadline) for group in widest]
    support = np.unique(np.concatenate(parts), axis=0)
    of, through, (seconds,) = ways_through(support, seconds=[hop], deadline=deadline)
    return Links(
        enter=through[:, 0],
        leave=through[:, 1],
        seconds=seconds,
        support=support,
        kind_of=of,
        narrowed=largest < wanted,
    )


def _sets_of_classes(group: np.ndarray, largest: int, deadline: Deadline) -> np.ndarray:
    """Every set of 1 … `largest` classes of a group, as rows of a bool array of shape (Q, A)."""
    parts = []
    for size in range(1, largest + 1):
        deadline.check()
        members = np.array(list(combinations(np.flatnonzero(group), size)), dtype=int)
        part = np.zeros((len(members), len(group)), dtype=bool)
        np.put_along_axis(part, members.reshape(len(part), size), True, axis=1)
        parts.append(part)
    return np.concatenate(parts)


class Mixed(NamedTuple):
    """GPUs of a recipe's stages that may be of several classes, freely mixed."""

    recipe: int
    gpus: int
    classes: tuple[int, ...]


class StageRecipes(NamedTuple):
    """The stages that a pipeline may have, as R recipes.

    Attributes
    ----------
    problem : Problem
    classes : Classes
    gpus : int array, shape (R, A)
        What a stage takes of each class for sure.
    mixed : tuple of Mixed
        What it takes besides.
    seconds : float array, shape (R, U)
        Of a microbatch with each kind of span; infinite where a stage is not to have it, and zero elsewhere where time
        is not asked for.
    link_kind : int array, shape (R,)
        Link kind.
    links : Links
    packings : tuple of Packing
        Recipes whose stages must lie inside one node each.
    """

    problem: Problem
    classes: Classes
    gpus: np.ndarray
    mixed: tuple[Mixed, ...]
    seconds: np.ndarray
    link_kind: np.ndarray
    links: Links
    packings: tuple[Packing, ...] = ()

    def draws(self, recipe: int) -> list[tuple[int, tuple[int, ...]]]:
        """List what a stage of a recipe takes: pairs of a number and the classes whose GPUs together give it."""
        sure = [(int(n), (a,)) for a, n in enumerate(self.gpus[recipe].tolist()) if n]
        return sure + [(m.gpus, m.classes) for m in self.mixed if m.recipe == recipe]

    @property
    def most(self) -> np.ndarray:
        """More stages of each recipe than this there cannot be; shape (R,)."""
        count = self.classes.count
        often = count // np.maximum(self.gpus, 1)
        out = np.where(self.gpus > 0, often, count.sum()).min(axis=1, initial=count.sum())
        for m in self.mixed:
            out[m.recipe] = min(out[m.recipe], int(count[list(m.classes)].sum()) // m.gpus)
        return out

    def holdable(self, layers: np.ndarray) -> float:
        """More layers than this cannot be held: as many per GPU as in any stage that may have one of its class.

        Parameters
        ----------
        layers : int array, shape (U,)
            Of each kind of span.
        """
        size, has = self.gpus.sum(axis=1).astype(float), self.gpus > 0
        for m in self.mixed:
            size[m.recipe] += m.gpus
            has[m.recipe, list(m.classes)] = True
        held = np.where(np.isfinite(self.seconds), layers, 0).max(axis=1, initial=0)
        return holdable(held, size, has, self.classes.count) * (1 + SOLVER)

    def assigned(self, recipes: Sequence[int], prices: np.ndarray | None) -> list[tuple[int, ...]]:
        """GPU ids for stages of these recipes: the lowest of each class that are still free.

        Parameters
        ----------
        prices : float array, shape (A,), or None
            Of one GPU of each class: freely mixed ones are then the cheapest that leave enough for the
            others.
        """
        gpus: list[list[int]] = [[] for _ in recipes]
        for packing in self.packings:
            packed = [i for i, recipe in enumerate(recipes) if recipe in packing.recipe]
            sizes = [int(packing.size[packing.recipe == recipes[i]][0]) for i in packed]
            free = FreeGPUs([node.tolist()] for node in packing.nodes)
            for i, size, node in zip(packed, sizes, packing.packed(sizes), strict=True):
                gpus[i] = free.take_of(node, size)
        draws = [
            (i, number, classes)
            for i, recipe in enumerate(recipes)
            if not gpus[i]
            for number, classes in self.draws(recipe)
        ]
        demand: Counter[tuple[int, ...]] = Counter()
        for _, number, classes in draws:
            demand[classes] += number
        packed_ids = [g for ids in gpus for g in ids]
        left = [np.setdiff1d(members, packed_ids) for members in self.classes.members]
        stock = _shared_out(demand, np.array([len(ids) for ids in left]), prices)
        free = FreeGPUs([ids.tolist()] for ids in left)
        for i, number, classes in draws:
            gpus[i] += [free.take_of(a, 1)[0] for a in stock[classes][:number]]
            del stock[classes][:number]
        return [tuple(ids) for ids in gpus]


def _shared_out(
    demand: Mapping[tuple[int, ...], int], count: np.ndarray, prices: np.ndarray | None
) -> dict[tuple[int, ...], list[int]]:
    """The class of every GPU that each set of classes gives, within what every class has.

    Who draws how many GPUs from which class is a transport problem: its matrix is totally
    unimodular, so the vertex at which the simplex method ends is whole.
    """
    from scipy.optimize import linprog

    cost = np.arange(len(count)) if prices is None else prices
    out: dict[tuple[int, ...], list[int]] = {
        classes: [classes[0]] * n for classes, n in demand.items() if len(classes) == 1
    }
    given = np.array([a for gpus in out.values() for a in gpus], dtype=int)
    left = count - np.bincount(given, minlength=len(count))
    mixed: list[tuple[int, ...]] = [classes for classes in demand if len(classes) > 1]
    if not mixed:
        return out
    draw, cls = np.array([(d, a) for d, classes in enumerate(mixed) for a in classes]).T
    answer: Any = linprog(
        np.array(cost, dtype=float)[cls],
        incidence(cls, len(count)),
        left,
        incidence(draw, len(mixed)),
        [demand[classes] for classes in mixed],
        method="highs-ds",
    )
    if answer.x is None:
        raise PipelabError("a solver returned stages for which there are not enough GPUs")
    out.update((classes, []) for classes in mixed)
    for d, a, amount in zip(draw, cls, np.rint(answer.x).astype(int), strict=True):
        out[mixed[d]] += [int(a)] * int(amount)
    return out
