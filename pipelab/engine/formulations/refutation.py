"""That a program has no solution, by cases that anyone can check: a tree of branches with weights at its leaves.

A branch says: the sum of these whole columns is at most a, or at least a + 1. At a leaf every row
gets a weight. The weighted sum of the rows bounds Σ c_j x_j from below by a number that no x
between its bounds can reach (Farkas' lemma). Columns, rows and bounds of these programs are small
whole numbers and the weights are fractions, so the check is exact; the solver that found the tree need not
be trusted.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from pipelab.engine.solvers.linear_program import LinearProgram
from pipelab.engine.tolerances import FEASIBLE, SOLVER

_DENOMINATORS = (1, 12, 120, 10_000)
_MOST_LEAVES, _MOST_SECONDS, _MOST_ENTRIES = 300, 5.0, 60_000


@dataclass(frozen=True)
class Leaf:
    """Weights of rows: positive ones use a row's lower side, negative ones its upper side.

    Attributes
    ----------
    weights : tuple of (int, Fraction)
        Row number and weight. The rows of the branches above come after those of the program, the
        topmost first.
    """

    weights: tuple[tuple[int, Fraction], ...]


@dataclass(frozen=True)
class Branch:
    """The sum of some whole columns is at most `at`, or at least `at` + 1."""

    columns: tuple[int, ...]
    at: int
    below: "Branch | Leaf"
    above: "Branch | Leaf"


class _Row(NamedTuple):
    """lower ≤ Σ entries · x ≤ upper."""

    entries: dict[int, float]
    lower: float
    upper: float


def refute(program: LinearProgram) -> Branch | Leaf | None:
    """A tree that proves the program to have no solution; None where there is one, or none was found in time."""
    rows = _rows(program)
    if sum(len(row.entries) for row in rows) > _MOST_ENTRIES:
        return None
    search = _Search(program, rows, _bounds(program, rows), time.perf_counter() + _MOST_SECONDS)
    return search.tree([])


def check_refutation(program: LinearProgram, tree: Branch | Leaf) -> int:
    """Check every leaf in exact arithmetic; returns the number of leaves, 0 if one of them proves nothing."""
    rows = _rows(program)
    bounds = _bounds(program, rows)
    leaves = 0
    for leaf, path in _leaves(tree, []):
        # Sums of whole columns are whole, so nothing lies between the two sides, if the branch is
        # at a whole number.
        whole = all(program.integer[j] for row in path for j in row.entries)
        whole = whole and all(
            side == int(side)
            for row in path
            for side in (row.lower, row.upper)
            if np.isfinite(side)
        )
        if not whole or not _proves(leaf, rows + path, bounds):
            return 0
        leaves += 1
    return leaves


def leaves_of(tree: Branch | Leaf) -> int:
    """Number of cases."""
    return sum(1 for _ in _leaves(tree, []))


def _leaves(tree: Branch | Leaf, path: list[_Row]) -> Iterator[tuple[Leaf, list[_Row]]]:
    if isinstance(tree, Leaf):
        yield tree, path
        return
    below, above = _sides(tree.columns, tree.at)
    yield from _leaves(tree.below, [*path, below])
    yield from _leaves(tree.above, [*path, above])


def _sides(columns: tuple[int, ...], at: int) -> tuple[_Row, _Row]:
    entries = dict.fromkeys(columns, 1.0)
    return _Row(entries, -np.inf, float(at)), _Row(entries, float(at + 1), np.inf)


def _rows(program: LinearProgram) -> list[_Row]:
    rows = []
    for block in program.blocks.values():
        matrix = sp.csr_array(block.matrix)
        matrix.sum_duplicates()
        for r, (low, up) in enumerate(zip(block.lower.tolist(), block.upper.tolist(), strict=True)):
            here = slice(matrix.indptr[r], matrix.indptr[r + 1])
            rows.append(
                _Row(
                    dict(
                        zip(matrix.indices[here].tolist(), matrix.data[here].tolist(), strict=True)
                    ),
                    low,
                    up,
                )
            )
    return rows


def _bounds(program: LinearProgram, rows: list[_Row]) -> list[tuple[float, float]]:
    """Lower and upper bound of every column; where none is given, the one that a row implies, if any does."""
    lower, upper = program.lower.tolist(), program.upper.tolist()
    changed = True
    while changed:
        changed = False
        for row in rows:
            for sign, side in ((1.0, row.upper), (-1.0, -row.lower)):
                if side == np.inf:
                    continue
                least = {
                    j: min(sign * a * lower[j], sign * a * upper[j])
                    for j, a in row.entries.items()
                    if a
                }
                for j, a in row.entries.items():
                    if sign * a > 0 and upper[j] == np.inf:
                        others = sum(v for i, v in least.items() if i != j)
                        if np.isfinite(others):
                            upper[j] = float(np.ceil((side - others) / (sign * a)))
                            changed = True
    return list(zip(lower, upper, strict=True))


def _proves(leaf: Leaf, rows: list[_Row], bounds: list[tuple[float, float]]) -> bool:
    """Whether the weighted rows ask for more than any x within its bounds can give."""
    required, total = Fraction(0), {}  # type: Fraction, dict[int, Fraction]
    for r, weight in leaf.weights:
        side = rows[r].lower if weight > 0 else rows[r].upper
        if not np.isfinite(side):
            return False
        required += weight * Fraction(side)
        for j, a in rows[r].entries.items():
            total[j] = total.get(j, Fraction(0)) + weight * Fraction(a)
    most = Fraction(0)
    for j, c in total.items():
        best = bounds[j][1] if c > 0 else bounds[j][0]
        if c and not np.isfinite(best):
            return False
        most += c * Fraction(best) if c else 0
    return required > most


@dataclass
class _Search:
    """Branch until the relaxation of every case has no solution."""

    program: LinearProgram
    rows: list[_Row]
    bounds: list[tuple[float, float]]
    until: float
    leaves: int = 0

    def tree(self, path: list[_Row]) -> Branch | Leaf | None:
        self.leaves += 1
        if self.leaves > _MOST_LEAVES or time.perf_counter() > self.until:
            return None
        short, x, weights = self._relaxed(self.rows + path)
        if short > FEASIBLE:
            return self._leaf(weights, self.rows + path)
        columns = self._fractional(x)
        if columns is None:
            return None  # whole: this is a solution
        at = int(np.floor(x[list(columns)].sum() + FEASIBLE))
        sides = _sides(columns, at)
        below = self.tree([*path, sides[0]])
        above = self.tree([*path, sides[1]]) if below else None
        return Branch(columns, at, below, above) if below and above else None

    def _fractional(self, x: np.ndarray) -> tuple[int, ...] | None:
        """What to branch on: the number of all stages where that is not whole, else the column furthest from whole."""
        for group in ("n", *self.program.columns.sizes):
            where = self.program.columns.slices.get(group)
            if where is not None and self.program.integer[where].all() and where.stop > where.start:
                total = x[where].sum()
                if abs(total - round(total)) > SOLVER:
                    return tuple(range(where.start, where.stop))
        away = np.where(self.program.integer, np.abs(x - np.round(x)), 0.0)
        return (int(away.argmax()),) if away.max(initial=0.0) > SOLVER else None

    def _relaxed(self, rows: list[_Row]) -> tuple[float, Any, np.ndarray]:
        """By how much the rows must be broken at least, where that is, and the weight of every row."""
        from scipy.optimize import linprog

        width = self.program.columns.total
        sides = [(r, 1.0, row.lower) for r, row in enumerate(rows) if np.isfinite(row.lower)]
        sides += [(r, -1.0, row.upper) for r, row in enumerate(rows) if np.isfinite(row.upper)]
        entries = [
            (i, j, -s * a) for i, (r, s, _) in enumerate(sides) for j, a in rows[r].entries.items()
        ]
        entries += [(i, width + i, -1.0) for i in range(len(sides))]
        i, j, a = (np.array(part) for part in zip(*entries, strict=True))
        matrix = sp.csr_array(
            (a, (i.astype(int), j.astype(int))), shape=(len(sides), width + len(sides))
        )
        answer = linprog(
            np.concatenate([np.zeros(width), np.ones(len(sides))]),
            method="highs-ds",
            A_ub=matrix,
            b_ub=np.array([-s * side for _, s, side in sides]),
            bounds=[*self.bounds, *[(0, None)] * len(sides)],
        )
        weights = np.zeros(len(rows))
        if answer.x is None:
            return 0.0, np.zeros(width), weights
        for (r, s, _), marginal in zip(sides, answer.ineqlin.marginals, strict=True):
            weights[r] -= s * marginal
        return float(answer.fun), answer.x[:width], weights

    def _leaf(self, weights: np.ndarray, rows: list[_Row]) -> Leaf | None:
        for most in _DENOMINATORS:
            exact = [
                (r, Fraction(w).limit_denominator(most))
                for r, w in enumerate(weights.tolist())
                if abs(w) > 1e-9
            ]
            leaf = Leaf(tuple((r, w) for r, w in exact if w))
            if _proves(leaf, rows, self.bounds):
                return leaf
        return None
