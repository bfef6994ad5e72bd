"""Column generation: a master program, its dual prices, the pricing problem at these prices, and so on.

The master program chooses how many pipelines there are of each *column* (a pipeline that is known). With
column c of rate r_c that uses n_ca GPUs of class a, and x_c pipelines of it:

    most throughput    max Σ r_c x_c                  Σ n_ca x_c ≤ N_a
    least price        min Σ (q · n_c) x_c            Σ n_ca x_c ≤ N_a,  Σ r_c x_c ≥ load

Its linear relaxation has dual prices u. The pricing problem asks for pipelines that yield more than
their GPUs cost at these prices; they become columns (`Generation.generate`). Every round has a bound, too. With
prices p_a per GPU (in tokens/s) such that no pipeline has a rate above the price of its GPUs, r ≤ p · n, no
deployment has more than p · N tokens/s: its pipelines together use at most N. The dual prices become such
prices when multiplied by the greatest ratio of a rate to a price,

    ρ = max over rates t of t / (least price of a pipeline of t at prices u),     p = ρ u

(Farley's bound), and `pricing` gives that at all rates at once. It leaves out the number of GPUs in one
pipeline, so the bound holds all the more; `Generation.generate_exactly` counts them. Where a load is to be
served at the least price, the same is done with the rent q added to the dual price: a token/s then costs at least
1 / ρ, and what was added is taken off again, so no deployment costs less than load / ρ - u · N.

A pipeline of a better deployment than the best so far has a rate of at least p · n - slack, where slack
is the distance from the bound: no pipeline is above p · n, so one that is further below alone leaves the deployment
below the best. So if a gap remains, such pipelines are listed
(`listing`), and the whole program over these has the best (`Generation.close`).

Requests may be served by *pools*, one for each phase, of which that of fewest requests/s counts: with t_k
tokens of phase k in a request

    most requests/s    max v     Σ_c in k r_c x_c ≥ t_k v  for every pool k,   Σ n_ca x_c ≤ N_a

and with a load v is given. A pool of its own has a greatest ratio ρ_k of a rate to a price, so v requests/s need GPUs
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

from pipelab.engine.deadline import Deadline, Ended, Watched
from pipelab.engine.deployments.listing import MOST_LABELS, Listing
from pipelab.engine.deployments.mix_tables import MixTables, smallest
from pipelab.engine.deployments.offers import ALL_NUMBERS, halves
from pipelab.engine.deployments.paths import StageOf
from pipelab.engine.deployments.pricing import LeastPrices, Offer
from pipelab.engine.prices import row_limit, total
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import Columns, LinearProgram
from pipelab.engine.solvers.solver_run import Progress, SolverRun
from pipelab.engine.tolerances import ATTAINED, ONE_ANSWER
from pipelab.errors import TooLarge
from pipelab.fields import given

_MOST_ROUNDS = 300
_AT_ONCE = 2_000  # columns of a linear program that takes a moment
_PER_ROUND = 24  # columns of each offer
_LEAST_PRICE = 1e-12  # as a share of the highest: a price of 0 would make the ratio infinite
_CONVERGED = 1e-7
_NEARLY = 1e-6  # open: one list of all numbers in flight together settles it
_ROUNDING_SECONDS = 5.0
_EXACT_SECONDS = 5.0  # of pricing by the stage-flow program
_SILENT_SECONDS = 1.0
_LISTED_AT = 2  # rounds: a pool of which nothing is known
_HALVED_FROM = 3  # rounds: before, prices say little
_FIRST_SHARE = 0.003  # of the bound: as if no more were open
_WIDER = 3.0
_FIRST_LABELS, _MORE_LABELS = 150, 5  # kept at each boundary, and times as many
_NEARLY_ALL = 0.6  # a list that grows by less than this share of its labels will soon be complete
_MOST_STEPS = 600_000_000  # of listings: some twenty seconds
_SMALL_SHARE = 0.05
_FEW_MIXES = 5_000
_MARGIN = 1e-9  # of the price of all GPUs: the arithmetic of prices
_MONEY_UNITS = 1_000  # of the lowest price: solvers compare within 1e-6 of one


class Column(NamedTuple):
    """A pipeline as the master program sees it.

    Attributes
    ----------
    rate : float
        What it attains, in tokens/s; without stages, no pipeline of its GPUs attains more.
    gpus : tuple of int
        Of each class.
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
        """Whether it is a pipeline."""
        return bool(self.stages) or self.at >= 0


@dataclass(frozen=True, eq=False)
class Demand:
    """What a deployment is to be best at.

    Attributes
    ----------
    counts : int array, shape (A,)
        GPUs of each class.
    load : float
        Tokens/s to be served at the least price; 0: as many as possible, whatever the price.
    price : float array, shape (A,)
        Dollars per hour of a GPU of each class; read with a load or a budget only.
    budget : float
        The most that all GPUs together may cost.
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

    def value(self, columns: Sequence[Column]) -> float:
        """Tokens/s or requests/s, or dollars per hour, of these pipelines."""
        if not self.load:
            return min(self.serves(columns).values())
        return total(self.paid(columns))

    def paid(self, columns: Sequence[Column]) -> Counter[float]:
        """The GPUs of each price that these pipelines use."""
        numbers = Counter[float]()
        for column in columns:
            for price, number in zip(self.price.tolist(), column.gpus, strict=True):
                numbers[price] += number
        return +numbers

    @property
    def money(self) -> float:
        """What dollars are counted in, where they are to be least."""
        return float(self.price[self.price > 0].min()) / _MONEY_UNITS

    def serves(self, columns: Sequence[Column]) -> dict[str, float]:
        """What the pipelines of each pool serve, in tokens/s or requests/s."""
        rates = dict.fromkeys(self.pools, 0.0)
        for column in columns:
            rates[column.offer.pool] += column.rate
        return {pool: rate / self.pools[pool] for pool, rate in rates.items()}

    def served(self, columns: Sequence[Column]) -> bool:
        """Whether these pipelines serve the load."""
        return min(self.serves(columns).values()) >= self.load * (1 - 1e-12)


class Relaxed(NamedTuple):
    """The optimum of the linear relaxation.

    Attributes
    ----------
    value : float
        Tokens/s, or dollars per hour.
    number : float array, shape (C,)
    capacity : float array, shape (A,)
        What one GPU more of each class would bring, at least 0.
    per_rate : dict of str to float
        Dual price of one token/s of a column by its pool: what it adds to the value, or the dollars per hour that a
        token/s of load costs.
    """

    value: float
    number: np.ndarray
    capacity: np.ndarray
    per_rate: dict[str, float]


def relaxed(demand: Demand, columns: Sequence[Column]) -> Relaxed | None:
    """The linear relaxation over some columns; None where a pool has none, or they do not serve the load."""
    if {column.offer.pool for column in columns} != set(demand.pools):
        return None
    unit = _unit(demand, columns)
    program = _program(demand, columns)
    # without upper bounds, which capacities imply: they would share the dual prices
    run = run_program(replace(program.relaxed(), upper=np.full(program.columns.total, np.inf)))
    if run.x is None:
        return None
    duals, value = given(run.row_duals), given(run.objective)
    classes = len(demand.counts)
    capacity, x = duals[:classes], run.x[: len(columns)]
    if not demand.load and len(demand.pools) == 1:
        return Relaxed(
            value * unit, x, capacity * unit, {p: 1 / t for p, t in demand.pools.items()}
        )
    scale = demand.money if demand.load else unit
    each = zip(demand.pools.items(), duals[classes:].tolist(), strict=False)
    per_rate = {pool: scale * dual / (unit * tokens) for (pool, tokens), dual in each}
    return Relaxed(abs(value) * scale, x, capacity * scale, per_rate)


def whole(demand: Demand, columns: Sequence[Column], deadline: Deadline) -> SolverRun:
    """The whole program over some columns; its x begins with the number of each."""
    return run_program(_program(demand, columns), deadline=deadline)


def _unit(demand: Demand, columns: Sequence[Column]) -> float:
    """What rates are counted in, so that a solver's tolerance is a share of it."""
    return demand.load or max(c.rate / demand.pools[c.offer.pool] for c in columns)


def _program(demand: Demand, columns: Sequence[Column]) -> LinearProgram:
    """The master program."""
    number, unit = len(columns), _unit(demand, columns)
    used = np.array([c.gpus for c in columns], dtype=float).T
    rate = np.array([c.rate / demand.pools[c.offer.pool] for c in columns]) / unit
    least = len(demand.pools) > 1 and not demand.load  # `v`: of the pool that serves least
    names = Columns({"x": number, "v": int(least)})
    blocks = {"class_capacity": names.rows({"x": sp.csr_array(used)}, upper=demand.counts)}
    if demand.load or least:
        own = np.array([[c.offer.pool == pool for c in columns] for pool in demand.pools])
        parts = {"x": sp.csr_array(own * rate)}
        if least:
            parts["v"] = sp.csr_array(-np.ones((len(own), 1)))
        blocks["load"] = names.rows(parts, lower=0.0 if least else 1.0)
    if demand.budget < np.inf:
        limit, dearest = row_limit(demand.price.tolist(), demand.budget), demand.price.max()
        cost = demand.price @ used / max(limit, dearest)
        most = limit / max(limit, dearest)
        blocks["budget"] = names.rows({"x": sp.csr_array(cost[None])}, upper=most)
    for i, (price, number_of) in enumerate(demand.most_of.items()):
        own = 1.0 * (demand.price == price) @ used
        blocks[f"most_of_{i}"] = names.rows({"x": sp.csr_array(own[None])}, upper=number_of)
    most = np.where(used > 0, demand.counts[:, None] // np.maximum(used, 1), np.inf).min(axis=0)
    objective = {"x": -(demand.price @ used) / demand.money if demand.load else rate}
    if least:
        objective = {"v": 1.0}
    return names.program(objective, blocks, upper={"x": most}, integer=["x"])


def are_few_mixes(counts: Iterable[int]) -> bool:
    """Whether all ways to take some of these GPUs can be looked at."""
    return math.prod(n + 1 for n in counts) <= _FEW_MIXES


def repeated(columns: Sequence[Column], number: np.ndarray) -> list[Column]:
    """Each column as often as it is chosen."""
    times = np.rint(number[: len(columns)]).astype(int).tolist()
    return [column for column, n in zip(columns, times, strict=True) for _ in range(n)]


def filled_up(demand: Demand, columns: Sequence[Column], number: np.ndarray) -> list[Column]:
    """Whole numbers from the relaxation's: rounded down, then whatever still fits, the best first.

    Of several pools for the one that serves least. With a load, pipelines that it does not need are dropped again,
    the dearest first.
    """
    chosen = repeated(columns, np.floor(number + 1e-9))
    used = np.array([c.gpus for c in columns], dtype=int)
    rate = np.array([c.rate for c in columns])
    pool = np.array([c.offer.pool for c in columns])
    left = demand.counts - sum((np.array(c.gpus) for c in chosen), np.zeros_like(demand.counts))
    while True:
        served = demand.serves(chosen)
        short = min(served, key=served.__getitem__)
        fits = np.flatnonzero((used <= left).all(axis=1) & (pool == short))
        if not len(fits) or (demand.load and demand.served(chosen)):
            break
        best = fits[rate[fits].argmax()]
        chosen.append(columns[best])
        left = left - used[best]
    if demand.load:
        for column in sorted(chosen, key=lambda c: demand.value([c]), reverse=True):
            rest = list(chosen)
            rest.remove(column)
            if demand.served(rest):
                chosen = rest
    return chosen


class Prices(NamedTuple):
    """Prices of GPUs that the rate of no pipeline exceeds, and the bound that follows.

    Attributes
    ----------
    cost : float array, shape (A,)
        Of a GPU of each class.
    ratio : dict of str to float
        By pool, the greatest ratio of a pipeline's tokens/s to the cost of its GPUs.
    bound : float
        Of the deployment's value: no more tokens/s or requests/s, or no fewer dollars per hour.
    unit : float
        Of the bound, what a unit of cost is worth.
    """

    cost: np.ndarray
    ratio: dict[str, float]
    bound: float
    unit: float

    def per_gpu(self, pool: str) -> np.ndarray:
        """Tokens/s that a GPU of each class must yield in a pool; shape (A,)."""
        return self.cost * self.ratio[pool]

    def above(self, column: Column) -> float:
        """By how much a pipeline yields more than its GPUs cost, in units of the bound; at most 0."""
        ratio = self.ratio[column.offer.pool]
        return float(column.rate - ratio * (self.cost @ column.gpus)) / ratio * self.unit

    def short(self, pool: str, value: float) -> float:
        """A distance from the bound as tokens/s by which a pipeline of a pool falls short of its price."""
        return value * self.ratio[pool] / self.unit


@dataclass
class Generation:
    """The state of one column generation.

    Attributes
    ----------
    offers : list of Offer
        That pipelines can have, all about the same classes; those whose numbers in flight were halved are replaced.
    demand : Demand
    gap : float
        Stop where this much is open, as a share.
    enough : float
        Stop once a deployment has this value.
    columns : list of Column
    best : list of Column
        The pipelines of the best deployment so far, repeated.
    prices : Prices or None
        Those of the best bound so far.
    settled : bool
        The best deployment so far was proven to be the best, whatever the bound says.
    listed_bound : float or None
        No deployment is better, by what was listed; `bound` is the better of this and that of the prices.
    steps : int
        Of all listings.
    """

    offers: list[Offer]
    demand: Demand
    deadline: Deadline
    on_progress: Callable | None = None
    gap: float = 0.0
    enough: float = np.inf
    columns: list[Column] = field(default_factory=list)
    best: list[Column] | None = None
    prices: Prices | None = None
    rounds: int = 0
    settled: bool = False
    listed_bound: float | None = None
    steps: int = 0
    progress: list[Progress] = field(default_factory=list)
    _seen: set[Column] = field(default_factory=set)
    _best_rate: dict[tuple[str, tuple[int, ...]], float] = field(default_factory=dict)
    _loose: set[Offer] = field(default_factory=set)
    _ratios: dict[Offer, tuple[np.ndarray, float]] = field(default_factory=dict)
    _profits: tuple[Prices, dict[Offer, float]] | None = None

    @property
    def value(self) -> float | None:
        """Of the best deployment so far."""
        return None if self.best is None else self.demand.value(self.best)

    @property
    def bound(self) -> float | None:
        """No deployment is better."""
        if self.prices is None or self.listed_bound is None:
            return self.prices and self.prices.bound
        better = max if self.demand.load else min
        return better(self.prices.bound, self.listed_bound)

    @property
    def open(self) -> float:
        """By how much a deployment may be better than the best so far, as a share; infinite without one."""
        if self.best is None or self.bound is None or not self.value:
            return np.inf
        far = self.bound / self.value - 1
        return max(0.0, -far if self.demand.load else far)

    @property
    def proven(self) -> bool:
        """Whether no deployment is better than the best."""
        return self.settled or self.open <= ONE_ANSWER

    @property
    def finished(self) -> bool:
        """Whether the best is proven, or good enough, or what is open is no more than was asked for."""
        return self.proven or self.open <= self.gap or (self.value or 0.0) >= self.enough

    @property
    def slack(self) -> float:
        """How far below the price of its GPUs a pipeline of a better deployment may be, in units of the bound."""
        if self.prices is None:
            return np.inf
        # no pipeline is further below: its rate is above 0, and its GPUs cost no more than all
        most = float(self.prices.cost @ self.demand.counts) * self.prices.unit * (1 + _MARGIN)
        if self.value is None:
            return most
        return min(most, abs(self.prices.bound - self.value) + _MARGIN * most)

    @property
    def pipelines(self) -> list[Column]:
        """The columns that are pipelines."""
        return [column for column in self.columns if column.exists]

    def generate(self) -> None:
        """Master program, dual prices, pricing problem, until they agree; then whole numbers for a while.

        Raises
        ------
        Ended
            The deadline was first; what was found until then is kept.
        """
        # equal prices first: those of a few simple columns say little
        master, new = relaxed(self.demand, self.columns) if self.demand.load else None, 1
        smoothed = False
        for _ in range(_MOST_ROUNDS):
            self.rounds += 1
            new = self._price(*self._dual_prices(master, smoothed))
            if not self.columns:
                return
            master = relaxed(self.demand, self.columns)
            if master is not None and (self.rounds % 5 == 0 or self.best is None):
                self.round_off()
            self._report()
            if self.rounds == _LISTED_AT and self._lacks_a_pool():
                self.settled = True
            if self.finished:
                break
            if self._agrees(master) or not (new or smoothed):
                self.improve(_ROUNDING_SECONDS)
                wide = [o for o in self.offers if o.numbers == ALL_NUMBERS and o in self._loose]
                self.settled = bool(wide) and self._settled_by_full()
                if not wide or self.open <= _NEARLY or self.settled:
                    break
                for offer in wide:
                    self._halve(offer)
            smoothed = new > 0 and self.rounds > 3 and master is not None
        self.improve(_ROUNDING_SECONDS)

    def generate_alone(self) -> None:
        """The best pipeline alone, by branch and bound over offers: without prices one is of interest if it is faster.

        The offer that may yield most is next. Its pipelines are listed, and where one yields less than it counts
        with, the numbers in flight are halved.

        Raises
        ------
        Ended
            The deadline was first; the bound is what the offers may yield that were left.
        """
        none = np.zeros(len(self.demand.counts))
        prices = Prices(none, dict(self.demand.pools), np.inf, 1.0)

        def worth(offers: Sequence[Offer]) -> dict[Offer, float]:
            return self._worth(offers, prices, -(self.value or 0.0), self.deadline)

        self.prices, waiting, unlisted = prices, worth(self.offers), 0.0
        while waiting:
            offer = max(waiting, key=waiting.__getitem__)
            bound = max(waiting[offer], unlisted, self.value or 0.0)
            self.prices = prices._replace(bound=bound)
            if self.finished or waiting[offer] <= 0:
                break
            floor = prices.short(offer.pool, -(self.value or 0.0))
            sure, loose = self._by_labels(Listing(offer, none, floor, self.deadline))
            for column in self.pipelines:
                self.keep([column])
            most = waiting.pop(offer)
            if loose and not offer.numbers.single:
                waiting |= worth(self._halve(offer))
            elif loose or not sure:
                unlisted = max(unlisted, most)
            self.rounds += 1
            self._report()
        if not self.finished:
            self.prices = prices._replace(bound=max(unlisted, self.value or 0.0))
            self.settled = not unlisted

    def _lacks_a_pool(self) -> bool:
        """List all pipelines of a pool of which paths have found none; whether there is none."""
        known = {column.offer.pool for column in self.pipelines}
        for pool in self.demand.pools:
            if (
                self.prices is None
                or pool in known
                or not are_few_mixes(self.demand.counts.tolist())
            ):
                continue
            _, complete = self.listed(
                self.prices, self.slack, False, self.deadline, _FEW_MIXES, pool
            )
            if complete and not any(column.offer.pool == pool for column in self.pipelines):
                return True
        return False

    def generate_exactly(self) -> None:
        """Generate columns for a while by a pricing problem that counts the GPUs there are: the stage-flow program.

        Raises
        ------
        Ended
            The deadline was first; what was found until then is kept.
        """
        until = self.deadline.within(_EXACT_SECONDS)
        with suppress(Ended, TooLarge):  # of this while; or too many stages for such a program
            while not self.finished:
                master = relaxed(self.demand, self.pipelines)
                if self._agrees(master):
                    break
                self.rounds += 1
                capacity, _ = self._dual_prices(master, False)
                cost, known = self._cost(capacity), len(self.columns)
                ratio = self._greatest_ratios(cost, partial(self._exact_ratio, until=until))
                if ratio is None:
                    break
                self._bound(cost, capacity, ratio)
                self._report()
                if len(self.columns) == known:
                    break
        self.improve(_ROUNDING_SECONDS)

    def _exact_ratio(self, offer: Offer, cost: np.ndarray, until: Deadline) -> float:
        """The greatest ratio of a rate to its price among pipelines; those that are found become columns.

        What has the least price P at a rate t and counts with a ≥ t is the best that counts with t to a; what counts
        with more has P as its least price (as `fronts._LeastRatio`).
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
            if -negative <= greatest * (1 + _CONVERGED):
                return max(greatest, -negative)
            stages, price = offer.cheapest(first, cost, until)
            if price == np.inf:
                continue
            reached = first
            if stages is not None:
                self._add(offer, stages)
                reached = max(first, offer.counted(stages))
            after = reached * (1 + ATTAINED)  # what is between these two counts as the higher one
            greatest = max(greatest, min(-negative, after / price) if price > 0 else -negative)
            if after < last and price > 0:
                heapq.heappush(ranges, (-last / price, after, last))
        return greatest

    def _cost(self, capacity: np.ndarray) -> np.ndarray:
        """The price of a GPU of each class, above 0."""
        cost = capacity + (self.demand.price if self.demand.load else 0.0)
        return cost + _LEAST_PRICE * max(cost.max(), 1e-300)

    def _settled_by_full(self) -> bool:
        """Whether no deployment would be better if all pipelines were full, with memory for one microbatch."""
        listed = list[Column]()
        for offer in self.offers:
            if self.prices is None or offer.tokens < np.inf or self.open > _SMALL_SHARE:
                return False
            prices, slack = (
                self.prices.per_gpu(offer.pool),
                self.prices.short(offer.pool, self.slack),
            )
            listing = Listing(offer, prices, slack, self.deadline, _FIRST_LABELS)
            listed += [Column(rate, gpus, offer, own) for rate, gpus, own in listing.pipelines()]
            self.steps += listing.steps
            if not listing.complete:
                return False
        if not listed:
            return bool(self.offers)
        run = whole(self.demand, listed, self.deadline.within(_ROUNDING_SECONDS))
        if run.x is None or run.status != "optimal":
            return run.status == "infeasible"
        full = repeated(listed, run.x)
        attained = [c._replace(rate=c.offer.attained(c.stages)) for c in full]
        self.keep(attained)
        for column in attained:
            self.take(column)
        most, value = self.demand.value(full), given(self.value)
        return most * (1 - ONE_ANSWER) <= value <= most * (1 + ONE_ANSWER)

    def _agrees(self, master: Relaxed | None) -> bool:
        if master is None or self.prices is None:
            return False
        return abs(self.prices.bound - master.value) <= _CONVERGED * abs(master.value)

    def _dual_prices(
        self, master: Relaxed | None, smoothed: bool
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Prices of GPUs and of a token/s of each pool to ask with: half-way to those of the best bound if smoothed."""
        if master is None:
            first = 1.0 / np.maximum(self.demand.counts, 1)
            if self.demand.load:
                return np.zeros_like(first), dict.fromkeys(self.demand.pools, 0.0)
            return first, dict.fromkeys(self.demand.pools, 1.0)
        if not smoothed or self.prices is None:
            return master.capacity, master.per_rate
        prices = self.prices
        best = prices.cost * prices.unit
        if self.demand.load:
            best = np.maximum(0.0, best - self.demand.price)
        per_rate = {p: (own + 1 / prices.short(p, 1.0)) / 2 for p, own in master.per_rate.items()}
        return (master.capacity + best) / 2, per_rate

    def _price(self, capacity: np.ndarray, per_rate: Mapping[str, float]) -> int:
        """The least prices at every rate: a bound, and new columns. Their number."""
        cost, least = self._cost(capacity), dict[Offer, LeastPrices]()

        def relaxed_ratio(offer: Offer, cost: np.ndarray) -> float:
            least[offer] = offer.least(cost, self.deadline)
            return float((offer.asked[1] / least[offer].price).max(initial=0.0))

        ratio = self._greatest_ratios(cost, relaxed_ratio)
        if ratio is None:  # no pipeline in some pool, whatever the rate
            return 0
        self._bound(cost, capacity, ratio)
        new = 0
        for offer, found in least.items():
            rates, worth = offer.asked[0], per_rate[offer.pool]
            with np.errstate(divide="ignore", invalid="ignore"):
                profit = worth * rates - found.price if worth else rates / found.price
            profitable = profit > (1e-9 * worth * rates)
            for i in _spread_out(rates, profit, profitable):
                self.deadline.check()
                path = offer.path(cost, i, float(found.per_second[i]))
                # by the best of all links there is one at least, by each one's own perhaps none
                new += self._add(offer, path) if path else 0
        return new

    def _greatest_ratios(
        self, cost: np.ndarray, ratio_of: Callable[[Offer, np.ndarray], float]
    ) -> dict[str, float] | None:
        """The greatest ratio of a rate to its price by pool; None where a pool has no pipeline."""
        ratios = {pool: self._greatest_ratio(pool, cost, ratio_of) for pool in self.demand.pools}
        return ratios if all(ratios.values()) else None

    def _greatest_ratio(
        self, pool: str, cost: np.ndarray, ratio_of: Callable[[Offer, np.ndarray], float]
    ) -> float:
        """The greatest ratio of a rate to its price in one pool, asked of the offers that decide.

        When prices change, no ratio of an offer grows by more than the largest share by which a price
        fell. So the offer that may have the greatest is priced first, and those that cannot reach it
        are left out. Numbers in flight that decide, and are not attained together, are halved.
        """
        ratio: dict[Offer, float] = {}

        def may(offer: Offer) -> float:
            if offer in ratio or offer not in self._ratios:
                return ratio.get(offer, np.inf)
            before, known = self._ratios[offer]
            return known * float((before / cost).max())

        while own := [offer for offer in self.offers if offer.pool == pool]:
            # of equals that of fewest in flight: once a pipeline is full, ranges without end would be halved
            offer = max(own, key=lambda o: (may(o), -o.numbers.first))
            if offer in ratio:
                near = self.rounds >= _HALVED_FROM and not self.finished
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

    def _bound(self, cost: np.ndarray, capacity: np.ndarray, ratio: dict[str, float]) -> None:
        """Keep the prices if their bound is better."""
        demand = self.demand
        # no pipeline's price is below rate / ratio: that is what one of what is served costs at least
        each = sum(tokens / ratio[pool] for pool, tokens in demand.pools.items())
        if not demand.load:
            bound = float(cost @ demand.counts) / each
            if self.prices is None or bound < self.prices.bound:
                self.prices = Prices(cost, ratio, bound, 1 / each)
            return
        above = np.maximum(0.0, cost - demand.price)
        bound = demand.load * each - float(above @ demand.counts)
        if self.prices is None or bound > self.prices.bound:
            self.prices = Prices(cost, ratio, bound, 1.0)

    def _add(self, offer: Offer, path: Sequence[StageOf]) -> int:
        """A path as a column, a pipeline if there are the GPUs; how many were added."""
        gpus = tuple(np.sum([own for _, own in path], axis=0).tolist())
        if (np.array(gpus) > self.demand.counts).any():
            return self.take(Column(offer.counted(path), gpus, offer, ()))
        stages = offer.in_order(path)
        attained, slowed = offer.evaluated(stages)
        if slowed:
            self._loose.add(offer)
        return self.take(Column(attained, gpus, offer, stages))

    def take(self, column: Column) -> int:
        """Add a column unless it is known, or no pipeline; how many were added."""
        key = column._replace(stages=(), at=-1)
        if key in self._seen or not column.rate:
            return 0
        self._seen.add(key)
        self.columns.append(column)
        if column.exists:
            own = column.offer.pool, column.gpus
            self._best_rate[own] = max(self._best_rate.get(own, 0.0), column.rate)
        return 1

    def keep(self, chosen: list[Column]) -> None:
        """Take a deployment for the best if it is better."""
        if not self.demand.served(chosen) or not min(self.demand.serves(chosen).values()):
            return
        value, best = self.demand.value(chosen), self.value
        if best is None or (value < best if self.demand.load else value > best):
            self.best = chosen

    def round_off(self) -> None:
        """A deployment from the relaxation over the columns that are pipelines."""
        columns = self.pipelines
        if len(columns) > _AT_ONCE and self.prices is not None:
            profit = [self.prices.above(column) for column in columns]
            columns = [columns[i] for i in np.argsort(profit)[-_AT_ONCE:]]
        answer = relaxed(self.demand, columns)
        if answer is not None:
            self.keep(filled_up(self.demand, columns, answer.number))

    def improve(self, seconds: float) -> None:
        """The whole program over all columns, for a while."""
        self.round_off()
        if self.best is not None and not self.finished:
            self._solve(self.pipelines, self.deadline.within(seconds))
            self._report()
        self.deadline.check()

    def _solve(self, columns: list[Column], deadline: Deadline) -> bool:
        """The whole program over some columns; whether it was solved."""
        run = whole(self.demand, columns, deadline)
        if run.x is not None:
            self.keep(repeated(columns, run.x))
        return run.status in ("optimal", "infeasible")

    def close(self) -> None:
        """List what a better deployment could have, and choose among it.

        First as if the gap were small: few pipelines are that near to the price of their GPUs, and if the best
        deployment of these leaves no wider gap, it is the best of all.

        Raises
        ------
        Ended
            The deadline was first; what was found until then is kept.
        """
        self.settled = self.settled or self._settled_by_full()
        deadline = Watched(self.deadline, self._note, _SILENT_SECONDS)
        few = are_few_mixes(self.demand.counts.tolist())
        near, labels, last = self._first_slack(few), _FIRST_LABELS, 0
        while self.prices is not None and not self.finished:
            timed = any(offer.tokens < np.inf and offer.timing is None for offer in self.offers)
            far = max(near / abs(self.prices.bound), self.open)
            wide = few and timed and far > _SMALL_SHARE
            slack, before = self.slack if wide else min(near, self.slack), self.value
            known = self.steps
            complete, solved = self._choose(slack, wide, _FEW_MIXES if few else labels, deadline)
            if complete and solved:
                self._no_better_within(slack)
            if complete and slack >= self.slack:
                self.settled = solved
                return
            if complete:
                near, labels = _WIDER * near, _FIRST_LABELS
            elif few or labels >= MOST_LABELS:
                break
            elif self.steps > _MOST_STEPS:
                return
            elif self.value != before or labels == _FIRST_LABELS:
                labels = _MORE_LABELS * labels
            elif self.steps - known < _NEARLY_ALL * _MORE_LABELS * last:
                labels = MOST_LABELS
            else:
                break
            last = self.steps - known
        if not self.finished and not few and self.prices is not None:
            self._choose(self.slack, False, _FIRST_LABELS, deadline)

    def _first_slack(self, few: bool) -> float:
        """The slack of the first list; of few mixes lists are complete, so that the last is to be for what is open."""
        if self.prices is None:
            return 0.0
        near = _FIRST_SHARE * self.prices.bound
        if near <= 0:  # of a load: no list is near
            return self.slack
        steps = math.floor(math.log(max(1.0, self.slack / near), _WIDER))
        return self.slack / _WIDER**steps if few else near

    def _no_better_within(self, slack: float) -> None:
        """Keep the bound of a complete list: a better deployment has a pipeline that is further below its price."""
        bound, value = given(self.prices).bound, self.value
        if self.demand.load:
            bound = bound + slack if value is None else min(bound + slack, value)
            self.listed_bound = max(bound, self.listed_bound or 0.0)
        else:
            bound = max(bound - slack, value or 0.0)
            self.listed_bound = min(
                bound, np.inf if self.listed_bound is None else self.listed_bound
            )

    def _choose(self, slack: float, wide: bool, most: int, deadline: Deadline) -> tuple[bool, bool]:
        """Solve the whole program over what is listed; whether the list is complete, and the program solved."""
        listed, complete = self.listed(given(self.prices), slack, wide, deadline, most)
        seconds, solved = np.inf if complete else _ROUNDING_SECONDS, True
        if listed:
            solved = self._solve(listed, deadline.within(seconds))
            deadline.check()
        return complete, solved

    def listed(
        self,
        prices: Prices,
        slack: float,
        wide: bool,
        deadline: Deadline,
        most: int,
        pool: str | None = None,
    ) -> tuple[list[Column], bool]:
        """List every pipeline within a slack of the price of its GPUs as a column; and whether none is missing.

        Parameters
        ----------
        slack : float
            In units of the bound.
        wide : bool
            Where time limits pipelines, look at all mixes at once, whatever the slack.
        most : int
            Labels kept at each boundary.
        pool : str, optional
            The only one whose offers are looked at.
        """
        offers = [offer for offer in self.offers if pool in (None, offer.pool)]
        complete, waiting = True, self._worth(offers, prices, slack, deadline)
        while waiting:
            if self.steps > _MOST_STEPS:
                complete = False
                break
            offer = max(waiting, key=waiting.__getitem__)
            del waiting[offer]
            own, short = prices.per_gpu(offer.pool), prices.short(offer.pool, slack)
            if wide and offer.tokens < np.inf:
                sure, loose = self._by_tables(MixTables(offer, deadline), own, short)
            else:
                sure, loose = self._by_labels(Listing(offer, own, short, deadline, most))
            if loose and not offer.numbers.single:
                waiting |= self._worth(self._halve(offer), prices, slack, deadline)
            else:
                complete = complete and sure and not loose
        worth = [c for c in self.pipelines if prices.above(c) >= -slack]
        return [c for c in worth if c.rate >= self._best_rate[c.offer.pool, c.gpus]], complete

    def _worth(
        self, offers: Sequence[Offer], prices: Prices, slack: float, deadline: Deadline
    ) -> dict[Offer, float]:
        """The offers of which some pipeline may be within the slack, and how much more it may yield than it costs."""
        most = {}
        if self._profits is None or self._profits[0] is not prices:
            self._profits = prices, {}
        known = self._profits[1]
        for offer in offers:
            if offer not in known:
                least = offer.least(prices.per_gpu(offer.pool), deadline)
                known[offer] = float((offer.asked[1] - least.price).max())
            profit = known[offer]
            if profit >= -prices.short(offer.pool, slack):
                most[offer] = profit / prices.short(offer.pool, 1.0)
        return most

    def _by_labels(self, listing: Listing) -> tuple[bool, bool]:
        """Take the pipelines of a listing; whether all are there, and whether one attains less than it counts with."""
        loose, found = False, listing.pipelines()
        self.steps += listing.steps
        for rate, gpus, stages in found:
            listing.deadline.check()
            if self._best_rate.get((listing.offer.pool, gpus), 0.0) < rate * (1 - ONE_ANSWER):
                attained = listing.offer.attained(stages)
                self.take(Column(attained, gpus, listing.offer, stages))
                loose = loose or attained < rate * (1 - ONE_ANSWER)
        return listing.complete, loose

    def _by_tables(self, tables: MixTables, prices: np.ndarray, slack: float) -> tuple[bool, bool]:
        """The same from tables over all mixes; several numbers in flight lose if they may yield more than is known."""
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
                column = Column(rate, mix, offer, (), at)
                if offer.merged:
                    stages = tables.stages(at, mix)
                    column = Column(offer.attained(stages), mix, offer, stages)
                self.take(column)
                loose = loose or column.rate < rate * (1 - ONE_ANSWER)
        return True, loose

    def _note(self) -> Progress:
        moment = Progress(self.deadline.spent, self.value, self.bound, self.rounds)
        self.progress.append(moment)
        if self.on_progress is not None:
            self.on_progress(moment)
        return moment

    def _report(self) -> None:
        self.deadline.ask(self._note())


def _spread_out(rates: np.ndarray, profit: np.ndarray, profitable: np.ndarray) -> list[int]:
    """The most profitable rate of every eighth of a power of e, the best first."""
    chosen: dict[int, int] = {}
    for i in np.argsort(-profit, kind="stable"):
        if not profitable[i] or len(chosen) == _PER_ROUND:
            break
        chosen.setdefault(int(8 * np.log(rates[i])), int(i))
    return list(chosen.values())
