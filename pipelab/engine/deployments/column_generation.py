"""Column generation: a master program, its dual prices, the pricing problem at these prices, and so on.

The master program chooses how many pipelines there are of each *column* (a pipeline that is known). With
column c of rate r_c that uses n_ca GPUs of class a, and x_c pipelines of it:

    most throughput    max Σ r_c x_c                  Σ n_ca x_c ≤ N_a
    least price        min Σ (q · n_c) x_c            Σ n_ca x_c ≤ N_a,  Σ r_c x_c ≥ load

Its linear relaxation has dual prices u. The pricing problem asks for pipelines that yield more than
their GPUs cost at these prices; they become columns (`Generation.run`). Every round has a bound, too. With
prices p_a per GPU (in tokens/s) such that no pipeline has a rate above the price of its GPUs, r ≤ p · n, no
deployment has more than p · N tokens/s: its pipelines together use at most N. The dual prices become such
prices when multiplied by the greatest ratio of a rate to a price,

    ρ = max over rates t of t / (least price of a pipeline of t at prices u),     p = ρ u

(Farley's bound), and `Pricing` gives that at all rates at once. It leaves out links and the number of
GPUs in one pipeline, so the bound holds all the more. Where a load is to be served at the least price,
the same is done with the rent added to the dual price.

A pipeline of a better deployment than the best so far has a rate of at least p · n - slack, where slack
is the distance from the bound: what is below cannot make up for it. So if a gap remains, only such
pipelines need to be listed (`listing`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from pipelab.engine.deadline import Deadline, Ended, Watched
from pipelab.engine.deployments.pricing import CapacityPrices, Least, Pricing, StageOf, repaired
from pipelab.engine.solvers.choice import run_program
from pipelab.engine.solvers.linear_program import Columns, LinearProgram, RowBlock
from pipelab.engine.solvers.solver_run import Progress, SolverRun
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.fields import given

_MOST_ROUNDS = 300
_TIGHTER_ROUNDS = 60
_PER_ROUND = 24  # columns of each offer
_LEAST_PRICE = 1e-9  # as a share of the highest: a price of 0 would make the ratio infinite
_CONVERGED = 1e-7
_ROUNDING_SECONDS = 5.0
_SILENT_SECONDS = 1.0
_MOST_EXACT = 30  # rates priced exactly in one round
_HALVED_FROM = 3  # rounds: before, prices say little


@dataclass(frozen=True)
class Column:
    """A pipeline as the master program sees it.

    Attributes
    ----------
    rate : float
        In tokens/s.
    gpus : tuple of int
        Of each class.
    offer : int
        Which of the offers (workloads) it is for.
    index : int
        The number of its rate in that offer's table; -1 where `stages` are known.
    stages : tuple of (int, tuple of int)
        Layers and GPUs by class of each stage, where these are known.
    """

    rate: float
    gpus: tuple[int, ...]
    offer: int = 0
    index: int = -1
    stages: tuple[StageOf, ...] = ()


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
        Dollars per hour of a GPU of each class; read with a load only.
    """

    counts: np.ndarray
    load: float
    price: np.ndarray

    def value(self, columns: Sequence[Column]) -> float:
        """Tokens/s, or dollars per hour, of these pipelines."""
        if not self.load:
            return float(sum(c.rate for c in columns))
        return float(sum(self.price @ np.array(c.gpus) for c in columns))

    def served(self, columns: Sequence[Column]) -> bool:
        """Whether these pipelines serve the load."""
        return sum(c.rate for c in columns) >= self.load * (1 - 1e-12)


class Relaxed(NamedTuple):
    """The optimum of the linear relaxation.

    Attributes
    ----------
    value : float
        Tokens/s, or dollars per hour.
    number : float array, shape (C,)
    capacity : float array, shape (A,)
        What one GPU more of each class would bring, at least 0.
    per_rate : float
        Dual price of one token/s of a column: 1, or the dollars per hour that a token/s of load costs.
    """

    value: float
    number: np.ndarray
    capacity: np.ndarray
    per_rate: float


def relaxed(demand: Demand, columns: Sequence[Column]) -> Relaxed | None:
    """The linear relaxation over some columns; None where they do not serve the load."""
    from scipy.optimize import linprog

    used = np.array([c.gpus for c in columns], dtype=float).T
    rate = np.array([c.rate for c in columns])
    unit = demand.load or rate.max()  # what is tiny or huge counts as nothing, or as infinite
    if not demand.load:
        found = linprog(-rate / unit, A_ub=used, b_ub=demand.counts, method="highs")
        duals = np.maximum(0.0, -found.ineqlin.marginals)
        return Relaxed(-found.fun * unit, found.x, duals * unit, 1.0)
    found = linprog(
        demand.price @ used,
        A_ub=np.vstack([used, -rate / unit]),
        b_ub=np.append(demand.counts, -1.0),
        method="highs",
    )
    if found.x is None:
        return None
    duals = np.maximum(0.0, -found.ineqlin.marginals)
    return Relaxed(found.fun, found.x, duals[:-1], float(duals[-1]) / unit)


def whole(
    demand: Demand,
    columns: Sequence[Column],
    deadline: Deadline,
    gap: float = 0.0,
) -> SolverRun:
    """The whole program over some columns."""
    number = len(columns)
    used = np.array([c.gpus for c in columns], dtype=float).T.reshape(-1, number)
    rate = np.array([c.rate for c in columns])
    names = Columns({"x": number})
    capacity = names.rows({"x": sp.csr_array(used)}, upper=0.0)
    capacity.upper[:] = demand.counts
    blocks: dict[str, RowBlock] = {"class_capacity": capacity}
    unit = demand.load or rate.max()  # so that a solver's tolerance is a share of it
    if demand.load:
        blocks["load"] = names.rows({"x": sp.csr_array(rate[None] / unit)}, lower=1.0)
    with np.errstate(divide="ignore"):
        most = np.where(used > 0, demand.counts[:, None] // np.maximum(used, 1), np.inf).min(axis=0)
    objective = -(demand.price @ used) if demand.load else rate / unit
    program = LinearProgram(
        names, np.zeros(number), most, np.ones(number, dtype=bool), objective, blocks
    )
    return run_program(program, deadline=deadline, gap=gap)


def repeated(columns: Sequence[Column], number: np.ndarray) -> list[Column]:
    """Each column as often as it is chosen."""
    times = np.rint(number).astype(int).tolist()
    return [column for column, n in zip(columns, times, strict=True) for _ in range(n)]


def filled_up(demand: Demand, columns: Sequence[Column], number: np.ndarray) -> list[Column]:
    """Whole numbers from the relaxation's: rounded down, then whatever still fits, the best first.

    With a load, pipelines that it does not need are dropped again, the dearest first.
    """
    chosen = repeated(columns, np.floor(number + 1e-9))
    used = np.array([c.gpus for c in columns], dtype=int)
    rate = np.array([c.rate for c in columns])
    left = demand.counts - sum((np.array(c.gpus) for c in chosen), np.zeros_like(demand.counts))
    while True:
        fits = np.flatnonzero((used <= left).all(axis=1))
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
    """Prices of GPUs that no pipeline's rate exceeds, and the bound that follows.

    Attributes
    ----------
    per_gpu : float array, shape (A,)
        Tokens/s for each GPU of a class.
    bound : float
        Of the deployment's value: no more tokens/s, or no fewer dollars per hour.
    per_rate : float
        The dual price of a token/s, in the unit of the bound.
    """

    per_gpu: np.ndarray
    bound: float
    per_rate: float


@dataclass
class Generation:
    """The state of one column generation.

    Attributes
    ----------
    pricings : sequence of Pricing
        One for each offer, all about the same classes.
    demand : Demand
    columns : list of Column
        That are pipelines.
    beyond : list of Column
        That have more GPUs of a class than there are: they count for the bound only.
    best : list of Column
        The pipelines of the best deployment so far, repeated.
    prices : Prices or None
        Those of the best bound so far.
    capacity : dict or None
        The `CapacityPrices` of one pipeline of each offer, where these are counted; then the rate that
        decides the bound is also priced by the stage-flow program.
    halve : function of an offer's index
        The indices of the offers that its halves became, whose pricings were added; None if it has
        no halves.
    live : list of int
        Offers that were not halved.
    settled : bool
        The best deployment so far was proven to be the best, whatever the bound says.
    repairs : bool
        Whether a path with more GPUs of a class than there are is `repaired`. That takes most of the time, and
        brings little where every mix is listed soon.
    """

    pricings: Sequence[Pricing]
    demand: Demand
    deadline: Deadline
    on_progress: Callable | None = None
    gap: float = 0.0
    columns: list[Column] = field(default_factory=list)
    beyond: list[Column] = field(default_factory=list)
    best: list[Column] | None = None
    prices: Prices | None = None
    rounds: int = 0
    settled: bool = False
    repairs: bool = True
    capacity: dict[int, CapacityPrices] | None = None
    halve: Callable[[int], list[int] | None] = lambda offer: None
    live: list[int] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)
    _seen: set[tuple] = field(default_factory=set)
    _ratios: dict[int, tuple[np.ndarray, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.live = self.live or list(range(len(self.pricings)))

    @property
    def value(self) -> float | None:
        """Of the best deployment so far."""
        return None if self.best is None else self.demand.value(self.best)

    @property
    def bound(self) -> float | None:
        """No deployment is better."""
        return None if self.prices is None else self.prices.bound

    @property
    def open(self) -> float:
        """By how much a deployment may be better than the best so far, as a share; infinite without one."""
        if self.best is None or self.prices is None or not self.value:
            return np.inf
        far = self.prices.bound / self.value - 1
        return max(0.0, -far if self.demand.load else far)

    @property
    def slack(self) -> float:
        """How far below the price of its GPUs the rate of a pipeline of a better deployment may be."""
        if self.best is None or self.prices is None:
            return np.inf
        return abs(self.prices.bound - self.demand.value(self.best)) / self.prices.per_rate

    def run(self) -> None:
        """Generate columns until nothing is open, then solve the whole program over all of them.

        Raises
        ------
        Ended
            The deadline was first; what was found until then is kept.
        """
        if not self._generate(_MOST_ROUNDS):
            self.improve(_ROUNDING_SECONDS)

    def tighten(self) -> None:
        """Generate columns with exact prices: pipelines that keep to the GPUs there are, and a better bound.

        Raises
        ------
        Ended
            The deadline was first; what was found until then is kept.
        """
        if not self.beyond or self.open <= max(self.gap, ONE_ANSWER):
            return
        self.capacity, self.beyond, self._ratios = {}, [], {}
        if not self._generate(_TIGHTER_ROUNDS):
            self.improve(_ROUNDING_SECONDS)

    def _generate(self, most: int) -> bool:
        """Master program, dual prices, pricing problem, until they agree; whether nothing is left to find."""
        master = None
        if self.capacity is not None and self.columns:
            master = relaxed(self.demand, self.columns)
        smoothed = False
        for _ in range(most):
            self.rounds += 1
            new = self._price(*self._dual_prices(master, smoothed))
            if not self.columns and not self.beyond:
                return True
            master = relaxed(self.demand, self.columns + self.beyond)
            if master is not None and (self.rounds % 5 == 0 or self.best is None):
                self.round_off()
            self._report()
            if master is not None and self._agrees(master):
                return False
            if self.open <= max(self.gap, ONE_ANSWER):
                return True
            if not new and not smoothed:
                return False
            smoothed = new > 0 and self.rounds > 3 and master is not None
        return False

    def _agrees(self, master: Relaxed) -> bool:
        far = abs(self.prices.bound - master.value) if self.prices is not None else np.inf
        return far <= _CONVERGED * abs(master.value)

    def _dual_prices(self, master: Relaxed | None, smoothed: bool) -> tuple[np.ndarray, float]:
        """Prices of GPUs and of a token/s to ask with: half-way to those of the best bound if smoothed."""
        if master is None:
            first = 1.0 / np.maximum(self.demand.counts, 1)
            return (first, 1.0) if not self.demand.load else (np.zeros_like(first), 0.0)
        if not smoothed or self.prices is None:
            return master.capacity, master.per_rate
        best = self.prices.per_gpu * self.prices.per_rate
        if self.demand.load:
            best = np.maximum(0.0, best - self.demand.price)
        return (master.capacity + best) / 2, (master.per_rate + self.prices.per_rate) / 2

    def _price(self, capacity: np.ndarray, per_rate: float) -> int:
        """The least prices at every rate: a bound, and new columns. Their number."""
        demand = self.demand
        cost = capacity + (demand.price if demand.load else 0.0)
        cost = cost + _LEAST_PRICE * max(cost.max(), 1e-300)
        known = len(self.columns)
        least, ratio = self._greatest_ratio(cost)
        if not ratio:  # no pipeline, whatever the rate
            return 0
        self._bound(cost, capacity, ratio)
        new = len(self.columns) - known
        for i, found in least.items():
            rates = self.pricings[i].asked[0]
            with np.errstate(divide="ignore", invalid="ignore"):
                profit = per_rate * rates - found.price if per_rate else rates / found.price
            profitable = profit > (1e-9 * per_rate * rates)
            new += self._add(i, _spread_out(rates, profit, profitable), found.per_second, cost)
        return new

    def _greatest_ratio(self, cost: np.ndarray) -> tuple[dict[int, Least], float]:
        """The least prices of the offers that decide, and the greatest ratio of a rate to its price.

        When prices change, no ratio of an offer grows by more than the largest share by which a price
        fell. So the offer that may have the greatest is priced first, and those that cannot reach it
        are left out. A range of numbers in flight that decides is halved.
        """
        least: dict[int, Least] = {}
        ratio: dict[int, float] = {}

        def may(i: int) -> float:
            if i in ratio or i not in self._ratios:
                return ratio.get(i, np.inf)
            before, known = self._ratios[i]
            return known * float((before / cost).max())

        while self.live:
            i = max(self.live, key=may)
            if i in ratio:
                near = self.rounds >= _HALVED_FROM and self.open > max(self.gap, ONE_ANSWER)
                halves = self.halve(i) if near else None
                if halves is None:
                    return least, ratio[i]
                self.live = [j for j in self.live if j != i] + halves
                for j in halves:
                    self._ratios[j] = cost, ratio[i]
                continue
            pricing = self.pricings[i]
            least[i] = pricing.least(cost, self.deadline)
            if self.capacity is not None:
                own = self.capacity.setdefault(i, CapacityPrices(pricing, self.demand.counts))
                least[i] = self._exactly(i, cost, own.raised(cost, least[i], self.deadline))
            ratio[i] = float((pricing.asked[1] / least[i].price).max(initial=0.0))
            self._ratios[i] = cost, ratio[i]
        return least, 0.0

    def _exactly(self, offer: int, cost: np.ndarray, least: Least) -> Least:
        """Price the rate that decides exactly, then the one that decides instead, until one does again."""
        pricing, price, priced = self.pricings[offer], least.price.copy(), set[int]()
        while pricing.counts_gpus and price.size and len(priced) < _MOST_EXACT:
            which = int((pricing.asked[1] / price).argmax())
            if which in priced:
                break
            priced.add(which)
            found = pricing.exact(cost, which, self.deadline)
            if found is None:
                break
            price[which:] = np.maximum(
                price[which:], found.bound
            )  # of higher rates at least as high
            if found.placement is not None:
                stages = pricing.stages_of(found.placement)
                gpus = tuple(np.sum([g for _, g in stages], axis=0).tolist())
                rate = pricing.rate_placed(found.placement, which)
                self._take(self.columns, Column(rate, gpus, offer, stages=stages))
            self.deadline.check()
        return Least(price, least.per_second)

    def _bound(self, cost: np.ndarray, capacity: np.ndarray, ratio: float) -> None:
        """Keep the prices if their bound is better."""
        demand = self.demand
        if not demand.load:
            bound = ratio * float(cost @ demand.counts)
            if self.prices is None or bound < self.prices.bound:
                self.prices = Prices(cost * ratio, bound, 1.0)
            return
        # no pipeline's price is below rate / ratio: that is what a token/s of load costs at least
        above = np.maximum(0.0, cost - demand.price)
        bound = demand.load / ratio - float(above @ demand.counts)
        if self.prices is None or bound > self.prices.bound:
            self.prices = Prices(cost * ratio, bound, 1 / ratio)

    def _add(self, offer: int, which: list[int], per_second: np.ndarray, cost: np.ndarray) -> int:
        """New columns from the cheapest pipelines at some rates."""
        new, pricing = 0, self.pricings[offer]
        if self.capacity is not None:
            cost = cost + self.capacity[offer].prices
        found = pricing.pipelines(cost, which, per_second, self.deadline) if which else []
        for stages, asked in zip(found, which, strict=True):
            rows = [row for _, row in stages]
            by_class = pricing.by_class(stages, cost)
            if by_class is None:
                if self.capacity is None:
                    rate = pricing.rate_of([(layers, ()) for layers, _ in stages], rows)
                    beyond = Column(rate, pricing.without_limits(rows, cost), offer)
                    new += self._take(self.beyond, beyond)
                other = None
                if self.repairs:
                    other = repaired(pricing, cost, asked, per_second, self.deadline)
                if other is None:
                    continue
                by_class, rows = pricing.by_class(other, cost), [row for _, row in other]
            by_class, rows = pricing.ordered(given(by_class), rows)
            gpus = tuple(np.sum([g for _, g in by_class], axis=0).tolist())
            rate = pricing.rate_of(by_class, rows)
            new += self._take(self.columns, Column(rate, gpus, offer, stages=tuple(by_class)))
        return new

    def _take(self, columns: list[Column], column: Column) -> int:
        """Add a column unless it is known; how many were added."""
        key = column.rate, column.gpus, column.offer
        if key in self._seen:
            return 0
        self._seen.add(key)
        columns.append(column)
        return 1

    def keep(self, chosen: list[Column]) -> None:
        """Take a deployment for the best if it is better."""
        if not self.demand.served(chosen):
            return
        value, best = self.demand.value(chosen), self.value
        if best is None or (value < best if self.demand.load else value > best):
            self.best = chosen

    def round_off(self) -> None:
        """A deployment from the relaxation over the columns that are pipelines."""
        answer = relaxed(self.demand, self.columns) if self.columns else None
        if answer is not None:
            self.keep(filled_up(self.demand, self.columns, answer.number))

    def improve(self, seconds: float) -> None:
        """The whole program over all columns, for a while."""
        self.round_off()
        if not self.columns or self.open <= max(self.gap, ONE_ANSWER):
            return
        run = whole(self.demand, self.columns, self.deadline.within(seconds))
        if run.x is not None:
            self.keep(repeated(self.columns, run.x))
        self._report()
        if self.deadline.reason is not None:
            raise Ended(self.deadline.reason)

    @property
    def watched(self) -> Deadline:
        """The deadline for what takes long without a round: progress goes on being reported."""
        return Watched(self.deadline, self._report, _SILENT_SECONDS)

    def _report(self) -> None:
        moment = Progress(self.deadline.spent, self.value, self.bound, self.rounds)
        self.progress.append(moment)
        if self.on_progress is not None:
            self.on_progress(moment)


def _spread_out(rates: np.ndarray, profit: np.ndarray, profitable: np.ndarray) -> list[int]:
    """The most profitable rate of every eighth of a power of e, the best first."""
    chosen: dict[int, int] = {}
    for i in np.argsort(-profit, kind="stable"):
        if not profitable[i] or len(chosen) == _PER_ROUND:
            break
        chosen.setdefault(int(8 * np.log(rates[i])), int(i))
    return list(chosen.values())
