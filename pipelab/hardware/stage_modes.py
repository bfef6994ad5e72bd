"""The execution modes of a stage: its GPUs share the batch, cut its layers, or both; and the best of them.

All is computed for C compositions of K kinds of GPU times U kinds of span at once. A single stage is
the case with one of each. Tests hold both against formulas written out once more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelab.cluster import GPU
from pipelab.costs import MEMORY_SLACK, StageCost, pass_time, whole_sequences
from pipelab.hardware.pass_times import Demand, Hardware, Span, hardware_of
from pipelab.hardware.transformer import Transformer

if TYPE_CHECKING:
    from pipelab.hardware.roofline import Roofline


@dataclass(frozen=True)
class Table:
    """One execution mode for each candidate stage: C compositions of K kinds of GPU times U kinds of span."""

    rate: np.ndarray  # (C, U) tokens/s
    seconds: np.ndarray  # (C, U) of one pass
    memory_gb: np.ndarray  # (C, K, U); 0 where the composition has none of that kind
    degree: np.ndarray  # (C, U) GPUs that cut each layer

    def or_better(self, other: "Table", limit: np.ndarray, prefer: str) -> "Table":
        """Choose the better of two modes, for each stage by itself.

        If both fit in `limit` GB, shape (1, K, 1), the one with the greater "rate" or the shorter
        "time" of a pass. If only one fits, that one; if neither, the one that lacks less.
        """
        mine, theirs = self.shortfall(limit), other.shortfall(limit)
        both_fit = (mine <= 0) & (theirs <= 0)
        preferred = other.rate > self.rate if prefer == "rate" else other.seconds < self.seconds
        lacks_less = theirs < np.maximum(mine, 0)  # false wherever this one fits
        take_other = np.where(both_fit, preferred, lacks_less)
        return Table(
            np.where(take_other, other.rate, self.rate),
            np.where(take_other, other.seconds, self.seconds),
            np.where(take_other[:, None, :], other.memory_gb, self.memory_gb),
            np.where(take_other, other.degree, self.degree),
        )

    def take(self, rows: np.ndarray) -> "Table":
        """The stages of these compositions."""
        return Table(*(getattr(self, f.name)[rows] for f in fields(self)))

    def put(self, rows: np.ndarray, other: "Table") -> None:
        """Replace the stages of these compositions by others."""
        for f in fields(self):
            getattr(self, f.name)[rows] = getattr(other, f.name)

    def shortfall(self, limit: np.ndarray) -> np.ndarray:
        """GB missing on the GPU that lacks most; 0 or less where all fits; shape (C, U)."""
        return np.where(self.memory_gb > 0, self.memory_gb - limit, -np.inf).max(axis=1)


@dataclass(frozen=True)
class Candidates:
    """Candidate stages: C compositions of K kinds of GPU, each with U kinds of span, under a demand."""

    costs: "Roofline"
    demand: Demand
    kinds: Sequence[GPU]
    composition: np.ndarray  # (C, K)
    span: Span

    @cached_property
    def _hardware(self) -> Hardware:
        return hardware_of(self.costs, self.demand, self.kinds)

    def degrees(self) -> list[int]:
        """List how many GPUs may cut a layer in some stage of one node (see `can_cut`)."""
        if not self.costs.tensor_parallel:
            return []
        alone = self.composition.max(axis=1) == self.composition.sum(axis=1)
        in_a_node = [bool(kind.node) for kind in self.kinds]
        sizes = {int(n) for n in self.composition[alone][:, in_a_node].ravel() if n > 1}
        divisors = {t for n in sizes for t in range(2, n + 1) if n % t == 0}
        return sorted(t for t in divisors if can_cut(self.demand.model, t))

    def best(self, shared: np.ndarray) -> Table:
        """Per stage the preferred mode among those that fit; if none fits, the one that lacks least memory.

        `shared` is the batch of every GPU where all hold their layers whole, from `shared_batches`.
        """
        best = self._table(shared, 1)
        limit = np.array([kind.memory_gb for kind in self.kinds])[None, :, None] * MEMORY_SLACK
        for t in self.degrees():
            rows = self._can_be_cut(t)
            own = replace(self, composition=self.composition[rows])
            cut = own._table(own.groups(t), t)
            best.put(rows, best.take(rows).or_better(cut, limit, self.costs.prefer))
        return best

    def shared_batches(self, batch_split: str) -> np.ndarray:
        """Sequences for a GPU of each kind: (C, 1, 1) in equal shares, (C, K, U) by speed."""
        even = self.groups(1)
        mixed = (self.composition > 0).sum(axis=1) > 1
        if batch_split == "even" or not mixed.any():
            return even

        def taken(b: Any, kind: Any, which: Any) -> np.ndarray:
            return self._hardware.take(kind).stage_seconds(self.span.take(which), b, 1)

        spans, whole = len(self.span), self.demand.load.batch_size
        batch = np.broadcast_to(even, (*self.composition.shape, spans)).copy()
        batch[mixed] = balanced_batches(taken, self.composition[mixed], spans, whole)
        return batch

    def groups(self, t: int) -> np.ndarray:
        """Sequences for every group of t GPUs, which share the batch evenly: (C, 1, 1)."""
        return (self.demand.load.batch_size * t / self.composition.sum(axis=1))[:, None, None]

    def _can_be_cut(self, t: int) -> np.ndarray:
        """Numbers of the compositions whose GPUs are of one node, and come in groups of t."""
        size = self.composition.sum(axis=1)
        in_a_node = [bool(kind.node) for kind in self.kinds]
        one_node = ((self.composition == size[:, None]) & in_a_node).any(axis=1)
        return np.flatnonzero(one_node & (size % t == 0))

    def _table(self, batch: np.ndarray, t: int) -> Table:
        """Rate and memory where a GPU of each kind works on `batch` sequences: (C, K, U), or 1 where all are equal."""
        there = (self.composition > 0)[:, :, None]
        hardware = self._hardware.take(np.s_[:, None])

        def longest(b: np.ndarray) -> np.ndarray:
            seconds = hardware.stage_seconds(self.span, b, t)
            return np.where(there & (b > 0), seconds, 0.0).max(axis=1)

        interval, whole = longest(batch), whole_sequences(batch)
        passes = interval if np.array_equal(whole, batch) else pass_time(interval, longest(whole))
        unused = 1 - self.costs.memory_share
        reserve = np.array([unused * kind.memory_gb for kind in self.kinds])[:, None]
        kept = self.demand.kept_gb(self.span, batch, t, self.costs.constants.chunk_tokens)
        memory = np.where(there, sum(kept.values()) + reserve, 0.0)
        rate = self.demand.load.tokens / interval
        return Table(rate, passes, memory, np.full(interval.shape, t))


def can_cut(model: Transformer, t: int) -> bool:
    """Whether t GPUs can cut a layer: heads, and what is cached, come out even."""
    parts = model.kv_parts
    return model.heads % t == 0 and (parts % t == 0 or t % parts == 0)


@lru_cache(maxsize=10_000)  # many placements have the same stages
def cost_of_stage(
    costs: "Roofline", demand: Demand, gpus: tuple[GPU, ...], span: Span, batch_split: str
) -> StageCost:
    """Return the best mode of one stage, GPU by GPU."""
    kinds = tuple(dict.fromkeys(gpus))
    composition = np.array([[gpus.count(kind) for kind in kinds]])
    stage = Candidates(costs, demand, kinds, composition, span)
    shared = stage.shared_batches(batch_split)
    best = stage.best(shared)
    degree = int(best.degree[0, 0])
    batch = shared if degree == 1 else stage.groups(degree)
    of_kind = [kinds.index(gpu) for gpu in gpus]
    shares = np.broadcast_to(batch, (1, len(kinds), 1))[0, of_kind, 0]
    memory = best.memory_gb[0, of_kind, 0]
    rate, seconds = float(best.rate[0, 0]), float(best.seconds[0, 0])
    return StageCost(rate, tuple(shares.tolist()), tuple(memory.tolist()), degree, seconds)


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
    each, which = kind + 0 * span[:spans], kind * 0 + np.arange(spans)
    idle, alone = (seconds(np.full((kinds, spans), b), each, which) for b in (0.0, whole))

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
