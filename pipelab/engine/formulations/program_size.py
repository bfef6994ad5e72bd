"""How large the joint ILP is, by combinatorics: nothing is enumerated or built.

GPUs that memory cannot tell apart are counted together. A stage takes `c_g` of the `N_g`
GPUs of group g in C(N_g, c_g) ways; a second stage that shares no GPU with it takes `d_g`
of what is left in C(N_g - c_g, d_g) ways. Products over the groups count GPU sets and
disjoint pairs of them; positions in the model are counted by the sizes that fit.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import product
from math import comb
from typing import Any

import numpy as np

from pipelab.cluster import GPU
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.errors import TooLarge
from pipelab.problem import Problem

_ROWS_AT_ONCE = 10_000  # of a table of compositions, between two looks at the deadline
_MOST_COMPOSITIONS = 3_000  # their pairs are tabulated: 72 MB a table, some seconds


def count_candidates(problem: Problem) -> dict[str, int]:
    """Numbers of everything the joint ILP is built from, as exact whole numbers.

    Parameters
    ----------
    problem : Problem
        Any size.

    Returns
    -------
    dict of str to int
        `layers`, `gpus`, `boundaries` between layers, `segments`, `allocations`,
        `connections`, and `with_successor` and `with_predecessor`: the allocations that
        some other can follow or precede.

    Raises
    ------
    TooLarge
        GPUs of too many kinds make too many mixtures: tables of their pairs would take minutes and
        gigabytes.

    References
    ----------
    The write-up, "Problem Size Analysis".

    Examples
    --------
    >>> import pipelab as pl
    >>> counts = count_candidates(pl.load_case("tiny", max_gpus_per_stage=2))
    >>> counts["segments"], counts["allocations"], counts["connections"]
    (10, 100, 420)
    """
    layers = problem.model.layers
    groups, members = _groups(problem)
    number = number_of_compositions(problem, groups)
    if number > _MOST_COMPOSITIONS:
        largest = min(problem.max_gpus_per_stage, len(problem.cluster))
        raise TooLarge(
            f"{problem.name} has up to {number:,} mixtures of {len(groups)} kinds of GPU in stages of up to {largest}; "
            f"every pair is looked at, which {_MOST_COMPOSITIONS:,} allow. A smaller max_gpus_per_stage has fewer"
        )
    composition = compositions(problem, groups, members)
    # (C, U) for every kind of span
    fits = problem.stage_tables(groups, composition).fits(groups)
    sets = [math.prod(map(comb, members, c)) for c in composition.tolist()]
    ways = np.array(sets, dtype=object)  # GPU sets of each composition
    starts, ends = starts_and_ends(problem, fits)
    largest = int(ways.sum()) ** 2 * max(1, int(ends.max(initial=0))) ** 2 * layers
    # 64-bit numbers where the grand total surely fits, whole numbers of any size elsewhere.
    pairs = _disjoint_pairs(members, composition, np.int64 if largest < 2**62 else object)
    # At each boundary: segments ending there times segments starting right after it.
    meeting = ends[:, :-1].astype(pairs.dtype) @ starts[:, 1:].T.astype(pairs.dtype)
    can_follow = (pairs > 0).astype(np.int64)
    # (C, M-1): at this boundary, some allocation can follow
    followed = can_follow @ (starts[:, 1:] > 0) > 0
    preceded = can_follow.T @ (ends[:, :-1] > 0) > 0
    return {
        "layers": layers,
        "gpus": len(problem.cluster),
        "boundaries": layers - 1,
        "segments": layers * (layers + 1) // 2,
        "allocations": _total(ways, ends),
        "connections": int((pairs * meeting).sum()),
        "with_successor": _total(ways, ends[:, :-1] * followed),
        "with_predecessor": _total(ways, starts[:, 1:] * preceded),
    }


def number_of_compositions(problem: Problem, groups: Sequence[GPU]) -> int:
    """No more compositions than these have to be listed."""
    names = _joined(problem, groups)
    largest = min(problem.max_gpus_per_stage, len(problem.cluster))
    return sum(comb(names.count(name) + largest, largest) - 1 for name in set(names))


def starts_and_ends(
    problem: Problem, fits: np.ndarray, first_layers: Iterable[int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Count the segments that fit, by the layer at which they start and by their last layer; (C, M) each.

    Parameters
    ----------
    fits : bool array, shape (C, U)
        For each kind of span.
    first_layers : iterable of int, optional
        Layers at which a segment may start; by default all.
    """
    runs, layers = problem.model.spans, problem.model.layers
    if first_layers is None and runs.uniform:
        # From layer i there are as many segments as sizes up to M - i that fit; `runs.kind` has M² entries.
        sizes = np.cumsum(fits, axis=1)
        return sizes[:, ::-1], sizes
    kind = runs.kind
    starts, ends = (np.zeros((len(fits), layers), dtype=np.int64) for _ in range(2))
    for first in range(layers) if first_layers is None else first_layers:
        here = fits[:, kind[first, : layers - first]]
        starts[:, first] = here.sum(axis=1)
        ends[:, first:] += here
    return starts, ends


def _total(ways: np.ndarray, positions: np.ndarray) -> int:
    """Positions per composition, each as often as there are GPU sets of it."""
    return int((ways * positions.sum(axis=1).astype(object)).sum())


def _groups(problem: Problem) -> tuple[list[GPU], list[int]]:
    """GPUs grouped as coarsely as memory and the rules allow, and how many there are of each.

    Where a stage's memory depends on its size alone (`CostModel.memory_by_size`), GPUs of equal memory count as one
    group; where types matter they stay apart.
    """
    typed = problem.same_type_stages or not problem.costs.memory_by_size(problem)
    members: dict = {}
    for gpu in problem.cluster.gpus:
        key = gpu if typed else gpu.memory_gb
        members.setdefault(key, [gpu, 0])[1] += 1
    return [gpu for gpu, _ in members.values()], [n for _, n in members.values()]


def _joined(problem: Problem, groups: Sequence[GPU]) -> list[str]:
    """For every group of GPUs a name: those of one name may be together in a stage."""
    nodes = problem.costs.cuts_every_layer
    return [
        f"{g.type if problem.same_type_stages else 'any'} {g.node if nodes else ''}" for g in groups
    ]


def compositions(
    problem: Problem, groups: Sequence[GPU], members: Sequence[int], deadline: Deadline = NEVER
) -> np.ndarray:
    """List how many GPUs of each group a stage may have, at least one in all; shape (C, G).

    Rows are sorted by size, then by their numbers.
    """
    largest = min(problem.max_gpus_per_stage, int(sum(members)))
    types = np.unique(_joined(problem, groups), return_inverse=True)[1]
    rows = np.zeros((1, len(groups)), dtype=int)
    # One more at a time, so that no row ever exceeds the limit.
    for group, there in enumerate(members):
        others, pieces = types != types[group], []
        for some in deadline.slices(len(rows), _ROWS_AT_ONCE):
            part = rows[some]
            room = np.where(part[:, others].any(axis=1), 0, largest - part.sum(axis=1))
            choices = np.minimum(there, room) + 1
            part = np.repeat(part, choices, axis=0)
            ends = np.cumsum(choices)
            part[:, group] = np.arange(len(part)) - np.repeat(ends - choices, choices)
            pieces.append(part)
        rows = np.concatenate(pieces)
    rows = rows[1:]  # without the stage of no GPUs
    return rows[np.argsort(rows.sum(axis=1), kind="stable")]


def _disjoint_pairs(members: list[int], composition: np.ndarray, kind: Any) -> np.ndarray:
    """Ordered pairs of disjoint GPU sets for every two compositions; shape (C, C)."""
    pairs = np.ones((len(composition),) * 2, dtype=kind)
    for g, n in enumerate(members):
        top = int(composition[:, g].max()) + 1
        table = np.zeros((top, top), dtype=kind)
        for c, d in product(range(top), repeat=2):
            table[c, d] = comb(n, c) * comb(n - c, d) if c + d <= n else 0
        pairs *= table[np.ix_(composition[:, g], composition[:, g])]
    return pairs
