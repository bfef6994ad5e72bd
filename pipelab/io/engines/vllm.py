"""vLLM: `VLLM_PP_LAYER_PARTITION`, one process per GPU on one host, Ray over several."""

from dataclasses import replace
from itertools import groupby

import numpy as np

from pipelab.cluster import Cluster
from pipelab.io.engines import launch_script as script
from pipelab.io.engines.deployment import EnginePlan, Host

_PORT = 6379
_SERVER_PORT = 8000
_WORKERS_PORT, _WORKERS_PORTS = 20000, 100  # of each pipeline that has Ray to itself


def vllm_launch(plan: EnginePlan) -> script.EngineSettings:
    """The plan for one vLLM engine.

    Notes
    -----
    The cut is read by `get_pp_indices` (vllm/distributed/utils.py, tested in
    tests/distributed/test_pipeline_partition.py): whole numbers separated by commas, one for each
    pipeline rank, which add up to the model's decoder layers.

    Ranks over Ray are put in order by `RayDistributedExecutor` (vllm/v1/executor/ray_executor.py):
    first those on the host of `vllm serve`, then hosts with fewer workers first, then by the text
    of their addresses; within a host by the number of the GPU. Its successor, the default from
    0.25 on, sorts by an id that Ray draws at random: so the script chooses the former.
    """
    over_ray = len(plan.hosts) > 1
    arguments = script.options(
        pipeline_parallel_size=len(plan.layers),
        tensor_parallel_size=plan.size,
        distributed_executor_backend="ray" if over_ray else "mp",
        dtype=plan.dtype(),
        max_model_len=plan.context,
        max_num_seqs=plan.sequences,
        gpu_memory_utilization=plan.memory_share,
    )
    if getattr(plan.problem.model, "kv_precision", "") == "fp8":
        arguments += script.options(kv_cache_dtype="fp8")
    arguments += script.own_port(plan, _SERVER_PORT)
    environment = {"VLLM_PP_LAYER_PARTITION": ",".join(map(str, plan.layers))}
    serve = script.joined('exec vllm serve "$MODEL"', *script.pairs(arguments), '"$@"')
    if not over_ray:
        return script.finished(plan, environment, arguments, [script.own_gpus(plan), serve])
    environment["VLLM_USE_RAY_V2_EXECUTOR_BACKEND"] = "0"
    hosts = tuple(replace(h, gpus=_in_rays_order(plan, i, h)) for i, h in enumerate(plan.hosts))
    left = [iter(host.gpus) for host in hosts]
    plan = replace(plan, hosts=hosts, places=tuple((i, next(left[i])) for i, _ in plan.places))
    own, port = _own_ray(plan), plan.port(_PORT)
    ask = 'import ray; ray.init("auto", logging_level="ERROR"); print(int(ray.cluster_resources().get("GPU", 0)))'
    commands = [
        *_check_of_addresses(plan),
        script.own_gpus(plan),
        "export VLLM_HOST_IP=${host[$number]}",
        "if [ $number -gt 1 ]; then",
        f'  exec ray start --address="${{host[1]}}:{port}" --node-ip-address="$VLLM_HOST_IP"{own} --block',
        "fi",
        f'ray start --head --port={port} --node-ip-address="$VLLM_HOST_IP"{own}',
        *([f'export RAY_ADDRESS="${{host[1]}}:{port}"'] if plan.pipeline else []),
        f"until [ \"$(python3 -c '{ask}')\" -ge {len(plan.places)} ]; do sleep 2; done  # all hosts have joined",
        serve,
    ]
    return script.finished(plan, environment, arguments, commands)


def _own_ray(plan: EnginePlan) -> str:
    """Ports that no other pipeline's Ray takes on a host that both are on."""
    if not plan.pipeline:
        return ""
    first = plan.port(_WORKERS_PORT, _WORKERS_PORTS)
    ports = script.options(
        ray_client_server_port=first,
        min_worker_port=first + 1,
        max_worker_port=first + _WORKERS_PORTS - 1,
    )
    return " " + " ".join(ports)


def _in_rays_order(plan: EnginePlan, number: int, host: Host) -> tuple[int, ...]:
    """The GPUs of a host in ascending order, as Ray hands them out; refused where that changes the plan."""
    ascending = tuple(sorted(host.gpus))
    ids = np.array([g for report in plan.evaluation.stages for g in report.stage.gpus])
    here = np.array([where == number for where, _ in plan.places])
    swapped = ids.copy()
    swapped[here] = np.sort(ids[here])
    if not _equal(plan.problem.cluster, ids, swapped):
        expected = (
            f"expected the stages of host {host.name!r} in the order of its GPUs, which differ: Ray hands them out in "
            "ascending order. Number the GPUs of that host in the order of the stages"
        )
        raise plan.refuse("placement", host.gpus, expected)
    return ascending


def _equal(cluster: Cluster, one: np.ndarray, other: np.ndarray) -> bool:
    """Whether a plan on GPUs `one` is the same on GPUs `other`: in types, memory, and all links among them."""
    if any(cluster.gpus[i] != cluster.gpus[j] for i, j in zip(one, other, strict=True)):
        return False
    off_diagonal = ~np.eye(len(one), dtype=bool)
    return all(
        np.array_equal(m[np.ix_(one, one)][off_diagonal], m[np.ix_(other, other)][off_diagonal])
        for m in (cluster.bandwidth_matrix(), cluster.latency_matrix())
    )


def _check_of_addresses(plan: EnginePlan) -> list[str]:
    """Refuse orders of hosts that Ray does not keep; where only addresses decide, the script compares them."""
    counts = [len(host.gpus) for host in plan.hosts[1:]]
    if counts != sorted(counts):
        expected = (
            "expected hosts, after the first, with more and more GPUs: over Ray, vLLM numbers hosts with fewer GPUs "
            "first. Exchange stages among hosts, or take SGLang or llama.cpp"
        )
        raise plan.refuse("GPUs of the hosts", tuple(len(h.gpus) for h in plan.hosts), expected)
    lines = []
    for _, group in groupby(range(2, len(plan.hosts) + 1), key=lambda i: counts[i - 2]):
        numbers = list(group)
        if len(numbers) > 1:
            names = " ".join(f'"${{host[{i}]}}"' for i in numbers)
            says = (
                f"vLLM numbers hosts {numbers[0]} to {numbers[-1]} by the text of their addresses: "
                "give addresses that ascend as text"
            )
            lines.append(
                f"printf '%s\\n' {names} | LC_ALL=C sort -Cu || {{ echo \"{says}\" >&2; exit 2; }}"
            )
    return lines
