"""Mixes of GPUs (how many of each class): sets of them as bits of one whole number, and the best deployment of each.

With N_a GPUs of class a there are Π (N_a + 1) mixes. Each has a bit, so a set of mixes is a Python
integer, and "two GPUs of class a more" is a shift: one instruction for 64 mixes at a time. Once all columns are
known, the best deployment of every mix is an unbounded knapsack with a side per class (`best_sums`).
"""

from collections.abc import Sequence
from functools import cached_property
from math import prod

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.deployments.column_generation import Column
from pipelab.engine.tolerances import ONE_ANSWER

MOST_STEPS = 2_000_000_000  # of `best_sums`: mixes × columns × repetitions: ten seconds


class Mixes:
    """All mixes of up to so many GPUs of each class.

    Parameters
    ----------
    counts : sequence of int, length A
        GPUs of each class, at least 0.

    Examples
    --------
    >>> mixes = Mixes([2, 1])
    >>> mixes.total, mixes.listed(mixes.more(mixes.none, (1, 0))).tolist()
    (6, [[1, 0]])
    >>> mixes.listed(mixes.at_least(mixes.more(mixes.none, (1, 0)))).tolist()
    [[1, 0], [1, 1], [2, 0], [2, 1]]
    """

    none = 1  # the mix without a GPU, as a set of one

    def __init__(self, counts: Sequence[int]) -> None:
        self.shape = tuple(int(n) + 1 for n in counts)
        self._room: dict[tuple[int, ...], int] = {}

    @property
    def total(self) -> int:
        """How many mixes there are."""
        return prod(self.shape)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """By how many bits a mix moves with one GPU more of each class."""
        return tuple(prod(self.shape[a + 1 :]) for a in range(len(self.shape)))

    def index(self, mix: Sequence[int]) -> int:
        """The bit of a mix."""
        return sum(n * stride for n, stride in zip(mix, self.strides, strict=True))

    def has(self, mixes: int, mix: Sequence[int]) -> bool:
        """Whether a set has this mix."""
        return bool(mixes >> self.index(mix) & 1)

    def more(self, mixes: int, added: tuple[int, ...]) -> int:
        """The mixes of a set with so many GPUs more each, without those for which there are too few."""
        if added not in self._room:
            there = np.ones(self.shape, dtype=bool)
            for a, n in enumerate(added):
                below = [slice(None)] * len(self.shape)
                below[a] = slice(max(0, self.shape[a] - n), None)
                there[tuple(below)] = False
            self._room[added] = self.of_table(there)
        return (mixes & self._room[added]) << self.index(added)

    def at_least(self, mixes: int) -> int:
        """Every mix that has at least the GPUs of some mix of a set."""
        for a, size in enumerate(self.shape):
            step = 1
            while step < size:  # by 1, 2, 4, … GPUs of this class
                mixes |= self.more(mixes, self._only(a, step))
                step *= 2
        return mixes

    def smallest(self, closed: int) -> int:
        """The mixes of a set that `at_least` made which leave it with any GPU less."""
        above = 0
        for a in range(len(self.shape)):
            above |= self.more(closed, self._only(a, 1))
        return closed & ~above

    def listed(self, mixes: int) -> np.ndarray:
        """The mixes of a set, one per row; shape (number, A)."""
        return np.argwhere(self.table(mixes))

    def table(self, mixes: int) -> np.ndarray:
        """A set as a bool array over all mixes."""
        packed = np.frombuffer(mixes.to_bytes(self.total // 8 + 1, "little"), dtype=np.uint8)
        return (
            np.unpackbits(packed, bitorder="little")[: self.total].reshape(self.shape).astype(bool)
        )

    def of_table(self, table: np.ndarray) -> int:
        """The set of the mixes that a bool array of `shape` marks."""
        return int.from_bytes(np.packbits(table.ravel(), bitorder="little").tobytes(), "little")

    def _only(self, a: int, number: int) -> tuple[int, ...]:
        return tuple(number if b == a else 0 for b in range(len(self.shape)))


def number_of_steps(mixes: Mixes, columns: Sequence[Column]) -> int:
    """What `best_sums` has to do, in mixes times columns times repetitions."""
    return mixes.total * sum(_repeats(mixes, c) for c in columns)


def best_sums(mixes: Mixes, columns: Sequence[Column], deadline: Deadline = NEVER) -> np.ndarray:
    """The greatest sum of rates of pipelines that share each mix; shape of `mixes`.

    Raises
    ------
    Ended
        The deadline was first.

    Examples
    --------
    >>> best_sums(Mixes([3]), [Column(1.0, (1,)), Column(5.0, (2,))]).tolist()
    [0.0, 1.0, 5.0, 6.0]
    """
    best = np.zeros(mixes.shape)
    for column in columns:
        to = tuple(slice(n, None) for n in column.gpus)
        of = tuple(slice(None, size - n) for n, size in zip(column.gpus, mixes.shape, strict=True))
        for _ in range(_repeats(mixes, column)):
            deadline.check()
            np.maximum(best[to], best[of] + column.rate, out=best[to])
    return best


def chosen(
    mixes: Mixes, columns: Sequence[Column], best: np.ndarray, mix: tuple[int, ...]
) -> list[Column]:
    """Columns, repeated, whose rates add up to the best sum of a mix."""
    used = np.array([c.gpus for c in columns], dtype=int).reshape(-1, len(mixes.shape))
    rates, out = np.array([c.rate for c in columns]), []
    while best[mix] > 0:
        fits = np.flatnonzero((used <= mix).all(axis=1))
        left = np.array(mix) - used[fits]
        with_it = best[tuple(left.T)] + rates[fits]
        # the fewest GPUs among equals
        near = np.flatnonzero(with_it >= best[mix] * (1 - ONE_ANSWER))
        pick = near[used[fits[near]].sum(axis=1).argmin()]
        out.append(columns[fits[pick]])
        mix = tuple(left[pick].tolist())
    return out


def _repeats(mixes: Mixes, column: Column) -> int:
    return min((s - 1) // n for n, s in zip(column.gpus, mixes.shape, strict=True) if n)
