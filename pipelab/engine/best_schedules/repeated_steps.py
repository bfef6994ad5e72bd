"""What a training step takes where many follow one another without a barrier between them.

Each rank begins its next step as soon as it has ended this one. After some steps all ranks have
fallen into a rhythm, and every step takes the same time: at least as long as the busiest rank works,
at most the longest span of a rank in a single step.
"""

import numpy as np

from pipelab.engine.best_schedules.question import Question
from pipelab.engine.timeline.timeline import Timeline


def value_of(timeline: Timeline, objective: str) -> float:
    """What is minimised: the makespan, or the time of one of many steps."""
    return timeline.makespan if objective == "makespan" else step_time(timeline)


def step_time(timeline: Timeline) -> float:
    """The time between a rank's end of one step and of the next, in the long run.

    Let A[r, s] be the longest way from rank s becoming free to rank r ending its step. Ends of
    steps follow one another as x(n + 1)[r] = max over s of A[r, s] + x(n)[s]. The time of a step is
    this map's eigenvalue, the largest mean of a cycle in A, which Karp's algorithm computes.

    Parameters
    ----------
    timeline : Timeline
        Of one step, with buffered transfers.

    Returns
    -------
    float
        In the unit of the costs.

    Examples
    --------
    >>> import pipelab as pl
    >>> timeline = pl.simulate(pl.schedule("ZBH2", 4, 8), pl.StageCosts(1, 1, 1))
    >>> timeline.makespan, step_time(timeline)
    (27.0, 24.0)
    """
    ranks, columns, table = (
        timeline.schedule.ranks,
        timeline.columns,
        timeline.costs.tables(timeline.schedule),
    )
    # One rank is free at 0 and all others were free long before that, for each rank in turn.
    free = np.where(np.eye(ranks, dtype=bool), 0.0, -np.inf)
    names = ("forward", "backward_input", "backward_weight")
    took = columns.times(np.array([table[name] for name in names]), timeline.costs.overlap)
    every = np.repeat(took[:, None], ranks, axis=1)
    delay = np.repeat(np.append(table["comm"], 0.0)[:, None], ranks, axis=1)
    ends = columns.graph.finish(every, columns.work.row, delay, columns.delayed_by, free)
    ways = np.full((ranks, ranks), -np.inf)
    np.maximum.at(ways, timeline.node_rank, ends)
    longest = np.full((ranks + 1, ranks), -np.inf)
    longest[0] = 0.0  # from any rank
    for k in range(ranks):
        longest[k + 1] = (ways + longest[k]).max(axis=1)
    steps = ranks - np.arange(ranks)[:, None]
    with np.errstate(invalid="ignore"):
        means = (longest[ranks] - longest[:ranks]) / steps
    return float(np.nanmin(means, axis=0).max())


def span_bound(question: Question, held: np.ndarray) -> float:
    """What no step takes less than, by formula.

    Rank r works m·(F + I + W), and waits after its first forward for the first gradient, in which
    time it runs no more forwards than it may hold. After it all ranks behind it work m·(F + I)
    between the first message to them and the last gradient from them; it then has one W left.

    Parameters
    ----------
    question : Question
        Costs of p ranks and m microbatches.
    held : array of int, shape (p,)
        Most microbatches each rank may hold.
    """
    m, comm = question.microbatches, np.append(question.table["comm"], 0.0)
    forward, back = question.length["F"], question.length[question.kinds[1]]
    weight = question.length["W"] if question.split_backward else np.zeros(question.ranks)
    there, home = forward + comm, back + comm
    best = 0.0
    for rank in range(question.ranks):
        first_gradient = (there + home)[rank:].sum() - back[rank]
        waits = max(0.0, first_gradient - held[rank] * forward[rank])
        busy = m * (forward + back + weight)[rank] + waits
        between = np.cumsum((there + home)[rank:]) - (there + home)[rank:]
        drained = (between + m * (forward + back)[rank:]).max() + weight[rank]
        best = max(best, float(busy), float(drained))
    return best
