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

**The first prices** are the dual prices of the same program over stages (`master_program.stages_as_columns`). As
r ≤ p · n holds of them already, they bound all deployments before any pipeline is priced: the work bound.

**Whole numbers.** A deployment has whole pipelines: the relaxation is rounded down and filled up after some rounds,
and the whole program is solved over the columns for a few seconds (`Generation.solve_whole_for`). If a gap remains,
let slack be the distance from the bound to the best deployment so far. A better deployment has only pipelines with
r ≥ p · n - slack, since one pipeline that is further below the price of its GPUs leaves the deployment below the best.
These pipelines are listed (`closing`), and the whole program over them is the proof.

**When it stops.** The best is proven where the bound meets it, or where the program over a complete list is solved
(`Generation.proven`). The search also stops at the gap that was asked for, at the deadline, or where a list is too
long; the bound holds then, too.

**Requests** may be served by *pools*, one for each phase, of which that of fewest requests/s counts: with t_k
tokens of phase k in a request

    most requests/s    max v     Σ_c in k r_c x_c ≥ t_k v  for every pool k,   Σ n_ca x_c ≤ N_a

and with a load v is given. Each pool has its greatest ratio ρ_k of a rate to a price, so v requests/s need GPUs
of the price v Σ_k t_k / ρ_k at least. That gives the bound as above, with Σ_k t_k / ρ_k in place of 1 / ρ; the rate of
a pipeline in pool k counts ρ_k times the price of its GPUs at most.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from pipelab.engine.deadline import Deadline, Ended
from pipelab.engine.deployments.closing import ClosingSearch
from pipelab.engine.deployments.deployment_search import ROUNDING_SECONDS
from pipelab.engine.deployments.master_program import (
    PipelineColumn,
    Prices,
    RelaxedMaster,
    solve_relaxation,
    stages_as_columns,
)
from pipelab.engine.deployments.offers import ALL_NUMBERS
from pipelab.engine.deployments.paths import StageOf
from pipelab.engine.deployments.pricing import LeastPrices, Offer
from pipelab.engine.tolerances import ATTAINED, SOLVER
from pipelab.errors import TooLarge
from pipelab.fields import given

_MOST_ROUNDS = 300
_COLUMNS_PER_POOL = 24  # new ones in a round
_LEAST_PRICE_SHARE = 1e-12  # of the highest price: a price of 0 would make a ratio infinite
_CONVERGED_SHARE = 1e-7  # between the bound and the relaxation
_SHARE_LEFT_TO_LISTING = 1e-6  # open: one list over all numbers in flight settles that much
_EXACT_SECONDS = 5.0  # of pricing by the stage-flow program
_FIRST_HALVING_ROUND = 3  # the prices of earlier rounds say little


@dataclass
class Generation(ClosingSearch):
    """A column generation for one goal: rounds of master program and pricing, and what closes the gap."""

    _halving: bool = True  # whether numbers in flight that decide are halved
    _loose: set[Offer] = field(default_factory=set)
    _ratios: dict[Offer, tuple[np.ndarray, float]] = field(default_factory=dict)

    def bound_by_work(self) -> None:
        """Begin with the bound and the prices of the program over stages (`stages_as_columns`)."""
        work = solve_relaxation(self.goal, stages_as_columns(self.offers))
        # whatever the prices are, they give a bound
        cost = self._positive_prices(1 / self.goal.counts if work is None else work.capacity)
        ratio: dict[str, float] = {}
        for offer in self.offers:
            ratio[offer.pool] = max(offer.most_work(cost), ratio.get(offer.pool, 0.0))
        self._update_bound(cost, ratio, "work of stages")

    def bound_by_mixes(self, mixes: Sequence[PipelineColumn]) -> list[Offer]:
        """Bound all deployments by the relaxation over all mixes, each with a rate that no pipeline on it exceeds.

        Returns
        -------
        list of Offer
            Those of the mixes that the relaxation has.
        """
        master = solve_relaxation(self.goal, mixes)
        if master is None:
            return []
        cost, ratio = self._positive_prices(master.capacity), dict.fromkeys(self.goal.pools, 0.0)
        for mix in mixes:
            pool = mix.offer.pool
            ratio[pool] = max(ratio[pool], mix.rate / float(cost @ mix.gpus))
        self._update_bound(cost, ratio, "mixes of GPUs")
        return [mix.offer for mix, n in zip(mixes, master.number, strict=True) if n > SOLVER]

    @property
    def most_pipelines(self) -> int:
        """The most pipelines that the GPUs can hold at once: no GPU holds more layers than in the stage of most."""
        shares = np.max([offer.table.shares(0.0) for offer in self.offers], axis=0)
        return int(float(shares @ self.goal.counts) / len(self.offers[0].span) + SOLVER)

    @property
    def overdraws(self) -> bool:
        """Whether the relaxation has paths of more GPUs of a class than there are."""
        master = solve_relaxation(self.goal, self.columns)
        if master is None:
            return False
        return any(
            number > SOLVER and not column.exists
            for column, number in zip(self.columns, master.number, strict=True)
        )

    def generate(self, halving: bool = True) -> None:
        """Solve master program and pricing problem in turn until they agree, and then the whole program for a while.

        Parameters
        ----------
        halving : bool
            Whether numbers in flight that decide are halved.

        Raises
        ------
        Ended
            The deadline was first; what was found until then is kept.
        """
        self._halving = halving
        # prices of work first: those of a few simple columns say little
        master, new = solve_relaxation(self.goal, self.columns) if self.goal.load else None, 1
        smoothed = False
        for _ in range(0 if self.finished else _MOST_ROUNDS):
            self.rounds += 1
            new = self._price_offers(*self._smoothed_prices(master, smoothed))
            if not self.columns:
                return
            # of an offer that was halved only pipelines count; where tokens count, lists settle that sooner
            columns = [
                c for c in self.columns if c.exists or not c.offer.timing or c.offer in self.offers
            ]
            master = solve_relaxation(self.goal, columns)
            if master is not None:
                self.round_relaxation()
            self.report_progress()
            if self.finished:
                break
            if self._has_converged(master) or not (new or smoothed):
                self.solve_whole_for(ROUNDING_SECONDS)
                wide = [o for o in self.offers if o.numbers == ALL_NUMBERS and o in self._loose]
                if not wide or not self._halving or self.open <= _SHARE_LEFT_TO_LISTING:
                    break
                for offer in wide:
                    self.halve(offer)
            smoothed = new > 0 and self.rounds > 3 and master is not None
        self.solve_whole_for(ROUNDING_SECONDS)

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
            new = 1
            while new and not self.finished:
                master = solve_relaxation(self.goal, self.pipelines)
                if self._has_converged(master):
                    break
                capacity, _ = self._smoothed_prices(master, smoothed=False)
                new = self._price_exactly(capacity, until)
        self.solve_whole_for(ROUNDING_SECONDS)

    def _price_exactly(self, capacity: np.ndarray, until: Deadline) -> int:
        """Find the greatest ratios with GPU counts: a bound, and new columns. Return how many are new."""
        self.rounds += 1
        cost, known = self._positive_prices(capacity), len(self.columns)
        ratio = self._greatest_ratios(cost, lambda offer: self._exact_ratio(offer, cost, until))
        if not all(ratio.values()):
            return 0
        self._update_bound(cost, ratio)
        self.report_progress()
        return len(self.columns) - known

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
                reached = max(first, offer.promised(stages))
            after = reached * (1 + ATTAINED)  # what is between these two counts as the higher one
            greatest = max(greatest, min(-negative, after / price) if price > 0 else -negative)
            if after < last and price > 0:
                heapq.heappush(ranges, (-last / price, after, last))
        return greatest

    def _positive_prices(self, capacity: np.ndarray) -> np.ndarray:
        """Return the price of a GPU of each class to ask with, rent included, above 0."""
        cost = capacity + (self.goal.price if self.goal.load else 0.0)
        return cost + _LEAST_PRICE_SHARE * max(cost.max(), 1e-300)

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

        def relaxed_ratio(offer: Offer) -> float:
            least[offer] = offer.least(cost, self.deadline)
            return float((offer.asked[1] / least[offer].price).max(initial=0.0))

        ratio = self._greatest_ratios(cost, relaxed_ratio)
        if not all(ratio.values()):  # no pipeline in some pool, whatever the rate
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
        new = Counter[str]()
        for _, offer, i in sorted(wanted, key=lambda of: -of[0]):
            if new[offer.pool] < _COLUMNS_PER_POOL:
                self.deadline.check()
                path = offer.path(cost, i, float(least[offer].per_second[i]))
                # prices count with the fastest of all links; with the links between its GPUs there may be no path
                new[offer.pool] += self._add_path(offer, path) if path else 0
        return new.total()

    def _greatest_ratios(
        self, cost: np.ndarray, ratio_of: Callable[[Offer], float]
    ) -> dict[str, float]:
        """Return the greatest ratio of a rate to its price by pool; 0 where a pool has no pipeline."""
        return {pool: self._greatest_ratio(pool, cost, ratio_of) for pool in self.goal.pools}

    def _greatest_ratio(
        self, pool: str, cost: np.ndarray, ratio_of: Callable[[Offer], float]
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
            before, known = self._ratios.get(offer, (cost, np.inf))
            return min(offer.most_work(cost), known * float((before / cost).max()))

        while offers := [offer for offer in self.offers if offer.pool == pool]:
            # of equals that of fewest in flight: once a pipeline is full, ranges without end would be halved
            offer = max(offers, key=lambda o: (most_ratio(o), -o.numbers.first))
            if offer in ratio:
                near = self._halving and self.rounds >= _FIRST_HALVING_ROUND and not self.finished
                if offer.numbers.single or offer.numbers == ALL_NUMBERS or not near:
                    return ratio[offer]
                for half in self.halve(offer):
                    self._ratios[half] = cost, ratio[offer]
                continue
            ratio[offer] = ratio_of(offer)
            self._ratios[offer] = cost, ratio[offer]
        return 0.0

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
        stages = tuple(path)
        attained, slowed = offer.evaluated(stages)
        if slowed:
            self._loose.add(offer)
        return self.add_column(PipelineColumn(rate=attained, gpus=gpus, offer=offer, stages=stages))


def _spread_out(rates: np.ndarray, profit: np.ndarray, profitable: np.ndarray) -> list[int]:
    """Return the most profitable rate of every eighth of a power of e, the most profitable first."""
    chosen: dict[int, int] = {}
    for i in np.argsort(-profit, kind="stable"):
        if not profitable[i] or len(chosen) == _COLUMNS_PER_POOL:
            break
        chosen.setdefault(int(8 * np.log(rates[i])), int(i))
    return list(chosen.values())
