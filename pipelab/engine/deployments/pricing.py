"""What can be offered to the GPUs, and the least price of a pipeline of every rate at once.

An *offer* is a workload with a range of numbers in flight. It is a relaxation: a stage needs memory for the first of
them only, and a pipeline counts with what the last of them would yield. So no pipeline with a number of the range
attains more (`engine.in_flight`), and with a single number nothing is relaxed. Ranges that matter are halved.

Every GPU of class a has a price u_a ≥ 0 (from the master program). At a rate t, the cheapest stage for a span
is the cheapest composition that reaches t with it, and the cheapest pipeline is a shortest path over links that carry t
(`paths`). With n in flight a pipeline attains t only if a traversal takes at most n·w / t seconds, w tokens in a
microbatch. That limit on a sum is taken into the price (a Lagrangian relaxation): with κ ≥ 0 per second,

    Σ (price + κ · seconds) - κ · n·w / t

is at most the price of such a pipeline, whatever κ, and its least value is one more shortest path. The best of a few κ
is kept. One thing is left out: that there are only so many GPUs. So the price is a lower bound, and the path a pipeline
if there are the GPUs. The stage-flow program counts them (`Offer.cheapest`), and so does `listing`.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline, waited_for
from pipelab.engine.deployments.paths import Paths, StageOf, one_way, ways_of
from pipelab.engine.deployments.timing import Timing, best_service
from pipelab.engine.in_flight import Range
from pipelab.engine.instance import Instance
from pipelab.engine.rate_search import possible, walks
from pipelab.engine.reach import AtRate
from pipelab.engine.stage_table import FreeGPUs
from pipelab.engine.tolerances import LAST_BITS, ONE_ANSWER
from pipelab.errors import InvalidPlacement
from pipelab.evaluation import evaluate
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.requests import Limits, request_tokens

_MOST_RATES = 2_000  # of a table; the rates between two of them count as the higher one
_RATE_STEPS = 200  # where numbers in flight are limited: steps of the logarithm
_KAPPA_STEP, _KAPPA_HALVINGS = 3.0, 3  # from one price of a second to the next; then to nearer ones
_MOST_KAPPA_STEPS = 5  # up or down from the price of a pipeline over its time
_JUST_ABOVE_FACTOR, _JUST_BELOW_FACTOR = 1 + 1e-11, 1 - 1e-6
_KAPPAS_OF_LAYERS = 40
_MOST_MARKS = 64  # numbers in flight: the rates at which there is time for one more
_RATES_AT_ONCE = 16  # rates at once
_HOP_STEP_SHARE = 0.02  # of the shortest traversal
_PRICE_FACTOR, _MOST_PRICE_RISES = 1.5, 5  # a second, while a path takes too long


class LeastPrices(NamedTuple):
    """The least price of a pipeline of each rate, and the price of a second that gave it; shape (T,) each."""

    price: np.ndarray
    per_second: np.ndarray


@dataclass(frozen=True, eq=False)
class Offer:
    """One workload that a pipeline can have, with a range of numbers in flight.

    Attributes
    ----------
    problem : Problem
        As the user has it, with this workload.
    numbers : Range
    table : Instance
        With memory for the first of the numbers, and classes as types.
    merged : bool
        Whether identical nodes count as one.
    mixed_as_slowest : bool
        Whether a mixed stage is as fast as its slowest GPUs would be alone.
    timing : Timing or None
        What requests ask of time, where they are served; stages and links that are too slow are not in the table.
    most_rate : float
        No pipeline of the problem attains more, in tokens/s.
    """

    problem: Problem
    numbers: Range
    table: Instance
    merged: bool
    mixed_as_slowest: bool
    timing: Timing | None = None
    most_rate: float = math.inf
    _rates: dict[tuple[StageOf, ...], tuple[float, bool]] = field(default_factory=dict)

    @property
    def tokens(self) -> float:
        """The most that a traversal yields; infinite where the range has no end."""
        return self.numbers.last * self.problem.workload.tokens * self.problem.parts

    @property
    def pool(self) -> str:
        """The phase of its requests; empty where tokens count."""
        return self.problem.workload.phase if self.timing else ""

    @property
    def limits(self) -> Limits | None:
        """Limits of its requests; None where tokens count."""
        return None if self.timing is None else self.timing.limits

    @property
    def longest(self) -> float:
        """No traversal may take longer, in seconds, whatever the rate."""
        return math.inf if self.timing is None else self.timing.longest

    @property
    def token_seconds(self) -> float:
        """The time that a pass may take where its answers have a limit; infinite elsewhere."""
        if self.timing is None or self.problem.workload.phase == "prefill":
            return math.inf
        return self.timing.latest

    def most_tokens(self, rate: np.ndarray) -> np.ndarray:
        """The most tokens in flight in pipelines of these rates.

        Where a pass may take τ, n·w tokens in flight yield n·w / τ or more: n is at most τ · rate / w.
        """
        most, tokens = np.full(np.shape(rate), self.tokens), self.problem.workload.tokens
        if self.token_seconds < math.inf:
            number = np.floor(self.token_seconds * rate / tokens * _JUST_ABOVE_FACTOR)
            number = np.maximum(number, self.numbers.first)
            most = np.minimum(most, number * tokens * self.problem.parts)
        return most

    @cached_property
    def most_gpus(self) -> float:
        """More GPUs than this no pipeline may have."""
        return self.problem.costs.most_gpus

    @cached_property
    def work(self) -> np.ndarray:
        """The most that a stage of each composition does of a pipeline's work, as tokens/s through all layers."""
        layers = self.table.spans.layers
        return (self.table.rate * layers).max(axis=1, initial=0.0) / self.problem.model.layers

    def most_work(self, prices: np.ndarray) -> float:
        """The most work of a stage for the price of its GPUs: no pipeline has more rate per price."""
        if not prices.all():
            return math.inf
        return float((self.work / (self.table.composition @ prices)).max())

    @cached_property
    def span(self) -> np.ndarray:
        """The kind of span by first layer and number of layers less one."""
        return self.problem.model.spans.kind

    @cached_property
    def rows(self) -> np.ndarray:
        """The compositions that are priced.

        Where a mixed stage is as fast as its slowest GPUs, as many of one of its classes are no slower and
        cost no more. So it is left out if there are as many of each.
        """
        used = self.table.composition > 0
        size = self.table.composition.sum(axis=1)[:, None]
        spare = ((self.table.classes.count >= size) | ~used).all(axis=1) & (used.sum(axis=1) > 1)
        return np.flatnonzero(~(spare & self.mixed_as_slowest))

    @cached_property
    def rate(self) -> np.ndarray:
        """Of each of these compositions with each kind of span, tokens/s."""
        return self.table.rate[self.rows]

    @cached_property
    def seconds(self) -> np.ndarray:
        """Of a traversal; where mixed stages are left out, no more than theirs."""
        if len(self.rows) == len(self.table.rate):
            return self.table.seconds[self.rows]
        tokens = self.problem.workload.tokens
        return np.where(self.rate > 0, tokens / np.where(self.rate > 0, self.rate, 1.0), np.inf)

    @cached_property
    def paths(self) -> tuple[Paths, Paths]:
        """Shortest paths with one way through all stages, by the best link, and with few ways.

        Few: rates of links count up to that of the fastest stage, and seconds of a hop beyond the
        shortest in steps of a share of the shortest traversal, rounded down.
        """
        table = self.table
        parts = table.composition[self.rows], self.rate, self.seconds, self.span, self.asked[0]
        link, shortest = np.minimum(table.link, table.rate.max()), table.hop.min()
        step = _HOP_STEP_SHARE * float((table.seconds / table.spans.layers).min()) * len(self.span)
        hop = np.full_like(table.hop, shortest)
        if math.isfinite(min(self.tokens, self.longest)):
            hop += np.floor((table.hop - shortest) / step) * step
        coarse = Paths(*parts, one_way(link.max(), shortest, len(self.rows)))
        few = ways_of(link, hop, parts[0])
        return coarse, Paths(*parts, few) if few is not None and len(few.through) > 1 else coarse

    @cached_property
    def stage_rates(self) -> np.ndarray:
        """Rates of stages at which the GPUs can hold all layers, ascending."""
        rates = np.unique(self.table.rate)
        rates, enough = rates[rates > 0], self.problem.model.layers * (1 - 1e-9)
        above = bisect_left(rates, True, key=lambda rate: self._holdable(rate) < enough)
        return rates[:above]

    def _holdable(self, rate: float) -> float:
        """The most layers that the GPUs hold at a rate if a traversal takes no longer than it may, at most.

        With κ layers per second, a stage of l layers and s seconds is worth l - κ·s, and a GPU of it the same share as
        all others. Stages in time hold no more than what all GPUs are worth at best, and κ times the time.
        """
        table, most = self.table, self.table.holdable(rate)
        if math.isinf(self.longest):
            return most
        size, hop = table.composition.sum(axis=1)[:, None], float(table.hop.min())
        used, reaches = table.composition > 0, table.rate >= rate
        seconds = np.where(reaches, table.seconds, 0.0) + hop
        for kappa in np.geomspace(1 / 64, 64, _KAPPAS_OF_LAYERS) * len(self.span) / self.longest:
            worth = np.where(reaches, (table.spans.layers - kappa * seconds) / size, 0.0)
            of_class = np.where(used, worth.max(axis=1, initial=0.0)[:, None], 0.0).max(axis=0)
            worth_of_all = float(of_class @ table.classes.count)
            most = min(most, worth_of_all + kappa * (self.longest + hop))
        return most

    @cached_property
    def rates(self) -> np.ndarray:
        """Rates that a full pipeline may have, of stages and of links, ascending."""
        link = self.table.link
        link = link[(link > 0) & (link < self.stage_rates[-1])]
        rates = np.unique(np.concatenate([self.stage_rates, link]))
        return rates[np.append(True, np.diff(rates) > LAST_BITS * rates[:-1])]

    @cached_property
    def asked(self) -> tuple[np.ndarray, np.ndarray]:
        """Rates at which paths are sought, ascending, and for each the highest rate that it stands for; shape (T,).

        Without a limit on time a rate stands for itself. With one, points are asked for themselves, and what is just
        above a point for all up to the next. Above what a pipeline may attain none is asked.
        """
        stages, rates, most = self.stage_rates, self.rates, self.most_rate
        if math.isinf(min(self.tokens, self.token_seconds)):  # that of a stage or of a link
            steps = np.geomspace(rates[0], rates[-1], _MOST_RATES) * (1 - 1e-12)
            many = len(rates) > _MOST_RATES
            first = np.unique(np.searchsorted(rates, steps)) if many else np.arange(len(rates))
            low, high = rates[first], rates[np.append(first[1:] - 1, len(rates) - 1)]
        else:
            least, marks = stages[0] / (4 * self.problem.model.layers), np.zeros(0)
            if self.token_seconds < math.inf:
                one = self.problem.workload.tokens / self.token_seconds
                marks = one * np.arange(self.numbers.first, min(self.numbers.last, _MOST_MARKS) + 1)
                marks = marks[marks < stages[-1]]
                least = min(one * self.numbers.first * _JUST_BELOW_FACTOR, stages[-1])
            steps = np.geomspace(least, stages[-1], _RATE_STEPS)
            exact = stages if len(stages) <= _RATE_STEPS else stages[-1:]
            points = np.unique(np.concatenate([steps, exact, marks]))
            low = np.concatenate([[0.0], points, points[:-1] * _JUST_ABOVE_FACTOR])
            high = np.concatenate([points[:1], points, points[1:]])
            order = np.argsort(low, kind="stable")
            low, high = low[order], high[order]
        kept = low < most
        if kept.all():
            return low, high
        return np.append(low[kept], most), np.append(np.minimum(high[kept], most), most)

    @cached_property
    def time_limit(self) -> np.ndarray:
        """How long a traversal may take at each rate; for the rate below all no shorter than for any."""
        low, high = self.asked
        tokens = self.most_tokens((low + high) / 2)
        return np.minimum(self.longest, np.concatenate([[np.inf], tokens[1:] / low[1:]]))

    def least(self, prices: np.ndarray, deadline: Deadline = NEVER) -> LeastPrices:
        """Find the least price of a pipeline of each rate that is asked, the number of GPUs aside.

        First by the best of all links and a few prices of a second; by the links there are and better prices where
        that may decide what is greatest: a rate's ratio to its price, or what it leaves above its price.

        Parameters
        ----------
        prices : float array, shape (A,)
            Of a GPU of each class, at least 0.

        Returns
        -------
        LeastPrices
            No pipeline of the offer has more rate per price than the greatest of high / price, and none
            leaves more above its price than the greatest of high - price.
        """
        coarse, fine = self.paths
        high = self.asked[1]
        found = waited_for(
            lambda: self._least(coarse, prices, np.arange(len(high)), deadline), deadline
        )
        price, per_second = found
        closer = np.full(len(high), coarse is fine and not np.isfinite(self.time_limit).any())
        while True:
            with np.errstate(divide="ignore"):  # of a price of 0
                ratio, profit = high / price, high - price
            open_ = ~closer & (
                (ratio > ratio[closer].max(initial=0.0))
                | (profit > profit[closer].max(initial=-np.inf))
            )
            which = np.flatnonzero(open_)
            if not len(which):
                return LeastPrices(price, per_second)
            first = [which[np.argsort(-value[which])[:_RATES_AT_ONCE]] for value in (ratio, profit)]
            which = np.unique(np.concatenate(first))
            refined = self._least(fine, prices, which, deadline, per_second[which])
            price[which] = np.maximum(price[which], refined.price)
            per_second[which] = refined.per_second
            closer[which] = True

    def _least(
        self,
        paths: Paths,
        prices: np.ndarray,
        which: np.ndarray,
        deadline: Deadline,
        near: np.ndarray | None = None,
    ) -> LeastPrices:
        """Find the least prices of some rates with a few κ, or with those near one for each."""
        best = paths.paid(prices, 0.0, which, deadline)[-1]
        chosen = np.zeros_like(best)
        low, high = (rates[which] for rates in self.asked)
        limit = self.time_limit[which]
        known = np.isfinite(best) & (best > 0) & np.isfinite(limit) & (limit > 0)
        if not known.any():
            return LeastPrices(best, chosen)

        def priced(kappas: np.ndarray, at: np.ndarray) -> np.ndarray:
            paid = paths.paid(prices, kappas, which[at], deadline)[-1]
            time, first, last = limit[at], low[at], high[at]
            # of all t that a rate stands for, t / price and t - price are greatest at one end
            with np.errstate(invalid="ignore", divide="ignore"):  # no path, or no limit
                at_low = paid - kappas * time
                at_high = paid - kappas * time * first / last
                value = np.minimum(at_low * last / first, at_low + last - first)
                return np.where(time < self.longest, np.minimum(value, at_high), at_low)

        if near is None:
            at = np.flatnonzero(known)
            power = np.round(np.log(best[at] / limit[at]) / math.log(_KAPPA_STEP))
            kappas = _KAPPA_STEP**power
            # elsewhere the cheapest pipeline is in time
            late = priced(kappas / _KAPPA_STEP**_MOST_KAPPA_STEPS, at) > best[at]
            at, kappas, steps = at[late], kappas[late], [_KAPPA_STEP]
        else:
            at = np.flatnonzero(near)
            kappas = near[at]
            steps = [_KAPPA_STEP**0.5**i for i in range(1, 1 + _KAPPA_HALVINGS)]
        if not len(at):
            return LeastPrices(best, chosen)
        value = priced(kappas, at)
        for step in steps:
            # the least price is concave in κ: once it falls, it falls on
            for factor in (step, 1 / step):
                rising = np.arange(len(at))
                for _ in range(_MOST_KAPPA_STEPS if near is None else 1):
                    after = priced(kappas[rising] * factor, at[rising])
                    better = after > value[rising]
                    rising = rising[better]
                    if not len(rising):
                        break
                    kappas[rising] *= factor
                    value[rising] = after[better]
        better = value > best[at]
        best[at[better]], chosen[at[better]] = value[better], kappas[better]
        return LeastPrices(best, chosen)

    def path(self, prices: np.ndarray, which: int, kappa: float) -> list[StageOf]:
        """The cheapest pipeline of one rate that is asked; at dearer seconds if it takes too long; empty if none is."""
        paths = self.paths[1]
        stages, seconds = paths.cheapest(prices, kappa, which)
        for _ in range(_MOST_PRICE_RISES if kappa else 0):
            if seconds <= self.time_limit[which]:
                break
            kappa *= _PRICE_FACTOR
            stages, seconds = paths.cheapest(prices, kappa, which)
        return stages

    def cheapest(
        self, rate: float, prices: np.ndarray, deadline: Deadline
    ) -> tuple[list[StageOf] | None, float]:
        """The cheapest pipeline of the GPUs there are that yields a rate, and a bound on its price.

        By the stage-flow program (`engine.cheapest_walk`) with these prices as what is to be least. The bound is
        infinite if there is none, and minus infinity if sets of classes were left out.

        Raises
        ------
        Ended, TooLarge
        """
        limit, best, bound = self.tokens / rate if rate else math.inf, None, math.inf
        limit = min(limit, self.longest)
        reach = AtRate(
            instance=self.table,
            rate=rate * (1 - ONE_ANSWER),
            timed=limit < math.inf,
            deadline=deadline,
        )
        most = {"seconds": limit * (1 + ONE_ANSWER)} if limit < math.inf else {}
        for walk in filter(possible, walks(reach, prices, most)):
            found = walk.least()
            bound = min(bound, -math.inf if walk.stages.links.narrowed else found.bound)
            if found.placement is not None:
                stages = self.table.classes.stages_of(found.placement)
                paid = float(prices @ np.sum([gpus for _, gpus in stages], axis=0))
                if best is None or paid < best[0]:
                    best = paid, stages
        return (None if best is None else best[1]), bound

    def counted(self, stages: Sequence[StageOf]) -> float:
        """With what stages count in the bound, limits on time aside: no pipeline of these attains more."""
        slowest, took = self._slowest_and_seconds(stages)
        return min(slowest, self.tokens / took) if slowest else 0.0

    def promised(self, stages: Sequence[StageOf]) -> float:
        """`counted` within limits on time: with no more in flight than there is time for."""
        slowest, took = self._slowest_and_seconds(stages)
        if not slowest or took > self.longest:
            return 0.0
        return min(slowest, float(self.most_tokens(np.array(slowest))) / took)

    def _slowest_and_seconds(self, stages: Sequence[StageOf]) -> tuple[float, float]:
        """The rate of the slowest stage or link, and the seconds of a traversal."""
        sizes, used = np.array([n for n, _ in stages]), np.array([gpus for _, gpus in stages])
        spans = self.span[np.cumsum(sizes) - sizes, sizes - 1]
        rate, seconds = self.table.rates_of(used)
        each = np.arange(len(sizes))
        slowest, took = rate[each, spans].min(), seconds[each, spans].sum()
        for here, there in pairwise(used > 0):
            slowest = min(slowest, self.table.link[np.ix_(here, there)].min())
            took += self.table.hop[np.ix_(here, there)].max()
        return float(slowest), float(took)

    def attained(self, stages: tuple[StageOf, ...]) -> float:
        """What a pipeline attains, each stage within one node where there is room; 0 if it lacks memory there."""
        return self.evaluated(stages)[0]

    def evaluated(self, stages: tuple[StageOf, ...]) -> tuple[float, bool]:
        """Evaluate as `attained` does, and say whether that is less than the rate of the slowest stage or link."""
        if sum(sum(gpus) for _, gpus in stages) > self.most_gpus:
            self._rates[stages] = 0.0, True
        if stages not in self._rates:
            (ids,) = FreeGPUs.in_nodes(self.problem, self.table.classes).taken([stages])
            layers = [number for number, _ in stages]
            self._rates[stages] = self.rated(Placement.of(zip(layers, ids, strict=True)))
        return self._rates[stages]

    def rated(self, placement: Placement) -> tuple[float, bool]:
        """What a placement attains, in tokens/s, and whether that is less than its slowest stage or link would yield.

        0 where it does not fit, or keeps no limit.
        """
        if self.limits is not None:
            best = best_service(self.problem, placement, self.limits)
            if best is None:
                return 0.0, True
            return best.requests_per_s * request_tokens(self.problem), not best.full
        try:
            found = evaluate(self.problem, placement)
        except InvalidPlacement:
            return 0.0, True
        return found.attainable, found.attainable < found.rate * (1 - ONE_ANSWER)
