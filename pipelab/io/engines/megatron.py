"""Megatron-LM: the pipeline layout as a string, one `torchrun` per host."""

from pipelab.io.engines import launch_script as script
from pipelab.io.engines.deployment import EnginePlan

_PORT = 29500


def megatron_launch(plan: EnginePlan) -> script.EngineSettings:
    """The plan's cuts for training with Megatron-LM.

    Notes
    -----
    The layout is read by `PipelineParallelLayerLayout.parse_str_to_list`
    (megatron/core/transformer/pipeline_parallel_layer_layout.py; user guide, "Custom Pipeline Model
    Parallel Layout"): stages separated by "|", `E` the embedding, `t` a decoder layer, `L` the
    loss, `t*3` for `ttt`. Tensor-parallel ranks are neighbours and stages are not, the default
    order "tp-cp-ep-dp-pp".
    """
    arguments = script.options(
        num_layers=sum(plan.layers),
        tensor_model_parallel_size=plan.size,
        pipeline_model_parallel_size=len(plan.layers),
        **_step(plan),
        pipeline_model_parallel_layout=_layout(plan.layers),
    )
    quoted = [*arguments[:-1], f"'{arguments[-1]}'"]  # the shell would take | and *
    rest = " and batch" if plan.schedule is None else " and optimizer"
    program = '"$MEGATRON/pretrain_gpt.py"'
    commands = script.torchrun(plan, plan.port(_PORT), [], program, *script.pairs(quoted))
    return script.finished(
        plan,
        {},
        arguments,
        commands,
        model="MEGATRON=${MEGATRON:?set MEGATRON to the folder of Megatron-LM}",
        serves=False,
        notes=(f"the model's other dimensions, data{rest} follow as arguments",),
    )


_RECOMPUTED: dict[str, dict[str, object]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
}


def _step(plan: EnginePlan) -> dict[str, object]:
    """How a training step is cut into microbatches, and what it recomputes; nothing where none was given."""
    order = plan.schedule
    if order is None:
        return {}
    if order.name != "1F1B":
        expected = "expected '1F1B', the only schedule that it has for one stage per rank"
        raise plan.refuse("schedule", order.name, expected)
    size = plan.problem.workload.batch_size
    batches = {"micro_batch_size": size, "global_batch_size": size * order.microbatches}
    return {**batches, **_RECOMPUTED[plan.recompute]}


def _layout(layers: tuple[int, ...]) -> str:
    stages = ["t" if n == 1 else f"t*{n}" for n in layers]
    return f"E{'|'.join(stages)}L"
