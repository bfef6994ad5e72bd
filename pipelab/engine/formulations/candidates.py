"""Candidate stages over specific GPUs, and which can follow which.

The write-up's *allocation* is a candidate stage: consecutive layers and a set of GPU ids.
Its *connection* is a pair of allocations that can be neighbours: the second starts where
the first ends, and they share no GPU. Everything is an array; only boundaries between
layers are looped over.

Equals `pipelab.candidates` on its domain; see tests/equal/test_definitions_placement.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pipelab.candidates import stage_gpus
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.tolerances import SOLVER
from pipelab.placement import Placement, Stage
from pipelab.problem import Problem


@dataclass(frozen=True, eq=False)
class StageCandidates:
    """Allocations (A of them) and connections (E of them) of one problem.

    Attributes
    ----------
    sets : tuple of tuple of int
        The S different GPU sets, by size and then by id.
    set_of, start, size : int arrays, shape (A,)
        For each allocation, its GPU set, its first layer (from 0) and its number of layers.
    throughput : float array, shape (A,)
        θ of each allocation in tokens/s.
    tail, head : int arrays, shape (E,)
        Each connection leads from allocation `tail` to allocation `head`.
    link_throughput : float array, shape (E,)
        ν of each connection, in the problem's link units per second.
    """

    problem: Problem
    sets: tuple[tuple[int, ...], ...]
    set_of: np.ndarray
    start: np.ndarray
    size: np.ndarray
    throughput: np.ndarray
    tail: np.ndarray
    head: np.ndarray
    link_throughput: np.ndarray
    deadline: Deadline = NEVER  # for whatever is built of them

    @property
    def layers(self) -> int:
        """Number of layers M."""
        return self.problem.model.layers

    @property
    def gpus(self) -> int:
        """Number of GPUs N."""
        return len(self.problem.cluster)

    @cached_property
    def stop(self) -> np.ndarray:
        """For each allocation, the layer after its last; shape (A,)."""
        return self.start + self.size

    @cached_property
    def membership(self) -> np.ndarray:
        """True where a GPU belongs to a set; shape (S, N)."""
        return _membership(self.sets, self.gpus)

    def placement(self, chosen: np.ndarray) -> Placement:
        """Return the placement of a set of allocation numbers, in layer order."""
        ordered = sorted(chosen, key=lambda a: self.start[a])
        return Placement(
            tuple(
                Stage(range(int(self.start[a]), int(self.stop[a])), self.sets[self.set_of[a]])
                for a in ordered
            )
        )

    def rate_at_most(self, proven: float | None) -> float:
        """Return the fastest rate that occurs at all and is not above a bound that a solver proved.

        Every placement's throughput is one of these rates, so this is a bound too. None means that nothing
        is proved.
        """
        rates = np.concatenate([self.throughput, self.link_throughput])
        top = self.throughput.max()  # no placement beats its fastest stage
        if proven is not None:  # a solver keeps rows to within its tolerance of their largest entry
            top = min(top, proven + SOLVER * max(1.0, top))
        return float(rates[rates <= top].max(initial=rates.min()))

    def connected_by(self, links: np.ndarray) -> "StageCandidates":
        """Keep all allocations, and the connections of a mask of shape (E,)."""
        return replace(
            self,
            tail=self.tail[links],
            head=self.head[links],
            link_throughput=self.link_throughput[links],
        )

    def reaching(self, rate: float) -> "StageCandidates":
        """Return the allocations that reach a rate in tokens/s, and the connections between them that do."""
        kept = self.throughput >= rate
        number = np.cumsum(kept) - 1  # new number of each allocation that is kept
        links = (self.link_throughput >= rate) & kept[self.tail] & kept[self.head]
        fast = self.connected_by(links)
        return replace(
            fast,
            set_of=self.set_of[kept],
            start=self.start[kept],
            size=self.size[kept],
            throughput=self.throughput[kept],
            tail=number[fast.tail],
            head=number[fast.head],
        )


def enumerate_candidates(problem: Problem, deadline: Deadline = NEVER) -> StageCandidates:
    """List every allocation that fits in memory and every connection between them.

    Allocations are ordered by first layer, number of layers, GPU set. The number of both
    grows fast: `count_candidates` computes it beforehand without listing anything.

    Parameters
    ----------
    problem : Problem
        Small enough to be listed.
    deadline : Deadline
        Checked while they are listed.

    Returns
    -------
    StageCandidates
        A allocations and E connections as arrays, rates in tokens/s.

    Raises
    ------
    Ended
        The deadline has passed.
    """
    sets = gpu_sets(problem, deadline)
    rate, fits = stage_rates(problem, sets, deadline)
    return list_candidates(problem, sets, rate, fits, np.arange(problem.model.layers), deadline)


def list_candidates(
    problem: Problem,
    sets: Sequence[tuple[int, ...]],
    rate: np.ndarray,
    allowed: np.ndarray,
    starts: np.ndarray,
    deadline: Deadline = NEVER,
) -> StageCandidates:
    """List the candidates over given GPU sets, kinds of span and first layers.

    Parameters
    ----------
    rate : float array, shape (S, U)
        For every GPU set and every kind of span, in tokens/s.
    allowed : bool array, shape (S, U)
        Which kinds of span a set may hold; with identical layers, 1 … M of them.
    starts : int array
        First layers (from 0) at which an allocation may start.
    """
    spans, parts = problem.model.spans, []
    for first in starts:  # by first layer, then by number of layers, then by set
        deadline.check()
        kinds = spans.kind[first, : problem.model.layers - first]
        size_index, set_of = np.nonzero(allowed[:, kinds].T)
        parts.append((np.full(len(set_of), first), size_index + 1, set_of, kinds[size_index]))
    start, size, set_of, kind = (np.concatenate(column) for column in zip(*parts, strict=True))
    tail, head = _connections(problem, sets, set_of, start, size, deadline)
    links = link_rates(problem, sets, deadline)[set_of[tail], set_of[head]]
    theta = rate[set_of, kind]
    return StageCandidates(
        problem=problem,
        sets=tuple(sets),
        set_of=set_of,
        start=start,
        size=size,
        throughput=theta,
        tail=tail,
        head=head,
        link_throughput=links,
        deadline=deadline,
    )


def stage_rates(
    problem: Problem, sets: Sequence[tuple[int, ...]], deadline: Deadline = NEVER
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the rate of every GPU set with every kind of span, and whether it fits in memory.

    Returns
    -------
    rate : float array, shape (S, U), tokens/s
    fits : bool array, shape (S, U)
    """
    kinds = problem.cluster.kinds
    of_kind = (problem.cluster.kind_of[:, None] == np.arange(len(kinds))).astype(int)
    counts = _membership(sets, len(problem.cluster)) @ of_kind
    # Sets with the same kinds of GPU behave identically: each composition is computed once.
    composition, which = np.unique(counts, axis=0, return_inverse=True)
    rate, fits = np.empty((2, len(composition), len(problem.model.spans.layers)))
    for part in _parts(len(composition), 5 * len(kinds) * rate.shape[1], deadline):
        tables = problem.stage_tables(kinds, composition[part])
        rate[part], fits[part] = tables.throughput, tables.fits(kinds)
    which = which.reshape(-1)
    return rate[which], fits[which] > 0


def gpu_sets(problem: Problem, deadline: Deadline = NEVER) -> tuple[tuple[int, ...], ...]:
    """List every set of GPU ids that may hold a stage; raises `Ended` at the deadline."""
    sets = []
    for one in stage_gpus(problem):
        deadline.check()
        sets.append(one)
    return tuple(sets)


def _membership(sets: Sequence[tuple[int, ...]], gpus: int) -> np.ndarray:
    member = np.zeros((len(sets), gpus), dtype=bool)
    for i, s in enumerate(sets):
        member[i, list(s)] = True
    return member


def _connections(
    problem: Problem,
    sets: Sequence[tuple[int, ...]],
    set_of: np.ndarray,
    start: np.ndarray,
    size: np.ndarray,
    deadline: Deadline,
) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of allocations with a common boundary and no common GPU."""
    member = _membership(sets, len(problem.cluster)).astype(np.float32)
    disjoint = np.empty((len(sets), len(sets)), dtype=bool)
    for rows in _parts(len(sets), len(sets), deadline):
        disjoint[rows] = member[rows] @ member.T == 0  # exact: small whole numbers in float32
    tails, heads = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for boundary in range(1, problem.model.layers):
        before = np.flatnonzero(start + size == boundary)
        after = np.flatnonzero(start == boundary)
        for rows in _parts(len(before), len(after), deadline):
            i, j = np.nonzero(disjoint[np.ix_(set_of[before[rows]], set_of[after])])
            tails.append(before[rows][i])
            heads.append(after[j])
    return np.concatenate(tails), np.concatenate(heads)


def _parts(rows: int, width: int, deadline: Deadline) -> Iterator[slice]:
    """Cut rows of a table into parts, none of which takes long."""
    return deadline.slices(rows, max(1, 5_000_000 // max(1, width)))


def link_rates(
    problem: Problem, sets: Sequence[tuple[int, ...]], deadline: Deadline = NEVER
) -> np.ndarray:
    """Return ν between every two GPU sets, shape (S, S): the slowest pair carries the whole tensor."""
    bandwidth = problem.cluster.bandwidth_matrix()
    width = max((len(s) for s in sets), default=1)
    # Short sets are filled up with their own first GPU, which changes no minimum.
    members = np.array([s + (s[0],) * (width - len(s)) for s in sets], dtype=int).reshape(-1, width)
    slowest = np.empty((len(members), len(members)))
    for rows in _parts(len(members), len(members) * width, deadline):
        to = bandwidth[members[rows]].min(axis=1)  # from each set to GPU j
        slowest[rows] = to[:, members].min(axis=2)
    return problem.link_throughput(slowest)
