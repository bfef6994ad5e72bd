"""settings(problem, plan, engine): a plan as the settings of the engine that runs it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, overload

from pipelab.engine.deployments.result import Deployment
from pipelab.engine.timeline.training import TrainingTimeline
from pipelab.engine.training import TrainingResult
from pipelab.errors import InvalidValue, UnknownName, nearest, shown
from pipelab.evaluation import evaluate
from pipelab.io.engines.deployment import EnginePlan, deployed
from pipelab.io.engines.device_map import transformers_launch
from pipelab.io.engines.launch_script import EngineSettings
from pipelab.io.engines.llama_cpp import llama_cpp_launch
from pipelab.io.engines.megatron import megatron_launch
from pipelab.io.engines.sglang import sglang_launch
from pipelab.io.engines.tensorrt_llm import tensorrt_llm_launch
from pipelab.io.engines.torchtitan import torchtitan_launch
from pipelab.io.engines.vllm import vllm_launch
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result, placement_in


class _Engine(NamedTuple):
    """What an engine runs on, and how its launch script is made."""

    launch: Callable[[EnginePlan], EngineSettings]
    platforms: tuple[str, ...] = ("CUDA", "ROCm")
    kv: tuple[str, ...] = (
        "bf16",
        "fp16",
        "fp8",
    )  # precisions of keys and values; none: it has none
    mixed: bool = False  # GPUs of several makers in one engine
    host_by_host: bool = True  # it numbers its ranks so
    trains: bool = False  # it takes a schedule


ENGINES = {
    "vLLM": _Engine(vllm_launch),
    "llama.cpp": _Engine(
        llama_cpp_launch,
        ("CUDA", "ROCm", "Metal"),
        ("bf16", "fp16"),
        mixed=True,
        host_by_host=False,
    ),
    "SGLang": _Engine(sglang_launch),
    "Megatron": _Engine(megatron_launch, kv=(), trains=True),
    "torchtitan": _Engine(torchtitan_launch, kv=(), trains=True),
    "TensorRT-LLM": _Engine(tensorrt_llm_launch, ("CUDA",), host_by_host=False),
    "transformers": _Engine(transformers_launch, kv=("bf16", "fp16"), host_by_host=False),
}


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
    """The same stages for an engine: a launch script for the plan's own hosts, and what is in it.

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
    the plan needs on its fullest GPU. The modules of `pipelab.io.engines` name
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
    return _launched(
        deployed(problem, placement, engine, hosts),
        step if isinstance(step, TrainingTimeline) else None,
    )


def _of_pipelines(
    problem: Problem, plan: Deployment, engine: str, hosts: str | Sequence[str] | None
) -> dict[str, EngineSettings]:
    """One launch script for each pipeline, with its own workload."""
    if not plan.pipelines:
        expected = f"expected a deployment with a pipeline. {plan.sentence}"
        raise InvalidValue("settings", [("plan", plan.status, expected)])
    evaluate(problem, plan)  # no GPU is in two
    pairs = [(replica, p.workload) for p in plan.pipelines for replica in p.replicas]
    digits = len(str(len(pairs)))
    found = {}
    for i, (replica, load) in enumerate(pairs, start=1):
        own = deployed(replace(problem, workload=load), replica, engine, hosts, i)
        found[f"pipeline-{i:0{digits}}"] = _launched(own)
    return found


def _launched(deployment: EnginePlan, step: TrainingTimeline | None = None) -> EngineSettings:
    needs = ENGINES[deployment.engine]
    deployment.refuse_platforms(*needs.platforms, mixed=needs.mixed)
    if needs.kv:
        deployment.refuse_kv(needs.kv)
    if needs.host_by_host:
        deployment.refuse_scattered()
    if step is not None:
        if not needs.trains:
            expected = "expected Megatron or torchtitan for a training step: it serves"
            raise deployment.refuse("plan", step.timeline.schedule.name, expected)
        deployment = deployment.for_step(step.timeline.schedule, step.recompute or ())
    return needs.launch(deployment)
