"""What is asked of any table of stages: how many layers they can hold, how one follows another, which GPUs they get.

A table has a row for each stage: its number of GPUs, and the classes (or types) that it has GPUs of. The recipes of
the stage-flow program, the compositions of deployments, flows and training, and their relaxations are such tables.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from pipelab.engine.classes import Classes
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.instance import best_shares
from pipelab.errors import PipelabError, TooLarge
from pipelab.problem import Problem

_MOST_PAIRS = 25_000_000  # of ways to leave a stage and to enter one; 8 bytes each
_CELLS_AT_ONCE = 10_000_000


def holdable(held: np.ndarray, size: np.ndarray, has: np.ndarray, count: np.ndarray) -> float:
    """Return a number of layers that all GPUs together never exceed.

    Every GPU counts with the most layers per GPU of any stage that may have one of its class.

    Parameters
    ----------
    held, size : arrays, shape (C,)
        Most layers of each stage, and its number of GPUs.
    has : bool array, shape (C, A)
        Whether a stage may have GPUs of a class.
    count : int array, shape (A,)
        GPUs of each class.
    """
    return float(best_shares(held, size, has) @ count)


def least_seconds(layers: int, hop: float, ending_at: Callable[[int], np.ndarray]) -> np.ndarray:
    """Return the least seconds to each boundary between layers, if GPUs were unlimited; shape (layers + 1,).

    Parameters
    ----------
    layers : int
    hop : float
        Seconds from a stage to the next, at least.
    ending_at : function of a boundary
        Seconds of one stage to this boundary from boundary 0, 1, … below it; infinite where there is none.
    """
    reached = np.full(layers + 1, np.inf)
    reached[0] = 0.0
    hops = np.where(np.arange(layers) > 0, hop, 0.0)
    for end in range(1, layers + 1):
        reached[end] = (reached[:end] + ending_at(end) + hops[:end]).min()
    return reached


def ways_through(
    sets: np.ndarray,
    rates: Sequence[np.ndarray] = (),
    seconds: Sequence[np.ndarray] = (),
    deadline: Deadline = NEVER,
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Find the different ways to enter and to leave sets of classes: a hop is as slow as its slowest pair.

    Parameters
    ----------
    sets : bool array, shape (Q, A)
    rates, seconds : sequences of float arrays, shape (A, A)
        Of a hop from class to class; seconds are infinite where there is none. Only classes of some set count.

    Returns
    -------
    of : int array, shape (Q,)
        The way through each set.
    through : int array, shape (J, 2)
        Of each way through: the way to enter and the way to leave.
    slowest : list of float arrays, shape (L, E)
        From each way to leave to each way to enter: the least of each rate, then the greatest of all seconds.

    Raises
    ------
    TooLarge
    """
    used = np.flatnonzero(sets.any(axis=0))
    inside, signs = sets[:, used], [-1] * len(rates) + [1] * len(seconds)  # of what is greatest
    between = [
        (sign, sign * hops[np.ix_(used, used)])
        for sign, hops in zip(signs, (*rates, *seconds), strict=True)
    ]
    onward = np.hstack([sign * _slowest(inside, hops, deadline) for sign, hops in between])
    arriving = np.hstack([sign * _slowest(inside, hops.T, deadline) for sign, hops in between])
    left, leave = np.unique(onward, axis=0, return_inverse=True)
    _, example, enter = np.unique(arriving, axis=0, return_index=True, return_inverse=True)
    if len(left) * len(example) > _MOST_PAIRS:
        raise TooLarge(
            f"stages mix GPUs in {len(sets):,} ways that links tell apart; a smaller max_gpus_per_stage or "
            "same_type_stages=True leaves fewer"
        )
    pairs = np.stack([enter.reshape(-1), leave.reshape(-1)], axis=1)
    through, of = np.unique(pairs, axis=0, return_inverse=True)
    slowest = [
        np.stack([sign * (sign * rows[:, s]).max(axis=1) for s in inside[example]], axis=1)
        for sign, rows in zip(signs, np.split(left, len(signs), axis=1), strict=True)
    ]
    return of.reshape(-1), through, slowest


def slowest_between(sets: np.ndarray, measure: np.ndarray) -> np.ndarray:
    """Return the slowest hop from each set of classes to each other; shape (Q, Q)."""
    return _slowest(sets, _slowest(sets, measure, NEVER).T, NEVER).T


def _slowest(sets: np.ndarray, measure: np.ndarray, deadline: Deadline) -> np.ndarray:
    """Return the slowest hop from each set to every class; shape (Q, A)."""
    rows = np.empty((len(sets), measure.shape[1]))
    step = max(1, _CELLS_AT_ONCE // max(1, measure.size))
    for part in deadline.slices(len(sets), step):
        rows[part] = np.where(sets[part][:, :, None], measure, -np.inf).max(axis=1)
    return rows


class FreeGPUs:
    """The free GPUs of each class, node by node.

    Parameters
    ----------
    nodes : iterables of GPU ids, by class and node
        A class whose nodes do not matter has one.
    """

    def __init__(self, nodes: Iterable[Iterable[Sequence[int]]]) -> None:
        # the lowest id is the last, which is taken first
        self._nodes = [[sorted(node, reverse=True) for node in of_class] for of_class in nodes]

    @classmethod
    def in_nodes(cls, problem: Problem, classes: Classes) -> "FreeGPUs":
        """Group the GPUs of each class by their nodes; the node of the last GPU comes first."""
        nodes = []
        for members in classes.members:
            by_node: dict[str, list[int]] = defaultdict(list)
            for g in members.tolist()[::-1]:
                by_node[problem.cluster.gpus[g].node].append(g)
            nodes.append(by_node.values())
        return cls(nodes)

    def taken(
        self, pipelines: Sequence[Sequence[tuple[int, tuple[int, ...]]]]
    ) -> list[list[list[int]]]:
        """Take GPUs for every stage of several pipelines, given as layers and GPUs of each class; large stages first.

        Raises
        ------
        PipelabError
            There are not enough GPUs.
        """
        ids = [[list[int]() for _ in stages] for stages in pipelines]
        places = [(i, s) for i, stages in enumerate(pipelines) for s in range(len(stages))]
        for i, s in sorted(places, key=lambda at: -max(pipelines[at[0]][at[1]][1])):
            ids[i][s] = self.take(pipelines[i][s][1])
        return ids

    def take(self, counts: Iterable[int]) -> list[int]:
        """Take as many GPUs of each class; raises as `taken` does."""
        return [g for a, n in enumerate(counts) for g in (self.take_of(a, n) if n else ())]

    def take_of(self, a: int, number: int) -> list[int]:
        """Take GPUs of one class: of the node that has fewest free, and only of several where none has enough."""
        nodes = self._nodes[a]
        if enough := [node for node in nodes if len(node) >= number]:
            smallest = min(enough, key=len)
            return [smallest.pop() for _ in range(number)]
        taken: list[int] = []
        while len(taken) < number:
            largest = max(nodes, key=len)
            if not largest:
                raise PipelabError("stages were found that use more GPUs than there are")
            taken.append(largest.pop())
        return taken
