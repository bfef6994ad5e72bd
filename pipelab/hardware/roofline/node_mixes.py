"""Every mix of tensor parallelism, pipeline stages and replicas on the equal GPUs of one node."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pipelab.cluster import GPU
from pipelab.errors import InvalidValue
from pipelab.hardware.roofline.arrays import Span
from pipelab.hardware.roofline.demand import Demand
from pipelab.hardware.roofline.pass_times import seconds_of_pass
from pipelab.hardware.transformer import Transformer
from pipelab.problem import Workload
from pipelab.splits import split_minmax

if TYPE_CHECKING:
    from pandas import DataFrame

    from pipelab.hardware.roofline.stage_costs import RooflineStages  # whose constants these are


def mixes_of_node(
    costs: "RooflineStages", model: Transformer, workload: Workload, gpu: GPU, gpus: int
) -> "DataFrame":
    """The table of `Roofline.node_mixes`."""
    import pandas as pd

    if not gpu.node:
        expected = "expected a GPU with a node and node_gb_per_s, the bandwidth inside it"
        raise InvalidValue("node_mixes", [("gpu.node", gpu.node, expected)])
    rows = []
    for cut in range(1, gpus + 1):
        if gpus % cut or not _can_cut(model, cut):
            continue
        for stages in range(1, gpus // cut + 1):
            if (gpus // cut) % stages == 0 and stages <= model.layers:
                rows.append(_row(costs, model, workload, gpu, cut, stages, gpus // cut // stages))
    table = pd.DataFrame(rows)
    order = ["fits", "tokens_per_s"]
    return table.sort_values(order, ascending=False, kind="stable").reset_index(drop=True)


def _can_cut(model: Transformer, cut: int) -> bool:
    parts = model.kv_parts
    return model.heads % cut == 0 and (parts % cut == 0 or cut % parts == 0)


def _row(
    costs: "RooflineStages",
    model: Transformer,
    workload: Workload,
    gpu: GPU,
    cut: int,
    stages: int,
    replicas: int,
) -> dict:
    """One mix: every replica gets an equal share of the sequences, in as many microbatches as it has stages."""
    whole = workload.batch_size * workload.in_memory
    batch = -(-whole // (replicas * stages))
    load = replace(workload, batch_size=batch, in_flight=stages)
    each = [
        seconds_of_pass(costs, model, load, gpu, range(i, i + 1), cut) for i in range(model.layers)
    ]
    split = split_minmax(each, stages)
    assert split is not None  # there are no limits
    seconds = [sum(each[i] for i in layers) for layers in split]
    demand = Demand(model, load)
    sent = demand.residual_bytes(batch) * costs.constants.stage_tensors
    link = costs.hop_latency_s + sent / ((gpu.node_gb_per_s or np.inf) * 1e9)
    # A microbatch is back when it has been everywhere, and not before the slowest part has served all.
    slowest = max(*seconds, link) if stages > 1 else seconds[0]
    turn = max(sum(seconds) + (stages - 1) * link, stages * slowest)
    reserve = (1 - costs.memory_share) * gpu.memory_gb
    spans = [Span.of(model, layers) for layers in split]
    chunk = costs.constants.chunk_tokens
    kept = [sum(demand.kept_gb(s, batch, cut, chunk).values()) for s in spans]
    needed = float(max(kept)) + reserve
    return {
        "tensor_parallel": cut,
        "stages": stages,
        "replicas": replicas,
        "sequences": batch * stages * replicas,
        "tokens_per_s": replicas * stages * load.tokens / turn,
        "seconds_per_turn": turn,
        "memory_needed_gb": needed,
        "memory_offered_gb": gpu.memory_gb,
        "fits": needed <= gpu.memory_gb,
    }
