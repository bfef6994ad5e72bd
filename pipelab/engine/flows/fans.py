"""Flows that cross once between parts of a cluster: one has the first layers, each of the others all that follow.

Links between parts carry little. So where the parts meet, several stages of the first have its last layers side by
side, and several of each other part the layers that follow: each of the first sends to each of these. All other
stages of a part stand one behind the other. Blocks (`series_parallel`) pass one part after another instead, which
takes more crossings, and so more time and memory.
"""

from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from pipelab.engine.flows.series_parallel import Blocks, Unit
from pipelab.engine.tolerances import SOLVER
from pipelab.placement import Stage

_MOST_BESIDE = 5  # stages of a part that hold the same layers


class Fan(NamedTuple):
    """Units of a part: some side by side where it meets the others, and all the rest behind them, one by one."""

    units: list[Unit]
    beside: int

    def held(self, t: float) -> np.ndarray:
        """The layers of each where all let t tokens/s pass; those side by side have the same."""
        shares = np.full(len(self.units), t)
        shares[: self.beside] /= self.beside
        rates = np.array([unit.rates for unit in self.units])
        held = np.count_nonzero(rates >= shares[:, None] * (1 - SOLVER), axis=1)
        held[: self.beside] = held[: self.beside].min()
        return held

    def rates(self) -> np.ndarray:
        """The greatest tokens/s with 0 … L layers; (L + 1,)."""
        out = np.zeros(1 + len(self.units[0].rates))
        for t in np.unique([unit.rates for unit in self.units]):
            out[: 1 + self.held(t)[self.beside - 1 :].sum()] = t
        return out

    def spans(self, t: float, layers: int) -> list[tuple[Unit, int, int]]:
        """The units that hold some of so many layers, each from one to another."""
        ends = [0, *np.minimum(self.held(t)[self.beside - 1 :].cumsum(), layers).tolist()]
        spans = [(0, ends[1])] * (self.beside - 1) + list(pairwise(ends))
        held = zip(self.units, spans, strict=True)
        return [(unit, first, last) for unit, (first, last) in held if last > first]


def fanned(blocks: Blocks, first: int) -> list[Stage]:
    """Find the best such stages where this part has the first layers; none where a part has none, or is alone."""
    units: list[list[Unit]] = [[] for _ in range(blocks.parts)]
    for unit in sorted(blocks.units, key=lambda unit: np.count_nonzero(unit.rates)):
        if unit.size == 1:
            units[unit.part] += [unit] * blocks.room(unit)
    others = [part for part in range(blocks.parts) if part != first]
    total, best = 0.0, list[tuple[Unit, range]]()
    fewest = min((len(units[part]) for part in others), default=0)
    sides = (range(1, 1 + min(_MOST_BESIDE, number)) for number in (len(units[first]), fewest))
    for leave, enter in product(*sides):
        here, there = Fan(units[first], leave), [Fan(units[part], enter) for part in others]
        links = leave * enter * blocks.between[first, others]
        carried = np.minimum([fan.rates()[::-1] for fan in there], links[:, None])
        passed = np.minimum(here.rates(), carried.sum(axis=0))  # by the layers of the first part
        at, layers = int(passed.argmax()), len(passed) - 1
        if passed[at] > total:
            total = float(passed[at])
            best = [(unit, range(at - b, at - a)) for unit, a, b in here.spans(total, at)]
            for fan, t in zip(there, carried[:, at] * (total / carried[:, at].sum()), strict=True):
                best += [(u, range(at + a, at + b)) for u, a, b in fan.spans(t, layers - at)]
    return blocks.on_gpus(best)
