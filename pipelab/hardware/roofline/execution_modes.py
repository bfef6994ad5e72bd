"""The execution modes of many candidate stages at once: GPUs share the batch, cut the layers, or both.

For the formulations; `single_stage` is the definition.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelab.cluster import GPU
from pipelab.costs import MEMORY_SLACK, pass_time, whole_sequences
from pipelab.hardware.roofline.arrays import Span, Table, degrees
from pipelab.hardware.roofline.batch_shares import balanced_batches
from pipelab.hardware.roofline.demand import Demand
from pipelab.hardware.roofline.pass_times import hardware_of, stage_seconds

if TYPE_CHECKING:
    from pipelab.hardware.roofline.constants import RooflineConstants


def best_modes(
    costs: "RooflineConstants",
    demand: Demand,
    kinds: Sequence[GPU],
    composition: np.ndarray,
    span: Span,
    batch_split: str,
) -> Table:
    """Per stage the preferred mode among those that fit; if none fits, the one that lacks least memory."""
    best = _shared(costs, demand, kinds, composition, span, batch_split)
    limit = np.array([kind.memory_gb for kind in kinds])[None, :, None] * MEMORY_SLACK
    for t in degrees(demand.model, kinds, composition) if costs.tensor_parallel else ():
        rows = _can_cut(kinds, composition, t)
        cut = _cut(costs, demand, kinds, composition[rows], span, t)
        best.put(rows, best.take(rows).or_better(cut, limit, costs.prefer))
    return best


def _shared(
    costs: "RooflineConstants",
    demand: Demand,
    kinds: Sequence[GPU],
    composition: np.ndarray,
    span: Span,
    batch_split: str,
) -> Table:
    """Every GPU holds all layers of the stage and works on its share of the batch."""
    whole, size = demand.load.batch_size, composition.sum(axis=1)
    hardware = hardware_of(costs, demand, kinds)

    def taken(b: Any, kind: Any, which: Any) -> np.ndarray:
        return stage_seconds(costs, demand, hardware.take(kind), span.take(which), b, 1)

    if batch_split == "even" or (size == 1).all():
        batch = (whole / size)[:, None, None]
    else:
        batch = balanced_batches(taken, composition, len(span), whole)
    return _table(costs, demand, kinds, composition, span, batch, 1)


def _can_cut(kinds: Sequence[GPU], composition: np.ndarray, t: int) -> np.ndarray:
    """Numbers of the compositions whose GPUs are of one node, and come in groups of t."""
    size = composition.sum(axis=1)
    in_a_node = [bool(kind.node) for kind in kinds]
    one_node = ((composition == size[:, None]) & in_a_node).any(axis=1)
    return np.flatnonzero(one_node & (size % t == 0))


def _cut(
    costs: "RooflineConstants",
    demand: Demand,
    kinds: Sequence[GPU],
    composition: np.ndarray,
    span: Span,
    t: int,
) -> Table:
    """Groups of t GPUs of one node cut each layer; groups share the batch evenly."""
    batch = (demand.load.batch_size * t / composition.sum(axis=1))[:, None, None]
    return _table(costs, demand, kinds, composition, span, batch, t)


def _table(
    costs: "RooflineConstants",
    demand: Demand,
    kinds: Sequence[GPU],
    composition: np.ndarray,
    span: Span,
    batch: np.ndarray,
    t: int,
) -> Table:
    """Rate and memory where a GPU of each kind works on `batch` sequences: (C, K, U), or 1 where all are equal."""
    there, hardware = (
        (composition > 0)[:, :, None],
        hardware_of(costs, demand, kinds).take(np.s_[:, None]),
    )

    def longest(b: np.ndarray) -> np.ndarray:
        return np.where(
            there & (b > 0), stage_seconds(costs, demand, hardware, span, b, t), 0.0
        ).max(axis=1)

    interval, whole = longest(batch), whole_sequences(batch)
    passes = interval if np.array_equal(whole, batch) else pass_time(interval, longest(whole))
    reserve = np.array([(1 - costs.memory_share) * kind.memory_gb for kind in kinds])[:, None]
    chunk = costs.constants.chunk_tokens
    kept = demand.kept_gb(span, batch, t, chunk)
    memory = sum(kept.values()) + reserve
    return Table(demand.load.tokens / interval, passes, np.where(there, memory, 0.0))
