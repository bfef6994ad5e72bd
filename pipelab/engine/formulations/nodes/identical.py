"""Whether nodes are identical: the same GPUs, and the same links inside and to every other node."""

from collections.abc import Iterator

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.formulations.aggregated.classes import Classes

_ROWS_AT_ONCE = 200  # between two looks at the deadline


def links_repeat(classes: Classes, link: np.ndarray, deadline: Deadline = NEVER) -> bool:
    """Whether two classes have as many GPUs of one kind, and as many links of every speed to every kind.

    A quick test: identical nodes always pass it, others nearly never.

    Parameters
    ----------
    link : float array, shape (A, A)
        Of any unit, from class to class.
    """
    seen = set()
    for key in _signatures(classes, link, deadline):
        if key in seen:
            return True
        seen.add(key)
    return False


def _signatures(classes: Classes, link: np.ndarray, deadline: Deadline) -> Iterator[tuple]:
    """Equal for classes that a swap of identical nodes exchanges: sums of hashes of their links."""
    random = np.random.default_rng(0)
    kind_key = random.integers(1, 2**63, classes.kind.max() + 1, dtype=np.uint64)
    weight = kind_key[classes.kind] * (2 * classes.count.astype(np.uint64) + 1)
    own = np.diagonal(link)
    for first in range(0, len(classes), _ROWS_AT_ONCE):
        deadline.check()
        rows = slice(first, min(first + _ROWS_AT_ONCE, len(classes)))
        hashed = _hashed(link[rows]), _hashed(link[:, rows].T)
        for of_links in hashed:
            of_links[np.arange(len(of_links)), np.arange(rows.start, rows.stop)] = (
                0  # not to others
            )
        sums = [(of_links * weight).sum(axis=1, dtype=np.uint64).tolist() for of_links in hashed]
        for a, *rest in zip(range(rows.start, rows.stop), *sums, strict=True):
            yield int(classes.kind[a]), int(classes.count[a]), float(own[a]), *rest


def _hashed(values: np.ndarray) -> np.ndarray:
    """A number of 64 bits that depends on all bits of each value."""
    bits = np.ascontiguousarray(values, dtype=float).view(np.uint64).copy()
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (29, 0xC4CEB9FE1A85EC53)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    return bits ^ (bits >> np.uint64(32))
