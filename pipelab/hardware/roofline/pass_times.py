"""How long a pass takes: the formula of `Roofline`, for arrays of batches, spans of layers and GPUs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelab.cluster import GPU
from pipelab.errors import InvalidValue, nearest
from pipelab.hardware.engines import Engine
from pipelab.hardware.known_gpus import GPUFacts
from pipelab.hardware.roofline.arrays import Hardware, Span
from pipelab.hardware.roofline.demand import Demand, Kind
from pipelab.hardware.transformer import Transformer
from pipelab.problem import Workload

if TYPE_CHECKING:
    from pipelab.hardware.roofline.constants import RooflineConstants

# PCIe 5.0 with 16 lanes has 63 GB/s; NVLink, Infinity Fabric and their kind begin above it.
PCIE_GB_PER_S = 64.0

# From so many bytes and GPUs on, all-reduces of an engine with `large_allreduce` are slower. In
# Splitwise's rows prompts of 33.6 MB (Llama-2-70B, 2,048 tokens) and 58.7 MB (BLOOM-176B) are not, those
# of 67.1 MB and 117 MB are; and none among two GPUs.
LARGE_BYTES = 64 * 2**20
LARGE_GPUS = 4


def hardware_of(costs: "RooflineConstants", demand: Demand, kinds: Sequence[GPU]) -> Hardware:
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
    if precision == "fp8" and gpu.fp8_tflop_per_s:
        peak = gpu.fp8_tflop_per_s
    elif engine.accumulate == "fp16":
        peak = gpu.fp16_accumulate_tflop_per_s or peak
    # Unified memory has one engine only, whose efficiency the GPU's is.
    own = demand.load.phase == "decode" or gpu.memory_kind == "unified"
    share = 1.0 if own else engine.prefill_efficiency
    return peak * gpu.compute_efficiency * share * 1e12


def _bytes_per_s(engine: Engine, gpu: GPUFacts) -> float:
    share = engine.hbm_efficiency if gpu.memory_kind == "HBM" else engine.memory_efficiency
    return gpu.memory_bandwidth_gb_per_s * share * gpu.memory_factor * 1e9


def slower(
    costs: "RooflineConstants",
    demand: Demand,
    compute: np.ndarray | float,
    move: np.ndarray | float,
) -> Any:
    """Time of computing and moving bytes together: the longer, and what of the shorter does not hide."""
    overlap = costs.constants.decode_overlap
    return np.maximum(compute, move) + (1 - overlap) * np.minimum(compute, move)


def moved_bytes(engine: Engine, demand: Demand, kind: Kind, b: Any, t: int) -> tuple[Any, Any, Any]:
    """Weights, keys and values, and activations of a layer on one of t GPUs, as if all were read at one speed.

    Integers, and keys and values, are read more slowly, and so count for more.
    """
    model = demand.model
    integers = engine.integer_efficiency if model.precision in ("int8", "int4") else 1.0
    return (
        demand.layer_weight_bytes(kind, b) / (t * integers),
        demand.kv_bytes(b) / (min(t, model.kv_parts) * engine.kv_efficiency),
        demand.activation_bytes(b) / t,
    )


def layer_collectives(engine: Engine, demand: Demand, gpu: Hardware, b: Any, t: int) -> Any:
    """Seconds of a layer's two all-reduces among t GPUs: after attention, after the feed-forward block."""
    wait = gpu.allreduce + (t - 2) * engine.allreduce_hop_us * 1e-6
    size, bandwidth = demand.residual_bytes(b), gpu.inside
    if engine.large_allreduce is not None and t >= LARGE_GPUS:
        message = size if engine.chunk_tokens is None else demand.at_most(engine.chunk_tokens, size)
        share = np.where(message >= LARGE_BYTES, engine.large_allreduce, 1.0)
        bandwidth = bandwidth * share
    return 2 * (2 * (t - 1) / t * size / bandwidth + wait)


def stage_seconds(
    costs: "RooflineConstants",
    demand: Demand,
    gpu: Hardware,
    span: Span,
    b: np.ndarray | float,
    t: int,
) -> np.ndarray:
    """T_stage for b sequences; all arrays broadcast. In training, of a forward."""
    moved = moving_seconds(costs.constants, gpu, demand.stored_bytes(span, b, t))
    return layers_seconds(costs, demand, gpu, span, b, t) + moved


def moving_seconds(engine: Engine, gpu: Hardware, stored: Any) -> Any:
    """Seconds that training moves activations between its matrix products, where so many bytes are kept."""
    return engine.activation_moves * stored / gpu.bandwidth


def layers_seconds(
    costs: "RooflineConstants",
    demand: Demand,
    gpu: Hardware,
    span: Span,
    b: np.ndarray | float,
    t: int,
) -> np.ndarray:
    """T_stage without what training moves besides."""
    engine = costs.constants
    wait = engine.layer_overhead_us * 1e-6
    step = engine.step_overhead_us + engine.sequence_overhead_us * b
    if t > 1:
        wait = wait + layer_collectives(engine, demand, gpu, b, t)
        step = step + engine.tensor_parallel_us
    head = slower(
        costs,
        demand,
        demand.head_flops(b) / (t * gpu.head_flops),
        demand.head_bytes / (t * gpu.bandwidth),
    )
    total = span.last * (head + step * 1e-6)
    for own, numbers in demand.groups(span):
        # Attention computes in 16 bits, whatever the weights are stored in.
        attention = b * own.attention_flops() / gpu.head_flops
        extra = wait
        if engine.score_bytes:
            extra = extra + own.score_bytes(engine.score_bytes, b) / (t * gpu.bandwidth)
        for kind, number in numbers.items():
            if np.any(number):
                move = sum(moved_bytes(engine, own, kind, b, t)) / gpu.bandwidth
                compute = (own.layer_flops(kind, b) / gpu.flops + attention) / t
                total = total + number * (slower(costs, own, compute, move) + extra)
    return total


def seconds_of_pass(
    costs: "RooflineConstants",
    model: Transformer,
    workload: Workload,
    gpu: GPU,
    layers: range,
    degree: int = 1,
) -> float:
    """T_stage of the whole batch on one GPU, or on so many of its node: see `Roofline.pass_seconds`."""
    costs = costs.for_phase(workload.phase)
    if gpu.type not in costs.gpus:
        raise InvalidValue("pass_seconds", [("gpu.type", gpu.type, nearest(gpu.type, costs.gpus))])
    if not 0 <= layers.start < layers.stop <= model.layers or layers.step != 1:
        expected = f"expected consecutive layers among range(0, {model.layers})"
        raise InvalidValue("pass_seconds", [("layers", layers, expected)])
    if degree > 1 and not gpu.node:
        expected = "expected a GPU with a node where it is more than 1"
        raise InvalidValue("pass_seconds", [("tensor_parallel", degree, expected)])
    demand, span = Demand(model, workload), Span.of(model, layers)
    hardware, b = hardware_of(costs, demand, [gpu]), np.array([workload.batch_size])
    return float(stage_seconds(costs, demand, hardware, span, b, degree)[0])
