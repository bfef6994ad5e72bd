"""How long a pass takes: the formula of `Roofline`, for arrays of batches, spans of layers and GPUs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipelab.cluster import GPU
from pipelab.hardware.roofline.arrays import Hardware, Span
from pipelab.hardware.roofline.demand import Demand

if TYPE_CHECKING:
    from pipelab.hardware.roofline.cost_model import Roofline  # whose constants these are


def hardware_of(costs: "Roofline", kinds: Sequence[GPU]) -> Hardware:
    """What these kinds of GPU reach, one number of each per kind: the data sheet's times the efficiencies."""
    facts = [costs.gpus[kind.type] for kind in kinds]
    return Hardware(
        np.array([f.fp16_tflop_per_s * f.compute_efficiency * 1e12 for f in facts]),
        np.array([f.memory_bandwidth_gb_per_s * costs.memory_efficiency * 1e9 for f in facts]),
        np.array([(kind.node_gb_per_s or np.inf) * 1e9 for kind in kinds]),
    )


def slower(
    costs: "Roofline", demand: Demand, compute: np.ndarray | float, move: np.ndarray | float
) -> Any:
    """Time of computing and moving bytes together: the longer, and what of the shorter does not hide."""
    overlap = costs.prefill_overlap if demand.load.phase == "prefill" else costs.decode_overlap
    return np.maximum(compute, move) + (1 - overlap) * np.minimum(compute, move)


def stage_seconds(
    costs: "Roofline", demand: Demand, gpu: Hardware, span: Span, b: np.ndarray | float, t: int
) -> np.ndarray:
    """T_stage for b sequences; all arrays broadcast."""
    added_up = (
        2 * (t - 1) / t * demand.handed_on_bytes(b) / gpu.inside + 2 * (t - 1) * costs.hop_latency_s
    )
    # once after attention, once after the feed-forward block
    extra = costs.layer_overhead_s + 2 * added_up
    cache = demand.kv_bytes(b) / min(t, demand.model.kv_parts) + demand.activation_bytes(b) / t
    head = slower(
        costs,
        demand,
        demand.head_flops(b) / (t * gpu.flops),
        demand.head_bytes / (t * gpu.bandwidth),
    )
    total = span.last * head
    numbers: dict[Literal["ordinary", "dense"], np.ndarray | float]
    numbers = {"ordinary": span.layers - span.dense, "dense": span.dense}
    for kind, number in numbers.items():
        if np.any(number):
            move = (demand.layer_weight_bytes(kind, b) / t + cache) / gpu.bandwidth
            compute = demand.layer_flops(kind, b) / (t * gpu.flops)
            total = total + number * (slower(costs, demand, compute, move) + extra)
    return total
