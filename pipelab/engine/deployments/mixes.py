"""Sets of mixes as bits of one whole number: a mix says how many GPUs of each class there are.

With N_a GPUs of class a there are Π (N_a + 1) mixes. Each has a bit, so a set of mixes is a Python
integer, and "two GPUs of class a more" is a shift: one instruction for 64 mixes at a time.
"""

from collections.abc import Sequence
from functools import cached_property
from math import prod

import numpy as np


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
