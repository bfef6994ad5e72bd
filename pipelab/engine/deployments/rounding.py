"""From numbers of the master program to a deployment: repeat the columns, or round down and fill up."""

from collections.abc import Sequence

import numpy as np

from pipelab.engine.deployments.master_program import DeploymentGoal, PipelineColumn


def as_often_as_chosen(
    columns: Sequence[PipelineColumn], number: np.ndarray
) -> list[PipelineColumn]:
    """Repeat each column as often as the program chooses it."""
    times = np.rint(number[: len(columns)]).astype(int).tolist()
    return [column for column, n in zip(columns, times, strict=True) for _ in range(n)]


def round_down_and_fill(
    goal: DeploymentGoal, columns: Sequence[PipelineColumn], number: np.ndarray
) -> list[PipelineColumn]:
    """Round the relaxation's numbers down, and add the fastest pipeline that fits until none does.

    It is added to the pool that serves least. With a load, pipelines that it does not need are dropped again, the
    dearest first.
    """
    chosen = as_often_as_chosen(columns, np.floor(number + 1e-9))
    used = np.array([c.gpus for c in columns], dtype=int)
    rate = np.array([c.rate for c in columns])
    pool = np.array([c.offer.pool for c in columns])
    left = goal.counts - sum((np.array(c.gpus) for c in chosen), np.zeros_like(goal.counts))
    while True:
        served = goal.serves(chosen)
        short = min(served, key=served.__getitem__)
        fits = np.flatnonzero((used <= left).all(axis=1) & (pool == short))
        if not len(fits) or (goal.load and goal.served(chosen)):
            break
        best = fits[rate[fits].argmax()]
        chosen.append(columns[best])
        left = left - used[best]
    if goal.load:
        for column in sorted(chosen, key=lambda c: goal.value([c]), reverse=True):
            rest = list(chosen)
            rest.remove(column)
            if goal.served(rest):
                chosen = rest
    return chosen
