"""The best deployment of every mix of GPUs, once all columns are known: an unbounded knapsack with a side per class."""

from collections.abc import Sequence

import numpy as np

from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.deployments.master import Column
from pipelab.engine.deployments.mixes import Mixes
from pipelab.engine.tolerances import ONE_ANSWER

MOST_STEPS = 2_000_000_000  # mixes × columns × repetitions: ten seconds


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
