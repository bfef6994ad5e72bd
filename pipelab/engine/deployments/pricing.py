"""The pipeline of least dual price for every rate at once: one shortest path over the layers, vectorised over rates.

Every GPU of class a has a price u_a ≥ 0 (from the master program). At a rate t, the cheapest stage
for a run of layers is the cheapest mixture that reaches t with it, and the cheapest pipeline is a
shortest path from the first layer to the last. Prices are floating-point numbers of any size, zero
included, as no solver is asked.

Two things are left out: links, and that a pipeline cannot have more GPUs of a class than there are.
So the price found is a lower bound on that of every pipeline of at least t; what the path says is
a pipeline if it keeps both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline, waited_for
from pipelab.engine.deployments.reachable import StageOf
from pipelab.engine.formulations.aggregated.rates import StageRates
from pipelab.engine.layer_runs import runs_of

_MOST_RATES = 2_000  # of a table; the rates between two of them count as the higher one


@dataclass(frozen=True, eq=False)
class Pricing:
    """The shortest paths of one table of rates.

    Attributes
    ----------
    rates : StageRates
    """

    rates: StageRates

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

    def least(self, prices: np.ndarray, deadline: Deadline = NEVER) -> np.ndarray:
        """The least price of a pipeline of each rate that is asked, links and numbers of GPUs aside; shape (T,).

        Parameters
        ----------
        prices : float array, shape (A,)
            Of a GPU of each class, at least 0.
        """
        stage, _ = waited_for(lambda: self._stage_prices(prices, self._all_enough), deadline)
        return waited_for(lambda: self._paths(stage, deadline), deadline)[-1]

    def pipelines(
        self, prices: np.ndarray, which: Sequence[int], deadline: Deadline = NEVER
    ) -> list[list[tuple[int, int]]]:
        """The cheapest pipelines themselves at some of the rates: (layers, row of the table) of each stage."""
        stage, row = self._stage_prices(prices, self._all_enough[list(which)])
        reached = self._paths(stage, deadline)
        return [self._path_back(stage[:, t], row[:, t], reached[:, t]) for t in range(len(which))]

    def _path_back(
        self, stage: np.ndarray, row: np.ndarray, reached: np.ndarray
    ) -> list[tuple[int, int]]:
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
        reached = np.zeros((len(self.runs_ending) + 1, stage.shape[1]))
        for j, kinds in enumerate(self.runs_ending, start=1):
            deadline.check()
            reached[j] = (reached[:j] + stage[kinds]).min(axis=0)
        return reached

    def by_class(
        self, stages: Sequence[tuple[int, int]], prices: np.ndarray
    ) -> list[StageOf] | None:
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
