"""All layers alike: how many stages of each composition and size, and which hops join them?

    minimise    Σ n_p · time_p + Σ y_gh · hop_gh
    layers:     Σ n_p · layers_p = M
    GPUs:       Σ n_p · (GPUs of class a in p) ≤ count_a
    reach:      y_0g + Σ_h y_hg = stages of group g       (0 is the start, left once)
    leave:      Σ_h y_gh ≤ stages of group g

Every stage is reached by one hop and left by at most one, so the stages make one walk from the
start and perhaps circuits apart from it. Where an answer has such circuits, it is asked again with
a flow that the start sends out, of which each stage keeps one unit, on used hops only.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from pipelab.formulations.aggregated.walk import sequence
from pipelab.formulations.quickest.times import PassTimes
from pipelab.placement import Placement
from pipelab.program import Columns, LinearProgram, RowBlock, incidence

__all__ = ["Sequence", "named_gpus"]


@dataclass(frozen=True, eq=False)
class Sequence:
    """The counting program; times are counted in units of `unit` seconds.

    Attributes
    ----------
    most : float
        Seconds; stages that cannot be part of a placement as quick as that are left out.
    strict : bool
        Whether circuits apart from the pipeline are forbidden.
    """

    times: PassTimes
    most: float
    unit: float
    strict: bool = False

    @cached_property
    def pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """Composition and kind of span of every column of `n`; shape (P,) each."""
        layers, sizes = self.times.problem.model.layers, self.times.problem.model.spans.layers
        starts = [np.arange(layers - n + 1) for n in sizes]
        around = np.array([self.times.through(at, at + n).min() for at, n in zip(starts, sizes, strict=True)])
        least = self.times.stage + around
        return np.nonzero(np.isfinite(least) & (least <= self.most))

    @cached_property
    def arcs(self) -> tuple[np.ndarray, np.ndarray]:
        """Group left (from 1; 0 is the start) and group reached (from 1) of every column of `y`."""
        groups = np.unique(self.times.group[self.pieces[0]])
        left, right = np.nonzero(np.isfinite(self.times.hop[np.ix_(groups, groups)]))
        return np.concatenate([np.zeros_like(groups), groups[left] + 1]), np.concatenate([groups, groups[right]]) + 1

    @cached_property
    def columns(self) -> Columns:
        """n: stages of each composition and size; y: hops between groups; f: flow on them."""
        arcs = len(self.arcs[0])
        return Columns({"n": len(self.pieces[0]), "y": arcs} | ({"f": arcs} if self.strict else {}))

    @property
    def program(self) -> LinearProgram:
        """The least time, as the greatest of its negative."""
        c, (composition, span), (left, right) = self.columns, self.pieces, self.arcs
        upper, integer, cost = np.full(c.total, np.inf), np.zeros(c.total, dtype=bool), np.zeros(c.total)
        gpus = self.times.composition[composition]
        with np.errstate(divide="ignore"):
            enough = np.where(gpus > 0, self.times.classes.count / gpus, np.inf).min(axis=1, initial=np.inf)
        upper[c.slices["n"]] = np.minimum(np.floor(enough), self.times.problem.model.layers // self._sizes)
        integer[c.slices["n"]] = True
        # With whole n, whole y are among the best: rows of a transport problem. The flow breaks that.
        integer[c.slices["y"]] = self.strict
        cost[c.slices["n"]] = self.times.stage[composition, span]
        cost[c.slices["y"]] = np.where(left > 0, self.times.hop[left - 1, right - 1], 0.0)
        return LinearProgram(c, np.zeros(c.total), upper, integer, -cost / self.unit, self.blocks())

    @property
    def _sizes(self) -> np.ndarray:
        return self.times.problem.model.spans.layers[self.pieces[1]]

    def blocks(self) -> dict[str, RowBlock]:
        """The rows, by name."""
        c, (left, right) = self.columns, self.arcs
        composition, groups = self.pieces[0], len(self.times.hop) + 1
        layers, count = float(self.times.problem.model.layers), self.times.classes.count
        stages = incidence(self.times.group[composition] + 1, groups)[1:]
        leave, reach = incidence(left, groups), incidence(right, groups)[1:]
        per_class = sp.csr_array(self.times.composition[composition].T.astype(float))
        blocks = {
            "all_layers": c.rows({"n": sp.csr_array(self._sizes[None].astype(float))}, layers, layers),
            "class_capacity": c.rows({"n": per_class}),
            "reach_every_stage": c.rows({"y": reach, "n": -stages}, 0, 0),
            "leave_where_reached": c.rows({"y": leave[1:], "n": -stages}, upper=0),
            "start_once": c.rows({"y": leave[:1]}, 1, 1),
        }
        blocks["class_capacity"].upper[:] = count
        if self.strict:
            most = min(self.times.problem.model.layers, int(count.sum()))
            each = sp.eye_array(len(left))
            blocks["flow_on_used_hops"] = c.rows({"f": each, "y": -most * each}, upper=0)
            blocks["flow_feeds_stages"] = c.rows({"f": reach - leave[1:], "n": -stages}, 0, 0)
        return blocks

    def placement_of(self, x: np.ndarray) -> Placement | None:
        """The placement that a solution stands for; None where its stages make no single walk."""
        number = np.rint(x[self.columns.slices["n"]]).astype(int)
        used = x[self.columns.slices["y"]]
        if np.abs(used - np.rint(used)).max(initial=0) > 1e-4:
            return None
        waiting: dict[int, list[int]] = {}
        for piece in np.flatnonzero(number):
            waiting.setdefault(int(self.times.group[self.pieces[0][piece]]), []).extend([int(piece)] * number[piece])
        left, right = self.arcs
        walk = sequence((left, right, right - 1), np.rint(used).astype(int))
        if sorted(walk) != sorted(g for g, pieces in waiting.items() for _ in pieces):
            return None
        pieces = [waiting[g].pop(0) for g in walk]
        gpus = named_gpus(self.times, self.pieces[0][pieces])
        return Placement.of(zip(self._sizes[pieces].tolist(), gpus, strict=True))


def named_gpus(times: PassTimes, chosen: np.ndarray) -> list[tuple[int, ...]]:
    """GPU ids for stages of these compositions: the lowest of each class that are still free."""
    free = [iter(members.tolist()) for members in times.classes.members]
    return [tuple(next(free[a]) for a, n in enumerate(row) for _ in range(n)) for row in times.composition[chosen]]
