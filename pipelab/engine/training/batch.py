"""Many placements at once: as arrays of compositions and cuts, with their bounds and step times."""

from dataclasses import dataclass

import numpy as np

from pipelab.engine.training.bounds import placement_bounds
from pipelab.engine.training.orders import Order
from pipelab.engine.training.stages import Stages

_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class Batch:
    """K placements on p ranks.

    Attributes
    ----------
    compositions : int array, shape (K, p)
        Of every stage, as `Stages` numbers them.
    cuts : int array, shape (K, p + 1)
        First layers of the stages, and the number of layers.
    """

    compositions: np.ndarray
    cuts: np.ndarray

    def __len__(self) -> int:
        return len(self.compositions)

    @property
    def ranks(self) -> int:
        """p."""
        return self.compositions.shape[1]

    def take(self, which: np.ndarray) -> "Batch":
        """These placements."""
        return Batch(self.compositions[which], self.cuts[which])

    def times(self, stages: Stages, order: Order) -> tuple[np.ndarray, np.ndarray]:
        """Forward, input and weight gradient, (3, p, K), and the optimizer's step, (p, K).

        Infinite where a stage does not fit in memory.
        """
        kind = stages.runs.kind[self.cuts[:, :-1], np.diff(self.cuts, axis=1) - 1]
        found = np.empty((4, self.ranks, len(self)))
        for rank, held in enumerate(order.held):
            t = stages.times(held, order.chunks)
            at = self.compositions[:, rank], kind[:, rank]
            for i, each in enumerate((t.forward, t.back, t.weight, t.step)):
                found[i, rank] = each[at]
        return found[:3], found[3]

    def links(self, stages: Stages, at: np.ndarray) -> np.ndarray:
        """Messages between the ranks of neighbouring stages, (stages - 1, K); 0 within a rank."""
        one, other = self.compositions[:, at[:-1]], self.compositions[:, at[1:]]
        return np.where(at[:-1] == at[1:], 0.0, stages.hop[one, other]).T

    def bounds(self, stages: Stages, order: Order) -> np.ndarray:
        """See `bounds.placement_bounds`; infinite where a stage does not fit."""
        times, step = self.times(stages, order)
        fits = np.isfinite(times).all(axis=(0, 1))
        found = np.full(len(self), np.inf)
        comm = self.take(fits).links(stages, np.arange(self.ranks))
        found[fits] = placement_bounds(order, times[..., fits], step[:, fits], comm)
        return found

    def step_times(self, stages: Stages, order: Order) -> np.ndarray:
        """Seconds of a step, simulated; infinite where a stage does not fit."""
        found = np.full(len(self), np.inf)
        for low in range(0, len(self), _AT_ONCE):
            some = slice(low, low + _AT_ONCE)
            part = Batch(self.compositions[some], self.cuts[some])
            times, step = part.times(stages, order)
            fits = np.isfinite(times).all(axis=(0, 1)) & np.isfinite(step).all(axis=0)
            comm = part.take(fits).links(stages, order.columns.holder)
            if fits.any():
                ends = order.makespans(times[..., fits], comm)
                found[some][fits] = ends + step[:, fits].max(axis=0)
        return found
