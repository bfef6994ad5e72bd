"""Training held against published times: profiles of one stage, and whole steps (`data/training_times.csv`).

All rows are of models of GPT's kind: two matrices of width 4·d per block, dropout, and attention that
keeps its scores. A `Transformer` has three matrices, so its block is 8/3·d wide: as many parameters
and FLOPs. What such a layer keeps is counted as Korthikanti et al. do.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipelab.cluster import GPU
from pipelab.engine.schedules import schedule
from pipelab.engine.timeline import StageCosts, simulate
from pipelab.hardware.roofline.arrays import Span
from pipelab.hardware.roofline.demand import Demand
from pipelab.hardware.roofline.pass_times import hardware_of, moving_seconds
from pipelab.hardware.roofline.training import (
    UNFUSED,
    gradients,
    training_flops,
    update_seconds,
)
from pipelab.hardware.training_memory import activation_bytes, head_bytes
from pipelab.hardware.transformer import Transformer
from pipelab.io.paths import data_dir
from pipelab.problem import Workload

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from pipelab.hardware.roofline.constants import RooflineConstants

OF_GPT = {"fused_attention": False, "gate": False, "dropout": True}
TIMES = ("forward_ms", "backward_input_ms", "backward_weight_ms", "step_s")


def training_errors(costs: "RooflineConstants | None" = None) -> "DataFrame":
    """Return the rows of `data/training_times.csv` beside what the roofline says.

    Parameters
    ----------
    costs : Roofline, optional
        By default `Roofline()`, which trains as Megatron does.

    Returns
    -------
    pandas.DataFrame
        One row per measured time: `model`, `recompute`, `what` ("forward_ms", "backward_input_ms",
        "backward_weight_ms" or "step_s"), `measured` and `predicted` in its unit, `error` =
        predicted / measured - 1, `fitted` (whether a constant was fitted to it), and of steps `mfu`
        and `mfu_predicted`, model FLOPs over what the GPUs could compute in that time.

    Examples
    --------
    >>> table = training_errors()
    >>> held_out = table[~table["fitted"]]
    >>> len(table), len(held_out), bool(held_out["error"].abs().max() < 0.14)
    (20, 14, True)
    """
    import pandas as pd

    from pipelab.hardware.roofline.cost_model import Roofline

    costs, rows = (costs or Roofline()).for_training(), []
    for row in pd.read_csv(data_dir() / "training_times.csv").itertuples():
        for what, predicted in _predicted(costs, row).items():
            measured = getattr(row, what)
            found = {"model": row.model, "recompute": row.recompute, "what": what}
            found |= {"measured": measured, "predicted": predicted}
            found |= {"error": predicted / measured - 1, "fitted": row.fitted}
            if what == "step_s":
                found["mfu"], found["mfu_predicted"] = (
                    _mfu(costs, row, seconds) for seconds in (measured, predicted)
                )
            rows.append(found)
    return pd.DataFrame(rows)


def gpt(row: "Series") -> Transformer:
    """The model of a row."""
    wide, each = round(8 / 3 * row.d_model), row.d_model // row.heads
    return Transformer(
        row.model, row.layers, row.d_model, wide, row.heads, row.heads, each, row.vocab
    )


def _predicted(costs: "RooflineConstants", row: "Series") -> dict[str, float]:
    """Milliseconds of a microbatch on one rank in the mean, or seconds of a whole step."""
    if row.forward_ms > 0:
        whole = _of_layers(costs, row, row.layers, head=True)
        return {name: 1000 * t / row.ranks for name, t in zip(TIMES[:3], whole, strict=True)}
    stages = row.ranks * row.chunks
    ordinary, last = (
        _of_layers(costs, row, row.layers // stages, head=head) for head in (False, True)
    )
    forward, back, weight = zip(*[*[ordinary] * (stages - 1), last], strict=True)
    sent = 2 * row.microbatch * row.sequence * row.d_model / row.tensor_parallel
    message = costs.hop_latency_s + sent / (row.network_gb_per_s * 1e9)
    name = "1F1B" if row.chunks == 1 else "Interleaved1F1B"
    order = schedule(name, row.ranks, int(row.microbatches), row.chunks)
    times = StageCosts(forward, back, weight, comm=message, unit="s")
    share = gpt(row).parameters() / (row.ranks * row.tensor_parallel)
    hardware = hardware_of(costs, _demand(row), [_gpu(costs, row)]).take(0)
    update = update_seconds(costs, float(hardware.bandwidth), share)
    return {"step_s": float(simulate(order, times).makespan + update)}


def _of_layers(
    costs: "RooflineConstants", row: "Series", layers: int, *, head: bool
) -> tuple[Any, Any, Any]:
    """Seconds of forward, input gradient and weight gradient of a microbatch; recomputation is in the second."""
    t, demand, gpu = int(row.tensor_parallel), _demand(row), _gpu(costs, row)
    tokens, options = row.microbatch * row.sequence, {"sequence": row.sequence, "degree": t}
    options |= OF_GPT | {"sequence_parallel": bool(row.sequence_parallel)}
    layer = activation_bytes(demand.model, tokens, **options)
    stored = layers * layer + head * head_bytes(demand.model, tokens, t)
    span = replace(Span.of(demand.model, range(layers)), last=float(head))
    forward, back, weight = gradients(
        costs, demand, gpu, span, row.microbatch, t, stored, attention=UNFUSED
    )
    if row.recompute == "full":
        back = back + forward
    elif row.recompute == "selective":
        thin = activation_bytes(demand.model, tokens, recompute="selective", **options)
        hardware = hardware_of(costs, demand, [gpu]).take(0)
        flops = UNFUSED.forward * row.microbatch * demand.attention_flops() / t
        moved = moving_seconds(costs.constants, hardware, layer - thin)
        back = back + layers * (flops / hardware.head_flops + moved)
    return forward, back, weight


def _demand(row: "Series") -> Demand:
    return Demand(gpt(row), Workload(row.sequence, row.microbatch, "training"))


def _gpu(costs: "RooflineConstants", row: "Series") -> GPU:
    inside = row.node_gb_per_s if row.tensor_parallel > 1 else None
    memory = costs.gpus[row.gpu_type].memory_gb
    return GPU(row.gpu_type, memory, None, "node" if inside else "", inside)


def _mfu(costs: "RooflineConstants", row: "Series", seconds: float) -> float:
    step = row.microbatches * training_flops(gpt(row), _demand(row).load)
    peak = row.ranks * row.tensor_parallel * costs.gpus[row.gpu_type].fp16_tflop_per_s * 1e12
    return step / (seconds * peak)
