"""Column generation: how `deploy` finds deployments and proves a bound on all of them.

**The master program** chooses how many pipelines there are of each *column*, a pipeline that is known. Column c has
rate r_c and uses n_ca GPUs of class a; of these there are N_a; x_c pipelines of it are built:

    most throughput    max Σ r_c x_c                  Σ n_ca x_c ≤ N_a
    least price        min Σ (q · n_c) x_c            Σ n_ca x_c ≤ N_a,  Σ r_c x_c ≥ load

**What is priced.** The linear relaxation of the master program has dual prices u of GPUs. The pricing problem asks
which pipelines yield more than their GPUs cost at these prices: for every rate t that a pipeline can have, the
cheapest pipeline of that rate, a shortest path over layers (`pricing`). Such pipelines become columns, and the
relaxation is solved again (`Generation.generate`).

**Where the bound comes from.** Every round proves one. Let prices p_a per GPU (in tokens/s) be such that no pipeline
has a rate above the price of its GPUs, r ≤ p · n. Then no deployment has more than p · N tokens/s, as its pipelines
together use at most N GPUs. The dual prices become such prices when multiplied by the greatest ratio of a rate to a
price,

    ρ = max over rates t of t / (least price of a pipeline of t at prices u),     p = ρ u

(Farley's bound; `Generation._update_bound`). The pricing problem leaves out how many GPUs there are for one pipeline,
so the bound holds all the more; `Generation.generate_exactly` counts them. Where a load is to be served at the least
price, the rent q is added to the dual prices: a token/s then costs at least 1 / ρ, and what was added is taken off
again, so no deployment costs less than load / ρ - u · N.

**Whole numbers.** A deployment has whole pipelines: the relaxation is rounded down and filled up after some rounds,
and the whole program is solved over the columns for a few seconds (`Generation.solve_whole_for`). If a gap remains,
let slack be the distance from the bound to the best deployment so far. A better deployment has only pipelines with
r ≥ p · n - slack, since one pipeline that is further below the price of its GPUs leaves the deployment below the best.
These pipelines are listed (`listing`), and the whole program over them is the proof (`Generation.close_gap`).

**When it stops.** The best is proven where the bound meets it, where the program over a complete list is solved, or
where pipelines that are full whatever their number in flight yield no more (`Generation.proven`). The search also stops
at the gap that was asked for, at the deadline, or where a list is too long; the bound holds then, too.

**Requests** may be served by *pools*, one for each phase, of which that of fewest requests/s counts: with t_k
tokens of phase k in a request

    most requests/s    max v     Σ_c in k r_c x_c ≥ t_k v  for every pool k,   Σ n_ca x_c ≤ N_a

and with a load v is given. Each pool has its greatest ratio ρ_k of a rate to a price, so v requests/s need GPUs
of the price v Σ_k t_k / ρ_k at least. That gives the bound as above, with Σ_k t_k / ρ_k in place of 1 / ρ; the rate of
a pipeline in pool k counts ρ_k times the price of its GPUs at most.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.deployments.listing import MOST_LABELS, Listing
from pipelab.engine.deployments.mix_tables import MixTables, smallest
from pipelab.engine.deployments.offers import ALL_NUMBERS, halves
from pipelab.engine.deployments.paths import StageOf
from pipelab.engine.deployments.pricing import LeastPrices, Offer
from pipelab.engine.instance import best_shares
from pipelab.engine.prices import row_limit, total
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import LinearProgram, VariableGroups
from pipelab.engine.solvers.solver_run import Progress, SolverRun
from pipelab.engine.tolerances import ATTAINED, ONE_ANSWER, SOLVER
from pipelab.errors import TooLarge
from pipelab.fields import given

_MOST_ROUNDS = 300
_MOST_COLUMNS_RELAXED = 2_000  # in a linear program that takes a moment
_COLUMNS_PER_POOL = 24  # new ones in a round
_LEAST_PRICE_SHARE = 1e-12  # of the highest price: a price of 0 would make a ratio infinite
_CONVERGED_SHARE = 1e-7  # between the bound and the relaxation
_SHARE_LEFT_TO_LISTING = 1e-6  # open: one list over all numbers in flight settles that much
_MORE_COLUMNS_FACTOR = 1.2  # from which a list that is not finished may have a better deployment
_ROUNDING_SECONDS = 5.0
_EXACT_SECONDS = 5.0  # of pricing by the stage-flow program
_FIRST_HALVING_ROUND = 3  # the prices of earlier rounds say little
_FIRST_SLACK_SHARE = 0.003  # of the bound: the first list takes the gap for this small
_SLACK_FACTOR = 3.0  # from one complete list to the next
_FIRST_LABELS = 150  # kept at each boundary in a first list
_LABELS_FACTOR = 5  # from one list to the next
# A list is soon complete if its steps grow by less than this share of what its labels do.
_COMPLETING_GROWTH = 0.6
_MOST_LISTING_STEPS = 600_000_000  # some twenty seconds
_SMALL_OPEN_SHARE = 0.05
_FEW_MIXES = 5_000
_PRICE_MARGIN_SHARE = 1e-9  # of the price of all GPUs: rounding in sums of prices
_UNITS_OF_LOWEST_PRICE = 1_000  # solvers compare within 1e-6 of a unit


class PipelineColumn(NamedTuple):
    """A pipeline as the master program sees it.

    Attributes
    ----------
    rate : float
        What it attains, in tokens/s; without stages, no pipeline of its GPUs attains more.
    gpus : tuple of int
        Numbers of GPUs of each class.
    offer : Offer
        The workload that it is for.
    stages : tuple of (int, tuple of int)
        Layers and GPUs by class of each; empty for a path that counts for the bound only, as it has more GPUs of a
        class than there are, and where `at` says which they are.
    at : int
        Number of the rate in the offer's `MixTables` at which such a pipeline was found; -1 if none.
    """

    rate: float
    gpus: tuple[int, ...]
    offer: Offer
    stages: tuple[StageOf, ...]
    at: int = -1

    @property
    def exists(self) -> bool:
        """Whether it is a pipeline on the GPUs there are."""
        return bool(self.stages) or self.at >= 0


@dataclass(frozen=True, eq=False)
class DeploymentGoal:
    """What a deployment is to be best at, and what it may use.

    Attributes
    ----------
    counts : int array, shape (A,)
        GPUs of each class.
    load : float
        Tokens/s or requests/s to be served at the least price; 0: as many as possible, whatever the price.
    price : float array, shape (A,)
        Dollars per hour of a GPU of each class; read with a load or a budget only.
    budget : float
        The most that all GPUs together may cost, in dollars per hour.
    most_of : mapping of float to int
        The most GPUs of each price, where that is limited.
    pools : mapping of str to float
        Of each pool (`Offer.pool`), how many of its tokens make one of what is served: 1, or those of a request.
    """

    counts: np.ndarray
    load: float
    price: np.ndarray
    budget: float = np.inf
    most_of: Mapping[float, int] = field(default_factory=dict)
    pools: Mapping[str, float] = field(default_factory=lambda: {"": 1.0})

    def value(self, columns: Sequence[PipelineColumn]) -> float:
        """Return what these pipelines are compared by: tokens/s or requests/s, or with a load dollars per hour."""
        if not self.load:
            return min(self.serves(columns).values())
        return total(self.paid(columns))

    def paid(self, columns: Sequence[PipelineColumn]) -> Counter[float]:
        """Count the GPUs of each price that these pipelines use."""
        numbers = Counter[float]()
        for column in columns:
            for price, number in zip(self.price.tolist(), column.gpus, strict=True):
                numbers[price] += number
        return +numbers

    @property
    def price_unit(self) -> float:
        """The dollars per hour in which the program counts prices."""
        return float(self.price[self.price > 0].min()) / _UNITS_OF_LOWEST_PRICE

    def serves(self, columns: Sequence[PipelineColumn]) -> dict[str, float]:
        """Return what the pipelines of each pool serve, in tokens/s or requests/s."""
        rates = dict.fromkeys(self.pools, 0.0)
        for column in columns:
            rates[column.offer.pool] += column.rate
        return {pool: rate / self.pools[pool] for pool, rate in rates.items()}

    def served(self, columns: Sequence[PipelineColumn]) -> bool:
        """Return whether these pipelines serve the load."""
        return min(self.serves(columns).values()) >= self.load * (1 - 1e-12)


class RelaxedMaster(NamedTuple):
    """The optimum of the linear relaxation and its dual prices.

    Attributes
    ----------
    value : float
        Tokens/s, or dollars per hour.
    number : float array, shape (C,)
        Pipelines of each column.
    capacity : float array, shape (A,)
        Dual price of a GPU of each class: what one more would bring, at least 0.
    per_rate : dict of str to float
        Dual price of one token/s of a column by its pool: what it adds to the value, or the dollars per hour that a
        token/s of load costs.
    """

    value: float
    number: np.ndarray
    capacity: np.ndarray
    per_rate: dict[str, float]


def solve_relaxation(
    goal: DeploymentGoal, columns: Sequence[PipelineColumn]
) -> RelaxedMaster | None:
    """Solve the linear relaxation over some columns; None where a pool has none, or they do not serve the load."""
    if {column.offer.pool for column in columns} != set(goal.pools):
        return None
    unit = _unit(goal, columns)
    program = _program(goal, columns)
    # without upper bounds, which capacities imply: they would share the dual prices
    run = run_program(replace(program.relaxed(), upper=np.full(program.columns.total, np.inf)))
    if run.x is None:
        return None
    duals, value = given(run.row_duals), given(run.objective)
    classes = len(goal.counts)
    capacity, x = duals[:classes], run.x[: len(columns)]
    scale = goal.price_unit if goal.load else unit
    of_load = np.ones(1)  # where the rate itself is what is greatest
    if goal.load or len(goal.pools) > 1:
        of_load = duals[classes : classes + len(goal.pools)] * scale / unit
    per_rate = {
        pool: dual / tokens
        for (pool, tokens), dual in zip(goal.pools.items(), of_load.tolist(), strict=True)
    }
    return RelaxedMaster(
        value=abs(value) * scale, number=x, capacity=capacity * scale, per_rate=per_rate
    )


def stages_as_columns(offers: Sequence[Offer]) -> list[PipelineColumn]:
    """Make a column of every composition of a stage: that part of a pipeline which it may be.

    The master program over these has the **work bound**. A pipeline of rate r whose stages hold l₁ + l₂ + … = M layers
    is made of the parts l₁/M, l₂/M, … of it, and each of its stages works on as many layers at r tokens/s at least. So
    with R_c for the most layers times tokens/s of a stage of composition c, the parts R_c / M of its stages add up to r
    or more, on the same GPUs: what any deployment yields, the program over stages yields.
    Where mixed stages are left out of a table, GPUs of their types of the same number are no slower, and
    what a mixed stage costs is a mean of what these cost.
    """
    return [
        PipelineColumn(rate=work, gpus=tuple(gpus), offer=offer, stages=())
        for offer in offers
        for work, gpus in zip(offer.work.tolist(), offer.table.composition.tolist(), strict=True)
        if work > 0
    ]


def solve_whole_program(
    goal: DeploymentGoal, columns: Sequence[PipelineColumn], deadline: Deadline
) -> SolverRun:
    """Solve the whole program over some columns; its x begins with the number of each."""
    return run_program(_program(goal, columns), deadline=deadline)


def _unit(goal: DeploymentGoal, columns: Sequence[PipelineColumn]) -> float:
    """Return the rate that rates are counted in, so that a solver's tolerance is a share of it."""
    return goal.load or max(c.rate / goal.pools[c.offer.pool] for c in columns)


def _program(goal: DeploymentGoal, columns: Sequence[PipelineColumn]) -> LinearProgram:
    """Write the master program over some columns, in whole numbers."""
    number, unit = len(columns), _unit(goal, columns)
    used = np.array([c.gpus for c in columns], dtype=float).T
    rate = np.array([c.rate / goal.pools[c.offer.pool] for c in columns]) / unit
    least = len(goal.pools) > 1 and not goal.load  # `v`: of the pool that serves least
    names = VariableGroups({"x": number, "v": int(least)})
    blocks = {"class_capacity": names.rows({"x": sp.csr_array(used)}, upper=goal.counts)}
    if goal.load or least:
        in_pool = np.array([[c.offer.pool == pool for c in columns] for pool in goal.pools])
        terms = {"x": sp.csr_array(in_pool * rate)}
        if least:
            terms["v"] = sp.csr_array(-np.ones((len(in_pool), 1)))
        blocks["load"] = names.rows(terms, lower=0.0 if least else 1.0)
    if goal.budget < np.inf:
        limit, dearest = row_limit(goal.price.tolist(), goal.budget), goal.price.max()
        cost = goal.price @ used / max(limit, dearest)
        most = limit / max(limit, dearest)
        blocks["budget"] = names.rows({"x": sp.csr_array(cost[None])}, upper=most)
    for i, (price, number_of) in enumerate(goal.most_of.items()):
        priced_so = 1.0 * (goal.price == price) @ used
        blocks[f"most_of_{i}"] = names.rows({"x": sp.csr_array(priced_so[None])}, upper=number_of)
    most = np.where(used > 0, goal.counts[:, None] // np.maximum(used, 1), np.inf).min(axis=0)
    objective = {"x": -(goal.price @ used) / goal.price_unit if goal.load else rate}
    if least:
        objective = {"v": 1.0}
    return names.program(objective, blocks, upper={"x": most}, integer=["x"])


def are_few_mixes(counts: Iterable[int]) -> bool:
    """Return whether all ways to take some of these GPUs can be looked at."""
    return math.prod(n + 1 for n in counts) <= _FEW_MIXES


def as_often_as_chosen(
    columns: Sequence[PipelineColumn], number: np.ndarray
) -> list[PipelineColumn]:
    """Repeat each column as often as the program chooses it."""
    times = np.rint(number[: len(columns)]).astype(int).tolist()
    return [column for column, n in zip(columns, times, strict=True) for _ in range(n)]


def round_down_and_fill(
    goal: DeploymentGoal, columns: Sequence[PipelineColumn], number: np.ndarray
) -> list[PipelineColumn]:
    """Round the relaxation's numbers down, and add the fastest pipeline that fits until none does.

    It is added to the pool that serves least. With a load, pipelines that it does not need are dropped again, the
    dearest first.
    """
    chosen = as_often_as_chosen(columns, np.floor(number + 1e-9))
    used = np.array([c.gpus for c in columns], dtype=int)
    rate = np.array([c.rate for c in columns])
    pool = np.array([c.offer.pool for c in columns])
    left = goal.counts - sum((np.array(c.gpus) for c in chosen), np.zeros_like(goal.counts))
    while True:
        served = goal.serves(chosen)
        short = min(served, key=served.__getitem__)
        fits = np.flatnonzero((used <= left).all(axis=1) & (pool == short))
        if not len(fits) or (goal.load and goal.served(chosen)):
            break
        best = fits[rate[fits].argmax()]
        chosen.append(columns[best])
        left = left - used[best]
    if goal.load:
        for column in sorted(chosen, key=lambda c: goal.value([c]), reverse=True):
            rest = list(chosen)
            rest.remove(column)
            if goal.served(rest):
                chosen = rest
    return chosen


class Prices(NamedTuple):
    """Prices of GPUs that the rate of no pipeline exceeds, and the bound that follows.

    Attributes
    ----------
    cost : float array, shape (A,)
        Price of a GPU of each class.
    ratio : dict of str to float
        By pool, the greatest ratio of a pipeline's tokens/s to the cost of its GPUs.
    bound : float
        No deployment has more tokens/s or requests/s, or costs fewer dollars per hour.
    unit : float
        What a unit of `cost` adds to the bound.
    """

    cost: np.ndarray
    ratio: dict[str, float]
    bound: float
    unit: float

    def per_gpu(self, pool: str) -> np.ndarray:
        """Return the tokens/s that a GPU of each class must yield in a pool; shape (A,)."""
        return self.cost * self.ratio[pool]

    def profit(self, column: PipelineColumn) -> float:
        """Return how much more a pipeline yields than its GPUs cost, in units of the bound; at most 0."""
        ratio = self.ratio[column.offer.pool]
        return float(column.rate - ratio * (self.cost @ column.gpus)) / ratio * self.unit

    def as_rate(self, pool: str, value: float) -> float:
        """Convert a distance from the bound to tokens/s of a pipeline of a pool."""
        return value * self.ratio[pool] / self.unit


@dataclass
class Generation:
    """A column generation for one goal, with the best deployment and the best bound so far.

    Attributes
    ----------
    offers : list of Offer
        Workloads that pipelines can have, all over the same classes of GPUs. An offer whose numbers in flight were
        halved is replaced by its halves.
    goal : DeploymentGoal
    gap : float
        Stop where the best may be at most this much better, as a share.
    enough : float
        Stop once a deployment has this value.
    columns : list of PipelineColumn
    best : list of PipelineColumn
        The pipelines of the best deployment so far, repeated.
    prices : Prices or None
        Prices that give the best bound so far.
    bounds : dict of str to float
        What no deployment beats, by what proves it: "work of stages", "prices of pipelines", "lists of pipelines",
        "single pipelines".
    settled : bool
        The best deployment so far was proven to be the best, whatever the bound says.
    steps : int
        Extensions of labels in all lists (`Listing.steps`).
    """

    offers: list[Offer]
    goal: DeploymentGoal
    deadline: Deadline
    on_progress: Callable | None = None
    gap: float = 0.0
    enough: float = np.inf
    columns: list[PipelineColumn] = field(default_factory=list)
    best: list[PipelineColumn] | None = None
    prices: Prices | None = None
    rounds: int = 0
    settled: bool = False
    bounds: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    progress: list[Progress] = field(default_factory=list)
    _seen: set[PipelineColumn] = field(default_factory=set)
    _best_rate: dict[tuple[str, tuple[int, ...]], float] = field(default_factory=dict)
    _loose: set[Offer] = field(default_factory=set)
    _ratios: dict[Offer, tuple[np.ndarray, float]] = field(default_factory=dict)
    _profits: tuple[Prices, dict[Offer, float]] | None = None

    @property
    def value(self) -> float | None:
        """What the best deployment so far is compared by; None before the first."""
        return None if self.best is None else self.goal.value(self.best)

    @property
    def bound(self) -> float | None:
        """The best of the bounds; None before the first."""
        return (max if self.goal.load else min)(self.bounds.values(), default=None)

    def knows(self, bound: float, what: str) -> None:
        """Keep a bound on all deployments, and what proves it, if it is better."""
        better = max if self.goal.load else min
        self.bounds[what] = better(bound, self.bounds.get(what, bound))

    @property
    def open(self) -> float:
        """The share by which a deployment may be better than the best so far; infinite without one."""
        if self.best is None or self.bound is None or not self.value:
            return np.inf
        distance = self.bound / self.value - 1
        return max(0.0, -distance if self.goal.load else distance)

    @property
    def proven(self) -> bool:
        """Whether no deployment is better than the best."""
        return self.settled or self.open <= ONE_ANSWER

    @property
    def finished(self) -> bool:
        """Whether the best is proven, or good enough, or within the gap that was asked for."""
        return self.proven or self.open <= self.gap or (self.value or 0.0) >= self.enough

    @property
    def slack(self) -> float:
        """The most that a pipeline of a better deployment may be below the price of its GPUs, in units of the bound."""
        if self.prices is None:
            return np.inf
        # no pipeline is further below: its rate is above 0, and its GPUs cost no more than all
        of_all_gpus = float(self.prices.cost @ self.goal.counts) * self.prices.unit
        most = of_all_gpus * (1 + _PRICE_MARGIN_SHARE)
        if self.value is None:
            return most
        return min(most, abs(self.prices.bound - self.value) + _PRICE_MARGIN_SHARE * most)

    @property
    def pipelines(self) -> list[PipelineColumn]:
        """The columns that are pipelines."""
        return [column for column in self.columns if column.exists]

    def bound_by_work(self) -> None:
        """Begin with the bound and the prices of the program over stages (`stages_as_columns`)."""
        stages = stages_as_columns(self.offers)
        work = solve_relaxation(self.goal, stages)
        # whatever the prices are, they give a bound
        cost = self._positive_prices(1 / self.goal.counts if work is None else work.capacity)
        ratio = dict.fromkeys(self.goal.pools, 0.0)
        for stage in stages:
            pool = stage.offer.pool
            ratio[pool] = max(ratio[pool], stage.rate / float(cost @ stage.gpus))
        self._update_bound(cost, ratio, "work of stages")

    @property
    def most_pipelines(self) -> int:
        """The most pipelines that the GPUs can hold at once: no GPU holds more layers than in the stage of most."""
        shares = []
        for table in (offer.table for offer in self.offers):
            held = np.where(table.rate > 0, table.spans.layers, 0).max(axis=1, initial=0)
            shares.append(best_shares(held, table.size, table.composition > 0))
        layers = len(self.offers[0].span)
        return int(float(np.max(shares, axis=0) @ self.goal.counts) / layers + SOLVER)

    def generate(self) -> None:
        """Solve master program and pricing problem in turn until they agree, and then the whole program for a while.

        Raises
        ------
        Ended
            The deadline was first; what was found until then is kept.
        """
        # prices of work first: those of a few simple columns say little
        master, new = solve_relaxation(self.goal, self.columns) if self.goal.load else None, 1
        smoothed = False
        for _ in range(0 if self.finished else _MOST_ROUNDS):
            self.rounds += 1
            new = self._price_offers(*self._smoothed_prices(master, smoothed))
            if not self.columns:
                return
            master = solve_relaxation(self.goal, self.columns)
            if master is not None and (self.rounds % 5 == 0 or self.best is None):
                self.round_relaxation()
            self._report_progress()
            if self.finished:
                break
            if self._has_converged(master) or not (new or smoothed):
                self.solve_whole_for(_ROUNDING_SECONDS)
                wide = [o for o in self.offers if o.numbers == ALL_NUMBERS and o in self._loose]
                self.settled = bool(wide) and self._settle_by_full_pipelines()
                if not wide or self.open <= _SHARE_LEFT_TO_LISTING or self.settled:
                    break
                for offer in wide:
                    self._halve(offer)
            smoothed = new > 0 and self.rounds > 3 and master is not None
        self.solve_whole_for(_ROUNDING_SECONDS)

    def generate_alone(self) -> None:
        """Find the best pipeline alone by branch and bound over offers.

        The offer that may yield most is next. Without prices, those of its pipelines are listed that are faster than
        the best so far. Where one yields less than it counts with, the offer's numbers in flight are halved.

        Raises
        ------
        Ended
            The deadline was first; the bound is what the offers may yield that were left.
        """
        free = np.zeros(len(self.goal.counts))
        prices = Prices(cost=free, ratio=dict(self.goal.pools), bound=np.inf, unit=1.0)

        def most_profits(offers: Sequence[Offer]) -> dict[Offer, float]:
            return self._most_profits(offers, prices, -(self.value or 0.0))

        waiting, unlisted = {} if self.finished else most_profits(self.offers), 0.0
        while waiting:
            offer = max(waiting, key=waiting.__getitem__)
            self.knows(max(waiting[offer], unlisted, self.value or 0.0), "lists of pipelines")
            if self.finished or waiting[offer] <= 0:
                break
            floor = prices.as_rate(offer.pool, -(self.value or 0.0))
            sure, loose = self._list_by_labels(Listing(offer, free, floor, self.deadline))
            for column in self.pipelines:
                self.keep_if_better([column])
            most = waiting.pop(offer)
            if loose and not offer.numbers.single:
                waiting |= most_profits(self._halve(offer))
            elif loose or not sure:
                unlisted = max(unlisted, most)
            self.rounds += 1
            self._report_progress()
        if not self.finished:
            self.knows(max(unlisted, self.value or 0.0), "lists of pipelines")
            self.settled = not unlisted

    def generate_exactly(self) -> None:
        """Generate columns for `_EXACT_SECONDS`, with prices of pipelines that respect GPU counts.

        Their pricing problem is the stage-flow program of `Offer.cheapest`.

        Raises
        ------
        Ended
            The deadline was first; what was found until then is kept.
        """
        until = self.deadline.within(_EXACT_SECONDS)
        with suppress(Ended, TooLarge):  # of this while; or too many stages for such a program
            while not self.finished:
                master = solve_relaxation(self.goal, self.pipelines)
                if self._has_converged(master):
                    break
                self.rounds += 1
                capacity, _ = self._smoothed_prices(master, False)
                cost, known = self._positive_prices(capacity), len(self.columns)
                ratio = self._greatest_ratios(cost, partial(self._exact_ratio, until=until))
                if ratio is None:
                    break
                self._update_bound(cost, ratio)
                self._report_progress()
                if len(self.columns) == known:
                    break
        self.solve_whole_for(_ROUNDING_SECONDS)

    def _exact_ratio(self, offer: Offer, cost: np.ndarray, until: Deadline) -> float:
        """Return the greatest ratio of a rate to its price among an offer's pipelines; make columns of those found.

        A pipeline that has the least price P at a rate t and counts with a ≥ t is the best of those that count
        with t to a; those that count with more cost at least P (as in `fronts._LeastRatio`).
        """
        low, high = offer.asked
        ratio = high / offer.least(cost, until).price
        ranges = [
            (-r, a, b) for r, a, b in zip(ratio.tolist(), low.tolist(), high.tolist(), strict=True)
        ]
        heapq.heapify(ranges)
        greatest = 0.0
        while ranges:
            negative, first, last = heapq.heappop(ranges)
            if -negative <= greatest * (1 + _CONVERGED_SHARE):
                return max(greatest, -negative)
            stages, price = offer.cheapest(first, cost, until)
            if price == np.inf:
                continue
            reached = first
            if stages is not None:
                self._add_path(offer, stages)
                reached = max(first, offer.counted(stages))
            after = reached * (1 + ATTAINED)  # what is between these two counts as the higher one
            greatest = max(greatest, min(-negative, after / price) if price > 0 else -negative)
            if after < last and price > 0:
                heapq.heappush(ranges, (-last / price, after, last))
        return greatest

    def _positive_prices(self, capacity: np.ndarray) -> np.ndarray:
        """Return the price of a GPU of each class to ask with, rent included, above 0."""
        cost = capacity + (self.goal.price if self.goal.load else 0.0)
        return cost + _LEAST_PRICE_SHARE * max(cost.max(), 1e-300)

    def _settle_by_full_pipelines(self) -> bool:
        """Return whether no deployment is better even if all pipelines are full with memory for one microbatch."""
        listed = list[PipelineColumn]()
        for offer in self.offers:
            if self.prices is None or offer.tokens < np.inf or self.open > _SMALL_OPEN_SHARE:
                return False
            slack = self.prices.as_rate(offer.pool, self.slack)
            per_gpu = self.prices.per_gpu(offer.pool)
            listing = Listing(offer, per_gpu, slack, self.deadline, _FIRST_LABELS)
            listed += [
                PipelineColumn(rate=rate, gpus=gpus, offer=offer, stages=stages)
                for rate, gpus, stages in listing.pipelines()
            ]
            self.steps += listing.steps
            if not listing.complete:
                return False
        if not listed:
            return bool(self.offers)
        run = solve_whole_program(self.goal, listed, self.deadline.within(_ROUNDING_SECONDS))
        if run.x is None or run.status != "optimal":
            return run.status == "infeasible"
        full = as_often_as_chosen(listed, run.x)
        attained = [c._replace(rate=c.offer.attained(c.stages)) for c in full]
        self.keep_if_better(attained)
        for column in attained:
            self.add_column(column)
        most, value = self.goal.value(full), given(self.value)
        return most * (1 - ONE_ANSWER) <= value <= most * (1 + ONE_ANSWER)

    def _has_converged(self, master: RelaxedMaster | None) -> bool:
        if master is None or self.prices is None:
            return False
        return abs(self.prices.bound - master.value) <= _CONVERGED_SHARE * abs(master.value)

    def _smoothed_prices(
        self, master: RelaxedMaster | None, smoothed: bool
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Return prices of GPUs, and of a token/s by pool, to ask with.

        They are the best bound's without a master program, and half-way to these if smoothed.
        """
        prices = given(self.prices)
        best = prices.cost * prices.unit
        if self.goal.load:
            best = np.maximum(0.0, best - self.goal.price)
        per_rate = {pool: 1 / prices.as_rate(pool, 1.0) for pool in self.goal.pools}
        if master is None:  # columns of any profit
            return best, dict.fromkeys(per_rate, 0.0)
        if not smoothed:
            return master.capacity, master.per_rate
        per_rate = {pool: (price + per_rate[pool]) / 2 for pool, price in master.per_rate.items()}
        return (master.capacity + best) / 2, per_rate

    def _price_offers(self, capacity: np.ndarray, per_rate: Mapping[str, float]) -> int:
        """Find the least prices at every rate: a bound, and new columns. Return how many are new."""
        cost, least = self._positive_prices(capacity), dict[Offer, LeastPrices]()

        def relaxed_ratio(offer: Offer, cost: np.ndarray) -> float:
            least[offer] = offer.least(cost, self.deadline)
            return float((offer.asked[1] / least[offer].price).max(initial=0.0))

        ratio = self._greatest_ratios(cost, relaxed_ratio)
        if ratio is None:  # no pipeline in some pool, whatever the rate
            return 0
        self._update_bound(cost, ratio)
        wanted = list[tuple[float, Offer, int]]()
        for offer, cheapest in least.items():
            rates, rate_price = offer.asked[0], per_rate[offer.pool]
            with np.errstate(divide="ignore", invalid="ignore"):
                profit = rates / cheapest.price
                if rate_price:
                    profit = rate_price * rates - cheapest.price
            profitable = profit > (1e-9 * rate_price * rates)
            wanted += [(float(profit[i]), offer, i) for i in _spread_out(rates, profit, profitable)]
        wanted.sort(key=lambda of: -of[0])
        new = 0
        for pool in self.goal.pools:
            for _, offer, i in [of for of in wanted if of[1].pool == pool][:_COLUMNS_PER_POOL]:
                self.deadline.check()
                path = offer.path(cost, i, float(least[offer].per_second[i]))
                # prices count with the fastest of all links; with the links between its GPUs there may be no path
                new += self._add_path(offer, path) if path else 0
        return new

    def _greatest_ratios(
        self, cost: np.ndarray, ratio_of: Callable[[Offer, np.ndarray], float]
    ) -> dict[str, float] | None:
        """Return the greatest ratio of a rate to its price by pool; None where a pool has no pipeline."""
        ratios = {pool: self._greatest_ratio(pool, cost, ratio_of) for pool in self.goal.pools}
        return ratios if all(ratios.values()) else None

    def _greatest_ratio(
        self, pool: str, cost: np.ndarray, ratio_of: Callable[[Offer, np.ndarray], float]
    ) -> float:
        """Return the greatest ratio of a rate to its price in one pool, asked of the offers that decide.

        When prices change, no ratio of an offer grows by more than the largest share by which a price
        fell. So the offer that may have the greatest is priced first, and those that cannot reach it
        are left out. Numbers in flight that decide, and are not attained together, are halved.
        """
        ratio: dict[Offer, float] = {}

        def most_ratio(offer: Offer) -> float:
            if offer in ratio:
                return ratio[offer]
            of_work = float((offer.work / (offer.table.composition @ cost)).max())
            before, known = self._ratios.get(offer, (cost, np.inf))
            return min(of_work, known * float((before / cost).max()))

        while offers := [offer for offer in self.offers if offer.pool == pool]:
            # of equals that of fewest in flight: once a pipeline is full, ranges without end would be halved
            offer = max(offers, key=lambda o: (most_ratio(o), -o.numbers.first))
            if offer in ratio:
                near = self.rounds >= _FIRST_HALVING_ROUND and not self.finished
                if offer.numbers.single or offer.numbers == ALL_NUMBERS or not near:
                    return ratio[offer]
                for half in self._halve(offer):
                    self._ratios[half] = cost, ratio[offer]
                continue
            ratio[offer] = ratio_of(offer, cost)
            self._ratios[offer] = cost, ratio[offer]
        return 0.0

    def _halve(self, offer: Offer) -> list[Offer]:
        """Put the halves of an offer in its place."""
        parts = halves(offer, self.deadline)
        self.offers = [other for other in self.offers if other is not offer] + parts
        return parts

    def _update_bound(
        self, cost: np.ndarray, ratio: dict[str, float], what: str = "prices of pipelines"
    ) -> None:
        """Keep the prices if their bound is better (the module's docstring derives it)."""
        goal = self.goal
        # no pipeline costs less than rate / ratio: at least this for one token/s or request/s that is served
        least_cost = sum(tokens / ratio[pool] for pool, tokens in goal.pools.items())
        bound, unit = float(cost @ goal.counts) / least_cost, 1 / least_cost
        if goal.load:
            above_rent = np.maximum(0.0, cost - goal.price)
            bound, unit = goal.load * least_cost - float(above_rent @ goal.counts), 1.0
        self.knows(bound, what)
        known = self.prices
        if known is None or (bound > known.bound if goal.load else bound < known.bound):
            self.prices = Prices(cost=cost, ratio=ratio, bound=bound, unit=unit)

    def _add_path(self, offer: Offer, path: Sequence[StageOf]) -> int:
        """Add a path as a column, as a pipeline if there are enough GPUs for it; return how many were added."""
        gpus = tuple(np.sum([stage_gpus for _, stage_gpus in path], axis=0).tolist())
        if (np.array(gpus) > self.goal.counts).any():
            return self.add_column(
                PipelineColumn(rate=offer.counted(path), gpus=gpus, offer=offer, stages=())
            )
        stages = offer.in_order(path)
        attained, slowed = offer.evaluated(stages)
        if slowed:
            self._loose.add(offer)
        return self.add_column(PipelineColumn(rate=attained, gpus=gpus, offer=offer, stages=stages))

    def add_column(self, column: PipelineColumn) -> int:
        """Add a column unless it is known or has no rate; return how many were added."""
        key = column._replace(stages=(), at=-1)
        if key in self._seen or not column.rate:
            return 0
        self._seen.add(key)
        self.columns.append(column)
        if column.exists:
            mix = column.offer.pool, column.gpus
            self._best_rate[mix] = max(self._best_rate.get(mix, 0.0), column.rate)
        return 1

    def keep_if_better(self, chosen: list[PipelineColumn]) -> None:
        """Take a deployment for the best if it is better."""
        if not self.goal.served(chosen) or not min(self.goal.serves(chosen).values()):
            return
        value, best = self.goal.value(chosen), self.value
        if best is None or (value < best if self.goal.load else value > best):
            self.best = chosen

    def round_relaxation(self) -> None:
        """Make a deployment from the relaxation over the columns that are pipelines."""
        columns = self.pipelines
        if len(columns) > _MOST_COLUMNS_RELAXED and self.prices is not None:
            profit = [self.prices.profit(column) for column in columns]
            columns = [columns[i] for i in np.argsort(profit)[-_MOST_COLUMNS_RELAXED:]]
        answer = solve_relaxation(self.goal, columns)
        if answer is not None:
            self.keep_if_better(round_down_and_fill(self.goal, columns, answer.number))

    def solve_whole_for(self, seconds: float) -> None:
        """Solve the whole program over all columns, for at most these seconds."""
        self.round_relaxation()
        if self.best is not None and not self.finished:
            self._solve_whole(self.pipelines, self.deadline.within(seconds))
            self._report_progress()
        self.deadline.check()

    def _solve_whole(self, columns: list[PipelineColumn], deadline: Deadline) -> bool:
        """Keep the best deployment of some columns; return whether the whole program was solved."""
        run = solve_whole_program(self.goal, columns, deadline)
        if run.x is not None:
            self.keep_if_better(as_often_as_chosen(columns, run.x))
        return run.status in ("optimal", "infeasible")

    def close_gap(self) -> None:
        """List the pipelines that a better deployment could have, and solve the whole program over them.

        The first list takes the gap for small: few pipelines are that near to the price of their GPUs, and if the
        best deployment of these leaves no wider gap, it is the best of all. Otherwise lists grow, first in what they
        keep and then in slack, until one is complete for the gap that is open, or too long.

        Raises
        ------
        Ended
            The deadline was first; what was found until then is kept.
        """
        if self.finished:
            return
        self.settled = self.settled or self._settle_by_full_pipelines()
        few = are_few_mixes(self.goal.counts.tolist())
        near, labels, last = self._first_slack(few), _FIRST_LABELS, 0
        while self.prices is not None and not self.finished:
            timed = any(offer.tokens < np.inf and offer.timing is None for offer in self.offers)
            far = max(near / abs(self.prices.bound), self.open)
            wide = few and timed and far > _SMALL_OPEN_SHARE and last > 0
            slack, before = self.slack if wide else min(near, self.slack), self.value
            known = self.steps
            complete, solved = self._solve_over_list(slack, wide=wide, most_labels=labels)
            if complete and solved:
                self._bound_by_list(slack)
            if complete and slack >= self.slack:
                self.settled = solved
                return
            if complete:
                near, labels = _SLACK_FACTOR * near, _FIRST_LABELS
            elif labels >= MOST_LABELS or self.steps - known == last:  # no label was left out
                break
            elif self.steps > _MOST_LISTING_STEPS:
                return
            elif few or self.value != before or labels == _FIRST_LABELS:
                labels = _LABELS_FACTOR * labels
            elif self.steps - known < _COMPLETING_GROWTH * _LABELS_FACTOR * last:
                labels = MOST_LABELS
            else:
                break
            last = self.steps - known
        if not self.finished and not few and self.prices is not None:
            self._solve_over_list(self.slack, wide=False, most_labels=_FIRST_LABELS)

    def _first_slack(self, few: bool) -> float:
        """Return the slack of the first list; of few mixes so that the last list has just the slack that is open."""
        if self.prices is None:
            return 0.0
        near = _FIRST_SLACK_SHARE * self.prices.bound
        if near <= 0:  # of a load: no list is near
            return self.slack
        steps = math.floor(math.log(max(1.0, self.slack / near), _SLACK_FACTOR))
        return self.slack / _SLACK_FACTOR**steps if few else near

    def _bound_by_list(self, slack: float) -> None:
        """Keep the bound of a complete list: what is better than its best has a pipeline further below its price."""
        bound, value = given(self.prices).bound, self.value
        if self.goal.load:
            bound = bound + slack if value is None else min(bound + slack, value)
        else:
            bound = max(bound - slack, value or 0.0)
        self.knows(bound, "lists of pipelines")

    def _solve_over_list(self, slack: float, *, wide: bool, most_labels: int) -> tuple[bool, bool]:
        """Solve the whole program over a list; return whether the list is complete, and the program solved."""
        listed, complete = self.list_columns(
            given(self.prices), slack, wide=wide, most_labels=most_labels
        )
        seconds, solved = np.inf if complete else _ROUNDING_SECONDS, True
        if listed:
            solved = self._solve_whole(listed, self.deadline.within(seconds))
            self.deadline.check()
        return complete, solved

    def list_columns(
        self,
        prices: Prices,
        slack: float,
        *,
        wide: bool,
        most_labels: int,
    ) -> tuple[list[PipelineColumn], bool]:
        """List every pipeline within a slack of the price of its GPUs as a column; return whether none is missing, too.

        Parameters
        ----------
        slack : float
            In units of the bound.
        wide : bool
            Where time limits pipelines, look at all mixes at once, whatever the slack.
        most_labels : int
            Labels kept at each boundary.
        """
        complete, waiting, known = True, self._most_profits(self.offers, prices, slack), 0
        while waiting:
            if self.steps > _MOST_LISTING_STEPS:
                complete = False
                break
            if self.prices and len(self.columns) > _MORE_COLUMNS_FACTOR * known:
                self.solve_whole_for(_ROUNDING_SECONDS)
                slack, known = min(slack, self.slack), len(self.columns)
            offer = max(waiting, key=waiting.__getitem__)
            del waiting[offer]
            per_gpu, short = prices.per_gpu(offer.pool), prices.as_rate(offer.pool, slack)
            if wide and offer.tokens < np.inf:
                sure, loose = self._list_by_tables(MixTables(offer, self.deadline), per_gpu, short)
            else:
                listing = Listing(offer, per_gpu, short, self.deadline, most_labels)
                sure, loose = self._list_by_labels(listing)
            if loose and not offer.numbers.single:
                waiting |= self._most_profits(self._halve(offer), prices, slack)
            else:
                complete = complete and sure and not loose
        near = [c for c in self.pipelines if prices.profit(c) >= -slack]
        return [c for c in near if c.rate >= self._best_rate[c.offer.pool, c.gpus]], complete

    def _most_profits(
        self, offers: Sequence[Offer], prices: Prices, slack: float
    ) -> dict[Offer, float]:
        """Return the offers of which a pipeline may be within the slack, and the most it may yield above its price."""
        most = {}
        if self._profits is None or self._profits[0] is not prices:
            self._profits = prices, {}
        known = self._profits[1]
        for offer in offers:
            if offer not in known:
                least = offer.least(prices.per_gpu(offer.pool), self.deadline)
                known[offer] = float((offer.asked[1] - least.price).max())
            profit = known[offer]
            if profit >= -prices.as_rate(offer.pool, slack):
                most[offer] = profit / prices.as_rate(offer.pool, 1.0)
        return most

    def _list_by_labels(self, listing: Listing) -> tuple[bool, bool]:
        """Add the pipelines of a listing as columns.

        Returns
        -------
        complete, loose : bool
            All are there; and one of them attains less than it counts with.
        """
        loose, pipelines = False, listing.pipelines()
        self.steps += listing.steps
        for rate, gpus, stages in pipelines:
            listing.deadline.check()
            if self._best_rate.get((listing.offer.pool, gpus), 0.0) < rate * (1 - ONE_ANSWER):
                attained = listing.offer.attained(stages)
                column = PipelineColumn(attained, gpus, offer=listing.offer, stages=stages)
                self.add_column(column)
                loose = loose or attained < rate * (1 - ONE_ANSWER)
        return listing.complete, loose

    def _list_by_tables(
        self, tables: MixTables, prices: np.ndarray, slack: float
    ) -> tuple[bool, bool]:
        """Add the best pipeline of every mix that may be within the slack of its GPUs' price, as `_list_by_labels`.

        An offer with several numbers in flight adds none, and is loose where a mix may yield more than is known.
        """
        offer = tables.offer
        if not tables.fit():
            return False, False
        known = np.zeros(tables.shape)
        for (_, gpus), rate in self._best_rate.items():
            known[gpus] = rate
        for axis in range(known.ndim):
            np.maximum.accumulate(known, axis=axis, out=known)
        enough = np.tensordot(prices, np.indices(known.shape), 1) - slack
        if not offer.numbers.single:
            return True, tables.exceed(np.maximum(known, enough))
        best, loose = tables.best(known, enough), False
        for mix in map(tuple, smallest(best.rate).tolist()):
            rate, at = float(best.rate[mix]), int(best.at[mix])
            if at >= 0:
                column = PipelineColumn(rate=rate, gpus=mix, offer=offer, stages=(), at=at)
                if offer.merged:
                    stages = tables.stages(at, mix)
                    column = PipelineColumn(
                        rate=offer.attained(stages), gpus=mix, offer=offer, stages=stages
                    )
                self.add_column(column)
                loose = loose or column.rate < rate * (1 - ONE_ANSWER)
        return True, loose

    def _report_progress(self) -> None:
        moment = Progress(
            seconds=self.deadline.spent, incumbent=self.value, bound=self.bound, nodes=self.rounds
        )
        self.progress.append(moment)
        if self.on_progress is not None:
            self.on_progress(moment)
        self.deadline.ask(moment)


def _spread_out(rates: np.ndarray, profit: np.ndarray, profitable: np.ndarray) -> list[int]:
    """Return the most profitable rate of every eighth of a power of e, the most profitable first."""
    chosen: dict[int, int] = {}
    for i in np.argsort(-profit, kind="stable"):
        if not profitable[i] or len(chosen) == _COLUMNS_PER_POOL:
            break
        chosen.setdefault(int(8 * np.log(rates[i])), int(i))
    return list(chosen.values())
