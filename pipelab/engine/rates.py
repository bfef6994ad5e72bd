"""How fast stages of every mixture are, and the finitely many rates that an answer can have.

A placement is as fast as its slowest stage or link. So its throughput is the rate of some
stage or of some link, and there are only finitely many of those: the search for the best
rate is a search in a sorted list.

Where a mixed stage is as fast as the slowest stage of its size that one of its kinds could
form alone (`mixes_as_slowest`: batches split evenly), mixtures need not be listed: a table
of kinds × sizes says all. Otherwise every mixture of kinds has a row of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb
from typing import Any

import numpy as np

from pipelab.cluster import GPU
from pipelab.engine.classes import Classes, find_classes
from pipelab.engine.deadline import NEVER, Deadline
from pipelab.engine.formulations.count import compositions
from pipelab.engine.layer_runs import runs_of
from pipelab.engine.packing import Bins, LocalPattern
from pipelab.engine.stage_arrays import mixes_as_slowest, stage_tables
from pipelab.engine.tolerances import LAST_BITS, OTHER_PATH
from pipelab.errors import TooLarge
from pipelab.problem import Problem

_MOST_CELLS = 60_000_000  # mixtures × kinds of span; 8 bytes each
_CELLS_AT_ONCE = 1_000_000  # between two looks at the deadline: a tenth of a second


@dataclass(frozen=True, eq=False)
class StageRates:
    """Rates of all mixtures of GPU kinds, and of all links between classes.

    Attributes
    ----------
    classes : Classes
    composition : int array, shape (C, K)
        GPUs of each kind in each mixture. Pure mixtures only, kind by kind and size by size,
        where `pure`; all that the rules allow otherwise.
    rate : float array, shape (C, U)
        Tokens/s with every kind of span (`Model.spans`); 0 where it does not fit in memory.
    link : float array, shape (A, A)
        From class to class, in the problem's link units per second; infinite on the diagonal
        of a class with one GPU.
    pure : bool
    stages : float array
        Every rate in the table for which there are GPUs, ascending, each once.
    fastest : float array, shape (K, largest, U)
        Of all mixtures of so many GPUs with one of each kind, the highest rate.
    without_one : int array, shape (C, K)
        The mixture with a GPU of a kind less; C where that leaves none, or has none of that kind.
        Empty where `pure`.
    """

    problem: Problem
    classes: Classes
    composition: np.ndarray
    rate: np.ndarray
    link: np.ndarray
    pure: bool
    stages: np.ndarray
    fastest: np.ndarray
    without_one: np.ndarray

    @property
    def kinds(self) -> tuple[GPU, ...]:
        """The K different GPUs that mixtures are made of."""
        return self.problem.cluster.kinds

    @property
    def kind_count(self) -> np.ndarray:
        """Number of GPUs of each kind; shape (K,)."""
        return self.problem.cluster.kind_count

    @property
    def bins(self) -> tuple[Bins, ...]:
        """Nodes that share a class; see `LocalPattern`."""
        return ()

    def views(
        self, threshold: float, links: bool = True, deadline: Deadline = NEVER
    ) -> "Sequence[StageRates]":
        """The parts of the cluster that a pipeline of this rate may be in: here all of it."""
        return (self,)

    def local_patterns(self, threshold: float) -> Iterable[LocalPattern]:
        """Stages that must lie inside one node and have a rate of their own: here none."""
        return ()

    def local_of_kinds(
        self, threshold: float
    ) -> list[tuple[list[tuple[int, np.ndarray]], np.ndarray]]:
        """The same by kind of GPU, as `recipes.patterns_at` has all others."""
        return []

    @property
    def price_of(self) -> np.ndarray:
        """For each of the cluster's kinds, the kind here that has its price; shape (kinds of the cluster,)."""
        return np.arange(len(self.kinds))

    @property
    def in_nodes(self) -> tuple[tuple[GPU, int], ...]:
        """GPUs whose stages inside one node are not those of `kinds`: an example, and the most in one node."""
        return ()

    @property
    def one_stage(self) -> bool:
        """Whether only placements of one stage are meant: not here."""
        return False

    @cached_property
    def size(self) -> np.ndarray:
        """Number of GPUs of each mixture; shape (C,)."""
        return self.composition.sum(axis=1)

    @cached_property
    def largest(self) -> int:
        """Most GPUs that a stage can have."""
        return _largest(self.problem)

    @cached_property
    def thresholds(self) -> np.ndarray:
        """Every rate that a placement can have, ascending; rates that differ only by rounding appear once.

        Empty where no stage fits anywhere.
        """
        if not len(self.stages):
            return self.stages
        links = self.link[np.isfinite(self.link) & (self.link < self.stages[-1])]
        return _apart(np.unique(np.concatenate([self.stages, links])))

    def holdable(self, thresholds: np.ndarray) -> np.ndarray:
        """More layers than this cannot be held at each rate, links aside; shape as `thresholds`.

        At a rate t, give every kind the most layers per GPU of any stage that has it and reaches
        t. A stage never holds more layers than its GPUs are given, so neither do all together.
        """
        total = np.zeros(len(thresholds))
        for count, (falling, best) in zip(self.kind_count, self._shares, strict=True):
            total += count * best[np.searchsorted(falling, -thresholds, side="right")]
        return total

    @cached_property
    def _shares(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Per kind of GPU: rates (negative, ascending), and the most layers per GPU at each of them or above."""
        sizes = np.arange(1, self.largest + 1)[:, None]
        share, out = (runs_of(self.problem.model).layers / sizes).reshape(-1), []
        for rate in self.fastest.reshape(len(self.fastest), -1):
            order = np.argsort(-rate, kind="stable")
            out.append((-rate[order], np.concatenate([[0.0], np.maximum.accumulate(share[order])])))
        return out


def stage_rates(problem: Problem, deadline: Deadline = NEVER, alone: bool = False) -> StageRates:
    """Tables of all rates that matter to the aggregated form.

    Parameters
    ----------
    problem : Problem
    deadline : Deadline
        Checked during the work; `Ended` is raised.
    alone : bool
        Stages of one kind of GPU only: a table that is there at once, and a placement of such
        stages is one.

    Raises
    ------
    TooLarge
        Too many mixtures of too many kinds, where mixtures must be listed.
    """
    classes = find_classes(problem.cluster, deadline)
    pure = not alone and bool(mixes_as_slowest(problem))
    mixtures = (
        _pure(problem) if pure else _alone(problem) if alone else _mixtures(problem, deadline)
    )
    rate = (
        _rates_alone(problem, mixtures, deadline) if alone else _rates(problem, mixtures, deadline)
    )
    link = problem.link_throughput(classes.bandwidth_gb_per_s)
    if pure:
        stages = np.unique(rate[(rate > 0) & _attained(problem, rate, deadline)])
        fastest, parents = rate.reshape(mixtures.shape[1], -1, rate.shape[1]), mixtures[:0]
    else:
        stages, fastest = (
            distinct(rate, deadline),
            _fastest(mixtures, rate, _largest(problem), deadline),
        )
        parents = _without_one(mixtures, deadline)
    return StageRates(problem, classes, mixtures, rate, link, pure, stages, fastest, parents)


def _rates(problem: Problem, mixtures: np.ndarray, deadline: Deadline) -> np.ndarray:
    """Tokens/s of each mixture with each kind of span; 0 where it does not fit."""
    rate = np.zeros((len(mixtures), len(runs_of(problem.model).layers)))
    for rows in _parts(mixtures, 4 * rate.shape[1]):
        deadline.check()
        rate[rows] = _rates_of(problem, problem.cluster.kinds, mixtures[rows])
    return rate


def _rates_alone(problem: Problem, mixtures: np.ndarray, deadline: Deadline) -> np.ndarray:
    """The same where each mixture is of one kind: without a column for every other kind."""
    rate = np.zeros((len(mixtures), len(runs_of(problem.model).layers)))
    for k, kind in enumerate(problem.cluster.kinds):
        deadline.check()
        rows = mixtures[:, k] > 0
        rate[rows] = _rates_of(problem, (kind,), mixtures[rows][:, [k]])
    return rate


def rates_of_kinds(problem: Problem, kinds: Sequence[GPU], largest: int) -> np.ndarray:
    """Rates of 1 … largest GPUs of each of these kinds alone; shape (kinds, largest, U)."""
    sizes = np.arange(1, largest + 1)[:, None]
    return np.array([_rates_of(problem, (kind,), sizes) for kind in kinds]).reshape(
        len(kinds), largest, -1
    )


def _rates_of(problem: Problem, kinds: Sequence[GPU], mixtures: np.ndarray) -> np.ndarray:
    tables = stage_tables(
        problem.costs, problem.model, problem.workload, kinds, mixtures, problem.batch_split
    )
    return np.where(tables.fits(kinds), tables.throughput, 0.0)


def number_of_mixtures(problem: Problem) -> int:
    """No more mixtures of kinds than these have to be listed; 0 where none has to."""
    if mixes_as_slowest(problem):
        return 0
    types = [kind.type if problem.same_type_stages else "any" for kind in problem.cluster.kinds]
    largest = _largest(problem)
    return sum(comb(types.count(t) + largest, largest) - 1 for t in set(types))


def distinct(
    table: np.ndarray, deadline: Deadline = NEVER, at_once: int = _CELLS_AT_ONCE
) -> np.ndarray:
    """The different numbers above 0 of a table, ascending; in parts of so many cells, none of which takes long."""
    parts = [np.zeros(0)]
    for rows in _parts(table, 1, at_once):
        deadline.check()
        part = np.unique(table[rows])
        parts.append(part[np.searchsorted(part, 0.0, side="right") :])
    # Merged range by range: the same range of numbers out of every part.
    sample = np.sort(np.concatenate([part[:: max(1, len(part) // 100)] for part in parts]))
    cuts = sample[:: max(1, len(sample) * at_once // max(1, sum(map(len, parts))))][1:].tolist()
    out, begins = [], [0] * len(parts)
    for cut in [*cuts, None]:
        deadline.check()
        ends = [len(part) if cut is None else int(np.searchsorted(part, cut)) for part in parts]
        out.append(
            np.unique(np.concatenate([p[a:b] for p, a, b in zip(parts, begins, ends, strict=True)]))
        )
        begins = ends
    return np.concatenate(out)


def _parts(table: np.ndarray, work: int, at_once: int = _CELLS_AT_ONCE) -> Iterator[slice]:
    """Rows of a table in parts, where each cell represents many others."""
    step = max(1, at_once // max(1, table.shape[1] * work))
    return (slice(i, i + step) for i in range(0, len(table), step))


def _fastest(
    mixtures: np.ndarray, rate: np.ndarray, largest: int, deadline: Deadline
) -> np.ndarray:
    """`StageRates.fastest` where mixtures are listed."""
    out, size = np.zeros((mixtures.shape[1], largest, rate.shape[1])), mixtures.sum(axis=1)
    for rows in _parts(rate, 10):
        deadline.check()
        for s in np.unique(size[rows]):
            for k in range(len(out)):
                mine = rate[rows][(mixtures[rows, k] > 0) & (size[rows] == s)]
                np.maximum(out[k, s - 1], mine.max(axis=0, initial=0.0), out=out[k, s - 1])
    return out


def _attained(problem: Problem, rate: np.ndarray, deadline: Deadline) -> np.ndarray:
    """Whether there are GPUs for a stage with just this rate, where mixed ones are not listed; bool, shape (C, U).

    A pure mixture represents mixed stages too: s GPUs of which the slowest kind is this one.
    """
    kinds = len(problem.cluster.kinds)
    table = rate.reshape(kinds, _largest(problem), -1)
    types = np.array([kind.type for kind in problem.cluster.kinds])
    allowed = (
        types[:, None] == types if problem.same_type_stages else np.ones((kinds, kinds), dtype=bool)
    )
    sizes = np.arange(1, _largest(problem) + 1)[:, None]
    there = problem.cluster.kind_count[:, None, None]
    rows = []
    for k in range(kinds):
        deadline.check()
        rows.append(
            (there * (allowed[k][:, None, None] & (table >= table[k]))).sum(axis=0) >= sizes
        )
    return np.stack(rows).reshape(rate.shape)


def _without_one(mixtures: np.ndarray, deadline: Deadline) -> np.ndarray:
    """`StageRates.without_one`: mixtures are found by their index numbers."""
    random = np.random.default_rng(0)
    number: Any = np.zeros(len(mixtures), dtype=np.uint64)
    factors: Any = np.zeros(mixtures.shape[1], dtype=np.uint64)
    while len(np.unique(number)) < len(number):
        factors = random.integers(1, 2**63, mixtures.shape[1], dtype=np.uint64)
        number = (mixtures.astype(np.uint64) * factors).sum(axis=1, dtype=np.uint64)  # modulo 2^64
    order = np.argsort(number)
    number, out = number[order], np.full(mixtures.shape, len(mixtures), dtype=np.int32)
    several = mixtures.sum(axis=1) > 1
    for k, factor in enumerate(factors):
        deadline.check()
        rows = np.flatnonzero(several & (mixtures[:, k] > 0))
        out[rows, k] = order[
            np.searchsorted(number, mixtures[rows].astype(np.uint64) @ factors - factor)
        ]
    return out


def index_of_rate(thresholds: np.ndarray, rate: float) -> int:
    """The last of the ascending `thresholds` that is not above the rate, but for rounding; -1 if all are."""
    return int(np.searchsorted(thresholds, rate * (1 + OTHER_PATH), side="right")) - 1


def _apart(rates: np.ndarray) -> np.ndarray:
    """The lowest of each group of rates that are one but for rounding; `rates` ascend.

    A group is what lies within `LAST_BITS` of its lowest member. Neighbours that close are no group of
    their own: a long chain of them may span any distance.
    """
    near = np.diff(rates) <= LAST_BITS * rates[:-1]
    first = np.concatenate([[True], ~near])
    chains = np.flatnonzero(first[:-1] & near)
    ends = np.append(np.flatnonzero(first), len(rates))
    for begin in chains:
        end = ends[np.searchsorted(ends, begin, side="right")]
        lowest = begin
        while rates[end - 1] > rates[lowest] * (1 + LAST_BITS):
            lowest += int(
                np.searchsorted(rates[lowest:end], rates[lowest] * (1 + LAST_BITS), side="right")
            )
            first[lowest] = True
    return rates[first]


def _largest(problem: Problem) -> int:
    return min(problem.max_gpus_per_stage, len(problem.cluster))


def _pure(problem: Problem) -> np.ndarray:
    """1 … largest GPUs of each kind; row k · largest + s - 1 is s of kind k."""
    kinds = np.eye(len(problem.cluster.kinds), dtype=int)
    return (kinds[:, None, :] * np.arange(1, _largest(problem) + 1)[None, :, None]).reshape(
        -1, len(kinds)
    )


def _alone(problem: Problem) -> np.ndarray:
    """As many GPUs of one kind as there are, by size."""
    rows = _pure(problem)
    rows = rows[(rows <= problem.cluster.kind_count).all(axis=1)]
    return rows[np.argsort(rows.sum(axis=1), kind="stable")]


def _mixtures(problem: Problem, deadline: Deadline = NEVER) -> np.ndarray:
    """Every mixture of kinds of up to `largest` GPUs, by size."""
    kinds = problem.cluster.kinds
    _refuse_if_too_many(problem, len(kinds), _largest(problem))
    return compositions(problem, kinds, problem.cluster.kind_count.tolist(), deadline)


def _refuse_if_too_many(problem: Problem, kinds: int, largest: int) -> None:
    number = comb(kinds + largest, largest) - 1
    if number * len(runs_of(problem.model).layers) > _MOST_CELLS and not problem.same_type_stages:
        raise TooLarge(
            f"{problem.name} has up to {number:,} mixtures of {kinds} kinds of GPU in stages of up to {largest}; "
            "with batch_split='even', same_type_stages=True or a smaller max_gpus_per_stage they need not be listed",
            {"mixtures": number},
        )
