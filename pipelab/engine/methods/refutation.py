"""That a program has no solution, by cases that anyone can check: a tree of branches with weights at its leaves.

A branch says: the sum of these whole columns is at most a, or at least a + 1. At a leaf every row
gets a weight. The weighted sum of the rows bounds Σ c_j x_j from below by a number that no x
between its bounds can reach (Farkas' lemma). Columns, rows and bounds of these programs are small
whole numbers, and so are the weights. Floating-point arithmetic with whole numbers below 2^53 is
exact, so the check is, too; the solver that found the tree need not be trusted.
"""

import time
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from pipelab.engine.solvers import highs
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, RowBlock
from pipelab.engine.tolerances import FEASIBLE, SOLVER

# Weights are a solver's decimals in these units, the simplest that prove anything.
_UNITS = (1, 12, 120, 10_000, 1_000_000)
_MOST_LEAVES, _MOST_SECONDS, _MOST_ENTRIES = 300, 5.0, 60_000
_EXACT = 2**53


@dataclass(frozen=True)
class Leaf:
    """Weights of rows: positive ones use a row's lower side, negative ones its upper side.

    Attributes
    ----------
    weights : tuple of (int, int)
        Row number and weight. The rows of the branches above come after those of the program, the
        topmost first.
    """

    weights: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Branch:
    """The sum of some whole columns is at most `at`, or at least `at` + 1."""

    columns: tuple[int, ...]
    at: int
    below: "Branch | Leaf"
    above: "Branch | Leaf"


class _Bounds(NamedTuple):
    least: np.ndarray
    most: np.ndarray


def refute(program: LinearProgram) -> Branch | Leaf | None:
    """A tree that proves the program to have no solution; None where there is one, or none was found in time."""
    rows = program.rows
    if rows.matrix.nnz > _MOST_ENTRIES:
        return None
    bounds, cases = _bounds(program), count(1)
    until = time.perf_counter() + _MOST_SECONDS

    def tree(rows: RowBlock) -> Branch | Leaf | None:
        if next(cases) > _MOST_LEAVES or time.perf_counter() > until:
            return None
        short, x, weights = _relaxed(rows, bounds)
        if short > FEASIBLE:
            return _leaf(weights, rows, bounds)
        columns = _fractional(program, x)
        if columns is None:
            return None  # whole: this is a solution
        at = int(np.floor(x[list(columns)].sum() + FEASIBLE))
        sides = _sides(rows, columns, at)
        below = tree(sides[0])
        above = tree(sides[1]) if below else None
        return Branch(columns, at, below, above) if below and above else None

    return tree(rows)


def check_refutation(program: LinearProgram, tree: Branch | Leaf) -> int:
    """Check every leaf in exact arithmetic; returns the number of leaves, 0 if one of them proves nothing."""
    bounds = _bounds(program)

    def check(rows: RowBlock, tree: Branch | Leaf) -> int:
        if isinstance(tree, Leaf):
            return int(_proves(tree, rows, bounds))
        # Sums of whole columns are whole, so nothing lies between the two sides, if the branch is
        # at a whole number.
        whole = program.integer[list(tree.columns)].all() and tree.at == int(tree.at)
        below, above = _sides(rows, tree.columns, tree.at)
        leaves = [check(below, tree.below), check(above, tree.above)]
        return sum(leaves) if whole and all(leaves) else 0

    return check(program.rows, tree)


def leaves_of(tree: Branch | Leaf) -> int:
    """Number of cases."""
    return 1 if isinstance(tree, Leaf) else leaves_of(tree.below) + leaves_of(tree.above)


def _sides(rows: RowBlock, columns: tuple[int, ...], at: int) -> tuple[RowBlock, RowBlock]:
    """The rows with that of each side of a branch."""
    row = np.zeros((1, rows.matrix.shape[1]))
    row[0, list(columns)] = 1
    matrix = sp.vstack([rows.matrix, row], format="csr")
    below = RowBlock(matrix, np.append(rows.lower, -np.inf), np.append(rows.upper, at))
    above = RowBlock(matrix, np.append(rows.lower, at + 1), np.append(rows.upper, np.inf))
    return below, above


def _bounds(program: LinearProgram) -> _Bounds:
    """Lower and upper bound of every column; where none is given, the least that a row implies, if any does."""
    rows = program.rows
    entries = np.vstack([rows.matrix.toarray(), -rows.matrix.toarray()])
    side = np.append(rows.upper, -rows.lower)[:, None]
    least, most = program.lower, program.upper
    while True:
        with np.errstate(invalid="ignore", divide="ignore"):
            part = entries * np.where(entries > 0, least, np.where(entries < 0, most, 0.0))
            implied = np.ceil((side - part.sum(axis=1, keepdims=True) + part) / entries)
        known = (entries > 0) & np.isfinite(implied)
        found = np.where(known, implied, np.inf).min(axis=0, initial=np.inf)
        wider = np.where(np.isinf(most), found, most)
        if np.array_equal(wider, most):
            return _Bounds(least, most)
        most = wider


def _proves(leaf: Leaf, rows: RowBlock, bounds: _Bounds) -> bool:
    """Whether the weighted rows ask for more than any x within its bounds can give."""
    number, weights = np.array(leaf.weights, dtype=float).reshape(-1, 2).T
    number = number.astype(int)
    side = np.where(weights > 0, rows.lower[number], rows.upper[number])
    matrix = rows.matrix[number]
    total = weights @ matrix
    used = np.flatnonzero(total)
    best = np.where(total > 0, bounds.most, bounds.least)[used]
    if not (np.isfinite(side).all() and np.isfinite(best).all()):
        return False
    parts = np.concatenate([weights, side, matrix.data, best])
    sums = abs(weights) @ abs(side), abs(weights) @ abs(matrix).sum(axis=1), abs(total[used] @ best)
    exact = (parts == np.rint(parts)).all() and max(sums) < _EXACT
    return bool(exact and weights @ side > total[used] @ best)


def _fractional(program: LinearProgram, x: np.ndarray) -> tuple[int, ...] | None:
    """What to branch on: the number of all stages where that is not whole, else the column furthest from whole."""
    for group in ("n", *program.columns.sizes):
        where = program.columns.slices.get(group)
        if where is not None and program.integer[where].all() and where.stop > where.start:
            total = x[where].sum()
            if abs(total - round(total)) > SOLVER:
                return tuple(range(where.start, where.stop))
    away = np.where(program.integer, np.abs(x - np.round(x)), 0.0)
    return (int(away.argmax()),) if away.max(initial=0.0) > SOLVER else None


def _relaxed(rows: RowBlock, bounds: _Bounds) -> tuple[float, np.ndarray, np.ndarray]:
    """By how much the rows must be broken at least, where that is, and the weight of every row."""
    number, width = rows.matrix.shape
    columns = Columns({"x": width, "short": number, "over": number})
    one = sp.eye_array(number)
    block = columns.rows({"x": rows.matrix, "short": one, "over": -one})
    program = LinearProgram(
        columns,
        np.append(bounds.least, np.zeros(2 * number)),
        np.append(bounds.most, np.full(2 * number, np.inf)),
        np.zeros(columns.total, dtype=bool),
        -(np.arange(columns.total) >= width).astype(float),
        {"rows": RowBlock(block.matrix, rows.lower, rows.upper)},
    )
    run = highs.run(program)
    if run.x is None or run.duals is None:
        return 0.0, np.zeros(width), np.zeros(number)
    return float(run.x[width:].sum()), run.x[:width], -run.duals


def _leaf(weights: np.ndarray, rows: RowBlock, bounds: _Bounds) -> Leaf | None:
    for unit in _UNITS:
        exact = np.rint(weights * unit).astype(int)
        leaf = Leaf(tuple((r, int(exact[r])) for r in np.flatnonzero(exact).tolist()))
        if _proves(leaf, rows, bounds):
            return leaf
    return None
