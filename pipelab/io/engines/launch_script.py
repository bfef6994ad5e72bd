"""The launch script of an engine: one bash file that every host of the plan runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from pipelab.display import counted
from pipelab.io.engines.deployment import EnginePlan, Host


@dataclass(frozen=True)
class EngineSettings:
    """A plan as the settings of one inference or training engine; made by `pl.settings`. Prints as a launch script.

    Attributes
    ----------
    engine : str
        Its name.
    layers : tuple of int
        Decoder layers of each stage, in order.
    hosts : tuple of Host
        In the order of their first ranks, each with `name`, `address` (empty where none was given)
        and `gpus`: the GPUs used, as that host counts them, in the order of the ranks.
    tensor_parallel_size : int
        GPUs of every stage.
    environment : mapping of str to str
        Environment variables, the same on every host.
    arguments : tuple of str
        Of the engine's program, the same on every host.
    notes : tuple of str
        What no setting says; empty where there is nothing to know.
    script : str
        For bash, with all of the above.
    """

    engine: str
    layers: tuple[int, ...]
    hosts: tuple[Host, ...]
    tensor_parallel_size: int
    environment: Mapping[str, str]
    arguments: tuple[str, ...]
    notes: tuple[str, ...]
    script: str

    def __str__(self) -> str:
        return self.script

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.script)}</pre>"


def finished(
    plan: EnginePlan,
    environment: Mapping[str, str],
    arguments: Sequence[str],
    commands: Sequence[str],
    *,
    model: str = "MODEL=${MODEL:?set MODEL to the name or the path of the model}",
    notes: Sequence[str] = (),
    serves: bool = True,
) -> EngineSettings:
    """The settings with their script. `commands` follow what every script has.

    Over several hosts, they find the host's own number (from 1) in `$number`, all addresses in `${host[i]}`.
    """
    environment = {**environment, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as the hosts count GPUs
    notes = (*(plan.notes() if serves else ()), *notes)
    name, stages = plan.problem.model.name, counted(len(plan.layers), "stage")
    several = len(plan.hosts) > 1
    own = model.partition("=")[0]
    usage = f"Run it: {own}=… bash FILE"
    if several:
        usage = f"Run it on every host: {own}=… HOSTS=… bash FILE NUMBER"
    which = f", pipeline {plan.pipeline} of a deployment" if plan.pipeline else ""
    comments = [
        f"{plan.engine}: {name} in {stages} on {counted(len(plan.hosts), 'host')}{which}",
        f"{usage}; what follows goes to the engine.",
        *plan.stage_lines(),
        *(f"Note: {note}." for note in notes),
    ]
    lines = [
        "#!/usr/bin/env bash",
        *(_comment(text) for text in comments),
        "set -euo pipefail",
        model,
        *(_numbered_hosts(plan.hosts) if several else []),
        *(f"export {name}={value}" for name, value in environment.items()),
        *commands,
    ]
    return EngineSettings(
        plan.engine, plan.layers, plan.hosts, plan.size, environment, tuple(arguments), notes,
        "\n".join(lines) + "\n",
    )  # fmt: skip


def _comment(text: str) -> str:
    # A name may hold anything; a line break in it would end the comment.
    return "# " + " ".join(text.split())


def _numbered_hosts(hosts: Sequence[Host]) -> list[str]:
    """The addresses, and which of them this host has."""
    last, known = len(hosts), " ".join(host.address for host in hosts)
    default = (
        f":-{known}"
        if hosts[0].address
        else f":?set HOSTS to the addresses of hosts 1 to {last}, with spaces between"
    )
    return [
        f"HOSTS=${{HOSTS{default}}}",
        'read -ra host <<< "- $HOSTS"  # so that ${host[1]} is the first',
        f"[ ${{#host[@]}} -eq {last + 1} ] || {_stop(f'HOSTS = $HOSTS: expected {last} addresses')}",
        f"number=${{1:?say which host this is, from 1 to {last}}}",
        f"[[ $number =~ ^[1-9][0-9]*$ && $number -le {last} ]] "
        f"|| {_stop(f'host $number: expected a number from 1 to {last}')}",
        "shift",
    ]


def _stop(message: str) -> str:
    return f'{{ echo "{message}" >&2; exit 2; }}'


def own_gpus(plan: EnginePlan) -> str:
    """The line that makes the plan's GPUs visible, in the order of the ranks, on whichever host it runs."""
    if len(plan.hosts) == 1:
        return f"export {visible(plan.hosts[0].gpus)}"
    return table("gpus", [",".join(map(str, host.gpus)) for host in plan.hosts]) + (
        "; export CUDA_VISIBLE_DEVICES=${gpus[$number]}"
    )


def table(name: str, values: Sequence[object]) -> str:
    """A bash array whose entry i belongs to host i."""
    return f"{name}=({' '.join(map(str, ['-', *values]))})"


def torchrun(plan: EnginePlan, port: int, before: Sequence[str], *program: str) -> list[str]:
    """The commands that start one process per GPU: the host's own GPUs, `before`, then `torchrun` with the program.

    Over several hosts, `torchrun` finds the others at `port` of the first.
    """
    commands, options = [own_gpus(plan)], [f"--nproc-per-node {len(plan.hosts[0].gpus)}"]
    if len(plan.hosts) > 1:
        commands.append(table("ranks", [len(host.gpus) for host in plan.hosts]))
        options = [
            f"--nnodes {len(plan.hosts)}",
            "--node-rank $((number - 1))",
            f'--master-addr "${{host[1]}}" --master-port {port}',
            "--nproc-per-node ${ranks[$number]}",
        ]
    return [*commands, *before, joined("exec torchrun", *options, *program, '"$@"')]


def visible(gpus: Sequence[int]) -> str:
    """The variable that makes these GPUs of a host visible, in this order."""
    return f"CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))}"


def joined(*parts: str) -> str:
    """One command over several lines."""
    return " \\\n    ".join(parts)


def options(**values: object) -> list[str]:
    """Arguments by name: `max_len=8` becomes `--max-len 8`."""
    return [
        part
        for name, value in values.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]


def own_port(plan: EnginePlan, first: int) -> list[str]:
    """The server's port, where there are several pipelines; otherwise the engine has its usual one."""
    return options(port=plan.port(first)) if plan.pipeline else []


def pairs(arguments: Sequence[str]) -> list[str]:
    """Arguments and their values as they stand on one line of a script."""
    return [f"{arguments[i]} {arguments[i + 1]}" for i in range(0, len(arguments), 2)]
