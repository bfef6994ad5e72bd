"""The rates of pipelines with so many microbatches in flight, for every mix of GPUs at once.

With n in flight a full pipeline yields min(r, n·w / L) tokens/s: r is the rate of its slowest stage
or link, w the tokens of a microbatch, L the time of a pass. Let
L(t, mix) be the least time of a pass among pipelines on GPUs of the mix, or fewer, whose stages and
links all reach t. Then the best rate of a mix is

    max over t of min(t, n·w / L(t, mix))

where t runs over the rates of stages and links: the best pipeline has r = t for one of them, and a
pipeline that has L(t, mix) yields min(t, n·w / L(t, mix)) or more. L(t, ·) is a table over mixes,
filled layer by layer like that of `reachable`, with a least time in place of a bit.

As t rises L(t, mix) rises. So between two rates a < b whose tables are known no mix yields more than
min(b, n·w / L(a, mix)), and ranges in which that is no more than what is known are left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.deployments.mixes import Mixes
from pipelab.engine.deployments.offers import Offer
from pipelab.engine.deployments.reachable import StageOf
from pipelab.engine.formulations.latency.times import PassTimes, times_of
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.tolerances import LAST_BITS

MOST_STEPS_OF_TABLE = 300_000_000  # a second for each rate


@dataclass(eq=False)
class LeastPasses:
    """Tables of least times for one offer.

    Attributes
    ----------
    offer : Offer
        Over the classes of the cluster, not over families.
    mixes : Mixes
        Of the same classes.
    """

    offer: Offer
    mixes: Mixes
    deadline: Deadline = NEVER

    def at(self, index: int) -> np.ndarray:
        """The least time of a pass at rate number `index`, on each mix or fewer GPUs; in seconds, of `mixes.shape`."""
        _, tables = self._filled(index)
        least = tables[-1].min(axis=0, initial=np.inf)
        for axis in range(least.ndim):
            np.minimum.accumulate(least, axis=axis, out=least)
        return least

    def rates(self, index: int, least: np.ndarray) -> np.ndarray:
        """What pipelines yield that have these least times at rate number `index`; 0 where there is none."""
        tokens = self.offer.last * self.offer.problem.workload.tokens
        return np.minimum(self.offer.rates.thresholds[index], tokens / least)

    def look_through(self, number: int, best: "BestRates", enough: np.ndarray) -> None:
        """Enter the best rate of every mix, halving the ranges of rates that may hold more than is known.

        Parameters
        ----------
        number : int
            Of the offer.
        best : BestRates
            What is known; changed in place.
        enough : float array over mixes
            Rates up to these need not be found.

        Raises
        ------
        Ended
        """

        def look(at: int) -> np.ndarray:
            least = self.at(at)
            rate = self.rates(at, least)
            better = rate > best.rate
            best.rate[better], best.offer[better], best.at[better] = rate[better], number, at
            return least

        for _ in self._halved(look, lambda: np.maximum(best.rate, enough)):
            pass

    def exceed(self, known: np.ndarray) -> bool:
        """Whether a mix may yield more than what is known of it."""
        above = False

        def look(at: int) -> np.ndarray:
            nonlocal above
            least = self.at(at)
            above |= bool((self.rates(at, least) > known * (1 + LAST_BITS)).any())
            return least

        return any(above for _ in self._halved(look, lambda: known)) or above

    def _halved(
        self, look: Callable[[int], np.ndarray], known: Callable[[], np.ndarray]
    ) -> Iterator[None]:
        """Look at rates until no range between two of them may hold more than what is known."""
        ranges = [(0, len(self.offer.rates.thresholds), look(0))]
        while ranges:
            yield
            first, end, least = ranges.pop()
            if end - first < 2:
                continue
            most = self.rates(end - 1, least)
            if (most > known() * (1 + LAST_BITS)).any():
                middle = (first + end) // 2
                ranges += [(first, middle, least), (middle, end, look(middle))]

    def steps(self) -> int:
        """How much one rate takes: numbers of its tables times the stages that may end at each."""
        times, layers = self._times(0), self.offer.problem.model.layers
        return (layers + 1) * layers // 2 * len(times.composition) * self.mixes.total

    def stages(self, index: int, mix: tuple[int, ...]) -> list[StageOf]:
        """The stages of a pipeline of the least time that uses just this mix."""
        times, tables = self._filled(index)
        kind, at = runs_of(self.offer.problem.model).kind, len(tables) - 1
        group = min(range(len(tables[at])), key=lambda g: tables[at][(g, *mix)])
        stages: list[StageOf] = []
        while at:
            begin, before, gpus = self._step_back(times, tables, kind, at, group, mix)
            stages.append((at - begin, gpus))
            mix = tuple(n - m for n, m in zip(mix, gpus, strict=True))
            at, group = begin, before
        return stages[::-1]

    def _step_back(
        self,
        times: PassTimes,
        tables: list[np.ndarray],
        kind: np.ndarray,
        at: int,
        group: int,
        mix: tuple[int, ...],
    ) -> tuple[int, int, tuple[int, ...]]:
        """Where the last stage begins, the group of the stage before it, and its GPUs."""
        whole, best = tables[at][(group, *mix)], (np.inf, 0, 0, ())
        for c in np.flatnonzero(times.group == group):
            left = np.array(mix) - times.composition[c]
            if (left < 0).any():
                continue
            for begin in range(at):
                took = times.stage[c, kind[begin, at - begin - 1]]
                if begin:
                    entries = tables[begin][(slice(None), *left)] + times.hop[:, group]
                    before, so_far = int(entries.argmin()), float(entries.min(initial=np.inf))
                else:
                    before, so_far = 0, np.inf if left.any() else 0.0
                off = abs(so_far + took - whole)
                if off < best[0]:
                    best = off, begin, before, tuple(times.composition[c].tolist())
        return best[1:]

    def _times(self, index: int) -> PassTimes:
        floor = float(self.offer.rates.thresholds[index])
        return times_of(self.offer.instance, floor, self.deadline)

    def _filled(self, index: int) -> tuple[PassTimes, list[np.ndarray]]:
        """The least time of the first 0, 1, … M layers by group of the last stage and mix; shape (G, mix) each."""
        times = self._times(index)
        layers, shape = self.offer.problem.model.layers, self.mixes.shape
        kind = runs_of(self.offer.problem.model).kind
        tables = [np.full((len(times.hop), *shape), np.inf) for _ in range(layers + 1)]
        started = np.full(shape, np.inf)
        started[(0,) * len(shape)] = 0.0
        room = [_room(gpus, shape) for gpus in times.composition.tolist()]
        for at in range(layers):
            entry: dict[int, np.ndarray] = {}
            for c, group in enumerate(times.group.tolist()):
                self.deadline.check()
                if group not in entry:
                    entry[group] = started if not at else _least_entry(tables[at], times.hop, group)
                to, of = room[c]
                took = times.stage[c, kind[at, : layers - at]]
                for size in np.flatnonzero(np.isfinite(took)):
                    here = tables[at + size + 1][group][to]
                    np.minimum(here, entry[group][of] + took[size], out=here)
        return times, tables


def _least_entry(table: np.ndarray, hop: np.ndarray, group: int) -> np.ndarray:
    """The least time of what comes before a stage of a group, its hop included; of the shape of mixes."""
    return (table + hop[:, group].reshape(-1, *(1,) * (table.ndim - 1))).min(axis=0)


def _room(gpus: Sequence[int], shape: tuple[int, ...]) -> tuple[tuple, tuple]:
    """Where mixes with these GPUs more are, and those without them."""
    to = tuple(slice(n, None) for n in gpus)
    return to, tuple(slice(None, size - n) for n, size in zip(gpus, shape, strict=True))


class BestRates(NamedTuple):
    """The best rate of every mix, and what has it.

    Attributes
    ----------
    rate : float array over mixes
        In tokens/s; 0 where no pipeline fits.
    offer, at : int arrays over mixes
        The workload and the number of the rate at which the best was found; -1 where none fits.
    """

    rate: np.ndarray
    offer: np.ndarray
    at: np.ndarray

    @classmethod
    def none(cls, shape: tuple[int, ...]) -> "BestRates":
        """Nothing is known yet."""
        return cls(np.zeros(shape), np.full(shape, -1), np.full(shape, -1))

    def smallest(self) -> np.ndarray:
        """The mixes whose best rate no mix with a GPU less has; shape (number, classes)."""
        fewer = np.zeros_like(self.rate)
        for axis in range(fewer.ndim):
            to = [slice(None)] * fewer.ndim
            of = list(to)
            to[axis], of[axis] = slice(1, None), slice(None, -1)
            np.maximum(fewer[tuple(to)], self.rate[tuple(of)], out=fewer[tuple(to)])
        return np.argwhere(self.rate > fewer * (1 + LAST_BITS))
