"""The cheapest pipeline of every rate at once, the number of GPUs aside: a shortest path over layers and ways to leave.

At a rate t, the cheapest stage for a span is the cheapest composition that reaches t with it. The next stage must be
reached over a link that carries t, so a path remembers in which *way* its last stage is left: stages whose GPUs
have the same links to all others are left in one way, and those with the same links from all others are entered
in one. If A and B reach each other at 10 GB/s and both reach C at 1 GB/s, there are two ways: that of A and B, and
that of C. One dynamic program over the layers and the ways to leave, vectorised over rates.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.stage_table import ways_through
from pipelab.engine.tolerances import LAST_BITS

# A stage of a pipeline: its number of layers, and its GPUs of each class.
StageOf = tuple[int, tuple[int, ...]]

_MOST_SETS = 1_500  # of classes that a stage has


class Ways(NamedTuple):
    """How stages of some compositions are left and entered: a hop is as slow as its slowest pair of GPUs.

    Attributes
    ----------
    of : int array, shape (R,)
        The way through each composition.
    through : int array, shape (G, 2)
        Of each way through: the way to enter and the way to leave.
    rate, seconds : float arrays, shape (L, E)
        Of a hop between each way to leave and to enter.
    back : float array, shape (L, E)
        Seconds of the hop from the last stage of a pipeline back to its first.
    """

    of: np.ndarray
    through: np.ndarray
    rate: np.ndarray
    seconds: np.ndarray
    back: np.ndarray


def one_way(rate: float, seconds: float, compositions: int) -> Ways:
    """The only way through all of so many compositions."""
    one: np.ndarray = np.ones((1, 1))
    of, through = np.zeros(compositions, dtype=int), np.zeros((1, 2), dtype=int)
    return Ways(of=of, through=through, rate=rate * one, seconds=seconds * one, back=0 * one)


def ways_of(
    link: np.ndarray, hop: np.ndarray, compositions: np.ndarray, back: np.ndarray | None = None
) -> Ways | None:
    """The ways through some compositions; None where there are too many sets of classes.

    Parameters
    ----------
    link, hop : float arrays, shape (A, A)
        Rate and seconds between GPUs of two classes.
    compositions : int array, shape (R, A)
    back : float array, shape (A, A), optional
        Seconds back from the last stage to the first; by default none.
    """
    sets, of = np.unique(compositions > 0, axis=0, return_inverse=True)
    if len(sets) > _MOST_SETS:
        return None
    home = np.zeros_like(hop) if back is None else back
    way, through, (rate, seconds, home) = ways_through(sets, [link], [hop, home])
    return Ways(of=way[of.reshape(-1)], through=through, rate=rate, seconds=seconds, back=home)


@dataclass(frozen=True, eq=False)
class Paths:
    """The stages that paths are made of.

    Attributes
    ----------
    composition : int array, shape (R, A)
        GPUs of each class.
    rate, seconds : float arrays, shape (R, U)
        Of each composition with each kind of span.
    span : int array, shape (M, M)
        The kind of span by first layer and number of layers less one.
    asked : float array, shape (T,)
        Rates, ascending.
    ways : Ways
    """

    composition: np.ndarray
    rate: np.ndarray
    seconds: np.ndarray
    span: np.ndarray
    asked: np.ndarray
    ways: Ways

    def paid(
        self, prices: np.ndarray, kappa: float | np.ndarray, which: np.ndarray, deadline: Deadline
    ) -> np.ndarray:
        """The least price of the first 0, 1, … M layers at some of the rates; shape (M + 1, len(which)).

        Parameters
        ----------
        prices : float array, shape (A,)
            Of a GPU of each class.
        kappa : float, or float array of shape (len(which),)
            Of a second.

        Raises
        ------
        Ended
        """
        kappa = np.broadcast_to(np.asarray(kappa, dtype=float), which.shape)
        stage = self._stages(prices, kappa, which)
        return self._reached(stage, self._hops(kappa, which), deadline).min(axis=2)

    def cheapest(self, prices: np.ndarray, kappa: float, rate: int) -> tuple[list[StageOf], float]:
        """The stages of the cheapest path at one rate, and the seconds of a traversal; none if there is no path."""
        which, per_second = np.array([rate]), np.array([kappa])
        stage, hop = self._stages(prices, per_second, which), self._hops(per_second, which)
        reached = self._reached(stage, hop, NEVER)[:, 0]
        stage, hop = stage[:, 0], hop[0]
        at, left, stages, seconds = len(reached) - 1, int(reached[-1].argmin()), [], 0.0
        if not np.isfinite(reached[-1, left]):
            return [], np.inf
        while at:
            spans = self._ending[at - 1]
            first = at - len(spans)
            entry = (reached[first:at, :, None] + hop).min(axis=1)
            if not first:
                entry[0] = 0.0
            through = np.flatnonzero(self.ways.through[:, 1] == left)
            paid = entry[:, self.ways.through[through, 0]] + stage[spans][:, through]
            start, way = (int(i) for i in np.unravel_index(int(paid.argmin()), paid.shape))
            order, enough = self._by_way[through[way]]
            rows = order[: enough[rate, spans[start]], spans[start]]
            each = self.composition[rows] @ prices
            if kappa:
                each += kappa * self.seconds[rows, spans[start]]
            row, enter = rows[each.argmin()], self.ways.through[through[way], 0]
            seconds += float(self.seconds[row, spans[start]])
            stages.append((at - first - start, tuple(self.composition[row].tolist())))
            at = first + start
            if at:
                left = int((reached[at] + hop[:, enter]).argmin())
                seconds += float(self.ways.seconds[left, enter])
        return stages[::-1], seconds

    @cached_property
    def _by_way(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """By way through: rows, the fastest first, for each kind of span, and how many reach each rate."""
        sorted_ = []
        for way in range(len(self.ways.through)):
            rows = np.flatnonzero(self.ways.of == way)
            order = np.argsort(-self.rate[rows], axis=0, kind="stable")
            falling = -np.take_along_axis(self.rate[rows], order, axis=0)
            enough = [np.searchsorted(rates, -self.asked, side="right") for rates in falling.T]
            sorted_.append((rows[order], np.stack(enough, axis=1)))
        return sorted_

    def _stages(self, prices: np.ndarray, kappas: np.ndarray, which: np.ndarray) -> np.ndarray:
        """The least price of a stage by kind of span, rate and way through; shape (U, T, G)."""
        paid = self.composition @ prices
        found = np.empty((self.rate.shape[1], len(which), len(self._by_way)))
        for way, (order, enough) in enumerate(self._by_way):
            seconds = np.take_along_axis(self.seconds, order, axis=0)
            for kappa in np.unique(kappas):
                of_row = paid[order]
                if kappa:
                    of_row += kappa * seconds
                # none reaches, the fastest, the two fastest, …
                least = np.vstack([np.full(of_row.shape[1], np.inf), of_row])
                np.minimum.accumulate(least, axis=0, out=least)
                at = np.flatnonzero(kappas == kappa)
                found[:, at, way] = np.take_along_axis(least.T, enough[which[at]].T, axis=1)
        return found

    def _hops(self, kappas: np.ndarray, which: np.ndarray) -> np.ndarray:
        """The price of a hop at each rate, by the way to leave and to enter; infinite over a slower link; (T, L, E)."""
        carries = self.ways.rate >= self.asked[which][:, None, None] * (1 - LAST_BITS)
        return np.where(carries, kappas[:, None, None] * self.ways.seconds, np.inf)

    @cached_property
    def _ending(self) -> list[np.ndarray]:
        """For every boundary j > 0: the kinds of the spans to it, but for those longer than any stage can be."""
        kind, held = self.span, np.asarray((self.rate > 0).any(axis=0))
        ending = [kind[np.arange(j), j - np.arange(j) - 1] for j in range(1, len(kind) + 1)]
        longest = max(j - int(held[spans].argmax()) for j, spans in enumerate(ending, start=1))
        return [spans[-longest:] for spans in ending]

    def _reached(self, stage: np.ndarray, hop: np.ndarray, deadline: Deadline) -> np.ndarray:
        """The least price of the first 0, 1, … M layers, by rate and by the way to leave them; shape (M + 1, T, L)."""
        layers, (rates, ways, _) = len(self._ending), hop.shape
        order = np.argsort(self.ways.through[:, 1], kind="stable")
        enter, leave = self.ways.through[order].T
        left, first = np.unique(leave, return_index=True)
        stage = stage[:, :, order]
        reached = np.full((layers + 1, rates, ways), np.inf)
        reached[0] = 0.0
        entry = np.zeros((layers, rates, len(enter)))  # of nothing; then by the way through
        for j, spans in enumerate(self._ending, start=1):
            deadline.check()
            least = (entry[j - len(spans) : j] + stage[spans]).min(axis=0)
            reached[j][:, left] = np.minimum.reduceat(least, first, axis=1)
            if j < layers:
                entry[j] = (reached[j, :, :, None] + hop).min(axis=1)[:, enter]
        return reached
