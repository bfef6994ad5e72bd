"""What no flow can beat: covering every layer with stages that let t tokens/s pass.

At t tokens/s every layer is on stages whose capacities add up to t: a *pattern*, such as one stage of 8 layers
on an A100, or stages of 3 and of 4 layers on two T4. A stage of k layers is in the patterns of k layers, so each
of these takes a k-th of its GPUs. With z_p layers of pattern p, and the GPUs u_pa that a layer takes of type a::

    max Σ z_p        Σ_p u_pa z_p ≤ N_a for every type a        z ≥ 0

If that is less than the number of layers, no flow has t. Patterns are many; column generation finds those that
are needed, as for cutting stock (P. C. Gilmore and R. E. Gomory, 1961). At dual prices π_a its pricing problem
is a knapsack: the cheapest stages that together let t pass. Farley's bound holds in every round.

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

_NO_GAIN = 1e-7  # of a layer: a pattern that gains less is none


class Pattern(NamedTuple):
    """Stages that share a layer: how many there are of each item."""

    items: tuple[int, ...]
    times: tuple[int, ...]

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
    """

    capacities: Capacities
    alone: float
    _known: dict[Pattern, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        of = self.capacities
        rows = [(own, of.most[i]) for i, own in enumerate(of.usage)]
        for sort, tables in enumerate(of.inside):
            unit = (np.arange(len(of.count)) == of.type_of[sort]).astype(int)
            rows += [(size * unit, table) for size, table in enumerate(tables, start=1)]
        usage, capacity = [], []
        for own, table in rows:
            # what lets as much pass with more layers takes less of its GPUs for each
            useful = table > np.append(np.maximum.accumulate(table[::-1])[-2::-1], 0.0)
            usage += [own / (k + 1) for k in np.flatnonzero(useful)]
            capacity += table[useful].tolist()
        self._usage = np.reshape(usage, (-1, len(of.count)))
        self._capacity = np.array(capacity)

    @property
    def number(self) -> int:
        """Patterns of several stages that were found."""
        return len(self._known)

    def greatest(self, low: float, deadline: Deadline) -> float:
        """The least tokens/s that are known to be out of reach, but for `SOLVER`; `low` are in reach."""
        high = by_area(self.capacities) * (1 + SOLVER)
        low = min(max(low, self.alone), high)
        try:
            while high > low * (1 + SOLVER / 4):
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
        columns = [Pattern((int(i),), (1,)) for i in alone]
        for pattern in self._known:
            if share[list(pattern.items)] @ pattern.times >= 1 and pattern.several:
                columns.append(pattern)
        least = math.inf
        while True:
            deadline.check()
            value, price, premium = self._master(columns)
            if value >= needed:
                return value
            prices = self._usage @ price
            single = prices[alone].min(initial=math.inf)
            pattern, cost = _cheapest(prices, share, deadline)
            scale = min(single, cost / (1 + premium))
            if scale > 0:
                least = min(least, float(price @ self.capacities.count) / scale - premium)
            if least < needed - SOLVER or cost >= 1 + premium - _NO_GAIN:
                return least
            columns.append(pattern)
            self._known[pattern] = None

    def _master(self, columns: list[Pattern]) -> tuple[float, np.ndarray, float]:
        """Layers that these patterns cover, the price of each type, and what sharing a layer costs."""
        count = self.capacities.count
        of = [self._usage[list(p.items)].T @ p.times for p in columns]
        usage = np.reshape(of, (-1, len(count))).T
        several = [[float(p.several) for p in columns]]
        group = Columns({"patterns": len(columns), "short": 1})
        blocks = {
            "GPUs": group.rows({"patterns": usage}, upper=count.astype(float)),
            "shared": group.rows({"patterns": np.array(several), "short": [[1.0]]}, lower=1.0),
        }
        size = group.total
        objective = np.append(np.ones(len(columns)), -float(self.capacities.most.shape[1]))
        whole = np.zeros(size, dtype=bool)
        program = LinearProgram(
            group, np.zeros(size), np.full(size, np.inf), whole, objective, blocks
        )
        found = run_program(program)
        duals = given(found.row_duals)
        return given(found.objective), duals[:-1], float(duals[-1])


def _cheapest(prices: np.ndarray, share: np.ndarray, deadline: Deadline) -> tuple[Pattern, float]:
    """Two stages or more that together let all pass, at the least price; and a bound on that price."""
    group, size = Columns({"stages": len(prices)}), len(prices)
    blocks = {
        "pass": group.rows({"stages": sp.csr_array(share[None])}, lower=1.0),
        "several": group.rows({"stages": np.ones((1, size))}, lower=2.0),
    }
    most = np.maximum(2.0, np.ceil(1 / share))
    whole = np.ones(size, dtype=bool)
    program = LinearProgram(group, np.zeros(size), most, whole, -prices, blocks)
    run = run_program(program, "scip", deadline=deadline)
    if run.x is None:
        deadline.check()
    times = np.rint(given(run.x)).astype(int)
    items = np.flatnonzero(times)
    pattern = Pattern(tuple(items.tolist()), tuple(times[items].tolist()))
    return pattern, -given(run.bound)
