"""Identical layers: how many stages of each composition and size, and which hops join them?

    minimise    Σ n_p · time_p + Σ y_gh · hop_gh
    layers:     Σ n_p · layers_p = M
    GPUs:       Σ n_p · (GPUs of class a in p) ≤ count_a
    reach:      y_0g + Σ_h y_hg = stages of group g       (0 is the start, left once)
    leave:      Σ_h y_gh ≤ stages of group g

Every stage is reached by one hop and left by at most one, so the stages make one walk from the
start and perhaps circuits apart from it. Where an answer has a circuit through groups Q, it is
solved again with a row for every group g of Q, as for subtours of a travelling salesman:

    enter:      stages of group g ≤ (most there can be) · Σ_{h outside Q, k in Q} y_hk
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from pipelab.engine.formulations.aggregated.walk import sequence
from pipelab.engine.formulations.latency.exactly import at_most
from pipelab.engine.formulations.latency.times import PassTimes
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, RowBlock, incidence
from pipelab.engine.tolerances import SOLVER, WHOLE_ARCS
from pipelab.placement import Placement


@dataclass(frozen=True, eq=False)
class Sequence:
    """The counting program; times are counted in units of `unit` seconds.

    Attributes
    ----------
    most : float
        Seconds; stages that cannot be part of a placement as quick as that are left out.
    circuits : tuple of int arrays
        Sets of groups (from 1) whose stages must be entered from outside.
    whole : bool
        Whether hops must be whole numbers.
    quicker : bool
        Ask for any placement of at most `most` seconds, not for the least.
    """

    times: PassTimes
    most: float
    unit: float
    circuits: tuple[np.ndarray, ...] = ()
    whole: bool = False
    quicker: bool = False

    @cached_property
    def pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """Composition and kind of span of every column of `n`; shape (P,) each."""
        layers, sizes = self.times.problem.model.layers, runs_of(self.times.problem.model).layers
        starts = [np.arange(layers - n + 1) for n in sizes]
        around = np.array(
            [self.times.through(at, at + n).min() for at, n in zip(starts, sizes, strict=True)]
        )
        least = self.times.stage + around
        composition, span = np.nonzero(np.isfinite(least) & (least <= self.most))
        return composition, span

    @cached_property
    def arcs(self) -> tuple[np.ndarray, np.ndarray]:
        """Group left (from 1; 0 is the start) and group reached (from 1) of every column of `y`."""
        groups = np.unique(self.times.group[self.pieces[0]])
        left, right = np.nonzero(np.isfinite(self.times.hop[np.ix_(groups, groups)]))
        return np.concatenate([np.zeros_like(groups), groups[left] + 1]), np.concatenate(
            [groups, groups[right]]
        ) + 1

    @cached_property
    def columns(self) -> Columns:
        """n: stages of each composition and size; y: hops between groups."""
        return Columns({"n": len(self.pieces[0]), "y": len(self.arcs[0])})

    @property
    def program(self) -> LinearProgram:
        """The least time, as the greatest of its negative."""
        c, (composition, span), (left, right) = self.columns, self.pieces, self.arcs
        upper, integer, cost = (
            np.full(c.total, np.inf),
            np.zeros(c.total, dtype=bool),
            np.zeros(c.total),
        )
        gpus = self.times.composition[composition]
        with np.errstate(divide="ignore"):
            enough = np.where(gpus > 0, self.times.classes.count / gpus, np.inf).min(
                axis=1, initial=np.inf
            )
        upper[c.slices["n"]] = np.minimum(
            np.floor(enough), self.times.problem.model.layers // self._sizes
        )
        integer[c.slices["n"]] = True
        # With whole n, whole y are among the best: rows of a transport problem. Rows of circuits
        # break that.
        integer[c.slices["y"]] = self.whole or self.quicker
        cost[c.slices["n"]] = self.times.stage[composition, span]
        cost[c.slices["y"]] = np.where(left > 0, self.times.hop[left - 1, right - 1], 0.0)
        least = LinearProgram(
            c, np.zeros(c.total), upper, integer, -cost / self.unit, self.blocks()
        )
        return at_most(least, cost, self.most) if self.quicker else least

    @property
    def _sizes(self) -> np.ndarray:
        return runs_of(self.times.problem.model).layers[self.pieces[1]]

    def blocks(self) -> dict[str, RowBlock]:
        """The rows, by name."""
        c, (left, right) = self.columns, self.arcs
        composition, groups = self.pieces[0], len(self.times.hop) + 1
        layers, count = float(self.times.problem.model.layers), self.times.classes.count
        stages = incidence(self.times.group[composition] + 1, groups)
        leave, reach = incidence(left, groups), incidence(right, groups)
        per_class = sp.csr_array(self.times.composition[composition].T.astype(float))
        blocks = {
            "all_layers": c.rows(
                {"n": sp.csr_array(self._sizes[None].astype(float))}, layers, layers
            ),
            "class_capacity": c.rows({"n": per_class}),
            "reach_every_stage": c.rows({"y": reach[1:], "n": -stages[1:]}, 0, 0),
            "leave_where_reached": c.rows({"y": leave[1:], "n": -stages[1:]}, upper=0),
            "start_once": c.rows({"y": leave[:1]}, 1, 1),
        }
        blocks["class_capacity"].upper[:] = count
        for i, inside in enumerate(self.circuits):
            entering = np.isin(right, inside) & ~np.isin(left, inside)
            enter = sp.csr_array(-np.outer(self._most_stages[inside], entering))
            blocks[f"enter_circuit_{i}"] = c.rows({"n": stages[inside], "y": enter}, upper=0)
        return blocks

    @cached_property
    def _most_stages(self) -> np.ndarray:
        """No more stages of each group (from 1) than that: each needs a GPU of the group's classes."""
        used = np.zeros((len(self.times.hop) + 1, len(self.times.classes)), dtype=bool)
        np.logical_or.at(used, self.times.group + 1, self.times.composition > 0)
        return np.minimum(used @ self.times.classes.count, self.times.problem.model.layers)

    def stricter(self, x: np.ndarray) -> "Sequence | None":
        """The program without the circuits of this solution, hops in whole numbers; None if that changes nothing."""
        from scipy.sparse.csgraph import connected_components

        left, right = self.arcs
        used = x[self.columns.slices["y"]] > SOLVER
        shape = (len(self.times.hop) + 1,) * 2
        graph = sp.csr_array((np.ones(used.sum()), (left[used], right[used])), shape=shape)
        _, part = connected_components(graph, connection="weak")
        apart = [p for p in np.unique(part[right[used]]) if p != part[0]]
        known = {tuple(c) for c in self.circuits}
        found = tuple(
            c for c in (np.flatnonzero(part == p) for p in apart) if tuple(c) not in known
        )
        return (
            replace(self, circuits=self.circuits + found, whole=True)
            if found or not self.whole
            else None
        )

    def placement_of(self, x: np.ndarray) -> Placement | None:
        """The placement of a solution; None if its stages make no single walk."""
        number = np.rint(x[self.columns.slices["n"]]).astype(int)
        used = x[self.columns.slices["y"]]
        if np.abs(used - np.rint(used)).max(initial=0) > WHOLE_ARCS:
            return None
        waiting: dict[int, list[int]] = {}
        for piece in np.flatnonzero(number):
            waiting.setdefault(int(self.times.group[self.pieces[0][piece]]), []).extend(
                [int(piece)] * number[piece]
            )
        left, right = self.arcs
        walk = sequence((left, right, right - 1), np.rint(used).astype(int))
        if sorted(walk) != sorted(g for g, pieces in waiting.items() for _ in pieces):
            return None
        return self._placement([waiting[g].pop(0) for g in walk])

    def joined(self, x: np.ndarray) -> Placement | None:
        """The same stages in one row, each followed by the nearest left; None where no such row exists.

        No optimum, but a placement where those of the solution fall apart.
        """
        number = np.rint(x[self.columns.slices["n"]]).astype(int)
        pieces = np.repeat(np.arange(len(number)), number)
        group = self.times.group[self.pieces[0][pieces]]
        rows = [
            self._row_from(first, self.times.hop[np.ix_(group, group)])
            for first in range(len(pieces))
        ]
        seconds, best = min(rows, default=(np.inf, []))
        return self._placement(pieces[best].tolist()) if np.isfinite(seconds) else None

    @staticmethod
    def _row_from(first: int, hop: np.ndarray) -> tuple[float, list[int]]:
        row, seconds, left = [first], 0.0, np.ones(len(hop), dtype=bool)
        left[first] = False
        while left.any():
            following = int(np.where(left, hop[row[-1]], np.inf).argmin())
            if not left[following]:
                return np.inf, row
            seconds += float(hop[row[-1], following])
            row.append(following)
            left[following] = False
        return seconds, row

    def _placement(self, pieces: list[int]) -> Placement:
        gpus = named_gpus(self.times, self.pieces[0][pieces])
        return Placement.of(zip(self._sizes[pieces].tolist(), gpus, strict=True))


def named_gpus(times: PassTimes, chosen: np.ndarray) -> list[tuple[int, ...]]:
    """GPU ids for stages of these compositions: the lowest of each class that are still free."""
    free = [iter(members.tolist()) for members in times.classes.members]
    return [
        tuple(next(free[a]) for a, n in enumerate(row) for _ in range(n))
        for row in times.composition[chosen]
    ]
