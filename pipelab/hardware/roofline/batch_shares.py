"""How GPUs of different speed share a batch so that all finish together."""

from collections.abc import Callable

import numpy as np


def balanced_batches(
    seconds: Callable, composition: np.ndarray, spans: int, whole: float
) -> np.ndarray:
    """Sequences for a GPU of each kind, shape (C, K, U), so that each stage's GPUs finish at one time.

    Parameters
    ----------
    seconds : function of (b, kind, span), arrays of one shape
        Time for b sequences; grows with b. A GPU that is still reading weights when the others have
        finished gets nothing.
    composition : int array, shape (C, K)
    spans : int
        U, number of kinds of span.
    whole : float
        Sequences of the whole batch.
    """
    from scipy.optimize.elementwise import find_root

    stages, kinds = composition.shape
    count = composition
    row, span = (
        at.ravel() for at in np.meshgrid(np.arange(stages), np.arange(spans), indexing="ij")
    )
    kind = np.arange(kinds)[:, None]
    idle, alone = (seconds(np.full((kinds, spans), b), kind + 0 * span[:spans], kind * 0 + np.arange(spans))
                   for b in (0.0, whole))  # fmt: skip

    def done_by(time: np.ndarray, row: np.ndarray, span: np.ndarray) -> np.ndarray:
        """Sequences that a GPU of each kind finishes by then, shape (n, K)."""
        time, which, at = np.broadcast_arrays(time[:, None], kind.T, span[:, None])
        start, end = idle[which, at], alone[which, at]
        between = (time > start) & (time < end)
        b = np.where(time >= end, whole, 0.0)
        if between.any():
            args = (time[between], which[between], at[between])
            zeros = np.zeros(between.sum())
            found = find_root(
                lambda b, time, which, at: seconds(b, which, at) - time,
                (zeros, zeros + whole),
                args=args,
            )
            b[between] = found.x
        return b

    def surplus(time: np.ndarray, row: np.ndarray, span: np.ndarray) -> np.ndarray:
        return (count[row] * done_by(time, row, span)).sum(axis=1) - whole

    there = count[row] > 0
    low = np.where(there, idle[:, span].T, np.inf).min(axis=1)
    high = np.where(there, alone[:, span].T, np.inf).min(axis=1)
    time = find_root(surplus, (low, high), args=(row, span)).x
    b = np.where(there, done_by(time, row, span), 0.0)
    b *= (whole / (count[row] * b).sum(axis=1))[:, None]  # the last bits
    return b.reshape(stages, spans, kinds).transpose(0, 2, 1)
