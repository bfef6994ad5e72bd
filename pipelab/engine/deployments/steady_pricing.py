"""The least dual price of a pipeline that attains a rate with a number in flight of a range.

A pipeline attains t or more with n in flight if its stages and links reach t and a traversal takes at most
n·w / t seconds (`pass_times`); n is the last number of the range, and memory is counted for the first.
That limit on a sum is taken into the price: with κ ≥ 0 per second,

    Σ (price + κ · seconds) - κ · n·w / t

is at most the price of such a pipeline, whatever κ, and its least value over all pipelines whose
stages reach t is one more shortest path. Between two rates a < b the stages have to reach a only; then
t / price, as a function of t, is greatest at a or at b. The best of a few κ is kept. A stage counts with
the time of its pass, or where mixed stages are not listed with the interval of its rate, which is no
longer; a hop counts with the shortest there is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.deployments.offers import Offer
from pipelab.engine.deployments.pricing import Pricing
from pipelab.engine.deployments.reachable import StageOf
from pipelab.engine.stage_arrays import stage_tables
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.placement import Placement

_RATES = 200  # steps of the logarithm
_STEPS = 10  # prices of a second that are tried
_JUST_ABOVE = 1 + 1e-11


@dataclass(frozen=True, eq=False)
class SteadyPricing(Pricing):
    """`Pricing` where attainable rates count.

    Attributes
    ----------
    offer : Offer
        With its range of numbers in flight.
    chosen : list of float array
        The price of a second that was best at each rate, at the last call of `least`.
    """

    offer: Offer | None = None
    chosen: list[np.ndarray] = field(default_factory=list)
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
        tokens = given(self.offer).last * self.rates.problem.workload.tokens
        return np.concatenate([[np.inf], tokens / low[1:]])

    @cached_property
    def _passes(self) -> np.ndarray:
        """Seconds of a pass through a stage of each row of the table; infinite where it does not fit."""
        problem = self.rates.problem
        tables = stage_tables(
            problem.costs, problem.model, problem.workload, problem.cluster.kinds,
            self.rates.composition, problem.batch_split,
        )  # fmt: skip
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

    def least(self, prices: np.ndarray, deadline: Deadline = NEVER) -> np.ndarray:
        """Prices for ratios: in no range has a pipeline more rate per price than the highest rate per this price."""
        best = super().least(prices, deadline)
        if given(self.offer).last == np.inf:
            self.chosen[:] = [np.zeros_like(best)]
            return best
        chosen, (low, high) = np.zeros_like(best), self.asked
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
        self.chosen[:] = [chosen]
        return best

    def pipelines(
        self, prices: np.ndarray, which: Sequence[int], deadline: Deadline = NEVER
    ) -> list[list[tuple[int, int]]]:
        """At the price of a second that was best at the rate, or at a higher one if that takes too long."""
        kappas = self.chosen[0] if self.chosen else np.zeros(len(self.asked[0]))
        out = []
        for i in which:
            kappa = float(kappas[i])
            for _ in range(8 if kappa else 1):
                stage, row = self._priced(prices, kappa, self._all_enough[[i]])
                reached = self._paths(stage, deadline)
                path = self._path_back(stage[:, 0], row[:, 0], reached[:, 0])
                if self._takes(path) <= self._limit[i]:
                    break
                kappa *= 1.3
            out.append(path)
        return out

    def _takes(self, path: Sequence[tuple[int, int]]) -> float:
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
        tokens = given(self.offer).last * self.rates.problem.workload.tokens
        return min(super().rate_of(stages, rows), tokens / seconds)

    def _evaluated(self, stages: tuple[StageOf, ...]) -> float:
        """The attainable rate of a pipeline on the first GPUs of each class."""
        if stages not in self._attained:
            free = [iter(members.tolist()) for members in self.rates.classes.members]
            placement = Placement.of(
                (layers, tuple(next(free[a]) for a, n in enumerate(gpus) for _ in range(n)))
                for layers, gpus in stages
            )
            found = evaluate(given(self.offer).problem, placement)
            self._attained[stages] = found.attainable
        return self._attained[stages]
