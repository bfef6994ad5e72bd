"""The stage-flow program: a pipeline is a walk of stages from the first layer to the last.

Its nodes are positions between layers, its arcs stages (a composition with so many layers), and hops
join stages at a position. Where layers differ at the two ends at most, three positions are enough, start,
middle and end, and one row counts layers; otherwise every boundary between layers is a position.
A hop takes what its slowest pair of classes takes, so sets of classes with the same links to all others are one
*link kind*. With n_p stages of arc p and y_mgh hops at position m between link kinds g and h:

    minimise    Σ n_p · cost_p + Σ y_mgh · cost_gh
    GPUs:       Σ n_p · (GPUs of class a in p) ≤ count_a            for every class a
    arrive:     stages of link kind g that end at m = Σ_h y_mgh
    leave:      Σ_g y_mgh = stages of link kind h that begin at m
    start, end: one stage begins at the start, one ends at the end
    layers:     Σ n_p · layers_p = M                                (with three positions)
    limits:     Σ n_p · weight_p + Σ y_mgh · weight_gh ≤ most       for time, GPUs or money

Balanced hops may close into circuits apart from the walk. Where an answer has one, through stages of the
link kinds Q, the program is solved again with a row that asks Q to be entered from outside, as for subtours of a
travelling salesman.

What the objective is does not matter to any of this: time, GPUs, money or dual prices.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from pipelab.engine.deadline import Deadline
from pipelab.engine.instance import Instance
from pipelab.engine.solvers import choice
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, RowBlock, incidence
from pipelab.engine.tolerances import SOLVER
from pipelab.errors import PipelabError, TooLarge
from pipelab.placement import Placement

_UNITS = (
    1_000.0  # of which the least possible objective has so many: solvers compare within 1e-6 of one
)
_MOST_COLUMNS = 2_000_000


class Weight(NamedTuple):
    """What a sum counts: something per GPU of each class, something per second of stages and hops."""

    per_gpu: np.ndarray  # shape (A,)
    per_second: float = 0.0


class Limit(NamedTuple):
    """A sum that must not exceed a number."""

    weight: Weight
    most: float


class Found(NamedTuple):
    """What a walk's program found.

    Attributes
    ----------
    placement : Placement or None
    bound : float
        No placement has less of the objective: infinite if there is none, minus infinity if
        nothing was proven.
    stopped_by : str or None
        What ended it early.
    """

    placement: Placement | None
    bound: float
    stopped_by: str | None = None


class Arcs(NamedTuple):
    """Stages as arcs: composition, first and last position, layers, kind of span; shape (P,) each."""

    composition: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    layers: np.ndarray
    span: np.ndarray


@dataclass(frozen=True, eq=False)
class Walk:
    """The cheapest pipeline of these stages and links.

    Attributes
    ----------
    instance : Instance
    stage : bool array, shape (C, U)
        The stages that may be used.
    link : bool array, shape (A, A)
        The links that may be used.
    cost : Weight
        What is to be least.
    limits : tuple of Limit
    circuits : tuple of int arrays
        Sets of link kinds that must be entered from outside.
    known : float
        No pipeline has less of the objective: it is counted in parts of that.
    """

    instance: Instance
    stage: np.ndarray
    link: np.ndarray
    cost: Weight
    limits: tuple[Limit, ...] = ()
    circuits: tuple[np.ndarray, ...] = ()
    known: float = 0.0

    @property
    def _counts_layers(self) -> bool:
        spans = self.instance.spans
        return spans.uniform or spans.alike_inside

    @property
    def _last(self) -> int:
        """The number of the last position."""
        return 2 if self._counts_layers else self.instance.problem.model.layers

    @property
    def _most_seconds(self) -> float:
        """The limit on time, if there is one."""
        timed = (x.most / x.weight.per_second for x in self.limits if x.weight.per_second)
        return min(timed, default=np.inf)

    @cached_property
    def _around(self) -> tuple[np.ndarray, np.ndarray]:
        """Least seconds from the start to each boundary between layers, and from it to the end; shape (M+1,) each.

        As if GPUs were unlimited and every hop took the least time: a lower bound.
        """
        table, layers = self.instance, self.instance.problem.model.layers
        kind, best = (
            table.spans.kind,
            np.where(self.stage, table.seconds, np.inf).min(axis=0, initial=np.inf),
        )
        there, back = np.full((2, layers + 1), np.inf)
        there[0] = back[layers] = 0.0
        for b in range(1, layers + 1):
            first = np.arange(b)
            hop = np.where(first > 0, self._shortest_hop, 0.0)
            there[b] = (there[:b] + best[kind[first, b - 1 - first]] + hop).min()
        for a in range(layers - 1, -1, -1):
            last = np.arange(a + 1, layers + 1)
            hop = np.where(last < layers, self._shortest_hop, 0.0)
            back[a] = (back[last] + best[kind[a, last - a - 1]] + hop).min()
        return there, back

    @property
    def shortest(self) -> float:
        """No traversal takes less, in seconds, whatever GPUs there are; infinite if there is none."""
        return float(self._around[0][-1])

    @cached_property
    def _shortest_hop(self) -> float:
        return float(self.instance.hop[self.link].min(initial=np.inf))

    def _outside(self, first: np.ndarray, layers: np.ndarray) -> np.ndarray:
        """Least seconds of all that comes before and after stages of so many layers from layer `first`."""
        (there, back), total = self._around, self.instance.problem.model.layers
        last = first + layers
        inside = last < total
        with np.errstate(invalid="ignore"):
            hops = np.where(first > 0, self._shortest_hop, 0.0)
            hops = hops + np.where(inside, self._shortest_hop, 0.0)
        return there[first] + back[last] + hops

    def _roles(self) -> Iterator[tuple[int, int, np.ndarray, np.ndarray, np.ndarray]]:
        """Begin, end, layers, kind of span and the least time around it, of all stages with the same positions."""
        kind, total = self.instance.spans.kind, self.instance.problem.model.layers
        if not self._counts_layers:
            for first in range(total):
                for last in range(first + 1, total + 1):
                    sizes = np.array([last - first])
                    outside = self._outside(np.array([first]), sizes)
                    yield first, last, sizes, kind[first, sizes - 1], outside
            return
        size = np.arange(1, total)
        zero = np.zeros_like(size)
        yield 0, 1, size, kind[0, size - 1], self._outside(zero, size)
        inner = np.arange(1, total - 1)
        if len(inner):
            around = [self._outside(np.arange(1, total - n), np.array(n)).min() for n in inner]
            yield 1, 1, inner, kind[1, inner - 1], np.array(around)
        yield 1, 2, size, kind[total - size, size - 1], self._outside(total - size, size)
        whole = np.array([total])
        yield 0, 2, whole, kind[0, whole - 1], np.zeros(1)

    @cached_property
    def arcs(self) -> Arcs:
        """The stages that can be part of a pipeline within the limit on time.

        Raises
        ------
        TooLarge
        """
        stage, seconds, most = self.stage, self.instance.seconds, self._most_seconds
        parts, number = [np.zeros((5, 0), dtype=int)], 0
        for begin, end, layers, span, outside in self._roles():
            fits = stage[:, span] & (seconds[:, span] + outside <= most * (1 + SOLVER))
            c, i = np.nonzero(fits)
            number += len(c)
            if number > _MOST_COLUMNS:
                raise TooLarge(
                    f"{self.instance.problem.name} has more than {_MOST_COLUMNS:,} stages in one "
                    "program; a smaller max_gpus_per_stage or same_type_stages=True leaves fewer",
                    {"columns": number},
                )
            ends = np.full_like(c, begin), np.full_like(c, end)
            parts.append(np.stack([c, *ends, layers[i], span[i]]))
        return Arcs(*np.concatenate(parts, axis=1))

    @cached_property
    def _link_kinds(self) -> tuple[np.ndarray, np.ndarray]:
        """Link kind of every arc, and seconds of a hop between any two (infinite: not allowed); shapes (P,), (J, J)."""
        table = self.instance
        hop = np.where(self.link, table.hop if self._timed else 0.0, np.inf)
        hop[hop > self._most_seconds * (1 + SOLVER)] = np.inf
        return link_kinds(table.composition[self.arcs.composition] > 0, hop)

    @property
    def _timed(self) -> bool:
        return bool(self.cost.per_second or np.isfinite(self._most_seconds))

    @cached_property
    def hops(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Position, link kind that arrives and link kind that leaves of every hop; shape (Y,) each."""
        kind, between = self._link_kinds
        parts = [np.zeros((3, 0), dtype=int)]
        for m in range(1, self._last):
            come, go = np.unique(kind[self.arcs.end == m]), np.unique(kind[self.arcs.begin == m])
            i, j = np.nonzero(np.isfinite(between[np.ix_(come, go)]))
            parts.append(np.stack([np.full_like(i, m), come[i], go[j]]))
        return tuple(np.concatenate(parts, axis=1))

    @cached_property
    def _columns(self) -> Columns:
        return Columns({"n": len(self.arcs.composition), "y": len(self.hops[0])})

    def _sum(self, weight: Weight) -> np.ndarray:
        """What every column adds to a sum."""
        table, arcs, (_, come, go) = self.instance, self.arcs, self.hops
        of_stage = table.composition[arcs.composition] @ weight.per_gpu
        if not weight.per_second:
            return np.concatenate([of_stage, np.zeros(len(come))])
        of_stage = of_stage + weight.per_second * table.seconds[arcs.composition, arcs.span]
        return np.concatenate([of_stage, weight.per_second * self._link_kinds[1][come, go]])

    @cached_property
    def _unit(self) -> float:
        """What the objective is counted in: the least that a pipeline may have, in 1,000 units."""
        least = self.cost.per_second * min(self._around[0][-1], 1e300)
        gpus = self.cost.per_gpu[self.cost.per_gpu > 0]
        least = max(least, float(gpus.min(initial=np.inf)) if len(gpus) else 0.0, self.known)
        return least / _UNITS or 1.0

    @property
    def program(self) -> LinearProgram:
        """The least cost, as the greatest of its negative."""
        columns, arcs = self._columns, self.arcs
        gpus, count = self.instance.composition[arcs.composition], self.instance.classes.count
        often = np.where(gpus > 0, count // np.maximum(gpus, 1), count.sum()).min(axis=1)
        upper = np.full(columns.total, np.inf)
        upper[columns.slices["n"]] = np.where(arcs.begin == arcs.end, often, 1)
        integer = np.ones(columns.total, dtype=bool)
        # With whole n, whole y are among the cheapest: rows of a transport problem. Rows of
        # circuits and limits on time break that.
        integer[columns.slices["y"]] = bool(self.circuits) or np.isfinite(self._most_seconds)
        objective = -self._sum(self.cost) / self._unit
        return LinearProgram(
            columns, np.zeros(columns.total), upper, integer, objective, self._rows()
        )

    def _rows(self) -> dict[str, RowBlock]:
        columns, arcs, (at, come, go) = self._columns, self.arcs, self.hops
        kind, between = self._link_kinds
        kinds, count = len(between), self.instance.classes.count
        nodes, width = (self._last + 1) * kinds, len(kind)
        ends, begins = np.flatnonzero(arcs.end < self._last), np.flatnonzero(arcs.begin > 0)
        arrive = incidence(arcs.end[ends] * kinds + kind[ends], nodes, ends, width)
        leave = incidence(arcs.begin[begins] * kinds + kind[begins], nodes, begins, width)
        per_class = sp.csr_array(self.instance.composition[arcs.composition].T.astype(float))
        blocks = {
            "class_capacity": columns.rows({"n": per_class}),
            "arrive": columns.rows({"n": arrive, "y": -incidence(at * kinds + come, nodes)}, 0, 0),
            "leave": columns.rows({"y": incidence(at * kinds + go, nodes), "n": -leave}, 0, 0),
            "start": columns.rows({"n": _row(arcs.begin == 0)}, 1, 1),
            "end": columns.rows({"n": _row(arcs.end == self._last)}, 1, 1),
        }
        blocks["class_capacity"].upper[:] = count
        if self._counts_layers:
            layers = float(self.instance.problem.model.layers)
            blocks["layers"] = columns.rows({"n": _row(arcs.layers)}, layers, layers)
        for i, (weight, most) in enumerate(self.limits):
            scale = most or 1.0
            row = self._sum(weight) / scale
            parts = {group: _row(row[where]) for group, where in columns.slices.items()}
            blocks[f"limit_{i}"] = columns.rows(parts, upper=most / scale)
        for i, inside in enumerate(self.circuits):
            blocks[f"enter_circuit_{i}"] = self._entered(inside, kind)
        return blocks

    def _entered(self, inside: np.ndarray, kind: np.ndarray) -> RowBlock:
        """No stage of the link kinds `inside`, unless a hop from another kind or the start leads to them."""
        arcs, (_, come, go) = self.arcs, self.hops
        most = min(int(self.instance.classes.count.sum()), self.instance.problem.model.layers)
        begins = np.isin(kind, inside) & (arcs.begin == 0)
        stages = np.isin(kind, inside) - most * begins.astype(float)
        entering = np.isin(go, inside) & ~np.isin(come, inside)
        return self._columns.rows({"n": _row(stages), "y": _row(-most * entering)}, upper=0)

    def least(self, deadline: Deadline) -> Found:
        """Solve, with one circuit after the other forbidden until the stages are one pipeline.

        Raises
        ------
        TooLarge
            There are too many stages to list.
        """
        walk, bound = self, -np.inf
        while True:
            if not len(walk.arcs.composition):
                return Found(None, np.inf)
            run = choice.run_program(walk.program, deadline=deadline)
            if run.status == "infeasible":
                return Found(None, np.inf)
            if run.bound is not None:
                bound = max(bound, (-run.bound - 2 * SOLVER) * walk._unit)
            if run.x is None:
                return Found(None, bound, run.stopped_by)
            order, apart = walk._order(run.x)
            if not len(apart):
                return Found(walk._placement(order), bound, run.stopped_by)
            if run.stopped_by is not None:
                return Found(None, bound, run.stopped_by)
            if any(np.array_equal(apart, known) for known in walk.circuits):
                raise PipelabError("a solver returned stages that make no pipeline")
            walk = replace(walk, circuits=(*walk.circuits, apart))

    def _order(self, x: np.ndarray) -> tuple[list[int], np.ndarray]:
        """Arcs in the order of the walk, over every hop as often as it is used (Hierholzer), and link kinds apart."""
        arcs, (at, come, go), kind = self.arcs, self.hops, self._link_kinds[0]
        number = np.rint(x[self._columns.slices["n"]]).astype(int)
        times = np.rint(x[self._columns.slices["y"]]).astype(int)
        left: dict[tuple[int, int], list[int]] = {}
        for p in np.flatnonzero(number)[::-1].tolist():  # the last stage of all is taken last
            left.setdefault((int(arcs.begin[p]), int(kind[p])), []).extend([p] * int(number[p]))
        to: dict[tuple[int, int], list[int]] = {}
        for h in np.flatnonzero(times).tolist():
            to.setdefault((int(at[h]), int(come[h])), []).extend([int(go[h])] * int(times[h]))
        path = [next(p for p in np.flatnonzero(number).tolist() if arcs.begin[p] == 0)]
        left[0, int(kind[path[0]])].remove(path[0])
        walked: list[int] = []
        while path:
            p = path[-1]
            place = int(arcs.end[p]), int(kind[p])
            if to.get(place):
                path.append(left[place[0], to[place].pop()].pop())
            else:
                walked.append(path.pop())
        apart = np.unique([kind[p] for rest in left.values() for p in rest]).astype(int)
        return walked[::-1], apart

    def _placement(self, order: list[int]) -> Placement:
        """GPU ids for these stages: the lowest of each class that are still free."""
        free = [iter(members.tolist()) for members in self.instance.classes.members]
        rows = self.instance.composition[self.arcs.composition[order]]
        return Placement.of(
            (layers, tuple(next(free[a]) for a, n in enumerate(row) for _ in range(n)))
            for layers, row in zip(self.arcs.layers[order].tolist(), rows.tolist(), strict=True)
        )


def link_kinds(used: np.ndarray, hop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sets of classes with the same links to all others are one link kind.

    Parameters
    ----------
    used : bool array, shape (P, A)
        The classes of each stage.
    hop : float array, shape (A, A)
        Seconds from class to class; infinite where there is no hop.

    Returns
    -------
    kind : int array, shape (P,)
    between : float array, shape (J, J)
        Seconds from a stage of one kind to a stage of another: the slowest pair of their classes.
    """
    support, which = np.unique(used, axis=0, return_inverse=True)
    out = np.array([hop[s].max(axis=0) for s in support]).reshape(len(support), -1)
    back = np.array([hop[:, s].max(axis=1) for s in support]).reshape(len(support), -1)
    _, first, kind = np.unique(
        np.hstack([out, back]), axis=0, return_index=True, return_inverse=True
    )
    between = np.array([[out[g][support[h]].max() for h in first] for g in first])
    return kind.reshape(-1)[which.reshape(-1)], between


def _row(values: np.ndarray) -> sp.csr_array:
    return sp.csr_array(np.asarray(values, dtype=float)[None])
