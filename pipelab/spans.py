"""Consecutive layers as a stage sees them: how many, how heavy, how much work.

Where all layers are alike, a stage cares only for their number, and M kinds of span stand
for all M(M+1)/2 of them. Where layers differ, spans with the same number, weight and work
still behave alike and are computed once.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["Spans", "spans_of"]


@dataclass(frozen=True, eq=False)
class Spans:
    """The different kinds of span of a model with M layers.

    Attributes
    ----------
    kind : int array, shape (M, M)
        Entry (s, n-1) is the kind of the n layers from layer s on; past the last layer it means nothing.
    layers, weight, work : arrays, shape (U,)
        Of each kind: its number of layers, its weights and its work, both in ordinary layers.
    """

    kind: np.ndarray
    layers: np.ndarray
    weight: np.ndarray
    work: np.ndarray

    @property
    def uniform(self) -> bool:
        """Whether only the number of layers matters; kind n-1 is then n layers."""
        return len(self.layers) == len(self.kind)


def spans_of(layers: int, weight_factors: tuple[float, ...] | None, work_factors: tuple[float, ...] | None) -> Spans:
    """All kinds of span of a model, by number of layers, then by weight and work.

    Examples
    --------
    >>> spans_of(3, (2.0, 1.0, 1.0), None).weight.tolist()
    [1.0, 2.0, 2.0, 3.0, 4.0]
    """
    if all(f is None or len(set(f)) == 1 for f in (weight_factors, work_factors)):
        number = np.arange(1, layers + 1)
        weight, work = (number * (f[0] if f else 1.0) for f in (weight_factors, work_factors))
        return Spans(np.broadcast_to(number - 1, (layers, layers)), number, weight, work)
    start, size = np.meshgrid(np.arange(layers), np.arange(1, layers + 1), indexing="ij")
    inside = start + size <= layers
    first, last = start[inside], (start + size)[inside]
    weight, work = (_sums(layers, f, first, last) for f in (weight_factors, work_factors))
    key = np.stack([(last - first).astype(float), weight, work], axis=1)
    different, which = np.unique(key, axis=0, return_inverse=True)
    kind = np.full((layers, layers), -1)
    kind[inside] = which.reshape(-1)
    return Spans(kind, different[:, 0].astype(int), different[:, 1], different[:, 2])


def _sums(layers: int, factors, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Sum of the factors of every span, the same to the last bit for the same set of layers."""
    if factors is None:
        return (last - first).astype(float)
    values, which = np.unique(factors, return_inverse=True)
    # How many layers of each value come before layer l; whole numbers, so differences are exact.
    before = np.zeros((len(values), layers + 1), dtype=int)
    np.cumsum(which == np.arange(len(values))[:, None], axis=1, out=before[:, 1:])
    total = np.zeros(len(first))
    for count, value in zip(before[:, last] - before[:, first], values, strict=True):
        total += count * value
    return total
