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
from pipelab.engine.flows.capacities import Capacities, by_area
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import Columns, LinearProgram
from pipelab.engine.tolerances import LAST_BITS, SOLVER
from pipelab.fields import given

_MANY = 1e6  # places: as many as any flow needs
_NODES = 50  # of one knapsack: where many stages are equally good, the proof of the best takes ages
_ROUNDS = 60  # of finding patterns for one number of tokens/s
_NO_GAIN = 1e-7  # of a layer: a pattern that gains less is none


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
    """

    capacities: Capacities
    alone: float
    tokens: float
    hop: float | None
    _known: dict[Pattern, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        of, layers = self.capacities, self.capacities.most.shape[1]
        rows = [
            (own, *each)
            for own, *each in zip(of.usage, of.most, of.places, of.seconds, strict=True)
        ]
        tables = zip(of.inside, of.places_inside, of.seconds_inside, strict=True)
        for sort, tables_of in enumerate(tables):
            unit = (np.arange(len(of.count)) == of.type_of[sort]).astype(int)
            sizes = enumerate(zip(*tables_of, strict=True), start=1)
            rows += [(size * unit, *each) for size, each in sizes]
        usage, capacity, places, seconds = [], [], [], []
        for own, passed, place, time in rows:
            # what lets as much pass with more layers takes less of its GPUs for each
            useful = np.flatnonzero(
                passed > np.append(np.maximum.accumulate(passed[::-1])[-2::-1], 0.0)
            )
            usage += [own / (k + 1) for k in useful]
            capacity += passed[useful].tolist()
            places += (self.tokens * np.minimum(place[useful], _MANY)).tolist()
            seconds += (layers * (time[useful] + (self.hop or 0.0)) / (useful + 1)).tolist()
        self._usage = np.reshape(usage, (-1, len(of.count)))
        self._capacity, self._places = np.array(capacity), np.array(places)
        self._seconds = None if self.hop is None else np.array(seconds)

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
        columns = [Pattern((int(i),), (1,), (1.0,)) for i in alone]
        for known in self._known:
            most = share[list(known.items)] * known.times
            if (most >= np.array(known.shares) * (1 - LAST_BITS)).all():
                columns.append(known)
        least = math.inf
        for _ in range(_ROUNDS):
            deadline.check()
            value, price, premium, place = self._master(columns, t)
            if value >= needed:
                return value
            # of a stage by itself, and of each share of all that passes it
            prices = np.maximum(self._usage @ price - place * self._places, 0.0)
            times = np.zeros(len(prices)) if self._seconds is None else place * t * self._seconds
            single = (prices + times)[alone].min(initial=math.inf)
            new, cost = _cheapest(prices, times, share, deadline)
            scale = min(single, cost / (1 + premium))
            if scale > 0:
                room = place * needed * t * (self.hop or 0.0)
                least = min(least, (float(price @ self.capacities.count) + room) / scale - premium)
            if least < needed - SOLVER or new is None:
                return least
            gain = 1 + premium - prices[list(new.items)] @ new.times
            if gain - times[list(new.items)] @ new.shares <= _NO_GAIN:
                return least
            columns.append(new)
            self._known[new] = None
        return least

    def _master(self, columns: list[Pattern], t: float) -> tuple[float, np.ndarray, float, float]:
        """Layers that these patterns cover, and the prices of each type, of sharing a layer, and of a place."""
        count, needed = self.capacities.count, self.capacities.most.shape[1]
        of = [self._usage[list(p.items)].T @ p.times for p in columns]
        usage = np.reshape(of, (-1, len(count))).T
        several = [[float(p.several) for p in columns]]
        idle = 0 if self._seconds is None else len(self._usage)
        group = Columns({"patterns": len(columns), "short": 1, "idle": idle})
        blocks = {
            "GPUs": group.rows(
                {"patterns": usage, "idle": self._usage[:idle].T}, upper=count.astype(float)
            ),
            "shared": group.rows({"patterns": np.array(several), "short": [[1.0]]}, lower=1.0),
        }
        if self._seconds is not None:
            left = [
                self._places[list(p.items)] @ p.times - t * self._seconds[list(p.items)] @ p.shares
                for p in columns
            ]
            scale = self.tokens
            both = {"patterns": np.array([left]) / scale, "idle": self._places[None] / scale}
            blocks["places"] = group.rows(both, lower=-needed * t * given(self.hop) / scale)
        size = group.total
        objective = np.zeros(size)
        objective[group.slices["patterns"]], objective[group.slices["short"]] = 1.0, -float(needed)
        whole = np.zeros(size, dtype=bool)
        upper = np.full(size, np.inf)
        program = LinearProgram(group, np.zeros(size), upper, whole, objective, blocks)
        found = run_program(program)
        if found.x is None:  # these patterns have too few places
            return 0.0, np.zeros(len(count)), 0.0, 0.0
        duals = given(found.row_duals)
        place = 0.0 if self._seconds is None else float(duals[-1]) / self.tokens
        return given(found.objective), duals[: len(count)], float(duals[len(count)]), place


def _cheapest(
    prices: np.ndarray, times: np.ndarray, share: np.ndarray, deadline: Deadline
) -> tuple[Pattern | None, float]:
    """Two stages or more that together let all pass, at the least price that is soon found; a bound on the least."""
    size = len(prices)
    group, eye = Columns({"stages": size, "shares": size}), sp.eye_array(size)
    blocks = {
        "pass": group.rows({"shares": np.ones((1, size))}, lower=1.0),
        "most": group.rows({"shares": eye, "stages": -sp.diags_array(share)}, upper=0.0),
        "several": group.rows({"stages": np.ones((1, size))}, lower=2.0),
    }
    most = np.append(np.maximum(2.0, np.ceil(1 / share)), np.ones(size))
    whole = np.arange(2 * size) < size
    objective = -np.append(prices, times)
    program = LinearProgram(group, np.zeros(2 * size), most, whole, objective, blocks)
    run = run_program(program, "scip", settings={"limits/nodes": _NODES}, deadline=deadline)
    deadline.check()
    if run.x is None or run.bound is None:
        return None, 0.0 if run.bound is None else -run.bound
    number = np.rint(run.x[:size]).astype(int)
    items = np.flatnonzero(number)
    shares = np.minimum(run.x[size:][items], share[items] * number[items])
    return Pattern(*(tuple(of.tolist()) for of in (items, number[items], shares))), -given(
        run.bound
    )
