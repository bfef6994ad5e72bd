"""The attainable rates of the pipelines of one offer, for every mix of GPUs at once.

With n in flight a full pipeline yields min(r, n·w / L) tokens/s: r is the rate of its slowest stage
or link, w the tokens of a microbatch, L the time of a traversal. A *mix* says how many GPUs of each class
there are. Let L(t, mix) be the least time of a traversal among pipelines on GPUs of the mix, or fewer,
whose stages and links all reach t. Then the best rate of a mix is

    max over t of min(t, n·w / L(t, mix))

where t runs over the rates of stages and links: the best pipeline has r = t for one of them, and a
pipeline that has L(t, mix) yields min(t, n·w / L(t, mix)) or more. L(t, ·) is a table over mixes,
filled layer by layer.

As t rises L(t, mix) rises. So between two rates a < b whose tables are known no mix yields more than
min(b, n·w / L(a, mix)), and ranges in which that is no more than what is known are left out.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from pipelab.engine.cluster_parts import whole
from pipelab.engine.deadline import Deadline
from pipelab.engine.deployments.paths import StageOf
from pipelab.engine.deployments.pricing import Offer
from pipelab.engine.reach import AtRate
from pipelab.engine.stages import StageRecipes
from pipelab.engine.tolerances import LAST_BITS

_MOST_TABLE_STEPS = 300_000_000  # of one table: a second


class BestRates(NamedTuple):
    """The best rate of every mix of an offer, and at which rate of stages and links it was found.

    Attributes
    ----------
    rate : float array over mixes
        In tokens/s; 0 where no pipeline fits.
    at : int array over mixes
        The number of the rate; -1 where none fits.
    """

    rate: np.ndarray
    at: np.ndarray


class MixTables:
    """The tables of one offer over all mixes of its GPUs.

    For few mixes and wide gaps, where labels would be as many as mixes and sorting them takes longer.

    Parameters
    ----------
    offer : Offer
    """

    def __init__(self, offer: Offer, deadline: Deadline) -> None:
        self.offer, self.deadline = offer, deadline
        self._last: tuple[int, StageRecipes, list[np.ndarray]] | None = None
        self.shape = tuple((offer.table.classes.count + 1).tolist())

    def fit(self) -> bool:
        """Return whether all stages are listed, and a table takes a moment, by its numbers times stages at each."""
        layers = len(self.offer.span)
        steps = (layers + 1) * layers // 2 * len(self.offer.table.composition) * prod(self.shape)
        return steps <= _MOST_TABLE_STEPS and not self.offer.table.pure

    def best(self, known: np.ndarray, enough: np.ndarray, any_will_do: bool = False) -> BestRates:
        """Return the best rate of every mix, where it is more than what is known, and than what is enough.

        Rates of stages and links are looked at until no range between two of them may hold more.

        Parameters
        ----------
        any_will_do : bool
            End at the first rate at which a mix yields more.

        Raises
        ------
        Ended
        """
        best = BestRates(rate=known.copy(), at=np.full(self.shape, -1))

        def look(at: int) -> np.ndarray:
            least = self._least(at)
            rate = self._rates(at, least)
            better = rate > best.rate * (1 + LAST_BITS)
            best.rate[better], best.at[better] = rate[better], at
            return least

        ranges = [(0, len(self.offer.rates), look(0))]
        while ranges and not (any_will_do and (best.at >= 0).any()):
            first, end, least = ranges.pop()
            if end - first < 2:
                continue
            most = self._rates(end - 1, least)
            if (most > np.maximum(best.rate, enough) * (1 + LAST_BITS)).any():
                middle = (first + end) // 2
                ranges += [(first, middle, least), (middle, end, look(middle))]
        return best

    def exceed(self, known: np.ndarray) -> bool:
        """Return whether a mix may yield more than what is known of it."""
        return bool((self.best(known, known, any_will_do=True).at >= 0).any())

    def _least(self, index: int) -> np.ndarray:
        """Return the least time of a traversal at rate number `index`, on each mix or fewer GPUs; in seconds."""
        _, tables = self._filled(index)
        least = tables[-1].min(axis=0, initial=np.inf)
        least[np.indices(self.shape).sum(axis=0) > self.offer.most_gpus] = np.inf
        for axis in range(least.ndim):
            np.minimum.accumulate(least, axis=axis, out=least)
        return least

    def _rates(self, index: int, least: np.ndarray) -> np.ndarray:
        """Return what pipelines yield that have these least times at rate number `index`; 0 where there is none."""
        most = np.where(np.isfinite(least), np.inf, 0.0)
        if np.isfinite(self.offer.tokens):
            most = self.offer.tokens / least
        return np.minimum(self.offer.rates[index], most)

    def stages(self, index: int, mix: tuple[int, ...]) -> tuple[StageOf, ...]:
        """Return the stages of a pipeline of the least time that uses just this mix."""
        recipes, tables = self._filled(index)
        at = len(tables) - 1
        way = min(range(len(tables[at])), key=lambda g: tables[at][(g, *mix)])
        stages: list[StageOf] = []
        while at:
            begin, before, gpus = self._step_back(recipes, tables, at, way, mix)
            stages.append((at - begin, gpus))
            mix = tuple(n - m for n, m in zip(mix, gpus, strict=True))
            at, way = begin, before
        return tuple(stages[::-1])

    def _step_back(
        self,
        stages: StageRecipes,
        tables: list[np.ndarray],
        at: int,
        way: int,
        mix: tuple[int, ...],
    ) -> tuple[int, int, tuple[int, ...]]:
        """Return where the last stage begins, how the stage before it is left, and its GPUs."""
        whole, best, links = tables[at][(way, *mix)], (np.inf, 0, 0, ()), stages.links
        for c in np.flatnonzero(links.leave[stages.link_kind] == way):
            left = np.array(mix) - stages.gpus[c]
            if (left < 0).any():
                continue
            for begin in range(at):
                span = self.offer.span[begin, at - begin - 1]
                took = stages.seconds[c, span]
                if begin:
                    hop = links.seconds[:, links.enter[stages.link_kind[c]]]
                    entries = tables[begin][(slice(None), *left)] + hop
                    before, so_far = int(entries.argmin()), float(entries.min(initial=np.inf))
                else:
                    before, so_far = 0, np.inf if left.any() else 0.0
                off = abs(so_far + took - whole)
                if off < best[0]:
                    best = off, begin, before, tuple(stages.gpus[c].tolist())
        return best[1:]

    def _filled(self, index: int) -> tuple[StageRecipes, list[np.ndarray]]:
        """Return the least time of the first 0, 1, … M layers, by how the last stage is left and by mix."""
        if self._last is not None and self._last[0] == index:
            return self._last[1:]
        self.deadline.check()
        reach = AtRate(self.offer.table, float(self.offer.rates[index]), timed=True)
        stages = reach.stages(whole(reach.instance, reach.hop))
        links, enter = stages.links, stages.links.enter[stages.link_kind].tolist()
        layers = len(self.offer.span)
        tables = [np.full((len(links.seconds), *self.shape), np.inf) for _ in range(layers + 1)]
        started = np.full(self.shape, np.inf)
        started[(0,) * len(self.shape)] = 0.0
        room = [_room(gpus, self.shape) for gpus in stages.gpus.tolist()]
        for at in range(layers):
            entry: dict[int, np.ndarray] = {}
            for c, entered in enumerate(enter):
                self.deadline.check()
                if entered not in entry:
                    hop = links.seconds[:, entered].reshape(-1, *(1,) * len(self.shape))
                    entry[entered] = (tables[at] + hop).min(axis=0) if at else started
                to, of = room[c]
                span = self.offer.span[at, : layers - at]
                left = links.leave[stages.link_kind[c]]
                for size in np.flatnonzero(np.isfinite(stages.seconds[c, span])):
                    here = tables[at + size + 1][left][to]
                    took = stages.seconds[c, span[size]]
                    np.minimum(here, entry[entered][of] + took, out=here)
        self._last = index, stages, tables
        return stages, tables


def _room(gpus: Sequence[int], shape: tuple[int, ...]) -> tuple[tuple, tuple]:
    """Return the slices of a table of mixes in which these GPUs are added, and in which they are not yet."""
    to = tuple(slice(n, None) for n in gpus)
    return to, tuple(slice(None, size - n) for n, size in zip(gpus, shape, strict=True))


def smallest(rate: np.ndarray) -> np.ndarray:
    """Return the mixes whose best rate no mix with a GPU less has; shape (number, classes)."""
    fewer = np.zeros_like(rate)
    for axis in range(fewer.ndim):
        to = [slice(None)] * fewer.ndim
        of = list(to)
        to[axis], of[axis] = slice(1, None), slice(None, -1)
        np.maximum(fewer[tuple(to)], rate[tuple(of)], out=fewer[tuple(to)])
    return np.argwhere(rate > fewer * (1 + LAST_BITS))
