"""What no flow can beat: covering every layer with stages that let t tokens/s pass.

At t tokens/s every layer is on stages whose capacities add up to t: a *pattern*, such as one stage of 8 layers
on an A100, or stages of 3 and of 4 layers on two T4. A stage of k layers is in the patterns of k layers, so each
of these takes a k-th of its GPUs. With z_p layers of pattern p, and the GPUs u_pa that a layer takes of type a::

    Σ z_p = L        Σ_p u_pa z_p ≤ N_a for every type a        z ≥ 0

If there are no such z, no flow has t. Patterns are many; column generation finds those that are needed, as for
cutting stock (P. C. Gilmore and R. E. Gomory, 1961). At dual prices π_a its pricing problem is a knapsack: the
cheapest stages that together let t pass. In every round their price gives a bound (Lagrange).

**Memory** is a matter of mean times. Stage i of a pattern lets a share y_i of all pass. A layer in it takes
θ_i = (τ_i + h) / k_i seconds, with τ_i in the stage and h in a hop, of which a way has one less than stages. So a way
takes R - h or more, if R is the sum of θ over its layers: a stage that is used in part takes longer. The mean of
R over all microbatches is the sum of θ_i y_i over all layers, a linear objective, and its least value a::

    a = min Σ_p z_p Σ_i θ_i y_pi - h

Every way passes every layer. So of each pattern the microbatches of all stages have the mean time a or more, and
those of stage i no more together than its n_i places of w tokens hold (Little's law), nor than the longest way takes::

    Σ_i min(n_i w / t, y_i longest) ≥ a

That leaves fewer patterns, with which the least mean is greater, which leaves fewer again: until no pattern is
left, or nothing changes any more. Only in the first case no flow has t.

**Sums.** Stage by stage, patterns sum up: with n_pi stages of item i in pattern p, x_i = Σ_p z_p n_pi stages of a layer
take GPUs, Y_i = Σ_p z_p y_pi pass them, and M_i = Σ_p z_p min(n_pi n_i w / t, y_pi longest) count against memory. So a
linear program over x, Y and M that keeps every row above in sum bounds the least mean time from below, without
a pattern. It is solved first: where it has no solution no flow has t, and otherwise patterns begin with its mean time::

    Σ Y_i = L    Σ u_ia x_i ≤ N_a    Y_i ≤ most_i x_i    M_i ≤ x_i n_i w / t    M_i ≤ Y_i longest    Σ M_i ≥ L a

**Links.** A way that leaves a site, whose links to others are slow, takes that much longer. Either all layers are held
inside of a site, or each way that uses it crosses to another: its layers then take a share of that hop. So flows
are told apart by the sites that hold all layers: every pattern has a stage of each of these. And where one stage
alone has each layer, the flow is a pipeline, and has no more than the best one. So above that rate two stages or
more share some layer: Σ z_p ≥ 1 over patterns of several stages. On a cluster of several sites this alone can close
the gap.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.flows.capacities import Capacities, StagesByInFlight, by_work
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import RowBlock, VariableGroups
from pipelab.engine.tolerances import LAST_BITS, SOLVER
from pipelab.fields import given

_MOST_NODES = 50  # of one knapsack: to prove one of many equally good answers takes ages
_MOST_ROUNDS = 60  # of finding patterns for one number of tokens/s
_SAME_MEAN_FACTOR = 1.001  # mean times this near count as one
_LEAST_STEP_SHARE = 0.25  # of the way from a mean time to that of the patterns that are known
_MOST_SITES = 3  # that are told apart
_NEAR_FACTOR = 2.0  # of the shortest hop: what takes no longer is inside of a site


class Pattern(NamedTuple):
    """Stages that share a layer: how many there are of each item, and what share of all each lets pass."""

    items: tuple[int, ...]
    times: tuple[int, ...]
    shares: tuple[float, ...]


@dataclass
class Patterns:
    """The patterns that are known where certain sites hold all layers, and what they prove.

    Items are stages that a pattern may have: a composition at a site, with a number of layers.

    Attributes
    ----------
    capacities : Capacities
    alone : float
        No pipeline has more tokens/s.
    tokens : float
        Of a microbatch.
    hop : float or None
        Seconds from stage to stage, at least; None where memory does not count.
    crossing : float array, shape (S,)
        Seconds that the hop from each site to another takes beyond this; 0 for sites that hold all layers.
    whole : tuple of int
        Those sites.
    counts : int array, shape (S, K)
        GPUs of each type at each site.
    """

    capacities: Capacities
    alone: float
    tokens: float
    hop: float | None
    crossing: np.ndarray
    whole: tuple[int, ...]
    counts: np.ndarray
    known: dict[Pattern, None] = field(default_factory=dict)
    _means: dict[float, float] = field(default_factory=dict)  # least mean times by tokens/s

    def __post_init__(self) -> None:
        of, self.layers = self.capacities, self.capacities.most.shape[1]
        hop, usage, values = self.hop or 0.0, [], []
        for gpus, *rows in zip(of.usage, of.most, of.places, of.seconds, strict=True):
            passed, places, seconds = rows
            useful = passed > 0
            if self.hop is None:
                # what lets as much pass with more layers takes less of its GPUs for each
                useful = passed > np.append(np.maximum.accumulate(passed[::-1])[-2::-1], 0.0)
            room = (gpus <= self.counts).all(axis=1)
            for k in np.flatnonzero(useful):
                for site in np.flatnonzero(room & np.isfinite(self.crossing)):
                    at_site = np.zeros(self.counts.shape)
                    at_site[site] = gpus / (k + 1)
                    usage.append(at_site.ravel())
                    time = (seconds[k] + hop) / (k + 1) + self.crossing[site] / self.layers
                    values.append((site, k + 1, passed[k], places[k], time))
        self._usage = np.reshape(usage, (-1, self.counts.size))
        self._site, self._held, self._capacity, places, times = np.reshape(values, (-1, 5)).T
        unit = self.layers * times.max(initial=0.0) or 1.0  # of time: no way takes longer
        self._seconds = np.zeros(len(times)) if self.hop is None else times / unit
        self._hop, self._places = hop / unit, self.tokens * places / unit
        taken = self._usage * self._held[:, None] / np.maximum(self._all, 1.0)
        self._times = np.floor(1 / taken.max(axis=1) + SOLVER)

    @cached_property
    def _all(self) -> np.ndarray:
        """GPUs by site and type."""
        return self.counts.ravel().astype(float)

    @cached_property
    def _longest(self) -> float:
        """No way takes longer by its layers: its stages are on GPUs of their own, and it passes each layer once."""
        stages = VariableGroups({"stages": len(self._held)})
        rows = {"GPUs": stages.rows({"stages": self._usage.T * self._held}, upper=self._all)}
        rows["layers"] = stages.rows({"stages": self._held[None]}, upper=self.layers)
        run = run_program(stages.program({"stages": self._seconds * self._held}, rows))
        return given(run.objective) - self._hop

    def rules_out(self, t: float, sums_only: bool, deadline: Deadline) -> bool:
        """Return whether it is proven that no flow has t tokens/s, by patterns or by their sums alone."""
        # part of a flow has the same mean time
        mean = max((mean for less, mean in self._means.items() if less <= t), default=0.0)
        missing = float(self.layers)  # what a layer without a pattern costs
        fault = missing * SOLVER
        while (least := self._summed(t, mean, missing)) > max(mean * _SAME_MEAN_FACTOR, fault):
            if least > self._longest + fault:
                return True
            self._means[t] = mean = least
            deadline.check()
        if sums_only:
            return False
        known, proven = list(self.known), mean
        for _ in range(_MOST_ROUNDS):
            deadline.check()
            most = self._most_shares(t, mean)
            known = [pattern for pattern in known if self._fits(pattern, t, mean)]
            single = (most >= 1 - LAST_BITS) & (self._places >= t * mean * (1 - SOLVER))
            single &= np.array([set(self.whole) <= {site} for site in self._site], dtype=bool)
            items = np.flatnonzero(single).tolist()
            alone = [Pattern(items=(i,), times=(1,), shares=(1.0,)) for i in items]
            value, price, premium, used = self._master(alone + known, missing, t)
            if value <= fault or (used and all(self._fits(p, t, value - self._hop) for p in used)):
                return False  # these patterns have places for the mean time that they take
            prices = self._usage @ price
            new, cost = self._cheapest(prices, most, t, mean, deadline)
            least = (prices + self._seconds)[single].min(initial=missing - premium)
            least = self.layers * min(least, cost - premium) + premium - price @ self._all
            proven = max(proven, float(least) - self._hop)
            if proven > self._longest + fault:
                return True
            # where it is still far from the value, more patterns tell more than another mean time
            if proven - mean > _LEAST_STEP_SHARE * (value - self._hop - mean) or new in known:
                if proven <= max(mean * _SAME_MEAN_FACTOR, fault):
                    return False
                self._means[t] = mean = proven
            if new is None:
                return False
            self.known[new] = None
            known.append(new)
        return False

    def _summed(self, t: float, mean: float, missing: float) -> float:
        """Bound the mean time by one program, over the sums of each item over the patterns of all layers."""
        columns = dict.fromkeys(("stages", "shares", "kept"), len(self._held)) | {"missing": 1}
        group = VariableGroups(columns)
        blocks = self._rows(group, self._most_shares(t, mean), t, mean, self.layers)
        blocks["GPUs"] = group.rows({"stages": self._usage.T}, upper=self._all)
        run = run_program(group.program({"shares": -self._seconds, "missing": -missing}, blocks))
        return -given(run.objective) - self._hop - missing * SOLVER  # as far as prices may be off

    def _rows(
        self, group: VariableGroups, most: np.ndarray, t: float, mean: float, layers: float
    ) -> dict[str, RowBlock]:
        """What stages let pass and keep of so many layers, with those that are missing."""
        eye, here = sp.eye_array(len(most)), self._site == np.array(self.whole)[:, None]

        def together(columns: str, of: np.ndarray, upper: float = math.inf) -> RowBlock:
            rest = {"missing": np.ones((len(of), 1))} if "missing" in group.sizes else {}
            return group.rows({columns: of.astype(float)} | rest, layers, upper)

        def at_most(columns: str, of: str, times: np.ndarray) -> RowBlock:
            return group.rows({columns: eye, of: -sp.diags_array(times)}, upper=0.0)

        every = np.ones((1, len(most)))
        blocks = {
            "pass": together("shares", every, layers),
            "most": at_most("shares", "stages", most),
        }
        if mean:
            blocks["places"] = together("kept", every)
            blocks["kept"] = at_most("kept", "stages", np.minimum(self._places / t / mean, 1.0))
            longest = np.full(len(most), self._longest / mean)
            blocks["longest"] = at_most("kept", "shares", longest)
        return blocks | ({"whole": together("stages", here)} if self.whole else {})

    def _most_shares(self, t: float, mean: float) -> np.ndarray:
        """The most of all that each item lets pass, as what passes others takes no longer than the longest way."""
        most = np.minimum(self._capacity / t, 1.0)
        if not mean:
            return most
        beside = np.maximum(mean - self._places / t, 0.0) / self._longest
        return np.clip(1 - beside, 0.0, most)

    def _fits(self, pattern: Pattern, t: float, mean: float) -> bool:
        """Whether the stages of a pattern let their shares pass, and have places for the mean time."""
        items, shares = list(pattern.items), np.array(pattern.shares)
        passed = self._most_shares(t, mean)[items] * pattern.times + SOLVER >= shares
        kept = np.minimum(self._places[items] * pattern.times / t, shares * self._longest)
        return bool(passed.all() and kept.sum() >= mean * (1 - SOLVER))

    def _master(
        self, patterns: list[Pattern], missing: float, t: float
    ) -> tuple[float, np.ndarray, float, list[Pattern]]:
        """The least seconds of all layers, the prices of each type and of sharing a layer, and the patterns used."""
        of = [self._usage[list(p.items)].T @ p.times for p in patterns]
        seconds = [self._seconds[list(p.items)] @ p.shares for p in patterns]
        several = np.array([[float(sum(p.times) > 1) for p in patterns]])
        group = VariableGroups({"patterns": len(patterns), "missing": 1})
        usage, one = np.reshape(of, (-1, len(self._all))).T, [[1.0]]
        every = {"patterns": 0 * several + 1, "missing": one}
        blocks = {"GPUs": group.rows({"patterns": usage}, upper=self._all)}
        blocks["shared"] = group.rows({"patterns": several, "missing": one}, lower=t > self.alone)
        blocks["layers"] = group.rows(every, lower=self.layers)
        objective = {"patterns": -np.array(seconds) / missing, "missing": -1.0}
        found = run_program(group.program(objective, blocks))
        price, shared, _ = np.split(given(found.row_duals) * missing, [len(self._all), -1])
        *layers, short = given(found.x).tolist()
        used = [p for p, n in zip(patterns, layers, strict=True) if n > SOLVER and not short]
        return -given(found.objective) * missing, price, float(shared[0]), used

    def _cheapest(
        self, prices: np.ndarray, most: np.ndarray, t: float, mean: float, deadline: Deadline
    ) -> tuple[Pattern | None, float]:
        """Two stages or more that let all pass, at the least price that is soon found, and a bound on the least."""
        size = len(prices)
        group = VariableGroups({"stages": size, "shares": size, "kept": size})
        blocks = self._rows(group, most, t, mean, 1.0)
        blocks["several"] = group.rows({"stages": np.ones((1, size))}, lower=2.0)
        upper = {"stages": self._times, "shares": 1.0, "kept": 1.0 if mean else 0.0}
        objective = {"stages": -prices, "shares": -self._seconds}
        program = group.program(objective, blocks, upper=upper, integer=["stages"])
        settings = {"limits/nodes": _MOST_NODES}
        run = run_program(program, "scip", settings=settings, deadline=deadline.apart())
        deadline.check()
        if run.x is None or run.bound is None:
            return None, math.inf if run.status == "infeasible" else -(run.bound or 0.0)
        number = np.rint(run.x[:size]).astype(int)
        items = np.flatnonzero(number)
        shares = np.minimum(run.x[size : 2 * size], most * number)[items]
        parts = (items, number[items], shares)
        return Pattern(*(tuple(part.tolist()) for part in parts)), -given(run.bound)


@dataclass
class Cases:
    """Flows by the sites that hold all layers.

    Attributes
    ----------
    stages : StagesByInFlight
    alone : float
        No pipeline has more tokens/s.
    """

    stages: StagesByInFlight
    alone: float

    @cached_property
    def _cases(self) -> list[Patterns]:
        stages, instance, site = self.stages, self.stages.instance, self._site_of
        hop, numbers = instance.hop.min(), range(site.max() + 1)
        counts = np.zeros((len(numbers), len(instance.types)), int)
        np.add.at(counts, (site, instance.type_of), instance.classes.count)
        others = np.where(site[:, None] == site, np.inf, np.minimum(instance.hop, instance.hop.T))
        crossing = np.array([others[site == s].min() for s in numbers]) - hop
        tokens, timed = stages.problem.workload.tokens, not (stages.full or stages.more)
        hop, out = float(hop) if timed else None, []
        for whole in chain.from_iterable(combinations(numbers, n) for n in range(len(numbers) + 1)):
            beyond = np.where(np.isin(numbers, whole), 0.0, crossing)
            if np.isfinite(beyond.min()):  # else no way can cross
                capacities = stages.at(stages.least_seconds + beyond.min())
                out.append(Patterns(capacities, self.alone, tokens, hop, beyond, whole, counts))
        return out

    @property
    def _site_of(self) -> np.ndarray:
        """The site of each class, (A,): one if they are too many, a stage may be on two, or memory does not count."""
        stages, instance = self.stages, self.stages.instance
        near = instance.hop <= _NEAR_FACTOR * instance.hop.min()
        number, site = connected_components(sp.csr_array(near & near.T), directed=False)
        alone = (instance.classes.count > 1) & ~np.diagonal(near)
        one = stages.full or stages.more or instance.largest > 1 or alone.any()
        return np.zeros_like(site) if one or number > _MOST_SITES else site

    @property
    def number(self) -> int:
        """Patterns of several stages that were found."""
        return sum(len(case.known) for case in self._cases)

    def greatest(
        self, low: float, high: float, within: float, deadline: Deadline, sums_only: bool = False
    ) -> float:
        """The least tokens/s that are known to be out of reach, to a share; `low` are in reach, `high` are not."""
        high = min(high, max(by_work(case.capacities) for case in self._cases) * (1 + SOLVER))
        low = min(max(low, self.alone), high)
        try:
            while high > low * (1 + within):
                middle = (low + high) / 2
                if all(case.rules_out(middle, sums_only, deadline) for case in self._cases):
                    high = middle
                else:
                    low = middle
        except Ended:
            pass  # what was ruled out by then is
        return high
