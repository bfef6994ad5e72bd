"""settings(problem, plan, engine): a plan as the settings of the engine that runs it.

What an engine takes stands in the table `ENGINES`; its settings and its launch script in the template
of its name, which also says where the engine's code reads each setting.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from pipelab.display import counted
from pipelab.engine.deployments.result import Deployment
from pipelab.engine.timeline.placed import TrainingTimeline
from pipelab.engine.training import TrainingResult
from pipelab.errors import InvalidValue, UnknownName, nearest, shown
from pipelab.evaluation import evaluate
from pipelab.io.engines import vllm_over_ray
from pipelab.io.engines.plan import EnginePlan, Host, rpc_servers
from pipelab.io.schedule_files import to_csv
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result, placement_in

if TYPE_CHECKING:
    from jinja2 import Environment


class _Engine(NamedTuple):
    """What an engine takes."""

    platforms: tuple[str, ...] = ("CUDA", "ROCm")
    kv: tuple[str, ...] = ("bf16", "fp16", "fp8")  # precisions of keys and values
    mixed: bool = False  # GPUs of several makers in one engine
    host_by_host: bool = True  # it numbers its ranks so
    equal_hosts: bool = False  # as many GPUs, in whole stages, on every host
    one_gpu: str = ""  # why it has one GPU in every stage
    one_host: str = ""  # why its stages are on one host
    most_stages: int = 10**9
    trains: bool = False  # it takes a schedule, and keeps no keys and values
    schedules: tuple[str, ...] = ()  # the only ones with one stage per rank; empty: any


ENGINES = {
    "vLLM": _Engine(),
    "llama.cpp": _Engine(
        ("CUDA", "ROCm", "Metal"),
        ("bf16", "fp16"),
        mixed=True,
        host_by_host=False,
        one_gpu="it cuts a layer over all GPUs or none",
        most_stages=16,  # llama_max_devices in src/llama.cpp
    ),
    "SGLang": _Engine(equal_hosts=True),
    "Megatron": _Engine(trains=True, schedules=("1F1B",)),
    "torchtitan": _Engine(trains=True),
    "TensorRT-LLM": _Engine(
        ("CUDA",),
        host_by_host=False,
        one_host="; over several, MPI or Slurm starts its ranks, and not this script",
    ),
    "transformers": _Engine(
        kv=("bf16", "fp16"),
        host_by_host=False,
        one_gpu="a device map gives whole layers to a GPU",
        one_host=": a device map is of one process",
    ),
}


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
        In the order of their first ranks, each with `name`, `address` (empty if none was given)
        and `gpus`: the GPUs used, as that host counts them, in the order of the ranks.
    tensor_parallel_size : int
        GPUs of every stage.
    environment : mapping of str to str
        Environment variables, the same on every host.
    arguments : tuple of str
        Of the engine's program, the same on every host.
    notes : tuple of str
        What no setting says; empty if there is nothing to know.
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


@overload
def settings(
    problem: Problem,
    plan: Placement | Result | TrainingTimeline,
    engine: str,
    *,
    hosts: str | Sequence[str] | None = None,
) -> EngineSettings: ...
@overload
def settings(
    problem: Problem,
    plan: Deployment,
    engine: str,
    *,
    hosts: str | Sequence[str] | None = None,
) -> dict[str, EngineSettings]: ...
def settings(
    problem: Problem,
    plan: Placement | Result | TrainingTimeline | Deployment,
    engine: str,
    *,
    hosts: str | Sequence[str] | None = None,
) -> EngineSettings | dict[str, EngineSettings]:
    """Translate a plan for an engine: a launch script for the plan's hosts, and its settings.

    Parameters
    ----------
    problem : Problem
        Its rules and rates count.
    plan : Placement, Result, TrainingTimeline or Deployment
        Of a result, its placement; of a deployment, each of its pipelines; of a training step
        (`pl.timeline_of(…, training=True)`, or a result of `objective="step_time"`) its schedule,
        microbatches and recomputation, too, for Megatron and torchtitan.
    engine : {"vLLM", "llama.cpp", "SGLang", "Megatron", "torchtitan", "TensorRT-LLM", "transformers"}
        The engine that is to run it.
    hosts : str or sequence of str, optional
        The address of every GPU's host, by GPU id; one text where all are on one host. By default a
        node's GPUs are on one host, a GPU without a node is alone on its own, and the script takes
        the addresses from the variable HOSTS. A host counts its GPUs from 0, in the order of their ids.

    Returns
    -------
    EngineSettings
        Prints as a launch script for bash. Of a deployment a dict of them by name, "pipeline-1",
        "pipeline-2", …, one for each pipeline: each has GPUs and ports of its own.

    Raises
    ------
    InvalidPlacement
        The placement is not valid for this problem.
    InvalidValue
        There is no placement, no pipeline, or `hosts` does not fit.
    NotApplicable
        The engine cannot run this plan: stages have different numbers of GPUs, or share a batch; or
        it does not take these GPUs, hosts, precisions or this schedule; names the reason.
    UnknownName
        The engine is unknown.

    Notes
    -----
    Translated: the cuts between stages, how many GPUs a stage has and which, the data type (half
    where a GPU has no bf16), how long a sequence may be, and how many fit: the workload's batch
    times the microbatches in flight of its attainable rate. How many tokens a microbatch has, vLLM, llama.cpp and
    TensorRT-LLM decide at every step; only SGLang takes the batch. `gpu_memory_utilization` and its
    like are what the cost model left to the engine (`Roofline.memory_share`), or else 0.9, or what
    the plan needs on its fullest GPU. The templates in `pipelab/io/engines/templates` name
    the engine's code that reads each setting.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny")
    >>> plan = pl.Placement.of([(3, (1,)), (1, (0,))])
    >>> pl.settings(tiny, plan, "vLLM", hosts="10.0.0.1").environment["VLLM_PP_LAYER_PARTITION"]
    '3,1'
    """
    if not isinstance(engine, str) or engine not in ENGINES:
        raise UnknownName(f"there is no engine {shown(engine)}; {nearest(engine, ENGINES)}")
    if isinstance(plan, Deployment):
        return _of_pipelines(problem, plan, engine, hosts)
    placement = placement_in(plan, "settings")
    step = plan.step if isinstance(plan, TrainingResult) else plan
    placed = EnginePlan.of(problem, placement, engine, hosts)
    return _launched(placed, step if isinstance(step, TrainingTimeline) else None)


def _of_pipelines(
    problem: Problem, plan: Deployment, engine: str, hosts: str | Sequence[str] | None
) -> dict[str, EngineSettings]:
    """Make one launch script for each pipeline, with its own workload."""
    if not plan.pipelines:
        expected = f"expected a deployment with a pipeline. {plan.sentence}"
        raise InvalidValue("settings", [("plan", plan.status, expected)])
    evaluate(problem, plan)  # no GPU is in two
    pairs = [(replica, p.workload) for p in plan.pipelines for replica in p.replicas]
    digits = len(str(len(pairs)))
    found = {}
    for i, (replica, load) in enumerate(pairs, start=1):
        own = EnginePlan.of(replace(problem, workload=load), replica, engine, hosts, i)
        found[f"pipeline-{i:0{digits}}"] = _launched(own)
    return found


def _launched(plan: EnginePlan, step: TrainingTimeline | None = None) -> EngineSettings:
    """Fill in the engine's template for a plan that the engine can run."""
    needs = ENGINES[plan.engine]
    plan.refuse_platforms(*needs.platforms, mixed=needs.mixed)
    if not needs.trains:
        plan.refuse_kv(needs.kv)
    if needs.host_by_host:
        plan.refuse_scattered()
    if step is not None:
        if not needs.trains:
            expected = "expected Megatron or torchtitan for a training step: it serves"
            raise plan.refuse("plan", step.timeline.schedule.name, expected)
        plan = plan.for_step(step.timeline.schedule, step.recompute or ())
    _refuse_shape(plan, needs)
    if plan.engine == "vLLM":
        plan = vllm_over_ray.in_rays_order(plan)
    template = _templates().get_template(f"{plan.engine}.sh.j2")
    filled: Any = template.make_module({"plan": plan, "serves": not needs.trains})
    return EngineSettings(
        plan.engine,
        plan.layers,
        plan.hosts,
        plan.size,
        filled.environment,
        tuple(shlex.split(filled.arguments)),
        tuple(filled.notes),
        str(filled),
    )


def _refuse_shape(plan: EnginePlan, needs: _Engine) -> None:
    """Refuse numbers of GPUs, hosts and stages, and schedules, that the engine does not take."""
    if needs.one_gpu and plan.size > 1:
        expected = (
            f"expected one GPU in every stage: {needs.one_gpu}; solve with max_gpus_per_stage=1"
        )
        raise plan.refuse("GPUs per stage", plan.size, expected)
    if needs.one_host and len(plan.hosts) > 1:
        expected = f"expected stages on one host{needs.one_host}"
        raise plan.refuse("hosts", len(plan.hosts), expected)
    if len(plan.layers) > needs.most_stages:
        expected = f"expected at most {needs.most_stages} stages: it takes no more devices"
        raise plan.refuse("stages", len(plan.layers), expected)
    counts = [len(host.gpus) for host in plan.hosts]
    parts = counts[0] % plan.size == 0 or plan.size % counts[0] == 0
    if needs.equal_hosts and (len(set(counts)) > 1 or not parts):
        expected = (
            "expected as many GPUs of the plan on every host, and whole stages or equal parts of them: it takes "
            "stages ÷ hosts as the stages of every host"
        )
        raise plan.refuse("GPUs of the hosts", tuple(counts), expected)
    order = plan.schedule
    if order is not None and needs.schedules and order.name not in needs.schedules:
        known = " or ".join(map(repr, needs.schedules))
        expected = f"expected {known}, the only schedule that it has for one stage per rank"
        raise plan.refuse("schedule", order.name, expected)


@cache
def _templates() -> "Environment":
    """The engines' templates; comments in them stand between <# and #>, as bash uses {#."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("pipelab.io.engines"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        comment_start_string="<#",
        comment_end_string="#>",
    )
    made.filters["lines"] = lambda text: [line for line in text.splitlines() if line.strip()]
    made.globals |= {"counted": counted, "to_csv": to_csv, "rpc_servers": rpc_servers}
    made.globals["ties"] = vllm_over_ray.ties
    return made
