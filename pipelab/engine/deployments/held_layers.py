"""How many layers each mix of GPUs holds at a rate: a knapsack, where layers differ at the two ends at most.

`reachable` goes from layer to layer, since a stage may depend on where it begins. Mostly it does
not: the layers between the first and the last are identical, links do not bind, and what a stage can
hold it can hold in part. Then a pipeline is a first stage, a last one, and any between them, each with
the most layers that it can hold; a mix makes a pipeline if these add up to the model's layers or more.
One table over mixes says how many layers they hold, and each recipe is added to it as in a knapsack.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.deployments.mixes import Mixes
from pipelab.engine.layer_runs import Spans

_NONE = -(10**7)  # of a mix that has no pipeline begun

Gpus = tuple[int, ...]  # of each class


class Longest(NamedTuple):
    """The most layers of a stage: as the first one, between, as the last one; and whether it holds all of them."""

    first: int
    inner: int
    last: int
    whole: bool


def longest(runs: Spans, spans: np.ndarray) -> Longest:
    """Of stages that can hold these kinds of span.

    Parameters
    ----------
    runs : Spans
        With `alike_inside`.
    spans : int array
        Kinds of span.
    """
    kind = runs.kind
    layers = len(kind)
    size, fits = np.arange(1, layers), np.isin(np.arange(len(runs.layers)), spans)
    first = size[fits[kind[0, size - 1]]]
    last = size[fits[kind[layers - size, size - 1]]]
    inside = size[: max(0, layers - 2)]
    inner = inside[fits[kind[min(1, layers - 1), inside - 1]]]
    most = [int(sizes.max(initial=0)) for sizes in (first, inner, last)]
    return Longest(most[0], most[1], most[2], bool(fits[kind[0, layers - 1]]))


class HeldLayers:
    """Tables over all mixes of up to so many GPUs of each class, each as one row of numbers.

    A stage's GPUs are a shift of the row. What would count past the GPUs of a class is ruled out by a
    row of its own, made once for each class and number.
    """

    def __init__(self, mixes: Mixes) -> None:
        self.mixes = mixes
        self._past: dict[tuple[int, int], np.ndarray] = {}

    def pipelines(
        self, layers: int, ways: Iterable[tuple[Sequence[Gpus], Longest]], deadline: Deadline
    ) -> int:
        """The mixes that make a pipeline, as a set of `mixes`.

        Parameters
        ----------
        layers : int
            Of the model.
        ways : sequence of (list of GPUs by class, Longest)
            Of every recipe: the GPUs that it may take, and what it holds with any of these.

        Raises
        ------
        Ended
            The deadline was first.
        """
        each = [(gpus, most) for drawn, most in ways for gpus in drawn]
        held = np.full(self.mixes.total, _NONE, dtype=np.int32)
        done = np.zeros(self.mixes.total, dtype=bool)
        for gpus, most in each:
            mix = self.mixes.index(gpus)
            done[mix] |= most.whole
            if most.first:
                held[mix] = max(held[mix], most.first)
        for gpus, most in each:
            sizes = self.mixes.shape
            times = min((s - 1) // n for n, s in zip(gpus, sizes, strict=True) if n)
            for _ in range(times if most.inner else 0):
                deadline.check()
                mix, with_it = self._added(held, gpus, most.inner)
                np.maximum(held[mix:], with_it, out=held[mix:])
        for gpus, most in each:
            deadline.check()
            if most.last:
                mix, with_it = self._added(held, gpus, most.last)
                done[mix:] |= with_it >= layers
        return self.mixes.of_table(done)

    def _added(self, held: np.ndarray, gpus: Gpus, layers: int) -> tuple[int, np.ndarray]:
        """What mixes from `gpus` on hold with a stage on these GPUs; far below 0 where they lack them."""
        mix = self.mixes.index(gpus)
        with_it = held[: self.mixes.total - mix] + np.int32(layers)
        for a, n in enumerate(gpus):
            if n:
                with_it += self._past_of(a, n)[: len(with_it)]
        return mix, with_it

    def _past_of(self, a: int, n: int) -> np.ndarray:
        if (a, n) not in self._past:
            there = np.arange(self.mixes.shape[a]) + n < self.mixes.shape[a]
            row = np.where(there, 0, _NONE).astype(np.int32)
            tail = int(np.prod(self.mixes.shape[a + 1 :]))
            head = self.mixes.total // (tail * len(row))
            self._past[a, n] = np.tile(np.repeat(row, tail), head)
        return self._past[a, n]
