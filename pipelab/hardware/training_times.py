"""A stage in training, by the roofline: forward, both gradients, the step, and what is kept.

With M the FLOPs of the matrices in a forward and A those of (causal, fused) attention, an input
gradient takes M + 2.5·A, as attention computes its scores again and five products instead of two,
and a weight gradient takes M. Between the products, norms, activations and the like move every byte
that is kept of a microbatch so many times (`Engine.activation_moves`), in the forward and again in
the input gradient; a weight gradient has products alone. The input gradient all-reduces as often as
the forward, weight gradients never. Selective recomputation is what fused attention does already;
full recomputation runs the forward again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipelab.cluster import GPU
from pipelab.costs import TrainingCost, whole_sequences
from pipelab.fields import NotNegative, checked_value
from pipelab.hardware.pass_times import Demand, Span
from pipelab.hardware.roofline import Candidates, Roofline
from pipelab.hardware.training_memory import (
    ADAM_BYTES,
    UPDATE_BYTES,
    Recompute,
    activation_bytes,
    head_bytes,
    weight_share,
)
from pipelab.hardware.transformer import Transformer
from pipelab.problem import Workload

if TYPE_CHECKING:
    from pipelab.evaluation import StageReport
    from pipelab.problem import Problem


class Attention(NamedTuple):
    """FLOPs of attention in training, over those of a causal forward."""

    forward: float
    backward: float


FUSED = Attention(1.0, 2.5)  # FlashAttention: causal, and the scores are computed again
UNFUSED = Attention(2.0, 4.0)  # all pairs, of which half are masked; the scores are kept


def training_cost(
    costs: Roofline, problem: "Problem", report: "StageReport", **options: Any
) -> TrainingCost:
    """Return the cost of one stage of a placement; see `Roofline.training_cost`."""
    layers, gpus = report.stage.layers, report.stage.gpus
    span, parameters = Span.of(problem.model, layers), float(problem.model.parameters(layers))
    even = (problem.workload.batch_size / len(gpus),) * len(gpus)
    batch = report.batch if report.degree == 1 else even
    found = _stages(costs, problem, gpus, span, parameters, batch, **options)
    return TrainingCost(*(float(value) for value in found))


def training_table(
    costs: Roofline, problem: "Problem", ids: Sequence[int], **options: Any
) -> np.ndarray | None:
    """Return the costs of every sort of span (`model.spans`) on these GPUs: (8, U), the fields of `TrainingCost`.

    None where shares of the batch depend on the span.
    """
    gpus, model = [problem.cluster.gpus[g] for g in ids], problem.model
    if problem.batch_split != "even" and len(set(gpus)) > 1:
        return None
    spans = zip(*model.spans.examples, strict=True)
    parameters = np.array([float(model.parameters(range(i, i + n))) for i, n in spans])
    batch = (problem.workload.batch_size / len(ids),) * len(ids)
    return _stages(costs, problem, ids, Span.all(model), parameters, batch, **options)


def _stages(
    costs: Roofline,
    problem: "Problem",
    ids: Sequence[int],
    span: Span,
    parameters: Any,
    batch: tuple[float, ...],
    *,
    recompute: Recompute = "none",
    bytes_per_parameter: float | None = None,
) -> np.ndarray:
    """Return the fields of `TrainingCost`, one number for one span, or an array for many."""
    if bytes_per_parameter is None:
        bytes_per_parameter = ADAM_BYTES + _gradient_bytes(costs)
    checked_value("training_cost", "bytes_per_parameter", bytes_per_parameter, NotNegative)
    model, load = problem.model, replace(problem.workload, phase="training")
    demand, gpus = Demand(model, load), tuple(problem.cluster.gpus[g] for g in ids)
    # No sequence is shared: the GPU with most whole sequences counts, or a slower one with fewer.
    # Serving may prefer to share the batch where training has to cut layers, and so may this.
    shared = {1: batch}
    kinds = tuple(dict.fromkeys(gpus))
    counts = np.array([[gpus.count(kind) for kind in kinds]])
    for t in Candidates(costs, demand, kinds, counts, span).degrees():
        shared[t] = (load.batch_size * t / len(gpus),) * len(gpus)
    modes, busy = [], []
    for t, shares in shared.items():
        whole = [float(whole_sequences(share)) for share in shares]
        times = [
            gradients(costs, demand, gpu, span, b, t, demand.stored_bytes(span, b, t))
            for gpu, b in dict.fromkeys(zip(gpus, whole, strict=True))
            if b > 0
        ]
        forward, back, weight = (np.maximum.reduce(column) for column in zip(*times, strict=True))
        busy.append(forward + back + weight)
        tokens = max(whole) * load.sequence_length
        kept = _kept(model, span, tokens, load.sequence_length, t, recompute)
        if recompute == "full":
            back = back + forward
        step = _step(costs, demand, problem, ids, t, parameters / t)
        state = parameters / t * bytes_per_parameter / 1e9
        modes.append(np.stack(np.broadcast_arrays(forward, back, weight, step, state, *kept)))
    best = np.argmin(np.stack(busy), axis=0)
    return np.take_along_axis(np.stack(modes), best[None, None], axis=0)[0]


def _kept(
    model: Transformer, span: Span, tokens: float, sequence: int, degree: int, recompute: Recompute
) -> tuple[Any, Any, float]:
    """GB of activations until the input gradient, from there to the weight gradient, and once."""
    one_layer = activation_bytes(
        model, tokens, sequence=sequence, recompute=recompute, degree=degree
    )
    head = span.last * head_bytes(model, tokens, degree)
    # Not recomputed: of one layer all is there again while its backward runs, and what weight
    # gradients need stays until they run.
    stored = activation_bytes(model, tokens, sequence=sequence, degree=degree)
    return (
        (span.layers * one_layer + head) / 1e9,
        (span.layers * weight_share(model) * stored + head) / 1e9,
        stored / 1e9 if recompute == "full" else 0.0,
    )


def gradients(
    costs: Roofline,
    demand: Demand,
    gpu: GPU,
    span: Span,
    b: float,
    degree: int,
    stored: Any,
    attention: Attention = FUSED,
) -> tuple[Any, Any, Any]:
    """Seconds of forward, input gradient and weight gradient on one GPU.

    Parameters
    ----------
    stored : float or float array
        Bytes that these layers keep of a microbatch on this GPU.
    attention : Attention
        How it is computed.
    """
    hardware = costs.hardware(demand, [gpu]).take(0)
    causal = hardware.layers_seconds(span, b, degree)
    shared: Any = 0.0
    if degree > 1:
        shared = span.layers * hardware.layer_collectives(b, degree)
    matrices, pairs = _forward_flops(demand, span, b)
    alone = (causal - shared) / (matrices + pairs)
    besides = shared + hardware.moving_seconds(stored)
    return (
        alone * (matrices + attention.forward * pairs) + besides,
        alone * (matrices + attention.backward * pairs) + besides,
        alone * matrices,
    )


def training_flops(model: Transformer, load: Workload) -> float:
    """FLOPs of a microbatch, forward and backward, by which MFU is counted.

    As Chowdhery et al. (PaLM, 2022) and Korthikanti et al. count them: three times those of a
    forward, of attention all pairs of tokens as if none were masked, nothing recomputed.
    """
    demand = Demand(model, replace(load, phase="training"))
    matrices, pairs = _forward_flops(demand, Span.of(model, range(model.layers)), load.batch_size)
    return float(3 * (matrices + UNFUSED.forward * pairs))


def _forward_flops(demand: Demand, span: Span, b: float) -> tuple[Any, Any]:
    """FLOPs of matrices, and of causal attention, in a forward of b sequences."""
    matrices = (
        (span.layers - span.dense) * demand.layer_flops("ordinary", b)
        + span.dense * demand.layer_flops("dense", b)
        + span.last * demand.head_flops(b)
    )
    pairs = sum(
        sum(numbers.values()) * b * own.attention_flops() for own, numbers in demand.groups(span)
    )
    return matrices, pairs


def _gradient_bytes(costs: Roofline) -> float:
    """Per parameter; `for_training` has chosen an engine that says so."""
    return costs.constants.gradient_bytes or 0.0


def update_seconds(costs: Roofline, bandwidth: float, parameters: Any) -> Any:
    """Seconds of Adam's step on so many parameters of one GPU."""
    return parameters * (_gradient_bytes(costs) + UPDATE_BYTES) / bandwidth


def _step(
    costs: Roofline,
    demand: Demand,
    problem: "Problem",
    ids: Sequence[int],
    degree: int,
    parameters: Any,
) -> Any:
    """Seconds to add up the gradients of the stage's replicas in a ring, and to update its weights."""
    cluster = problem.cluster
    gpus = [cluster.gpus[g] for g in ids]
    slowest = min(
        float(costs.hardware(demand, [gpu]).take(0).bandwidth) for gpu in dict.fromkeys(gpus)
    )
    update, gradient = update_seconds(costs, slowest, parameters), _gradient_bytes(costs)
    replicas = len(gpus) // degree
    if replicas == 1:
        return update
    link = min(cluster.bandwidth_between(i, j) for i in ids for j in ids if i != j)
    ring = 2 * (replicas - 1) / replicas * parameters * gradient / (link * 1e9) if link else np.inf
    return update + ring
