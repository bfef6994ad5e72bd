"""What can be offered to the GPUs, and the least price of a pipeline of every rate at once.

An *offer* is a workload with a range of numbers in flight. Its table of stages has memory for the first of them,
and its pipelines count with what the last of them would yield: no pipeline with a number of the range attains more
(`engine.attainable`). Ranges that matter are halved.

Every GPU of class a has a price u_a ≥ 0 (from the master program). At a rate t, the cheapest stage for a span
is the cheapest composition that reaches t with it, and the cheapest pipeline is a shortest path from the first layer to
the last: one dynamic program over the layers, vectorised over rates. With n in flight a pipeline attains t
only if a traversal takes at most n·w / t seconds, w tokens in a microbatch. That limit on a sum is taken into the
price: with κ ≥ 0 per second,

    Σ (price + κ · seconds) - κ · n·w / t

is at most the price of such a pipeline, whatever κ, and its least value is one more shortest path. The best of a few κ
is kept. Two things are left out: links, and that there are only so many GPUs. So the price is a lower bound, and the
path a pipeline if it keeps both; `listing` counts them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pipelab.engine.attainable import Range
from pipelab.engine.deadline import NEVER, Deadline, waited_for
from pipelab.engine.deployments.replicas import FreeGPUs
from pipelab.engine.instance import Instance
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.errors import InvalidPlacement
from pipelab.evaluation import evaluate
from pipelab.placement import Placement
from pipelab.problem import Problem

# A stage of a pipeline: its number of layers, and its GPUs of each class.
StageOf = tuple[int, tuple[int, ...]]

_MOST_RATES = 2_000  # of a table; the rates between two of them count as the higher one
_RATES = 200  # where numbers in flight are limited: steps of the logarithm
_STEPS = 10  # prices of a second that are tried
_JUST_ABOVE = 1 + 1e-11
_DEARER, _TIMES = 1.5, 5  # a second, while a path takes too long


class Least(NamedTuple):
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
    """

    problem: Problem
    numbers: Range
    table: Instance
    merged: bool
    mixed_as_slowest: bool
    _rates: dict[tuple[StageOf, ...], tuple[float, float]] = field(default_factory=dict)

    @property
    def tokens(self) -> float:
        """The most in flight at once; infinite where the range has no end."""
        return self.numbers.last * self.problem.workload.tokens

    @cached_property
    def span(self) -> np.ndarray:
        """The kind of span by first layer and number of layers less one."""
        return runs_of(self.problem.model).kind

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
    def hop(self) -> float:
        """Seconds of the shortest hop."""
        return float(self.table.hop.min()) if self.table.classes.count.sum() > 1 else 0.0

    @cached_property
    def stage_rates(self) -> np.ndarray:
        """Rates of stages at which the GPUs can hold all layers, ascending."""
        rates = np.unique(self.table.rate)
        rates = rates[rates > 0]
        low, high = 0, len(rates)
        while low < high:
            middle = (low + high) // 2
            if self.holdable(float(rates[middle])) >= self.problem.model.layers * (1 - 1e-9):
                low = middle + 1
            else:
                high = middle
        return rates[:low]

    def holdable(self, rate: float = 0.0) -> float:
        """More layers than this cannot be held at a rate: every GPU counts with its best share of a stage."""
        table = self.table
        held = np.where((table.rate >= rate) & (table.rate > 0), table.spans.layers, 0).max(
            axis=1, initial=0
        )
        share = held / table.composition.sum(axis=1)
        best = np.where(table.composition > 0, share[:, None], 0.0).max(axis=0, initial=0.0)
        return float(best @ table.classes.count)

    @cached_property
    def asked(self) -> tuple[np.ndarray, np.ndarray]:
        """Rates at which paths are sought, ascending, and for each the highest rate that it stands for; shape (T,)."""
        stages = self.stage_rates
        if math.isinf(
            self.tokens
        ):  # the rate of a pipeline is that of a stage, or a link is slower
            steps = np.geomspace(stages[0], stages[-1], _MOST_RATES) * (1 - 1e-12)
            many = len(stages) > _MOST_RATES
            first = np.unique(np.searchsorted(stages, steps)) if many else np.arange(len(stages))
            return stages[first], stages[np.append(first[1:] - 1, len(stages) - 1)]
        steps = np.geomspace(stages[0] / (4 * self.problem.model.layers), stages[-1], _RATES)
        own = stages if len(stages) <= _RATES else stages[-1:]
        points = np.unique(np.concatenate([steps, own]))
        low = np.concatenate([points[:1] * 1e-6, points, points[:-1] * _JUST_ABOVE])
        high = np.concatenate([points[:1], points, points[1:]])
        order = np.argsort(low, kind="stable")
        return low[order], high[order]

    @cached_property
    def _limit(self) -> np.ndarray:
        """How long a traversal may take at each rate; infinite for the rate below all."""
        low = self.asked[0]
        return np.concatenate([[np.inf], self.tokens / low[1:]])

    @cached_property
    def _by_rate(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows from the fastest to the slowest for each kind of span, and how many reach each rate that is asked."""
        order = np.argsort(-self.rate, axis=0, kind="stable")
        falling = -np.take_along_axis(self.rate, order, axis=0)
        enough = [np.searchsorted(own, -self.asked[0], side="right") for own in falling.T]
        return order, np.stack(enough, axis=1)

    def least(self, prices: np.ndarray, deadline: Deadline = NEVER) -> Least:
        """Find the least price of a pipeline of each rate that is asked, links and numbers of GPUs aside.

        Parameters
        ----------
        prices : float array, shape (A,)
            Of a GPU of each class, at least 0.

        Returns
        -------
        Least
            No pipeline of the offer has more rate per price than the greatest of high / price.
        """
        best = waited_for(lambda: self.paid(prices, deadline=deadline), deadline)[-1]
        chosen = np.zeros_like(best)
        if math.isinf(self.tokens):
            return Least(best, chosen)
        low, high = self.asked
        known = np.isfinite(best[1:]) & (best[1:] > 0)
        ratio = (best[1:] / self._limit[1:])[known]
        for kappa in np.geomspace(ratio.min() / 8, ratio.max() * 8, _STEPS) if len(ratio) else ():
            paid = self.paid(prices, kappa, deadline)[-1] - kappa * self.hop
            value = np.zeros_like(paid)  # of the lowest rates, which have no limit
            # as a function of t, t / price is greatest at one end of what a rate stands for
            at_low = paid[1:] - kappa * self._limit[1:]
            at_high = paid[1:] - kappa * self._limit[1:] * low[1:] / high[1:]
            value[1:] = np.minimum(at_low * high[1:] / low[1:], at_high)
            better = value > best
            best[better], chosen[better] = value[better], kappa
        return Least(best, chosen)

    def path(self, prices: np.ndarray, which: int, kappa: float) -> list[StageOf]:
        """The cheapest pipeline of one rate that is asked; at dearer seconds if it takes too long."""
        for _ in range(_TIMES if kappa else 1):
            stage, row = self._stage_prices(prices, kappa, [which])
            reached = self._paths(stage, NEVER)[:, 0]
            at, stages = len(reached) - 1, []
            seconds = -self.hop
            while at:
                spans = self._ending[at - 1]
                start = int((reached[:at] + stage[spans, 0]).argmin())
                own = int(row[spans[start], 0])
                seconds += self.seconds[own, spans[start]] + self.hop
                gpus = self.table.composition[self.rows[own]]
                stages.append((at - start, tuple(gpus.tolist())))
                at = start
            if seconds <= self._limit[which]:
                break
            kappa *= _DEARER
        return stages[::-1]

    def paid(
        self, prices: np.ndarray, kappa: float = 0.0, deadline: Deadline = NEVER
    ) -> np.ndarray:
        """The least price of stages for the first 0, 1, … M layers at each rate that is asked; shape (M + 1, T)."""
        return self._paths(self._stage_prices(prices, kappa, slice(None))[0], deadline)

    def _stage_prices(
        self, prices: np.ndarray, kappa: float, which: Sequence[int] | slice
    ) -> tuple[np.ndarray, np.ndarray]:
        """The least price of a stage for each kind of span and rate, and the row that has it; shape (U, T) each."""
        order, enough = self._by_rate
        enough = enough[which]
        of_row = (self.table.composition[self.rows] @ prices)[order]
        if kappa:
            extra = kappa * (self.seconds + self.hop)
            of_row = of_row + np.take_along_axis(extra, order, axis=0)
        least = np.minimum.accumulate(of_row, axis=0)
        # the first row with the least price so far
        new = np.vstack([np.ones_like(least[:1], dtype=bool), least[1:] < least[:-1]])
        at = np.maximum.accumulate(np.where(new, np.arange(len(least))[:, None], 0), axis=0)
        spans = np.arange(least.shape[1])
        index = np.maximum(enough - 1, 0)
        price = np.where(enough > 0, least[index, spans], np.inf)
        return price.T, order[at[index, spans], spans].T

    @cached_property
    def _ending(self) -> list[np.ndarray]:
        """For every boundary j > 0: the kinds of the spans from boundary 0, 1, … j-1 to it."""
        kind = self.span
        return [kind[np.arange(j), j - np.arange(j) - 1] for j in range(1, len(kind) + 1)]

    def _paths(self, stage: np.ndarray, deadline: Deadline) -> np.ndarray:
        # one rate without an axis of its own: half the time, and most calls
        of_span = stage[:, 0] if stage.shape[1] == 1 else stage
        reached = np.zeros((len(self._ending) + 1, *of_span.shape[1:]))
        for j, spans in enumerate(self._ending, start=1):
            deadline.check()
            reached[j] = (reached[:j] + of_span[spans]).min(axis=0)
        return reached.reshape(len(reached), -1)

    def shortest(self, seconds: np.ndarray) -> np.ndarray:
        """The least sum over the first 0, 1, … M layers of what a stage of each kind of span has; shape (M + 1,)."""
        return self._paths(seconds[:, None], NEVER)[:, 0]

    def counted(self, stages: Sequence[StageOf]) -> float:
        """With what stages count in the bound: no pipeline of these in this order attains more, links aside."""
        number = {tuple(row): i for i, row in enumerate(self.table.composition[self.rows].tolist())}
        sizes = np.array([layers for layers, _ in stages])
        spans = self.span[np.cumsum(sizes) - sizes, sizes - 1]
        rows = [number[gpus] for _, gpus in stages]
        seconds = float(self.seconds[rows, spans].sum()) + (len(rows) - 1) * self.hop
        return min(float(self.rate[rows, spans].min()), self.tokens / seconds)

    def attained(self, stages: tuple[StageOf, ...]) -> float:
        """What a pipeline attains, each stage within one node where there is room; 0 if it lacks memory there."""
        return self._evaluated(stages)[0]

    def loses(self, stages: tuple[StageOf, ...]) -> bool:
        """Whether a pipeline attains less than the rate of its slowest stage or link."""
        attained, rate = self._evaluated(stages)
        return attained < rate * (1 - ONE_ANSWER) or not attained

    def _evaluated(self, stages: tuple[StageOf, ...]) -> tuple[float, float]:
        if stages not in self._rates:
            (ids,) = FreeGPUs(self.problem, self.table.classes).taken([stages])
            layers = [number for number, _ in stages]
            try:
                found = evaluate(self.problem, Placement.of(zip(layers, ids, strict=True)))
                self._rates[stages] = found.attainable, found.rate
            except InvalidPlacement:
                self._rates[stages] = 0.0, 0.0
        return self._rates[stages]

    def in_order(self, stages: Sequence[StageOf]) -> tuple[StageOf, ...]:
        """The stages as they are, or class by class where inner layers are identical and that is faster."""
        given = tuple(stages)
        if not runs_of(self.problem.model).alike_inside or len(given) < 4:
            return given
        inner = sorted(given[1:-1], key=lambda stage: (stage[1], stage[0]))
        other = (given[0], *inner, given[-1])
        return other if self.attained(other) > self.attained(given) else given
