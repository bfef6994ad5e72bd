"""SGLang: `SGLANG_PP_LAYER_PARTITION`, and as many GPUs on every host."""

from pipelab.io.engines import launch_script as script
from pipelab.io.engines.deployment import EnginePlan

_PORT = 20000
_SERVER_PORT = 30000


def sglang_launch(plan: EnginePlan) -> script.EngineSettings:
    """The plan for one SGLang server.

    Notes
    -----
    The cut is read by `get_pp_indices` (python/sglang/srt/distributed/utils.py) as vLLM does.
    `_calculate_rank_ranges` (python/sglang/srt/entrypoints/engine.py) gives every host equally many
    ranks: pp // nnodes whole stages, or a stage nnodes // pp hosts; on a host GPU number
    (stage % stages per host) · GPUs per stage and host + tensor rank serves them.
    """
    counts = [len(host.gpus) for host in plan.hosts]
    if len(set(counts)) > 1 or (counts[0] % plan.size and plan.size % counts[0]):
        expected = (
            "expected as many GPUs of the plan on every host, and whole stages or equal parts of them: it takes "
            "stages ÷ hosts as the stages of every host"
        )
        raise plan.refuse("GPUs of the hosts", tuple(counts), expected)
    arguments = script.options(
        tp_size=plan.size,
        pp_size=len(plan.layers),
        pp_max_micro_batch_size=plan.problem.workload.batch_size,
        dtype=plan.dtype(),
        context_length=plan.context,
        max_running_requests=plan.sequences,
        mem_fraction_static=plan.memory_share,
    )
    if getattr(plan.problem.model, "kv_precision", "") == "fp8":
        arguments += script.options(kv_cache_dtype="fp8_e4m3")
    arguments += script.own_port(plan, _SERVER_PORT)
    environment = {"SGLANG_PP_LAYER_PARTITION": ",".join(map(str, plan.layers))}
    several = []
    if len(counts) > 1:
        several = [
            f"--nnodes {len(counts)}",
            "--node-rank $((number - 1))",
            f'--dist-init-addr "${{host[1]}}:{plan.port(_PORT)}"',
        ]
    start = 'exec python3 -m sglang.launch_server --model-path "$MODEL"'
    command = script.joined(start, *script.pairs(arguments), *several, '"$@"')
    return script.finished(plan, environment, arguments, [script.own_gpus(plan), command])
