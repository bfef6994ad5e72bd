"""Consecutive layers as a stage sees them: how many, how heavy, how much work.

Where all layers are identical, a stage cares only for their number, and M kinds of span represent
for all M(M+1)/2 of them. Where layers differ, spans with the same number, weight and work
still behave identically and are computed once.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate

import numpy as np

from pipelab.errors import InvalidValue, TooLarge
from pipelab.fields import Frozen, derived, read_only

_MOST_SPANS = 5_000_000  # some seconds


@dataclass(frozen=True, eq=False)
class Spans(Frozen):
    """The different kinds of span of a model with M layers.

    Attributes
    ----------
    kind : int array, shape (M, M)
        Entry (s, n-1) is the kind of the n layers from layer s on; past the last layer it means
        nothing.
    layers, weight, work : arrays, shape (U,)
        Of each kind: its number of layers, its weights and its work, both in ordinary layers.
    others : mapping of str to array, shape (U,)
        Further sums over the layers of each kind that a cost model needs.
    """

    kind: np.ndarray
    layers: np.ndarray
    weight: np.ndarray
    work: np.ndarray
    others: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def uniform(self) -> bool:
        """Whether only the number of layers matters; kind n-1 is then n layers."""
        return len(self.layers) == len(self.kind)

    @derived
    def examples(self) -> tuple[np.ndarray, np.ndarray]:
        """For each kind, the first layer and the number of layers of one such span; two (U,) arrays."""
        layers = len(self.kind)
        start, size = np.meshgrid(np.arange(layers), np.arange(1, layers + 1), indexing="ij")
        inside = start + size <= layers
        _, first = np.unique(self.kind[inside], return_index=True)
        return start[inside][first], size[inside][first]

    @derived
    def alike_inside(self) -> bool:
        """Whether layers differ at the two ends at most: the first from the others, and the last."""
        if self.uniform:
            return True
        layers = len(self.kind)
        inner = [self.kind[1 : layers - n, n - 1] for n in range(1, layers - 1)]
        return all((kinds == kinds[0]).all() for kinds in inner)


def spans_from_factors(
    layers: int,
    weight_factors: Sequence[float] | None,
    work_factors: Sequence[float] | None,
    **others: Sequence[float],
) -> Spans:
    """Compute all kinds of span of a model, by number of layers, then by weight and work.

    Parameters
    ----------
    weight_factors, work_factors, **others
        One number per layer each; spans are of one kind where all sums agree.

    Examples
    --------
    >>> spans_from_factors(3, (2.0, 1.0, 1.0), None).weight.tolist()
    [1.0, 2.0, 2.0, 3.0, 4.0]
    """
    factors = (weight_factors, work_factors, *others.values())
    if all(f is None or len(set(f)) == 1 for f in factors):
        number = np.arange(1, layers + 1)
        weight, work, *rest = (number * (f[0] if f else 1.0) for f in factors)
        return Spans(
            np.broadcast_to(read_only(number - 1, fresh=True), (layers, layers)),
            number,
            weight,
            work,
            dict(zip(others, rest, strict=True)),
        )
    spans = layers * (layers + 1) // 2
    if spans > _MOST_SPANS:
        raise TooLarge(
            f"{layers:,} layers that differ have {spans:,} spans, each of which is computed; take fewer layers, "
            "or blocks of several layers as one"
        )
    start, size = np.meshgrid(np.arange(layers), np.arange(1, layers + 1), indexing="ij")
    inside = start + size <= layers
    first, last = start[inside], (start + size)[inside]
    sums = (_sums(layers, f, first, last) for f in factors)
    key = np.stack([(last - first).astype(float), *sums], axis=1)
    different, which = np.unique(key, axis=0, return_inverse=True)
    kind = np.full((layers, layers), -1)
    kind[inside] = which.reshape(-1)
    number, weight, work, *rest = different.T
    return Spans(kind, number.astype(int), weight, work, dict(zip(others, rest, strict=True)))


def _sums(
    layers: int, factors: Sequence[float] | None, first: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """Add up the factors of every span, to the same last bit for the same set of layers.

    Factors are whole numbers of one power of two, which add up exactly.
    """
    if factors is None:
        return (last - first).astype(float)
    exact = [Fraction(float(factor)) for factor in factors]
    scale = max(part.denominator for part in exact)
    before = np.array([0, *accumulate(int(part * scale) for part in exact)], dtype=object)
    return ((before[last] - before[first]) / scale).astype(float)


def layer_factors(
    name: str, layers: int, sums: Mapping[str, Callable[[range], float]]
) -> list[tuple[float, ...]]:
    """Ask for every layer alone what several layers add up to, and refuse sums that are others.

    Parameters
    ----------
    name : str
        Of the model, for messages.
    sums : mapping of str to function of a range
        In ordinary layers.

    Returns
    -------
    list of tuple of float
        For each of `sums` one number per layer.

    Raises
    ------
    InvalidValue
        A number for several layers is not the sum of those of each.
    """
    factors = []
    for what, total in sums.items():
        alone = tuple(float(total(range(i, i + 1))) for i in range(layers))
        for part in (range(layers), range((layers + 1) // 2)):
            given, summed = float(total(part)), math.fsum(alone[part.start : part.stop])
            if not math.isclose(given, summed, rel_tol=1e-9):
                expected = f"expected {summed:g} ordinary layers, the sum over its layers"
                raise InvalidValue(name, [(f"{what}({part})", given, expected)])
        factors.append(alone)
    return factors
