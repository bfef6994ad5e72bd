"""llama.cpp: `--tensor-split` by layers, and a server for every GPU that is not beside the last stage."""

from pipelab.io.engines.deployment import EnginePlan
from pipelab.io.engines.launch_script import (
    EngineSettings,
    finished,
    joined,
    own_port,
    pairs,
    visible,
)

_PORT = 50052
_SERVER_PORT = 8080
_MOST_DEVICES = 16  # llama_max_devices in src/llama.cpp


def llama_cpp_launch(plan: EnginePlan) -> EngineSettings:
    """The plan for one `llama-server`.

    Notes
    -----
    `load_tensors` (src/llama-model.cpp) gives layer il, counted from 0, to device
    `upper_bound(splits, il / act_gpu_layers)`: the first whose running share of `-ts` exceeds
    it. The output layer is one more layer after the last, so the last stage counts one more; the
    input embedding stays on the CPU. With whole numbers the comparison is exact: both sides are
    rounded from the same fractions.

    Devices are numbered with the servers of `--rpc` first, in their order, then the GPUs of the own
    host (src/llama.cpp). So the program runs beside the last stage, and what comes before is served
    over RPC, one server per GPU.
    """
    if plan.size > 1:
        expected = (
            "expected one GPU in every stage: it cuts a layer over all GPUs or none; "
            "solve with max_gpus_per_stage=1"
        )
        raise plan.refuse("GPUs per stage", plan.size, expected)
    if len(plan.layers) > _MOST_DEVICES:
        expected = f"expected at most {_MOST_DEVICES} stages: it takes no more devices"
        raise plan.refuse("stages", len(plan.layers), expected)
    main = plan.places[-1][0]
    local = len(plan.places)
    while local and plan.places[local - 1][0] == main:
        local -= 1
    ports: dict[int, int] = {}  # of every host, so far
    servers, addresses = [], []
    for host, gpu in plan.places[:local]:
        port = ports[host] = ports.get(host, plan.port(_PORT, _MOST_DEVICES) - 1) + 1
        address = f"${{host[{host + 1}]}}" if len(plan.hosts) > 1 else "127.0.0.1"
        servers.append((host, f'{visible([gpu])} rpc-server -H "{address}" -p {port} &'))
        addresses.append(f"{address}:{port}")
    shares = [*plan.layers[:-1], plan.layers[-1] + 1]
    arguments = [
        "-ngl", str(sum(shares)), "-sm", "layer", "-ts", ",".join(map(str, shares)),
        "-c", str(plan.context * plan.sequences), "-np", str(plan.sequences),
    ]  # fmt: skip
    arguments += own_port(plan, _SERVER_PORT)
    remote = [f'--rpc "{",".join(addresses)}"'] if addresses else []
    serve = joined('llama-server -m "$MODEL"', *pairs(arguments), *remote, '"$@"')
    own = [f"export {visible([gpu for _, gpu in plan.places[local:]])}", f"exec {serve}"]
    commands = []
    for host in range(len(plan.hosts)):
        body = [line for where, line in servers if where == host]
        body += own if host == main else ["wait"]
        if len(plan.hosts) > 1:
            body = [f"if [ $number -eq {host + 1} ]; then", *(f"  {line}" for line in body), "fi"]
        commands += body
    notes = []
    if len(plan.layers) > 1:
        several = " and keeps nothing in flight over RPC" if addresses else ""
        notes.append(
            f"llama.cpp overlaps stages while it reads prompts{several}; otherwise one stage computes at a time, "
            "and the plan's rate is not reached"
        )
    if addresses:
        notes.append(
            f"start host {main + 1} last; rpc-server trusts everyone: keep its ports in a network of your own"
        )
    return finished(
        plan,
        {},
        arguments,
        commands,
        model="MODEL=${MODEL:?set MODEL to the path of a GGUF file}",
        notes=notes,
    )
