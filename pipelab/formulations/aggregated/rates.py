"""How fast stages of every mixture are, and the finitely many rates that an answer can have.

A placement is as fast as its slowest stage or link. So its throughput is the rate of some
stage or of some link, and there are only finitely many of those: the search for the best
rate is a search in a sorted list.

Where a mixed stage is as fast as the slowest stage of its size that one of its kinds could
form alone (`mixes_as_slowest`: batches split evenly), mixtures need not be listed: a table
of kinds × sizes says all. Otherwise every mixture of kinds has a row of its own.
"""

from dataclasses import dataclass
from functools import cached_property
from math import comb

import numpy as np

from pipelab.errors import TooLarge
from pipelab.formulations.aggregated.classes import Classes, gpu_classes
from pipelab.formulations.count import compositions
from pipelab.problem import Problem

__all__ = ["StageRates", "index_of_rate", "stage_rates"]

# Rates this close are one rate: they differ by the last bits of the arithmetic. Ten times what a
# placement's own rate, computed by another path, may differ from the table's (`index_of_rate`).
_SAME = 1e-12
_OTHER_PATH = 1e-13
_MOST_CELLS = 60_000_000  # mixtures × kinds of span; 8 bytes each


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
    """

    problem: Problem
    classes: Classes
    composition: np.ndarray
    rate: np.ndarray
    link: np.ndarray
    pure: bool

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
        """Every rate that a placement can have, ascending; rates equal but for rounding stand once.

        Empty where no stage fits anywhere.
        """
        stages = self.rate[(self.rate > 0) & self._attained]
        if not len(stages):
            return stages
        links = self.link[np.isfinite(self.link) & (self.link < stages.max())]
        return _apart(np.unique(np.concatenate([stages, links])))

    @cached_property
    def _attained(self) -> np.ndarray:
        """Whether there are GPUs for a stage with just this rate; bool, shape (C, U).

        A pure mixture stands for mixed stages too: s GPUs of which the slowest kind is this one.
        """
        if not self.pure:
            return np.ones(self.rate.shape, dtype=bool)
        kinds = len(self.problem.cluster.kinds)
        table = self.rate.reshape(kinds, self.largest, -1)
        types = np.array([kind.type for kind in self.problem.cluster.kinds])
        allowed = types[:, None] == types if self.problem.same_type_stages else np.ones((kinds, kinds), dtype=bool)
        sizes = np.arange(1, self.largest + 1)[:, None]
        there = self.problem.cluster.kind_count[:, None, None]
        rows = [(there * (allowed[k][:, None, None] & (table >= table[k]))).sum(axis=0) >= sizes for k in range(kinds)]
        return np.stack(rows).reshape(self.rate.shape)

    def holdable(self, thresholds: np.ndarray) -> np.ndarray:
        """More layers than this cannot be held at each rate, links aside; shape as `thresholds`.

        At a rate t, give every kind the most layers per GPU of any stage that has it and reaches
        t. A stage never holds more layers than its GPUs are given, so neither do all together.
        """
        total = np.zeros(len(thresholds))
        per_gpu = self.problem.model.spans.layers / self.size[:, None]
        for k, count in enumerate(self.problem.cluster.kind_count):
            mine = self.composition[:, k] > 0
            rate, share = self.rate[mine].reshape(-1), per_gpu[mine].reshape(-1)
            order = np.argsort(-rate, kind="stable")
            best = np.concatenate([[0.0], np.maximum.accumulate(share[order])])
            reaching = np.searchsorted(-rate[order], -thresholds, side="right")
            total += count * best[reaching]
        return total


def stage_rates(problem: Problem) -> StageRates:
    """Tables of all rates that matter to the aggregated form.

    Raises
    ------
    TooLarge
        Too many mixtures of too many kinds, where mixtures must be listed.
    """
    classes = gpu_classes(problem.cluster)
    pure = bool(problem.costs.mixes_as_slowest(problem))
    mixtures = _pure(problem) if pure else _mixtures(problem)
    rate = np.zeros((len(mixtures), len(problem.model.spans.layers)))
    step = max(1, 2_000_000 // (mixtures.shape[1] * rate.shape[1]))  # in parts, to keep memory small
    for i in range(0, len(mixtures), step):
        tables = problem.costs.stage_tables(
            problem.model, problem.workload, problem.cluster.kinds, mixtures[i : i + step], problem.batch_split
        )
        rate[i : i + step] = np.where(tables.fits(problem.cluster.kinds), tables.throughput, 0.0)
    link = problem.link_throughput(classes.bandwidth_gb_per_s)
    return StageRates(problem, classes, mixtures, rate, link, pure)


def index_of_rate(thresholds: np.ndarray, rate: float) -> int:
    """The last of the ascending `thresholds` that is not above the rate, but for rounding; -1 if all are."""
    return int(np.searchsorted(thresholds, rate * (1 + _OTHER_PATH), side="right")) - 1


def _apart(rates: np.ndarray) -> np.ndarray:
    """The lowest of each group of rates that are one but for rounding; `rates` ascend.

    A group is what lies within `_SAME` of its lowest member. Neighbours that close are no group of their own: a long
    chain of them may span any distance.
    """
    near = np.diff(rates) <= _SAME * rates[:-1]
    first = np.concatenate([[True], ~near])
    chains = np.flatnonzero(first[:-1] & near)
    ends = np.append(np.flatnonzero(first), len(rates))
    for begin in chains:
        end = ends[np.searchsorted(ends, begin, side="right")]
        lowest = begin
        while rates[end - 1] > rates[lowest] * (1 + _SAME):
            lowest += int(np.searchsorted(rates[lowest:end], rates[lowest] * (1 + _SAME), side="right"))
            first[lowest] = True
    return rates[first]


def _largest(problem: Problem) -> int:
    return min(problem.max_gpus_per_stage, len(problem.cluster))


def _pure(problem: Problem) -> np.ndarray:
    """1 … largest GPUs of each kind; row k · largest + s - 1 is s of kind k."""
    kinds = np.eye(len(problem.cluster.kinds), dtype=int)
    return (kinds[:, None, :] * np.arange(1, _largest(problem) + 1)[None, :, None]).reshape(-1, len(kinds))


def _mixtures(problem: Problem) -> np.ndarray:
    """Every mixture of kinds of up to `largest` GPUs, by size."""
    kinds = problem.cluster.kinds
    _refuse_if_too_many(problem, len(kinds), _largest(problem))
    rows = compositions(problem, kinds, problem.cluster.kind_count.tolist())
    return rows[np.lexsort((*rows.T[::-1], rows.sum(axis=1)))]


def _refuse_if_too_many(problem: Problem, kinds: int, largest: int) -> None:
    number = comb(kinds + largest, largest) - 1
    if number * len(problem.model.spans.layers) > _MOST_CELLS and not problem.same_type_stages:
        raise TooLarge(
            f"{problem.name} has up to {number:,} mixtures of {kinds} kinds of GPU in stages of up to {largest}; "
            "with batch_split='even', same_type_stages=True or a smaller max_gpus_per_stage they need not be listed",
            {"mixtures": number},
        )
