"""TensorRT-LLM: `pp_partition` in the file of options of `trtllm-serve`, on one host."""

from pipelab.io.engines.deployment import EnginePlan
from pipelab.io.engines.launch_script import (
    EngineSettings,
    finished,
    joined,
    own_gpus,
    own_port,
    pairs,
)

_SERVER_PORT = 8000


def tensorrt_llm_launch(plan: EnginePlan) -> EngineSettings:
    """The plan for one TensorRT-LLM server.

    Notes
    -----
    `pp_partition` (tensorrt_llm/llmapi/llm_args.py; NVIDIA/TensorRT-LLM PR 9003) lists the layers
    of every pipeline rank; `Mapping.pp_layers` (tensorrt_llm/mapping.py) splits the model's layers
    into runs of these lengths. Rank s · tp_size + i is GPU i of stage s.
    """
    if len(plan.hosts) > 1:
        expected = "expected stages on one host; over several, MPI or Slurm starts its ranks, and not this script"
        raise plan.refuse("hosts", len(plan.hosts), expected)
    sizes = {
        "tp_size": plan.size,
        "pp_size": len(plan.layers),
        "max_seq_len": plan.context,
        "max_batch_size": plan.sequences,
    }
    arguments = [part for name, value in sizes.items() for part in (f"--{name}", str(value))]
    arguments += own_port(plan, _SERVER_PORT)
    lines = [f"pp_partition: [{', '.join(map(str, plan.layers))}]"]
    if plan.without_bf16:
        lines.append("dtype: float16")
    if getattr(plan.problem.model, "kv_precision", "") == "fp8":
        lines.append("kv_cache_config: {dtype: fp8}")
    command = joined(
        'exec trtllm-serve "$MODEL"',
        *pairs(arguments),
        '--extra_llm_api_options "$OPTIONS"',
        '"$@"',
    )
    commands = [
        own_gpus(plan),
        "OPTIONS=$(mktemp --suffix=.yaml)",
        'cat > "$OPTIONS" <<END',
        *lines,
        "END",
        command,
    ]
    return finished(plan, {}, arguments, commands)
