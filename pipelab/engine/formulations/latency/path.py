"""Layers that differ: one path through the boundaries between layers, under a limit of GPUs per class.

    minimise    Σ n_p · time_p + Σ y_bgh · hop_gh
    GPUs:       Σ n_p · (GPUs of class a in p) ≤ count_a
    arrive:     stages of group g that end at boundary b = Σ_h y_bgh
    leave:      Σ_g y_bgh = stages of group h that begin at boundary b
    start, end: one stage begins at the first boundary, one ends at the last

A shortest path with resources: without the row of GPUs it would be one in a layered graph.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from pipelab.engine.formulations.latency.exactly import at_most
from pipelab.engine.formulations.latency.sequence import named_gpus
from pipelab.engine.formulations.latency.times import PassTimes
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, RowBlock, incidence
from pipelab.errors import TooLarge
from pipelab.placement import Placement

_MOST_COLUMNS = 2_000_000


@dataclass(frozen=True, eq=False)
class Path:
    """The layered program; same use as `Sequence`."""

    times: PassTimes
    most: float
    unit: float
    quicker: bool = False

    @cached_property
    def pieces(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Composition, first boundary and last boundary of every column of `n`; shape (P,) each."""
        layers, kind = self.times.problem.model.layers, runs_of(self.times.problem.model).kind
        rows = [np.zeros((3, 0), dtype=int)]
        for first in range(layers):
            self.times.deadline.check()
            last = np.arange(first + 1, layers + 1)
            around = self.times.through(np.full_like(last, first), last)
            least = self.times.stage[:, kind[first, : layers - first]] + around
            composition, size = np.nonzero(np.isfinite(least) & (least <= self.most))
            rows.append(np.stack([composition, np.full_like(size, first), last[size]]))
            _refuse_if_too_many(sum(r.shape[1] for r in rows))
        return tuple(np.concatenate(rows, axis=1))

    @cached_property
    def hops(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boundary, group that arrives and group that leaves, of every column of `y`; shape (Y,) each."""
        composition, first, last = self.pieces
        group, rows = self.times.group[composition], [np.zeros((3, 0), dtype=int)]
        for b in range(1, self.times.problem.model.layers):
            self.times.deadline.check()
            come, go = np.unique(group[last == b]), np.unique(group[first == b])
            i, j = np.nonzero(np.isfinite(self.times.hop[np.ix_(come, go)]))
            rows.append(np.stack([np.full_like(i, b), come[i], go[j]]))
            _refuse_if_too_many(sum(r.shape[1] for r in rows))
        return tuple(np.concatenate(rows, axis=1))

    @cached_property
    def columns(self) -> Columns:
        """n: which stages are chosen; y: which hops join them."""
        return Columns({"n": len(self.pieces[0]), "y": len(self.hops[0])})

    @property
    def program(self) -> LinearProgram:
        """The least time, as the greatest of its negative."""
        c, (composition, first, last), (_, come, go) = self.columns, self.pieces, self.hops
        upper, integer, cost = np.ones(c.total), np.zeros(c.total, dtype=bool), np.zeros(c.total)
        integer[c.slices["y"]] = self.quicker
        # y is whole where n is: one stage arrives at a boundary and one leaves
        integer[c.slices["n"]] = True
        span = runs_of(self.times.problem.model).kind[first, last - first - 1]
        cost[c.slices["n"]] = self.times.stage[composition, span]
        cost[c.slices["y"]] = self.times.hop[come, go]
        least = LinearProgram(
            c, np.zeros(c.total), upper, integer, -cost / self.unit, self.blocks()
        )
        return at_most(least, cost, self.most) if self.quicker else least

    def blocks(self) -> dict[str, RowBlock]:
        """The rows, by name."""
        c, layers, groups = self.columns, self.times.problem.model.layers, len(self.times.hop)
        (composition, first, last), (at, come, go) = self.pieces, self.hops
        group, nodes, width = self.times.group[composition], layers * groups, len(composition)
        ends, begins = np.flatnonzero(last < layers), np.flatnonzero(first > 0)
        arrive = incidence(last[ends] * groups + group[ends], nodes, ends, width)
        leave = incidence(first[begins] * groups + group[begins], nodes, begins, width)
        come_here, go_on = incidence(at * groups + come, nodes), incidence(at * groups + go, nodes)
        per_class = sp.csr_array(self.times.composition[composition].T.astype(float))
        blocks = {
            "class_capacity": c.rows({"n": per_class}),
            "arrive_then_hop": _where_used(c.rows({"n": arrive, "y": -come_here}, 0, 0)),
            "hop_then_leave": _where_used(c.rows({"y": go_on, "n": -leave}, 0, 0)),
            "start_once": c.rows({"n": sp.csr_array((first == 0)[None].astype(float))}, 1, 1),
            "end_once": c.rows({"n": sp.csr_array((last == layers)[None].astype(float))}, 1, 1),
        }
        blocks["class_capacity"].upper[:] = self.times.classes.count
        return blocks

    def placement_of(self, x: np.ndarray) -> Placement:
        """The placement of a solution: the chosen stages by first layer."""
        composition, first, last = self.pieces
        chosen = np.flatnonzero(x[self.columns.slices["n"]] > 0.5)
        chosen = chosen[np.argsort(first[chosen])]
        gpus = named_gpus(self.times, composition[chosen])
        return Placement.of(zip((last - first)[chosen].tolist(), gpus, strict=True))


def _where_used(block: RowBlock) -> RowBlock:
    """Without the rows of nodes that nothing touches."""
    used = np.diff(block.matrix.indptr) > 0
    return RowBlock(block.matrix[used], block.lower[used], block.upper[used])


def _refuse_if_too_many(columns: int) -> None:
    if columns > _MOST_COLUMNS:
        raise TooLarge(
            f"more than {columns:,} stages and hops; a smaller max_gpus_per_stage, same_type_stages=True or a "
            "higher floor leaves fewer",
            {"columns": columns},
        )
