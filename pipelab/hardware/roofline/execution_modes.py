"""The ways to run a stage: its GPUs share the batch, cut the layers, or both; and which of them is best."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelab.cluster import GPU
from pipelab.costs import MEMORY_SLACK, StageCost, pass_time, whole_sequences
from pipelab.hardware.roofline.arrays import Span, Table, degrees
from pipelab.hardware.roofline.batch_shares import balanced_batches
from pipelab.hardware.roofline.demand import Demand
from pipelab.hardware.roofline.pass_times import hardware_of, stage_seconds

if TYPE_CHECKING:
    from pipelab.hardware.roofline.cost_model import Roofline  # whose constants these are

__all__ = ["best_way", "one_stage"]


def best_way(
    costs: "Roofline",
    demand: Demand,
    kinds: Sequence[GPU],
    composition: np.ndarray,
    span: Span,
    batch_split: str,
) -> Table:
    """The preferred way among those that fit; where none fits, the one that lacks least memory."""
    best = _shared(costs, demand, kinds, composition, span, batch_split)
    limit = np.array([kind.memory_gb for kind in kinds])[None, :, None] * MEMORY_SLACK
    for t in degrees(demand.model, kinds, composition) if costs.tensor_parallel else ():
        best = best.or_better(_cut(costs, demand, kinds, composition, span, t), limit, costs.prefer)
    return best


def _shared(
    costs: "Roofline",
    demand: Demand,
    kinds: Sequence[GPU],
    composition: np.ndarray,
    span: Span,
    batch_split: str,
) -> Table:
    """Every GPU holds all layers of the stage and works on its share of the batch."""
    whole, size = demand.load.batch_size, composition.sum(axis=1)
    hardware = hardware_of(costs, kinds)

    def taken(b: Any, kind: Any, which: Any) -> np.ndarray:
        return stage_seconds(costs, demand, hardware.take(kind), span.take(which), b, 1)

    if batch_split == "even" or (size == 1).all():
        batch = np.broadcast_to((whole / size)[:, None, None], (*composition.shape, len(span)))
    else:
        batch = balanced_batches(taken, composition, len(span), whole)
    return _table(costs, demand, kinds, composition, span, batch, 1)


def _cut(
    costs: "Roofline",
    demand: Demand,
    kinds: Sequence[GPU],
    composition: np.ndarray,
    span: Span,
    t: int,
) -> Table:
    """Groups of t GPUs of one node cut each layer; groups share the batch evenly. Rate 0 where that cannot be."""
    size = composition.sum(axis=1)
    one_node = ((composition == size[:, None]) & [bool(kind.node) for kind in kinds]).any(axis=1)
    can = one_node & (size % t == 0)
    shape = (*composition.shape, len(span))
    batch = np.broadcast_to((demand.load.batch_size * t / size)[:, None, None], shape)
    table = _table(costs, demand, kinds, composition, span, batch, t)
    memory = np.where(
        can[:, None, None], table.memory_gb, np.where(composition > 0, np.inf, 0.0)[:, :, None]
    )
    rate, seconds = np.where(can[:, None], [table.rate, table.seconds], [[[0.0]], [[np.inf]]])
    return replace(table, rate=rate, seconds=seconds, memory_gb=memory)


def _table(
    costs: "Roofline",
    demand: Demand,
    kinds: Sequence[GPU],
    composition: np.ndarray,
    span: Span,
    batch: np.ndarray,
    t: int,
) -> Table:
    """Rate and memory where a GPU of each kind works on `batch` sequences, shape (C, K, U)."""
    there, hardware = (composition > 0)[:, :, None], hardware_of(costs, kinds).take(np.s_[:, None])

    def longest(b: np.ndarray) -> np.ndarray:
        return np.where(
            there & (b > 0), stage_seconds(costs, demand, hardware, span, b, t), 0.0
        ).max(axis=1)

    interval, whole = longest(batch), whole_sequences(batch)
    passes = interval if np.array_equal(whole, batch) else pass_time(interval, longest(whole))
    reserve = np.array([(1 - costs.memory_share) * kind.memory_gb for kind in kinds])[:, None]
    memory = sum(demand.kept_gb(span.weight_gb, span.layers, batch, t).values()) + reserve
    memory, batch, degree = (
        np.where(there, memory, 0.0),
        np.where(there, batch, 0.0),
        np.full(interval.shape, t),
    )
    return Table(demand.load.tokens / interval, passes, memory, batch, degree)


@lru_cache(maxsize=10_000)  # a placement has many equal stages, and a search judges many placements
def one_stage(
    costs: "Roofline", demand: Demand, gpus: tuple[GPU, ...], span: Span, batch_split: str
) -> StageCost:
    """One stage out of a table of one row."""
    kinds = tuple(dict.fromkeys(gpus))
    composition = np.array([[gpus.count(kind) for kind in kinds]])
    best = best_way(costs, demand, kinds, composition, span, batch_split)
    of = [kinds.index(gpu) for gpu in gpus]
    batch, memory = best.batch[0, of, 0].tolist(), best.memory_gb[0, of, 0].tolist()
    rate, seconds, degree = (float(array[0, 0]) for array in (best.rate, best.seconds, best.degree))
    return StageCost(rate, tuple(batch), tuple(memory), int(degree), seconds)
