"""A stage in training, by the roofline: forward, both gradients, the step, and what is kept.

With M the FLOPs of the matrices in a forward and A those of (causal, fused) attention, an input
gradient takes M + 2.5·A, as attention computes its scores again and five products instead of two,
and a weight gradient takes M. The stage's forward, without its all-reduces, is scaled by these; the
input gradient all-reduces as often as the forward, weight gradients never. Selective recomputation
is what fused attention does already; full recomputation runs the forward again.
"""

from typing import TYPE_CHECKING

import numpy as np

from pipelab.cluster import GPU
from pipelab.costs import TrainingCost, whole_sequences
from pipelab.errors import InvalidValue
from pipelab.fields import real_number
from pipelab.hardware.roofline.arrays import Span
from pipelab.hardware.roofline.demand import Demand
from pipelab.hardware.roofline.pass_times import hardware_of, layer_collectives, stage_seconds
from pipelab.hardware.roofline.single_stage import degrees_of
from pipelab.hardware.training_memory import (
    ADAM_BYTES,
    UPDATE_BYTES,
    Recompute,
    activation_bytes,
    head_bytes,
    weight_share,
)

if TYPE_CHECKING:
    from pipelab.evaluation import StageReport
    from pipelab.hardware.roofline.constants import RooflineConstants
    from pipelab.problem import Problem

# Attention's products in the backward, over those in the forward.
ATTENTION_BACKWARD = 2.5


def training_cost(
    costs: "RooflineConstants",
    problem: "Problem",
    report: "StageReport",
    *,
    recompute: Recompute = "none",
    bytes_per_parameter: float = ADAM_BYTES,
) -> TrainingCost:
    """One stage of a placement; see `Roofline.training_cost`."""
    if real_number("training_cost", "bytes_per_parameter", bytes_per_parameter) < 0:
        expected = "expected at least 0"
        raise InvalidValue(
            "training_cost", [("bytes_per_parameter", bytes_per_parameter, expected)]
        )
    model, load, layers = problem.model, problem.workload, report.stage.layers
    demand, span = Demand(model, load, every_token=True), Span.of(model, layers)
    gpus = tuple(problem.cluster.gpus[g] for g in report.stage.gpus)
    # No sequence is shared: the GPU with most whole sequences counts, or a slower one with fewer.
    # Serving may prefer to share the batch where training has to cut layers, and so may this.
    shared = {1: report.batch}
    for t in degrees_of(costs, model, gpus):
        shared[t] = (load.batch_size * t / len(gpus),) * len(gpus)
    modes = []
    for t, batch in shared.items():
        most = max(float(whole_sequences(share)) for share in batch)
        times = [
            _gradients(costs, demand, gpu, span, float(whole_sequences(share)), t)
            for gpu, share in dict.fromkeys(zip(gpus, batch, strict=True))
            if share > 0
        ]
        slowest = tuple(max(column) for column in zip(*times, strict=True))
        modes.append((sum(slowest), slowest, t, most))
    _, (forward, back, weight), degree, sequences = min(modes)
    parameters = model.parameters(layers) / degree
    most = sequences * load.sequence_length
    one_layer = activation_bytes(
        model, most, sequence=load.sequence_length, recompute=recompute, degree=degree
    )
    last = model.layers - 1 in layers
    head = head_bytes(model, most, degree) if last else 0.0
    kept = weight_share(model) * activation_bytes(
        model, most, sequence=load.sequence_length, degree=degree
    )
    whole = len(layers) * one_layer + head
    if recompute == "full":
        back += forward
        # While a layer's backward runs, its activations are there again.
        whole += kept / weight_share(model)
    return TrainingCost(
        forward,
        back,
        weight,
        _step(costs, demand, problem, report, degree, parameters),
        parameters * bytes_per_parameter / 1e9,
        whole / 1e9,
        min(whole, len(layers) * kept + head) / 1e9,
    )


def _gradients(
    costs: "RooflineConstants", demand: Demand, gpu: GPU, span: Span, b: float, degree: int
) -> tuple[float, float, float]:
    """Seconds of forward, input gradient and weight gradient on one GPU."""
    hardware = hardware_of(costs, demand, [gpu]).take(0)
    forward = float(stage_seconds(costs, demand, hardware, span, b, degree))
    shared = 0.0
    if degree > 1:
        each = layer_collectives(costs.constants, demand, hardware, b, degree)
        shared = float(span.layers * each)
    matrices = (
        (span.layers - span.dense) * demand.layer_flops("ordinary", b)
        + span.dense * demand.layer_flops("dense", b)
        + span.last * demand.head_flops(b)
    )
    attention = sum(
        sum(numbers.values()) * b * own.attention_flops() for own, numbers in demand.groups(span)
    )
    alone = (forward - shared) / (matrices + attention)
    back = alone * (matrices + ATTENTION_BACKWARD * attention) + shared
    return forward, float(back), float(alone * matrices)


def _step(
    costs: "RooflineConstants",
    demand: Demand,
    problem: "Problem",
    report: "StageReport",
    degree: int,
    parameters: float,
) -> float:
    """Seconds to add up the gradients of the stage's replicas in a ring, and to update its weights."""
    stage, cluster = report.stage, problem.cluster
    gpus = [cluster.gpus[g] for g in stage.gpus]
    update = max(
        parameters * UPDATE_BYTES / float(hardware_of(costs, demand, [gpu]).take(0).bandwidth)
        for gpu in dict.fromkeys(gpus)
    )
    replicas = len(gpus) // degree
    if replicas == 1:
        return float(update)
    slowest = min(cluster.bandwidth_between(i, j) for i in stage.gpus for j in stage.gpus if i != j)
    ring = 2 * (replicas - 1) / replicas * parameters * 2 / (slowest * 1e9)
    return float(update + ring) if np.isfinite(ring) else float(update)
