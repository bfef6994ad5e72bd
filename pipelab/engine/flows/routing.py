"""The best ways through stages that are given, whether few or many.

If any number may be in flight it is a maximum flow: a linear program over links, cut into ways afterwards. Where
memory counts, a way's use of it is its tokens/s times the time of the whole way, so ways are the columns. They are
generated: with dual prices π of a stage's time, λ of a link and μ of a place in memory, a way p is of use if

    Σ_v π_v + Σ_vw λ_vw + T_p Σ_v μ_v < 1

Time T_p and places M_p = Σ μ_v are multiplied, so shortest paths are searched for M T + T_p M_p - T M at guesses
of both: every way that is added is one, but not every one is found.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, permutations

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import VariableGroups
from pipelab.fields import given
from pipelab.flows import Held, Way, goes_on, link_between, stage_times
from pipelab.problem import Problem

_MOST_ROUNDS = 40  # of generating ways
_LEAST_SHARE = 1e-9  # of all tokens: what carries less carries nothing
_LEAST_GAIN = 1e-7


@dataclass(frozen=True, eq=False)
class Routing:
    """Stages that share no GPU, and the links between them.

    Attributes
    ----------
    problem : Problem
    held : sequence of Held
        By first layer, then by last.
    full : bool
        True: any number may be in flight.
    """

    problem: Problem
    held: Sequence[Held]
    full: bool

    @cached_property
    def times(self) -> list[tuple[float, float]]:
        """Tokens/s and seconds of each stage."""
        return [stage_times(self.problem, held) for held in self.held]

    @cached_property
    def links(self) -> dict[tuple[int, int], tuple[float, float]]:
        """Tokens/s and seconds of each link that a way can take."""
        stages = [held.stage for held in self.held]
        pairs = permutations(range(len(stages)), 2)
        hops = [(v, w) for v, w in pairs if goes_on(stages[v], stages[w])]
        return {(v, w): link_between(self.problem, stages[v], stages[w]) for v, w in hops}

    @cached_property
    def places(self) -> np.ndarray:
        """Tokens of the microbatches for which each stage has memory."""
        return np.array([held.in_flight for held in self.held]) * self.problem.workload.tokens

    def ways(self, seconds: float, deadline: Deadline) -> list[Way]:
        """Ways of great throughput together, the greatest where any number may be in flight.

        Parameters
        ----------
        seconds : float
            About what a way takes; of no matter in a maximum flow.
        deadline : Deadline
        """
        rates = np.array([rate for rate, _ in self.times])
        if self.full:
            return self.within_limits(self._maximum_flow(rates))
        known: dict[tuple[int, ...], None] = {}
        kept = [self.places / (seconds * times) for times in (1.0, 1.5, 2.25)]
        for most in (*(np.minimum(rates, limit) for limit in kept), rates):
            flow = self._maximum_flow(most)
            known |= dict.fromkeys(way.stages for way in flow)
        if not known:
            return []
        for _ in range(_MOST_ROUNDS):
            flow, duals = self._best_of(list(known))
            new = self._useful(list(known), duals) - known.keys()
            if not new or deadline.reason:
                break
            known |= dict.fromkeys(sorted(new))
        return self.within_limits(flow)

    def seconds(self, way: Sequence[int]) -> float:
        """Of one microbatch on a way."""
        hops = (self.links[hop][1] for hop in pairwise(way))
        return math.fsum([*(self.times[v][1] for v in way), *hops])

    def _maximum_flow(self, most: np.ndarray) -> list[Way]:
        """Ways of a maximum flow through stages with these capacities."""
        number, layers = len(self.held), self.problem.model.layers
        stages = [held.stage.layers for held in self.held]
        arcs = [*self.links]
        arcs += [(-1, v) for v in range(number) if stages[v].start == 0]
        if len(arcs) == len(self.links):  # nobody holds the first layer
            return []
        arcs += [(v, number) for v in range(number) if stages[v].stop == layers]
        ends = np.array(arcs)
        into, out = (np.array(np.arange(number)[:, None] == ends[:, i], float) for i in (1, 0))
        begins = np.array(ends[:, 0] < 0, float)
        scale = most.max()
        carried = np.array([self.links[arc][0] if arc in self.links else math.inf for arc in arcs])
        columns = VariableGroups({"arcs": len(arcs)})
        rows = {"busy": columns.rows({"arcs": into}, upper=most / scale)}
        rows["kept"] = columns.rows({"arcs": into - out}, 0.0, 0.0)
        program = columns.program({"arcs": begins}, rows, upper={"arcs": carried / scale})
        left = dict(zip(arcs, given(run_program(program).x).tolist(), strict=True))
        return [Way(way, share * scale) for way, share in _peeled(left, number)]

    def _best_of(self, ways: list[tuple[int, ...]]) -> tuple[list[Way], np.ndarray]:
        """What each of these ways carries at best, and the dual prices of stages, places and links."""
        through = np.array([[float(v in way) for way in ways] for v in range(len(self.held))])
        across = np.array([[float(hop in pairwise(way)) for way in ways] for hop in self.links])
        across = across.reshape(len(self.links), len(ways))
        seconds = np.array([self.seconds(way) for way in ways])
        rates = np.array([rate for rate, _ in self.times])
        carried = np.array([rate for rate, _ in self.links.values()])
        columns = VariableGroups({"ways": len(ways)})
        scale = rates.max()
        limits = [values[:, None] / scale for values in (rates, self.places, carried)]
        busy, places, links = limits
        rows = {"busy": columns.rows({"ways": through / busy}, upper=1.0)}
        rows["places"] = columns.rows({"ways": through * seconds / places}, upper=1.0)
        rows["links"] = columns.rows({"ways": across / links}, upper=1.0)
        found = run_program(columns.program({"ways": 1.0}, rows))
        flow = [Way(way, x * scale) for way, x in zip(ways, given(found.x).tolist(), strict=True)]
        prices = given(found.row_duals) / np.concatenate(limits)[:, 0] / scale
        return flow, prices

    def _useful(self, ways: list[tuple[int, ...]], prices: np.ndarray) -> set[tuple[int, ...]]:
        """Ways that would improve the flow at these prices."""
        number = len(self.held)
        busy, places, links = np.split(prices, [number, 2 * number])
        guesses = {(round(self.seconds(w), 9), round(sum(places[v] for v in w), 12)) for w in ways}
        price_of, out = dict(zip(self.links, links, strict=True)), set()
        for seconds, kept in guesses:
            stage_cost = busy + seconds * places + kept * np.array([s for _, s in self.times])
            hops = {hop: price_of[hop] + kept * took for hop, (_, took) in self.links.items()}
            way = self._shortest(stage_cost, hops)
            cost = sum(busy[v] for v in way) + self.seconds(way) * sum(places[v] for v in way)
            if cost + sum(price_of[hop] for hop in pairwise(way)) < 1 - _LEAST_GAIN:
                out.add(way)
        return out

    def _shortest(
        self, stage_cost: np.ndarray, hops: Mapping[tuple[int, int], float]
    ) -> tuple[int, ...]:
        """The way of least cost: stages in the order of their last layers form no circle."""
        stages, layers = [held.stage.layers for held in self.held], self.problem.model.layers
        best: dict[int, tuple[float, tuple[int, ...]]] = {
            v: (float(stage_cost[v]), (v,)) for v in range(len(stages)) if stages[v].start == 0
        }
        before: dict[int, list[int]] = {}
        for v, w in self.links:
            before.setdefault(w, []).append(v)
        for w in sorted(range(len(stages)), key=lambda v: stages[v].stop):
            for v in before.get(w, []):
                if v in best:
                    cost = best[v][0] + hops[v, w] + stage_cost[w]
                    if w not in best or cost < best[w][0]:
                        best[w] = cost, (*best[v][1], w)
        return min(best[v] for v in best if stages[v].stop == layers)[1]

    def within_limits(self, flow: list[Way]) -> list[Way]:
        """The flow without what the solver's arithmetic puts above a limit."""
        flow = [way for way in flow if way.rate > 0]
        total = math.fsum(way.rate for way in flow)
        flow = [way for way in flow if way.rate > _LEAST_SHARE * total]
        over = 1.0
        for v, (rate, _) in enumerate(self.times):
            through = [way for way in flow if v in way.stages]
            over = max(over, math.fsum(way.rate for way in through) / rate)
            if not self.full:
                kept = math.fsum(way.rate * self.seconds(way.stages) for way in through)
                over = max(over, kept / self.places[v])
        for hop, (rate, _) in self.links.items():
            carried = math.fsum(way.rate for way in flow if hop in pairwise(way.stages))
            over = max(over, carried / rate)
        return [Way(way.stages, float(way.rate / over)) for way in flow]


def _peeled(left: dict[tuple[int, int], float], end: int) -> list[tuple[tuple[int, ...], float]]:
    """Cut a flow on arcs, from -1 to `end`, into ways: again and again the one along the fullest arcs."""
    out: list[tuple[tuple[int, ...], float]] = []
    after: dict[int, list[tuple[int, int]]] = {}
    for arc in left:
        after.setdefault(arc[0], []).append(arc)
    while True:
        way = [max(after[-1], key=left.__getitem__)]
        while left[way[-1]] > _LEAST_SHARE and way[-1][1] != end:
            way.append(max(after[way[-1][1]], key=left.__getitem__))
        share = min(left[arc] for arc in way)
        if share <= _LEAST_SHARE:
            return out
        out.append((tuple(v for _, v in way[:-1]), share))
        for arc in way:
            left[arc] -= share
