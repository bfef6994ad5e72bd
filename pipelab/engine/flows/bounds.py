"""What no flow can beat: covering every layer with stages that let t tokens/s pass.

At t tokens/s every layer is on stages whose capacities add up to t: a *pattern*, such as one stage of 8 layers
on an A100, or stages of 3 and of 4 layers on two T4. A stage of k layers is in the patterns of k layers, so each
of these takes a k-th of its GPUs. With z_p layers of pattern p, and the GPUs u_pa that a layer takes of type a::

    max Σ z_p        Σ_p u_pa z_p ≤ N_a for every type a        z ≥ 0

If that is less than the number of layers, no flow has t. Patterns are many; column generation finds those that
are needed, as for cutting stock (P. C. Gilmore and R. E. Gomory, 1961). At dual prices π_a its pricing problem
is a knapsack: the cheapest stages that together let t pass. Farley's bound holds in every round.

Where memory counts, stage v has places for n_v microbatches of w tokens, and a way with f_p tokens/s and time T_p
takes f_p T_p / w places on each of its stages. Multiply by the layers k_v that a stage holds, and add up over all
stages: those of a way hold L layers or more, so L Σ f_p T_p ≤ w Σ k_v n_v. A way's time is that of its stages and
hops. So patterns say with which f_i their stages i share t, and all together need no more places than there are::

    Σ_p z_p (w Σ n_i - L Σ f_i (τ_i + h) / k_i) ≥ -L t h

with τ_i seconds in a stage, and h in a hop, of which a way has one less than stages. Stages that let nothing pass
may add places: the bound is still one.

One short way would shorten no other, yet T above is that of the fastest. So flows are told apart by how long their
fastest way takes: a ≤ T < b. Capacities are those at a. And a way uses a stage once, so for every θ seconds a layer::

    T + h ≥ θ L - Σ_v max(0, θ k_v - τ_v - h)

over all stages: to be faster than b, enough layers must be held by fast GPUs, which then have memory for few
microbatches. That is one more row for each θ. The case with the greatest bound is split again and again.

Links enter once. If one stage alone has each layer, the flow is a pipeline, and has no more than the best one.
So above that rate two stages or more share some layer: Σ z_p ≥ 1 over patterns of several stages. On a cluster
of several sites this alone can close the gap.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.flows.capacities import Capacities, StagesByInFlight, by_area
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import VariableGroups
from pipelab.engine.tolerances import LAST_BITS, SOLVER
from pipelab.fields import given

_MOST_PLACES = 1e6  # places: as many as any flow needs
_MOST_NODES = 50  # of one knapsack: to prove one of many equally good answers takes ages
_MOST_ROUNDS = 60  # of finding patterns for one number of tokens/s
_LEAST_GAIN_LAYERS = 1e-7  # of a layer: a pattern that gains less is none
_MOST_SPLITS = 12  # of cases
_CASE_RATIO = 1.01  # case: not split
_CASE_GAP = 1e-2  # of the bound of a case


class Pattern(NamedTuple):
    """Stages that share a layer: how many there are of each item, and what share of all each lets pass."""

    items: tuple[int, ...]
    times: tuple[int, ...]
    shares: tuple[float, ...]

    @property
    def several(self) -> bool:
        """Whether two stages or more share the layer."""
        return sum(self.times) > 1


@dataclass
class Patterns:
    """The patterns that are known, and what they prove.

    Attributes
    ----------
    capacities : Capacities
    alone : float
        No pipeline has more tokens/s.
    tokens : float
        Of a microbatch.
    hop : float or None
        Seconds from stage to stage, at least; None where memory does not count.
    after, before : float
        The fastest way takes so many seconds or more, and less than so many.
    """

    capacities: Capacities
    alone: float
    tokens: float
    hop: float | None
    after: float
    before: float
    _known: dict[Pattern, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        of, layers = self.capacities, self.capacities.most.shape[1]
        usage, capacity, places, seconds = [], [], [], []
        rows = zip(of.usage, of.most, of.places, of.seconds, strict=True)
        for own, passed, place, time in rows:
            useful = passed > 0
            if self.hop is None:
                # what lets as much pass with more layers takes less of its GPUs for each
                useful = passed > np.append(np.maximum.accumulate(passed[::-1])[-2::-1], 0.0)
            useful = np.flatnonzero(useful)
            usage += [own / (k + 1) for k in useful]
            capacity += passed[useful].tolist()
            places += (self.tokens * np.minimum(place[useful], _MOST_PLACES)).tolist()
            seconds += (layers * (time[useful] + (self.hop or 0.0)) / (useful + 1)).tolist()
        self._usage = np.reshape(usage, (-1, len(of.count)))
        self._capacity, self._places = np.array(capacity), np.array(places)
        self._seconds = None if self.hop is None else np.array(seconds)
        self._saved, self._to_save = np.zeros((0, len(usage))), np.zeros(0)
        if self._seconds is not None and self.before < math.inf:
            self._fast_enough(layers)

    def _fast_enough(self, layers: int) -> None:
        """Rows for θ: seconds that stages save for each layer, and how many must be saved, both in shares of θ."""
        per_layer = given(self._seconds) / layers
        of_type = np.where(self._usage.T > 0, per_layer, np.inf).min(axis=1)
        theta = np.unique(of_type[np.isfinite(of_type)])[1:, None]
        self._saved = np.maximum(0.0, 1 - per_layer / theta)
        self._to_save = layers - (self.before + given(self.hop)) / theta[:, 0]

    @property
    def number(self) -> int:
        """Patterns of several stages that were found."""
        return len(self._known)

    def greatest(self, low: float, high: float, within: float, deadline: Deadline) -> float:
        """The least tokens/s that are known to be out of reach, to a share; `low` are in reach, `high` are not."""
        high = min(high, by_area(self.capacities) * (1 + SOLVER))
        low = min(max(low, self.alone), high)
        try:
            while high > low * (1 + within):
                middle = (low + high) / 2
                if self.layers(middle, deadline) < self.capacities.most.shape[1] - SOLVER:
                    high = middle
                else:
                    low = middle
        except Ended:
            pass  # what was ruled out by then is
        return high

    def layers(self, t: float, deadline: Deadline) -> float:
        """No more layers than this let t tokens/s pass; or, if that is enough for the model, some number that is."""
        needed = self.capacities.most.shape[1]
        share = np.minimum(self._capacity / t, 1.0)
        alone = np.flatnonzero(self._capacity >= t * (1 - LAST_BITS))
        columns = [Pattern(items=(int(i),), times=(1,), shares=(1.0,)) for i in alone]
        for known in self._known:
            most = share[list(known.items)] * known.times
            if (most >= np.array(known.shares) * (1 - LAST_BITS)).all():
                columns.append(known)
        least = math.inf
        for _ in range(_MOST_ROUNDS):
            deadline.check()
            value, price, premium, place, fast = self._master(columns, t)
            if value >= needed:
                return value
            # of a stage by itself, and of each share of all that passes it
            prices = self._usage @ price - place * self._places - fast @ self._saved
            prices = np.maximum(prices, 0.0)
            times = np.zeros(len(prices)) if self._seconds is None else place * t * self._seconds
            single = (prices + times)[alone].min(initial=math.inf)
            new, cost = _cheapest(prices, times, share, deadline)
            scale = min(single, cost / (1 + premium))
            if scale > 0:
                room = place * needed * t * (self.hop or 0.0) - float(fast @ self._to_save)
                least = min(least, (float(price @ self.capacities.count) + room) / scale - premium)
            if least < needed - SOLVER or new is None:
                return least
            gain = 1 + premium - prices[list(new.items)] @ new.times
            if gain - times[list(new.items)] @ new.shares <= _LEAST_GAIN_LAYERS:
                return least
            columns.append(new)
            self._known[new] = None
        return least

    def _master(
        self, columns: list[Pattern], t: float
    ) -> tuple[float, np.ndarray, float, float, np.ndarray]:
        """Layers that these patterns cover, and the prices of each type, of sharing a layer, of a place, of each θ."""
        count, needed = self.capacities.count, self.capacities.most.shape[1]
        of = [self._usage[list(p.items)].T @ p.times for p in columns]
        usage = np.reshape(of, (-1, len(count))).T
        several = [[float(p.several) for p in columns]]
        idle, thetas = 0 if self._seconds is None else len(self._usage), len(self._to_save)
        sizes = {"patterns": len(columns), "short": 1, "idle": idle, "late": thetas}
        group = VariableGroups(sizes)
        blocks = {
            "GPUs": group.rows(
                {"patterns": usage, "idle": self._usage[:idle].T}, upper=count.astype(float)
            ),
            "shared": group.rows({"patterns": np.array(several), "short": [[1.0]]}, lower=1.0),
        }
        if thetas:
            saved = [self._saved[:, list(p.items)] @ p.times for p in columns]
            parts = {"patterns": np.reshape(saved, (-1, thetas)).T, "idle": self._saved}
            parts["late"] = np.eye(thetas)
            blocks["fast"] = group.rows(parts, lower=self._to_save)
        if self._seconds is not None:
            left = [
                self._places[list(p.items)] @ p.times - t * self._seconds[list(p.items)] @ p.shares
                for p in columns
            ]
            scale = self.tokens
            both = {"patterns": np.array([left]) / scale, "idle": self._places[None] / scale}
            blocks["places"] = group.rows(both, lower=-needed * t * given(self.hop) / scale)
        objective = {"patterns": 1.0, "short": -needed, "late": -needed}
        found = run_program(group.program(objective, blocks))
        if found.x is None:  # these patterns have too few places
            return 0.0, np.zeros(len(count)), 0.0, 0.0, np.zeros(thetas)
        price, shared, fast, kept = np.split(
            given(found.row_duals), np.cumsum([len(count), 1, thetas])
        )
        place = 0.0 if self._seconds is None else float(kept[0]) / self.tokens
        return given(found.objective), price, float(shared[0]), place, fast


@dataclass
class Cases:
    """Flows by the time of their fastest way, with the least tokens/s known to be out of reach of each.

    Attributes
    ----------
    stages : StagesByInFlight
    alone : float
        No pipeline has more tokens/s.
    """

    stages: StagesByInFlight
    alone: float
    number: int = 0  # of patterns of several stages
    _open: list[tuple[float, Patterns]] = field(default_factory=list)

    def greatest(self, low: float, high: float, within: float, deadline: Deadline) -> float:
        """Bound all cases as `Patterns.greatest` does one; at first there is one."""
        if not self._open:
            self._open = [(high, self._case(self.stages.least_seconds, math.inf))]
        self._open = [
            self._bounded(of, low, min(high, b), within, deadline) for b, of in self._open
        ]
        return max(bound for bound, _ in self._open)

    def split(self, low: float, deadline: Deadline) -> float:
        """Split the case with the greatest bound in two, again and again; return the bound that is left."""
        for _ in range(0 if self.stages.full else _MOST_SPLITS):
            bound, widest = max(self._open, key=lambda one: one[0])
            middle = math.sqrt(widest.after * min(widest.before, 4 * widest.after))
            if (
                bound <= low * (1 + SOLVER)
                or middle < widest.after * _CASE_RATIO
                or deadline.reason
            ):
                break
            self._open.remove((bound, widest))
            for case in (self._case(widest.after, middle), self._case(middle, widest.before)):
                self._open.append(self._bounded(case, low, bound, _CASE_GAP, deadline))
        return max(bound for bound, _ in self._open)

    def _case(self, after: float, before: float) -> Patterns:
        stages = self.stages
        hop = None if stages.full else float(stages.instance.hop.min())
        tokens = stages.problem.workload.tokens
        return Patterns(stages.at(after), self.alone, tokens, hop, after, before)

    def _bounded(
        self, case: Patterns, low: float, high: float, within: float, deadline: Deadline
    ) -> tuple[float, Patterns]:
        bound = case.greatest(low, high, within, deadline)
        self.number += case.number
        return bound, case


def _cheapest(
    prices: np.ndarray, times: np.ndarray, share: np.ndarray, deadline: Deadline
) -> tuple[Pattern | None, float]:
    """Two stages or more that together let all pass, at the least price that is soon found; a bound on the least."""
    size = len(prices)
    group, eye = VariableGroups({"stages": size, "shares": size}), sp.eye_array(size)
    blocks = {
        "pass": group.rows({"shares": np.ones((1, size))}, lower=1.0),
        "most": group.rows({"shares": eye, "stages": -sp.diags_array(share)}, upper=0.0),
        "several": group.rows({"stages": np.ones((1, size))}, lower=2.0),
    }
    most = {"stages": np.maximum(2.0, np.ceil(1 / share)), "shares": 1.0}
    objective = {"stages": -prices, "shares": -times}
    program = group.program(objective, blocks, upper=most, integer=["stages"])
    settings = {"limits/nodes": _MOST_NODES}
    run = run_program(program, "scip", settings=settings, deadline=deadline.apart())
    deadline.check()
    if run.x is None or run.bound is None:
        return None, 0.0 if run.bound is None else -run.bound
    number = np.rint(run.x[:size]).astype(int)
    items = np.flatnonzero(number)
    shares = np.minimum(run.x[size:][items], share[items] * number[items])
    parts = (items, number[items], shares)
    return Pattern(*(tuple(part.tolist()) for part in parts)), -given(run.bound)
