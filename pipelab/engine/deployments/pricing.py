"""The pipeline of least dual price for every rate at once: one shortest path over the layers, vectorised over rates.

Every GPU of class a has a price u_a ≥ 0 (from the master program). At a rate t, the cheapest stage
for a run of layers is the cheapest composition that reaches t with it, and the cheapest pipeline is a
shortest path from the first layer to the last. Prices are floating-point numbers of any size, zero
included, as no solver is asked.

Two things are left out: links, and that a pipeline cannot have more GPUs of a class than there are.
So the price found is a lower bound on that of every pipeline of at least t; what the path says is
a pipeline if it keeps both. `Pricing.exact` leaves out neither: the stage-flow program (`engine.walk`) with
dual prices as its costs, for one rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline, waited_for
from pipelab.engine.deployments.workloads import Offer
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.rates import StageRates
from pipelab.engine.stage_arrays import stage_tables
from pipelab.engine.stages import stages_of
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.engine.walk import Found, Limit, Walk, Weight
from pipelab.evaluation import evaluate
from pipelab.placement import Placement

# A stage of a pipeline: its number of layers, and its GPUs of each class.
StageOf = tuple[int, tuple[int, ...]]

Stages = list[tuple[int, int]]  # layers, and row of the table, of each stage

_MOST_RATES = 2_000  # of a table; the rates between two of them count as the higher one
_RATES = 200  # where attainable rates count: steps of the logarithm
_STEPS = 10  # prices of a second that are tried
_JUST_ABOVE = 1 + 1e-11
_TRIES = 5  # of a repair
_DEARER = 1.5  # prices of what is short: GPUs of a class, or seconds
_DEARER_SECONDS = 5  # times
_PRICE_STEPS = 40  # of capacity prices
_FIRST_STEP = 0.05  # of the price, as what is to be gained
_LAST_STEP = 1e-3
_MOST_COLUMNS = (
    150  # of an exact program: a hundredth of a second; those of 600 take a tenth and gain little
)


class Least(NamedTuple):
    """The least price of a pipeline of each rate, and the price of a second that gave it; shape (T,) each."""

    price: np.ndarray
    per_second: np.ndarray


@dataclass(frozen=True, eq=False)
class Pricing:
    """The shortest paths of one table of rates.

    Attributes
    ----------
    offer : Offer
        With the table.
    """

    offer: Offer

    @property
    def rates(self) -> StageRates:
        """The table."""
        return self.offer.rates

    @cached_property
    def asked(self) -> tuple[np.ndarray, np.ndarray]:
        """Rates at which paths are sought, ascending, and for each the highest rate that it represents; shape (T,)."""
        rates = self.rates
        possible = rates.stages[np.searchsorted(rates.stages, rates.thresholds[0]) :]
        holdable = rates.holdable(possible) >= rates.problem.model.layers * (1 - 1e-9)
        possible = possible[holdable]
        if len(possible) <= _MOST_RATES:
            return possible, possible
        # Even steps of the logarithm: each represents the rates up to the next.
        steps = np.geomspace(possible[0], possible[-1], _MOST_RATES)
        first = np.unique(np.searchsorted(possible, steps * (1 - 1e-12)))
        last = np.append(first[1:] - 1, len(possible) - 1)
        return possible[first], possible[last]

    @cached_property
    def _by_rate(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the table from the fastest to the slowest, for each kind of span; and their rates."""
        order = np.argsort(-self.rates.rate, axis=0, kind="stable")
        return order, np.take_along_axis(self.rates.rate, order, axis=0)

    def _enough(self, asked: np.ndarray) -> np.ndarray:
        """How many rows reach each rate, for each kind of span; shape (T, U)."""
        _, sorted_rates = self._by_rate
        return np.stack(
            [np.searchsorted(-of_span, -asked, side="right") for of_span in sorted_rates.T], axis=1
        )

    @cached_property
    def _all_enough(self) -> np.ndarray:
        return self._enough(self.asked[0])

    @cached_property
    def runs_ending(self) -> list[np.ndarray]:
        """For every boundary j > 0: the kinds of the runs of layers from boundary 0, 1, … j-1 to it."""
        kind = runs_of(self.rates.problem.model).kind
        return [kind[np.arange(j), j - np.arange(j) - 1] for j in range(1, len(kind) + 1)]

    def least(self, prices: np.ndarray, deadline: Deadline = NEVER) -> Least:
        """Find the least price of a pipeline of each rate that is asked, links and numbers of GPUs aside.

        Parameters
        ----------
        prices : float array, shape (A,)
            Of a GPU of each class, at least 0.
        """
        stage, _ = waited_for(lambda: self._stage_prices(prices, self._all_enough), deadline)
        price = waited_for(lambda: self._paths(stage, deadline), deadline)[-1]
        return Least(price, np.zeros_like(price))

    def pipelines(
        self, prices: np.ndarray, which: Sequence[int], per_second: np.ndarray, deadline: Deadline
    ) -> list[Stages]:
        """The cheapest pipelines themselves at some of the rates, with the price of a second of `least`."""
        stage, row = self._stage_prices(prices, self._all_enough[list(which)])
        reached = self._paths(stage, deadline)
        return [self._path_back(stage[:, t], row[:, t], reached[:, t]) for t in range(len(which))]

    @property
    def counts_gpus(self) -> bool:
        """Whether `exact` has an answer: not where GPUs of several nodes count as one family."""
        return self.offer.rates.problem.cluster is self.offer.problem.cluster

    def exact(self, prices: np.ndarray, which: int, deadline: Deadline) -> Found | None:
        """Find the cheapest pipeline of rate number `which` of `asked`, links and numbers of GPUs counted.

        None if the program is too large to be solved for many rates.

        Raises
        ------
        TooLarge
            There are too many stages to list.
        """
        instance = self.offer.instance
        reached = float(self.asked[0][which]) * (1 - ONE_ANSWER)
        possible, limits = instance.useful(instance.rate >= reached), self._limits(which)
        stages = stages_of(instance, possible, instance.link >= reached, bool(limits), deadline)
        walk = Walk(stages, Weight(prices), limits, deadline=deadline)
        return walk.least() if walk.columns.total <= _MOST_COLUMNS else None

    def _limits(self, which: int) -> tuple[Limit, ...]:
        """What a pipeline of a rate must keep besides."""
        return ()

    def stages_of(self, placement: Placement) -> tuple[StageOf, ...]:
        """The layers and GPUs by class of each stage."""
        classes, stages = self.rates.classes, []
        for stage in placement.stages:
            gpus = np.bincount(classes.of[list(stage.gpus)], minlength=len(classes))
            stages.append((len(stage.layers), tuple(gpus.tolist())))
        return tuple(stages)

    def rate_placed(self, placement: Placement, which: int) -> float:
        """The rate with which a pipeline that `exact` found counts."""
        return float(self.asked[0][which])

    def _path_back(self, stage: np.ndarray, row: np.ndarray, reached: np.ndarray) -> Stages:
        at, stages = len(reached) - 1, []
        while at:
            kinds = self.runs_ending[at - 1]
            start = int((reached[:at] + stage[kinds]).argmin())
            stages.append((at - start, int(row[kinds[start]])))
            at = start
        return stages[::-1]

    def by_kind(self, prices: np.ndarray) -> np.ndarray:
        """The price of a GPU of each kind: that of its cheapest class; shape (K,)."""
        of_kind = np.full(self.rates.composition.shape[1], np.inf)
        np.minimum.at(of_kind, self.rates.classes.kind, prices)
        return of_kind

    def _stage_prices(
        self, prices: np.ndarray, enough: np.ndarray, extra: np.ndarray | float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The least price of a stage for each kind of span and rate, and the row that has it; shape (U, T) each.

        `extra` is added to the price of each row with each kind of span.
        """
        order, _ = self._by_rate
        of_row = (self.rates.composition @ self.by_kind(prices))[order]
        if isinstance(extra, np.ndarray):
            of_row = of_row + np.take_along_axis(extra, order, axis=0)
        least = np.minimum.accumulate(of_row, axis=0)
        # the first row with the least price so far
        new = np.vstack([np.ones_like(least[:1], dtype=bool), least[1:] < least[:-1]])
        at = np.maximum.accumulate(np.where(new, np.arange(len(least))[:, None], 0), axis=0)
        spans = np.arange(least.shape[1])
        index = np.maximum(enough - 1, 0)
        price = np.where(enough > 0, least[index, spans], np.inf)
        return price.T, order[at[index, spans], spans].T

    def _paths(self, stage: np.ndarray, deadline: Deadline) -> np.ndarray:
        """The least price of stages for the first 0, 1, … M layers at each rate; shape (M + 1, T)."""
        # one rate without an axis of its own: half the time, and most calls
        of_kind = stage[:, 0] if stage.shape[1] == 1 else stage
        reached = np.zeros((len(self.runs_ending) + 1, *of_kind.shape[1:]))
        for j, kinds in enumerate(self.runs_ending, start=1):
            deadline.check()
            reached[j] = (reached[:j] + of_kind[kinds]).min(axis=0)
        return reached.reshape(len(reached), -1)

    def by_class(self, stages: Stages, prices: np.ndarray) -> list[StageOf] | None:
        """Stages with their GPUs by class, the cheapest first; None where a kind has too few GPUs."""
        classes = self.rates.classes
        free, out = classes.count.copy(), []
        order = np.argsort(prices, kind="stable")
        for layers, row in stages:
            gpus = np.zeros(len(classes), dtype=int)
            for k in np.flatnonzero(self.rates.composition[row]):
                needed = int(self.rates.composition[row, k])
                for a in order[classes.kind[order] == k]:
                    taken = min(needed, int(free[a]))
                    gpus[a] += taken
                    free[a] -= taken
                    needed -= taken
                if needed:
                    return None
            out.append((layers, tuple(gpus.tolist())))
        return out

    def without_limits(self, rows: Sequence[int], prices: np.ndarray) -> tuple[int, ...]:
        """The GPUs of these rows of the table by class, all of a kind from its cheapest class."""
        classes = self.rates.classes
        gpus = np.zeros(len(classes), dtype=int)
        for k, number in enumerate(self.rates.composition[list(rows)].sum(axis=0).tolist()):
            own = np.flatnonzero(classes.kind == k)
            gpus[own[prices[own].argmin()]] += number
        return tuple(gpus.tolist())

    def ordered(self, stages: list[StageOf], rows: list[int]) -> tuple[list[StageOf], list[int]]:
        """The stages in the order that makes the pipeline faster: as they are, or class by class.

        Only stages between the first and the last change places, and only where layers are identical
        there.
        """
        if not runs_of(self.rates.problem.model).alike_inside or len(stages) < 4:
            return stages, rows
        inner = sorted(range(1, len(stages) - 1), key=lambda i: (stages[i][1], stages[i][0]))
        order = [0, *inner, len(stages) - 1]
        other = [stages[i] for i in order], [rows[i] for i in order]
        return other if self.rate_of(*other) > self.rate_of(stages, rows) else (stages, rows)

    def rate_of(self, stages: Sequence[StageOf], rows: Sequence[int]) -> float:
        """The rate of these stages in this order, links included."""
        kinds = self._kinds_of([layers for layers, _ in stages])
        rate = float(self.rates.rate[list(rows), kinds].min(initial=np.inf))
        for (_, sender), (_, receiver) in pairwise(stages):
            if not sender:
                continue  # GPUs are not known
            used = np.ix_(np.flatnonzero(sender), np.flatnonzero(receiver))
            rate = min(rate, float(self.rates.link[used].min()))
        return rate

    def _kinds_of(self, sizes: Sequence[int]) -> np.ndarray:
        """The kinds of consecutive runs of so many layers."""
        ends = np.cumsum(sizes)
        return runs_of(self.rates.problem.model).kind[ends - sizes, np.array(sizes) - 1]


@dataclass(frozen=True, eq=False)
class AttainablePricing(Pricing):
    """The least dual price of a pipeline that attains a rate with a number in flight of a range.

    A pipeline attains t or more with n in flight if its stages and links reach t and a traversal takes at
    most n·w / t seconds (`listing`); n is the last number of the range, and memory is counted for the
    first. That limit on a sum is taken into the price: with κ ≥ 0 per second,

        Σ (price + κ · seconds) - κ · n·w / t

    is at most the price of such a pipeline, whatever κ, and its least value over all pipelines whose
    stages reach t is one more shortest path. Between two rates a < b the stages have to reach a only; then
    t / price, as a function of t, is greatest at a or at b. The best of a few κ is kept. A stage counts
    with the time of its traversal, or where mixed stages are not listed with the interval of its rate, which
    is no longer; a hop counts with the shortest there is.
    """

    _attained: dict[tuple, float] = field(default_factory=dict)

    @cached_property
    def asked(self) -> tuple[np.ndarray, np.ndarray]:
        """As of `Pricing`. A rate of stages stands for itself, what is just above for all up to the next."""
        rates = self.rates
        stages, layers = rates.stages, rates.problem.model.layers
        steps = np.geomspace(stages[0] / (4 * layers), stages[-1], _RATES)
        own = stages if len(stages) <= _RATES else stages[-1:]
        points = np.unique(np.concatenate([steps, own]))
        low = np.concatenate([[points[0] * 1e-6], points, points[:-1] * _JUST_ABOVE])
        high = np.concatenate([points[:1], points, points[1:]])
        order = np.argsort(low, kind="stable")
        return low[order], high[order]

    @cached_property
    def _limit(self) -> np.ndarray:
        """How long a pass may take at each rate; infinite for the rate below all."""
        low = self.asked[0]
        tokens = self.offer.last * self.rates.problem.workload.tokens
        return np.concatenate([[np.inf], tokens / low[1:]])

    def _limits(self, which: int) -> tuple[Limit, ...]:
        most = float(self._limit[which]) * (1 + ONE_ANSWER)
        if not np.isfinite(most):
            return ()
        return (Limit(Weight(np.zeros(len(self.rates.classes)), 1.0), most),)

    def rate_placed(self, placement: Placement, which: int) -> float:
        """What it attains."""
        return evaluate(self.offer.problem, placement).attainable

    @cached_property
    def _passes(self) -> np.ndarray:
        """Seconds of a pass through a stage of each row of the table; infinite where it does not fit."""
        problem = self.rates.problem
        tables = stage_tables(
            problem.costs,
            problem.model,
            problem.workload,
            problem.cluster.kinds,
            self.rates.composition,
            problem.batch_split,
        )
        fits = self.rates.rate > 0
        seconds = problem.workload.tokens / np.where(fits, self.rates.rate, 1.0)
        if tables.pass_seconds is not None:
            seconds = np.maximum(seconds, tables.pass_seconds)
        return np.where(fits, seconds, np.inf)

    @cached_property
    def _seconds(self) -> np.ndarray:
        """The same, for mixed stages that have no row no more than theirs."""
        if not self.rates.pure:
            return self._passes
        rate = self.rates.rate
        seconds = self.rates.problem.workload.tokens / np.where(rate > 0, rate, 1.0)
        return np.where(rate > 0, seconds, np.inf)

    @cached_property
    def _hops(self) -> np.ndarray:
        """Seconds of a message from class to class; 0 within a class of one GPU."""
        classes = self.rates.classes
        hop = self.rates.problem.message_seconds(classes.bandwidth_gb_per_s, classes.latency_ms)
        alone = np.diag(classes.count == 1)
        return np.where(alone, 0.0, hop)

    @cached_property
    def _shortest_hop(self) -> float:
        there = ~np.diag(self.rates.classes.count == 1)
        return float(self._hops[there].min(initial=np.inf))

    def least(self, prices: np.ndarray, deadline: Deadline = NEVER) -> Least:
        """Find prices such that no pipeline of a range has more rate per price than its highest rate per this price."""
        best, chosen = super().least(prices, deadline)
        if self.offer.last == np.inf:
            return Least(best, chosen)
        low, high = self.asked
        known = np.isfinite(best[1:]) & (best[1:] > 0)
        ratio = (best[1:] / self._limit[1:])[known]
        for kappa in np.geomspace(ratio.min() / 8, ratio.max() * 8, _STEPS) if len(ratio) else ():
            stage, _ = self._priced(prices, kappa, self._all_enough)
            paid = self._paths(stage, deadline)[-1] - self._free_hop(kappa)
            value = np.zeros_like(paid)  # of the lowest rates, which have no limit
            at_low = paid[1:] - kappa * self._limit[1:]
            at_high = paid[1:] - kappa * self._limit[1:] * low[1:] / high[1:]
            value[1:] = np.minimum(at_low * high[1:] / low[1:], at_high)
            better = value > best
            best[better], chosen[better] = value[better], kappa
        return Least(best, chosen)

    def pipelines(
        self, prices: np.ndarray, which: Sequence[int], per_second: np.ndarray, deadline: Deadline
    ) -> list[Stages]:
        """At the price of a second that was best at the rate, or at a higher one if that takes too long."""
        out = []
        for i in which:
            kappa = float(per_second[i])
            for _ in range(_DEARER_SECONDS if kappa else 1):
                stage, row = self._priced(prices, kappa, self._all_enough[[i]])
                reached = self._paths(stage, deadline)
                path = self._path_back(stage[:, 0], row[:, 0], reached[:, 0])
                if self._takes(path) <= self._limit[i]:
                    break
                kappa *= _DEARER
            out.append(path)
        return out

    def _takes(self, path: Stages) -> float:
        rows, kinds = [row for _, row in path], self._kinds_of([layers for layers, _ in path])
        return float(self._passes[rows, kinds].sum()) + (len(path) - 1) * self._free_hop(1.0)

    def _priced(
        self, prices: np.ndarray, kappa: float, enough: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """`_stage_prices` with the time of each stage and one hop in the price."""
        if not kappa:
            return self._stage_prices(prices, enough)
        extra = kappa * self._seconds + self._free_hop(kappa)
        return self._stage_prices(prices, enough, extra)

    def _free_hop(self, kappa: float) -> float:
        """The price of the shortest hop; 0 where there is only one GPU."""
        return kappa * self._shortest_hop if np.isfinite(self._shortest_hop) else 0.0

    def rate_of(self, stages: Sequence[StageOf], rows: Sequence[int]) -> float:
        """What these stages attain in this order; the most they may where GPUs are not known."""
        if stages[0][1]:
            return self._evaluated(tuple(stages))
        kinds = self._kinds_of([layers for layers, _ in stages])
        seconds = float(self._passes[list(rows), kinds].sum())
        tokens = self.offer.last * self.rates.problem.workload.tokens
        return min(super().rate_of(stages, rows), tokens / seconds)

    def _evaluated(self, stages: tuple[StageOf, ...]) -> float:
        """The attainable rate of a pipeline on the first GPUs of each class."""
        if stages not in self._attained:
            free = [iter(members.tolist()) for members in self.rates.classes.members]
            placement = Placement.of(
                (layers, tuple(next(free[a]) for a, n in enumerate(gpus) for _ in range(n)))
                for layers, gpus in stages
            )
            found = evaluate(self.offer.problem, placement)
            self._attained[stages] = found.attainable
        return self._attained[stages]


def repaired(
    pricing: Pricing, prices: np.ndarray, which: int, per_second: np.ndarray, deadline: Deadline
) -> Stages | None:
    """Find a pipeline of rate number `which` of `pricing.asked` that keeps to the GPUs there are, near the least price.

    The shortest path may use more GPUs of a class than there are. Stage by stage the cheapest composition
    that reaches the rate and is still free may take the place of what the path has; where that fails, the
    prices of the classes that were short are raised, and the path is sought again, a few times.
    """
    rate, raised = float(pricing.asked[0][which]), prices.copy()
    count = pricing.rates.classes.count
    for _ in range(_TRIES):
        (stages,) = pricing.pipelines(raised, [which], per_second, deadline)
        replaced = _replaced(pricing, stages, rate, raised)
        if replaced is not None:
            return replaced
        used = np.array(pricing.without_limits([row for _, row in stages], raised))
        raised = np.where(used > count, _DEARER * raised, raised)
    return None


def _replaced(pricing: Pricing, stages: Stages, rate: float, prices: np.ndarray) -> Stages | None:
    """The same layers, each stage on the cheapest GPUs that are still free; None where some has none."""
    rates, kind = pricing.rates, runs_of(pricing.rates.problem.model).kind
    of_row = rates.composition @ pricing.by_kind(prices)
    free = rates.problem.cluster.kind_count.copy()
    out, at = [], 0
    for layers, _ in stages:
        fits = rates.rate[:, kind[at, layers - 1]] >= rate
        fits &= (rates.composition <= free).all(axis=1)
        rows = np.flatnonzero(fits)
        if not len(rows):
            return None
        row = int(rows[of_row[rows].argmin()])
        free = free - rates.composition[row]
        out.append((layers, row))
        at += layers
    return out


class CapacityPrices:
    """Prices that keep one pipeline to the GPUs there are: a better bound where classes are small.

    `Pricing` leaves out that a pipeline has no more than N_a GPUs of a class. With any v_a ≥ 0 in addition,

        u · n  ≥  (u + v) · n - v · N        for every pipeline of n ≤ N GPUs,

    so the least price at u + v, less v · N, is a lower bound too, and the best over several v is one.
    The rate with the highest ratio to its price decides the bound. So v is raised, step by step, for the
    classes of which its cheapest pipeline has too many, until it has not or nothing is gained.

    Attributes
    ----------
    prices : float array, shape (A,)
        v, kept from round to round.
    """

    def __init__(self, pricing: Pricing, counts: np.ndarray) -> None:
        self.pricing, self.counts = pricing, counts
        self.prices = np.zeros(len(counts))

    def raised(self, cost: np.ndarray, least: Least, deadline: Deadline) -> Least:
        """Raise the least prices at `cost` as far as the limits allow.

        Raises
        ------
        Ended
            The deadline was first.
        """
        if not least.price.size:
            return least
        pricing, step = self.pricing, _FIRST_STEP
        least = self._at_prices(cost, least, deadline)
        for _ in range(_PRICE_STEPS):
            v, which = self.prices, int((pricing.asked[1] / least.price).argmax())
            (stages,) = pricing.pipelines(cost + v, [which], least.per_second, deadline)
            used = np.array(pricing.without_limits([row for _, row in stages], cost + v))
            over = np.where((used > self.counts) | (v > 0), used - self.counts, 0)
            if not (over > 0).any() or step < _LAST_STEP:
                break
            before = least.price[which]
            self.prices = np.maximum(0.0, v + step * before / float(over @ over) * over)
            least = self._at_prices(cost, least, deadline)
            if least.price[which] <= before * (1 + step / 10):
                step /= 2
        return least

    def _at_prices(self, cost: np.ndarray, least: Least, deadline: Deadline) -> Least:
        v = self.prices
        if not v.any():
            return least
        found = self.pricing.least(cost + v, deadline)
        return Least(
            np.maximum(least.price, found.price - float(v @ self.counts)), found.per_second
        )
