"""How long a pass takes: the formula of `Roofline`, for arrays of batches, spans of layers and GPUs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipelab.cluster import GPU
from pipelab.hardware.engines import Engine
from pipelab.hardware.known_gpus import GPUFacts
from pipelab.hardware.roofline.arrays import Hardware, Span
from pipelab.hardware.roofline.demand import Demand

if TYPE_CHECKING:
    from pipelab.hardware.roofline.cost_model import Roofline  # whose constants these are

# PCIe 5.0 with 16 lanes has 63 GB/s; NVLink, Infinity Fabric and their kind begin above it.
PCIE_GB_PER_S = 64.0


def hardware_of(costs: "Roofline", demand: Demand, kinds: Sequence[GPU]) -> Hardware:
    """What these kinds of GPU reach with this engine, one number of each per kind."""
    engine, facts = costs.constants, [costs.gpus[kind.type] for kind in kinds]
    inside = np.array([kind.node_gb_per_s or np.inf for kind in kinds])
    waits = np.where(inside < PCIE_GB_PER_S, engine.pcie_allreduce_us, engine.allreduce_us)
    return Hardware(
        np.array([_flop_per_s(engine, f, demand, demand.model.precision) for f in facts]),
        np.array([_flop_per_s(engine, f, demand, "bf16") for f in facts]),
        np.array([_bytes_per_s(engine, f) for f in facts]),
        inside * engine.link_efficiency * 1e9,
        waits * 1e-6,
    )


def _flop_per_s(engine: Engine, gpu: GPUFacts, demand: Demand, precision: str) -> float:
    peak = gpu.fp16_tflop_per_s
    if precision == "fp8":
        peak = gpu.fp8_tflop_per_s or peak
    elif engine.accumulate == "fp16":
        peak = gpu.fp16_accumulate_tflop_per_s or peak
    share = 1.0 if demand.load.phase == "decode" else engine.prefill_efficiency
    return peak * gpu.compute_efficiency * share * 1e12


def _bytes_per_s(engine: Engine, gpu: GPUFacts) -> float:
    share = engine.hbm_efficiency if gpu.memory_kind == "HBM" else engine.memory_efficiency
    return gpu.memory_bandwidth_gb_per_s * share * gpu.memory_factor * 1e9


def slower(
    costs: "Roofline", demand: Demand, compute: np.ndarray | float, move: np.ndarray | float
) -> Any:
    """Time of computing and moving bytes together: the longer, and what of the shorter does not hide."""
    overlap = 1.0 if demand.load.phase == "prefill" else costs.constants.decode_overlap
    return np.maximum(compute, move) + (1 - overlap) * np.minimum(compute, move)


def stage_seconds(
    costs: "Roofline", demand: Demand, gpu: Hardware, span: Span, b: np.ndarray | float, t: int
) -> np.ndarray:
    """T_stage for b sequences; all arrays broadcast."""
    engine = costs.constants
    reduced = 2 * (t - 1) / t * demand.handed_on_bytes(b) / gpu.inside + (t > 1) * gpu.allreduce
    scores = demand.score_bytes(engine.score_bytes, b) / (t * gpu.bandwidth)
    # All-reduced once after attention, once after the feed-forward block.
    extra = engine.layer_overhead_us * 1e-6 + scores + 2 * reduced
    cache = demand.kv_bytes(b) / min(t, demand.model.kv_parts) + demand.activation_bytes(b) / t
    head = slower(
        costs,
        demand,
        demand.head_flops(b) / (t * gpu.head_flops),
        demand.head_bytes / (t * gpu.bandwidth),
    )
    total = span.last * (head + engine.step_overhead_us * 1e-6)
    numbers: dict[Literal["ordinary", "dense"], np.ndarray | float]
    numbers = {"ordinary": span.layers - span.dense, "dense": span.dense}
    for kind, number in numbers.items():
        if np.any(number):
            move = (demand.layer_weight_bytes(kind, b) / t + cache) / gpu.bandwidth
            compute = demand.layer_flops(kind, b) / (t * gpu.flops)
            total = total + number * (slower(costs, demand, compute, move) + extra)
    return total
