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
        pipeline_model_parallel_layout=_layout(plan.layers),
    )
    quoted = [*arguments[:-1], f"'{arguments[-1]}'"]  # the shell would take | and *
    own, count = [], str(len(plan.hosts[0].gpus))
    commands = [script.own_gpus(plan)]
    if len(plan.hosts) > 1:
        own = [
            f"--nnodes {len(plan.hosts)}",
            "--node-rank $((number - 1))",
            f'--master-addr "${{host[1]}}" --master-port {plan.port(_PORT)}',
        ]
        commands.append(script.table("ranks", [len(host.gpus) for host in plan.hosts]))
        count = "${ranks[$number]}"
    own.append(f"--nproc-per-node {count}")
    program = '"$MEGATRON/pretrain_gpt.py"'
    commands.append(script.joined("exec torchrun", *own, program, *script.pairs(quoted), '"$@"'))
    return script.finished(
        plan,
        {},
        arguments,
        commands,
        model="MEGATRON=${MEGATRON:?set MEGATRON to the folder of Megatron-LM}",
        serves=False,
        notes=("the model's other dimensions, data and batch follow as arguments",),
    )


def _layout(layers: tuple[int, ...]) -> str:
    stages = ["t" if n == 1 else f"t*{n}" for n in layers]
    return f"E{'|'.join(stages)}L"
