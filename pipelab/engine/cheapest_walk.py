"""The stage-flow program: a pipeline is a walk of stages from the first layer to the last.

Its nodes are positions between layers, its arcs stages (a recipe with so many layers), and hops
join stages at a position. Where layers differ at the two ends at most, three positions are enough, start,
middle and end, and rows count layers; where all are identical, the middle is enough, with one hop from outside
and one to outside; otherwise every boundary between layers is a position. A hop takes what its slowest pair of
classes takes, so stages that are left in one way share a node, and so do those that are entered in one (`stages`).
With n_p stages of arc p, which hold lo_p to hi_p layers, and y_mgh hops at position m:

    minimise    Σ n_p · cost_p + Σ y_mgh · cost_gh
    GPUs:       Σ n_p · (GPUs of class a in p) + u_a ≤ count_a      for every class a; u: freely mixed ones
    draws:      Σ_a u_ra = Σ n_p · (GPUs freely mixed in p)         over the stages p of recipe r
    arrive:     stages that end at m and are left as g = Σ_h y_mgh
    leave:      Σ_g y_mgh = stages that begin at m and are entered as h
    start, end: one stage begins at the start, one ends at the end
    layers:     Σ n_p · lo_p ≤ M ≤ Σ n_p · hi_p                     (but where boundaries are positions)
    limits:     Σ n_p · weight_p + Σ y_mgh · weight_gh ≤ most       for time, GPUs, stages or money

Time depends on the number of layers, so where it counts lo_p = hi_p; otherwise an arc is a whole run of sizes, and the
program's size does not depend on the number of GPUs or layers. Stages that must lie inside one node each have rows
of their own (`packing`).

Balanced hops may close into circuits apart from the walk. Where an answer has one, the program is solved again with a
row that asks its nodes to be entered from outside, as for subtours of a travelling salesman.

What the objective is does not matter to any of this: time, GPUs, money or dual prices; without one any
pipeline will do.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.solvers import choice
from pipelab.engine.solvers.linear_program import LinearProgram, RowBlock, VariableGroups, incidence
from pipelab.engine.stage_table import least_seconds
from pipelab.engine.stages import OUTSIDE, StageRecipes
from pipelab.engine.tolerances import SOLVER
from pipelab.errors import PipelabError, TooLarge
from pipelab.placement import Placement
from pipelab.spans import Spans

_OBJECTIVE_UNITS = 1_000.0  # in the least possible objective: solvers compare within 1e-6 of one
_MOST_COLUMNS = 2_000_000
_MOST_LAYERS = 5_000  # shortest paths over the layers look at all pairs of them


class Weight(NamedTuple):
    """What a sum counts: something per GPU of each class, per second of stages and hops, and per stage."""

    per_gpu: np.ndarray  # shape (A,)
    per_second: float = 0.0
    per_stage: float = 0.0


class Limit(NamedTuple):
    """A sum that must not exceed a number."""

    weight: Weight
    most: float


class WalkResult(NamedTuple):
    """What a walk's program found.

    Attributes
    ----------
    placement : Placement or None
    bound : float
        No placement has less of the objective: infinite if there is none, minus infinity if
        nothing was proven.
    stopped_by : str or None
        What ended it early.
    nodes, variables, rows : int
        Of branch and bound, all in all; and the size of the last program.
    """

    placement: Placement | None
    bound: float
    stopped_by: str | None = None
    nodes: int = 0
    variables: int = 0
    rows: int = 0


class Circuit(NamedTuple):
    """Nodes of a circuit apart: how its stages are entered, and how they are left."""

    enter: np.ndarray
    leave: np.ndarray


class Arcs(NamedTuple):
    """Stages as arcs: recipe, first and last position, fewest and most layers, seconds; shape (P,) each."""

    recipe: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seconds: np.ndarray


@dataclass(frozen=True, eq=False)
class Walk:
    """The cheapest pipeline of some stages.

    Attributes
    ----------
    stages : StageRecipes
    cost : Weight
        What is to be least.
    limits : tuple of Limit
    circuits : tuple of Circuit
        What must be entered from outside.
    at_least : float
        No pipeline has less of the objective: it is counted in parts of that.
    deadline : Deadline
        For listing the stages and for the solver.
    """

    stages: StageRecipes
    cost: Weight
    limits: tuple[Limit, ...] = ()
    circuits: tuple[Circuit, ...] = ()
    at_least: float = 0.0
    deadline: Deadline = NEVER

    @property
    def _spans(self) -> Spans:
        return self.stages.problem.model.spans

    @property
    def _layers(self) -> int:
        return self.stages.problem.model.layers

    @property
    def _last(self) -> int:
        """The number of the last position."""
        return 2 if self._spans.alike_inside else self._layers

    @property
    def _most_seconds(self) -> float:
        """The limit on time, if there is one."""
        timed = (x.most / x.weight.per_second for x in self.limits if x.weight.per_second)
        return min(timed, default=np.inf)

    @property
    def _timed(self) -> bool:
        return bool(self.cost.per_second or np.isfinite(self._most_seconds))

    def _least_seconds(self, kinds_ending_at: Callable[[int], np.ndarray]) -> np.ndarray:
        """Least seconds to each boundary, as if GPUs were unlimited and every hop took the least time; shape (M+1,)."""
        stages, layers = self.stages, self._layers
        if layers > _MOST_LAYERS:
            raise TooLarge(
                f"{stages.problem.name} has {layers:,} layers; times of traversals are searched up to {_MOST_LAYERS:,}"
            )
        best = stages.seconds.min(axis=0, initial=np.inf)
        return least_seconds(layers, self._shortest_hop, lambda end: best[kinds_ending_at(end)])

    @cached_property
    def _before(self) -> np.ndarray:
        """At least these seconds pass from the start to each boundary between layers."""
        kind, first = self._spans.kind, np.arange(self._layers)
        return self._least_seconds(lambda end: kind[first[:end], first[:end][::-1]])

    @cached_property
    def _after(self) -> np.ndarray:
        """At least these seconds pass from each boundary between layers to the end."""
        kind, first, layers = self._spans.kind, np.arange(self._layers), self._layers
        return self._least_seconds(lambda end: kind[layers - end, first[:end][::-1]])[::-1]

    @property
    def times(self) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of all stages and of all hops; some are infinite."""
        return self.stages.seconds, self.stages.links.seconds

    @property
    def shortest(self) -> float:
        """No traversal takes less, in seconds, whatever GPUs there are; infinite if there is none."""
        return float(self._before[-1])

    @cached_property
    def _shortest_hop(self) -> float:
        return float(self.stages.links.seconds.min(initial=np.inf))

    def _outside(self, first: np.ndarray, layers: np.ndarray) -> np.ndarray:
        """Least seconds of all that comes before and after stages of so many layers from layer `first`."""
        if not np.isfinite(self._most_seconds):
            return np.zeros(len(layers))
        last = first + layers
        with np.errstate(invalid="ignore"):
            hops = np.where(first > 0, self._shortest_hop, 0.0)
            hops = hops + np.where(last < self._layers, self._shortest_hop, 0.0)
        return self._before[first] + self._after[last] + hops

    def _outside_anywhere(self, layers: np.ndarray, ends: int) -> np.ndarray:
        """Return the least seconds before and after an inner stage, over all its positions.

        `ends`: how many layers it leaves at either end of the model, at least.
        """
        if not np.isfinite(self._most_seconds):
            return np.zeros(len(layers))
        firsts = [np.arange(ends, self._layers - ends - n + 1) for n in layers.tolist()]
        return np.array(
            [
                self._outside(f, np.full_like(f, n)).min()
                for f, n in zip(firsts, layers, strict=True)
            ]
        )

    def _roles(self) -> Iterator[tuple[int, np.ndarray | int, np.ndarray, np.ndarray, np.ndarray]]:
        """First position, last one, layers, kind of span and least time around it, of stages that begin together."""
        kind, total, size = self._spans.kind, self._layers, np.arange(1, self._layers + 1)
        if self._spans.uniform:
            yield 1, 1, size, kind[0], self._outside_anywhere(size, 0)
            return
        if not self._spans.alike_inside:
            for first in range(total):
                sizes = size[: total - first]
                yield (
                    first,
                    first + sizes,
                    sizes,
                    kind[first, sizes - 1],
                    self._outside(first + 0 * sizes, sizes),
                )
            return
        part, inner, zero = size[:-1], size[:-2], 0 * size[:-1]
        yield 0, 1, part, kind[0, part - 1], self._outside(zero, part)
        yield 1, 1, inner, kind[min(1, total - 1), inner - 1], self._outside_anywhere(inner, 1)
        yield 1, 2, part, kind[total - part, part - 1], self._outside(total - part, part)
        yield 0, 2, size[-1:], kind[0, total - 1 :], np.zeros(1)

    @cached_property
    def arcs(self) -> Arcs:
        """The stages that can be part of a pipeline within the limit on time.

        Raises
        ------
        Ended, TooLarge
        """
        stages, most, number = self.stages, self._most_seconds * (1 + SOLVER), 0
        parts = [np.zeros((5, 0), dtype=int)]
        times = [np.zeros(0)]
        for begin, end, layers, span, outside in self._roles():
            self.deadline.check()
            fits = np.isfinite(stages.seconds[:, span])
            if self._timed:
                fits = fits & (stages.seconds[:, span] + outside <= most)
            if self._timed or not self._spans.alike_inside:
                r, i = np.nonzero(fits)
                j = i
            else:  # runs of sizes
                turns = np.diff(fits.astype(np.int8), axis=1, prepend=0, append=0)
                (r, i), (_, after) = np.nonzero(turns > 0), np.nonzero(turns < 0)
                j = after - 1
            number += len(r)
            self._refuse(number, "stages")
            ends = np.broadcast_to(end, layers.shape)[i]
            parts.append(np.stack([r, np.full_like(r, begin), ends, layers[i], layers[j]]))
            times.append(stages.seconds[r, span[i]])
        recipe, first, last, low, high = np.concatenate(parts, axis=1)
        return Arcs(
            recipe=recipe, begin=first, end=last, low=low, high=high, seconds=np.concatenate(times)
        )

    def _refuse(self, number: int, what: str) -> None:
        """Raise `TooLarge` where there are more than a solver can hold."""
        if number > _MOST_COLUMNS:
            raise TooLarge(
                f"{self.stages.problem.name} has more than {_MOST_COLUMNS:,} {what} in one "
                "program; a smaller max_gpus_per_stage or same_type_stages=True leaves fewer"
            )

    @cached_property
    def _entered(self) -> np.ndarray:
        """How each arc is entered; shape (P,)."""
        return self.stages.links.enter[self.stages.link_kind[self.arcs.recipe]]

    @cached_property
    def _left(self) -> np.ndarray:
        """How each arc is left; shape (P,)."""
        return self.stages.links.leave[self.stages.link_kind[self.arcs.recipe]]

    @cached_property
    def hops(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Position, how what comes is left and how what goes is entered, of every hop; shape (Y,) each."""
        arcs, parts, number = self.arcs, [np.zeros((3, 0), dtype=int)], 0
        seconds = self.stages.links.seconds
        allowed = np.isfinite(seconds) & (seconds <= self._most_seconds * (1 + SOLVER))
        arrive = _by_position(arcs.end, self._left, self._last)
        leave = _by_position(arcs.begin, self._entered, self._last)
        for m, (come, go) in enumerate(zip(arrive, leave, strict=True)):
            if m in (0, self._last):
                continue
            self.deadline.check()
            between = allowed[np.ix_(come, go)]
            number += int(between.sum())
            self._refuse(number, "hops")
            i, j = np.nonzero(between)
            parts.append(np.stack([np.full_like(i, m), come[i], go[j]]))
            if self._spans.uniform:
                parts.append(np.stack([np.full_like(go, m), np.full_like(go, OUTSIDE), go]))
                parts.append(np.stack([np.full_like(come, m), come, np.full_like(come, OUTSIDE)]))
        return tuple(np.concatenate(parts, axis=1))

    @cached_property
    def columns(self) -> VariableGroups:
        """n: stages of each arc; u: GPUs of each class that are freely mixed; y: hops; b: stages in nodes."""
        return VariableGroups(
            {
                "n": len(self.arcs.recipe),
                "u": sum(len(m.classes) for m in self.stages.mixed),
                "y": len(self.hops[0]),
                "b": sum(packing.columns for packing in self.stages.packings),
            }
        )

    @cached_property
    def _drawn(self) -> np.ndarray:
        """The class of every column u."""
        return np.array([a for m in self.stages.mixed for a in m.classes], dtype=int)

    def _sum(self, weight: Weight) -> np.ndarray:
        """What every column adds to a sum."""
        columns, arcs, (_, come, go) = self.columns, self.arcs, self.hops
        out = np.zeros(columns.total)
        of_stage = self.stages.gpus[arcs.recipe] @ weight.per_gpu + weight.per_stage
        out[columns.slices["n"]] = of_stage + weight.per_second * arcs.seconds
        out[columns.slices["u"]] = weight.per_gpu[self._drawn]
        if weight.per_second:
            inside = (come != OUTSIDE) & (go != OUTSIDE)
            seconds = np.where(inside, self.stages.links.seconds[come, go], 0.0)
            out[columns.slices["y"]] = weight.per_second * seconds
        return out

    @cached_property
    def _unit(self) -> float:
        """What the objective is counted in: the least that a pipeline may have, in 1,000 units."""
        least = self.cost.per_second * min(self.shortest, 1e300) if self.cost.per_second else 0.0
        gpus = self.cost.per_gpu[self.cost.per_gpu > 0]
        least = max(least, float(gpus.min(initial=np.inf)) if len(gpus) else 0.0, self.at_least)
        return least / _OBJECTIVE_UNITS or 1.0

    @property
    def program(self) -> LinearProgram:
        """The least cost, as the greatest of its negative."""
        columns, arcs = self.columns, self.arcs
        most = self.stages.most[arcs.recipe]
        upper = np.full(columns.total, np.inf)
        upper[columns.slices["n"]] = np.where(arcs.begin == arcs.end, most, np.minimum(most, 1))
        integer = np.ones(columns.total, dtype=bool)
        # With whole n, whole u and y are among the cheapest: rows of transport problems. Rows of
        # circuits and limits on time break that for y; and u is off by a millionth, which a limit on
        # money multiplies by a price.
        integer[columns.slices["u"]] = bool(self.limits)
        integer[columns.slices["y"]] = bool(self.circuits) or np.isfinite(self._most_seconds)
        objective = -self._sum(self.cost) / self._unit
        return LinearProgram(
            columns=columns,
            lower=np.zeros(columns.total),
            upper=upper,
            integer=integer,
            objective=objective,
            blocks=self._rows(),
        )

    def _rows(self) -> dict[str, RowBlock]:
        columns, arcs, (_, come, go) = self.columns, self.arcs, self.hops
        recipes = incidence(arcs.recipe, len(self.stages.gpus))
        per_class = sp.csr_array(self.stages.gpus.T.astype(float)) @ recipes
        drawn = incidence(self._drawn, per_class.shape[0])
        count = self.stages.classes.count
        blocks = {"class_capacity": columns.rows({"n": per_class, "u": drawn}, upper=count)}
        blocks |= self._node_rows(recipes) | self._flow_rows()
        if self.stages.mixed:
            blocks["draws"] = self._draws(recipes)
        first, last = arcs.begin == 0, arcs.end == self._last
        blocks["start"] = columns.rows({"n": _row(first), "y": _row(come == OUTSIDE)}, 1, 1)
        blocks["end"] = columns.rows({"n": _row(last), "y": _row(go == OUTSIDE)}, 1, 1)
        if self._spans.alike_inside:
            most = float(self._layers)
            if (arcs.low == arcs.high).all():
                blocks["layers"] = columns.rows({"n": _row(arcs.low)}, most, most)
            else:
                blocks["at_most_all_layers"] = columns.rows({"n": _row(arcs.low)}, upper=most)
                blocks["at_least_all_layers"] = columns.rows({"n": _row(arcs.high)}, lower=most)
        for i, (weight, most) in enumerate(self.limits):
            scale = abs(most) or 1.0
            row = self._sum(weight) / scale
            parts = {group: _row(row[where]) for group, where in columns.slices.items()}
            blocks[f"limit_{i}"] = columns.rows(parts, upper=most / scale)
        for i, inside in enumerate(self.circuits):
            blocks[f"enter_circuit_{i}"] = self._entering(inside)
        return blocks

    def _flow_rows(self) -> dict[str, RowBlock]:
        """At every position, stages are left by hops and entered by hops."""
        columns, arcs, (at, come, go) = self.columns, self.arcs, self.hops
        lefts, enters = self.stages.links.seconds.shape
        ends, begins = np.flatnonzero(arcs.end < self._last), np.flatnonzero(arcs.begin > 0)
        from_stage, to_stage = np.flatnonzero(come != OUTSIDE), np.flatnonzero(go != OUTSIDE)
        stages, hops = len(arcs.recipe), len(at)
        nodes = (self._last - 1) * lefts, (self._last - 1) * enters
        arrive = incidence(((arcs.end - 1) * lefts + self._left)[ends], nodes[0], ends, stages)
        go_on = incidence(((at - 1) * lefts + come)[from_stage], nodes[0], from_stage, hops)
        come_on = incidence(((at - 1) * enters + go)[to_stage], nodes[1], to_stage, hops)
        leave = incidence(
            ((arcs.begin - 1) * enters + self._entered)[begins], nodes[1], begins, stages
        )
        return {
            "arrive": columns.rows({"n": arrive, "y": -go_on}, 0, 0),
            "leave": columns.rows({"y": come_on, "n": -leave}, 0, 0),
        }

    def _draws(self, recipes: sp.csr_array) -> RowBlock:
        """The GPUs that are freely mixed add up to what their stages need."""
        mixed = self.stages.mixed
        needed = sp.diags_array([float(m.gpus) for m in mixed]) @ recipes[[m.recipe for m in mixed]]
        taken = incidence(
            np.repeat(np.arange(len(mixed)), [len(m.classes) for m in mixed]), len(mixed)
        )
        return self.columns.rows({"u": taken, "n": -needed}, 0, 0)

    def _node_rows(self, recipes: sp.csr_array) -> dict[str, RowBlock]:
        """Stages that must lie inside one node each fit into the nodes."""
        blocks, offset = dict[str, RowBlock](), 0
        for i, packing in enumerate(self.stages.packings):
            rows = packing.rows(self.columns, offset, recipes)
            blocks |= {f"nodes_{i}_{j}": block for j, block in enumerate(rows)}
            offset += packing.columns
        return blocks

    def _entering(self, circuit: Circuit) -> RowBlock:
        """No stage is entered at a node of the circuit, unless the walk comes there from outside."""
        arcs, (_, come, go) = self.arcs, self.hops
        most = min(int(self.stages.classes.count.sum()), self._layers)
        inside = np.isin(self._entered, circuit.enter) & (arcs.begin > 0)
        comes = np.isin(self._left, circuit.leave) & (arcs.end < self._last) & ~inside
        hops = np.isin(go, circuit.enter) & ~np.isin(come, circuit.leave)
        stages = inside - most * comes.astype(float)
        return self.columns.rows({"n": _row(stages), "y": _row(-most * hops)}, upper=0)

    def least(self) -> WalkResult:
        """Find the cheapest pipeline, with one circuit after the other forbidden until its stages are one.

        Raises
        ------
        Ended
            The deadline passed before a program was there.
        TooLarge
            There are too many stages to list.
        """
        walk, bound, nodes = self, -np.inf, 0
        while True:
            if not len(walk.arcs.recipe):
                return WalkResult(placement=None, bound=np.inf, nodes=nodes)
            program = walk.program
            run = choice.run_program(program, deadline=self.deadline)
            nodes += run.nodes
            none = WalkResult(
                placement=None,
                bound=np.inf,
                nodes=nodes,
                variables=program.size["variables"],
                rows=program.size["rows"],
            )
            if run.status == "infeasible":
                return none
            if run.bound is not None:
                bound = max(bound, (-run.bound - 2 * SOLVER) * walk._unit)
            order, apart = (None, ()) if run.x is None else walk._order(run.x)
            if order is None or not apart or run.stopped_by is not None:
                placement = None if order is None or apart else walk._placement(order)
                return none._replace(placement=placement, bound=bound, stopped_by=run.stopped_by)
            again = ((circuit, known) for circuit in apart for known in walk.circuits)
            if any(all(map(np.array_equal, *pair)) for pair in again):
                raise PipelabError("a solver returned stages that make no pipeline")
            walk = replace(walk, circuits=(*walk.circuits, *apart))

    def _order(self, x: np.ndarray) -> tuple[list[int], tuple[Circuit, ...]]:
        """Arcs in the order of the walk, over every hop as often as it is used (Hierholzer), and the circuits apart."""
        arcs, (at, come, go) = self.arcs, self.hops
        number = np.rint(x[self.columns.slices["n"]]).astype(int)
        times = np.rint(x[self.columns.slices["y"]]).astype(int)
        used = np.flatnonzero(number)
        start = 0, "outside", OUTSIDE
        leads: dict[tuple[int, str, int], list[tuple[int, tuple[int, str, int]]]] = {}
        # from every node what may be next, and the node reached: long stages first, the last one of all last
        for p in used[np.lexsort((arcs.high[used], -arcs.end[used]))].tolist():
            begin, end = int(arcs.begin[p]), int(arcs.end[p])
            node = (begin, "enter", int(self._entered[p])) if begin else start
            reached = end, "leave", int(self._left[p])
            leads.setdefault(node, []).extend([(p, reached)] * number[p])
        for h in np.flatnonzero(times).tolist():
            node = (int(at[h]), "leave", int(come[h])) if come[h] != OUTSIDE else start
            reached = int(at[h]), "enter", int(go[h])
            leads.setdefault(node, []).extend([(OUTSIDE, reached)] * times[h])
        parts = []
        while begins := [x for x in (start, *leads) if leads.get(x)]:
            path, walked = [(OUTSIDE, begins[0])], list[int]()
            while path:
                following = leads.get(path[-1][1])
                if following:
                    path.append(following.pop())
                else:
                    walked.append(path.pop()[0])
            parts.append([p for p in walked[::-1] if p != OUTSIDE])
        order, *apart = parts
        circuits = (Circuit(np.unique(self._entered[p]), np.unique(self._left[p])) for p in apart)
        return order, tuple(circuits)

    def _placement(self, order: list[int]) -> Placement:
        """Layers and GPU ids for these arcs."""
        sizes = _spread(self.arcs.low[order], self.arcs.high[order], self._layers)
        weights = [self.cost, *(limit.weight for limit in self.limits)]
        prices = (w.per_gpu for w in weights if len(set(w.per_gpu.tolist())) > 1)
        gpus = self.stages.assigned(self.arcs.recipe[order].tolist(), next(prices, None))
        return Placement.of(zip(sizes, gpus, strict=True))


def _by_position(position: np.ndarray, way: np.ndarray, last: int) -> list[np.ndarray]:
    """The different ways at each position, 0 to `last`."""
    base = int(way.max(initial=0)) + 1
    keys = np.unique(position * base + way)
    return np.split(keys % base, np.searchsorted(keys, base * np.arange(1, last + 1)))


def _spread(low: np.ndarray, high: np.ndarray, layers: int) -> list[int]:
    """Give every stage its fewest layers, then one more at a time to the shortest that may have more."""
    size = low.copy()
    for _ in range(layers - int(size.sum())):
        open_to_more = np.flatnonzero(size < high)
        size[open_to_more[size[open_to_more].argmin()]] += 1
    if size.sum() != layers:
        raise PipelabError("a solver returned stages that do not hold all layers")
    return size.tolist()


def _row(values: np.ndarray) -> sp.csr_array:
    return sp.csr_array(np.asarray(values, dtype=float)[None])
