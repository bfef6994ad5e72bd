"""settings(problem, plan, engine): a plan as the settings of the engine that runs it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipelab.engine.in_flight_result import InFlightResult
from pipelab.errors import UnknownName, nearest, shown
from pipelab.io.engines.deployment import EnginePlan, deployed
from pipelab.io.engines.device_map import transformers_launch
from pipelab.io.engines.launch_script import EngineSettings
from pipelab.io.engines.llama_cpp import llama_cpp_launch
from pipelab.io.engines.megatron import megatron_launch
from pipelab.io.engines.sglang import sglang_launch
from pipelab.io.engines.tensorrt_llm import tensorrt_llm_launch
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
    "Megatron": _Engine(megatron_launch, kv=()),
    "TensorRT-LLM": _Engine(tensorrt_llm_launch, ("CUDA",), host_by_host=False),
    "transformers": _Engine(transformers_launch, kv=("bf16", "fp16"), host_by_host=False),
}


def settings(
    problem: Problem,
    plan: Placement | Result | InFlightResult,
    engine: str,
    *,
    hosts: str | Sequence[str] | None = None,
) -> EngineSettings:
    """The same stages for an engine: a launch script for the plan's own hosts, and what is in it.

    Parameters
    ----------
    problem : Problem
        Its rules and rates count.
    plan : Placement or Result
        Of a result, its placement.
    engine : {"vLLM", "llama.cpp", "SGLang", "Megatron", "TensorRT-LLM", "transformers"}
        The engine that is to run it.
    hosts : str or sequence of str, optional
        The address of every GPU's host, by GPU id; one text where all are on one host. By default a
        node's GPUs are on one host, a GPU without a node is alone on its own, and the script takes
        the addresses from the variable HOSTS. A host counts its GPUs from 0, in the order of their ids.

    Returns
    -------
    EngineSettings
        Prints as a launch script for bash.

    Raises
    ------
    InvalidPlacement
        The placement is not valid for this problem.
    InvalidValue
        There is no placement, or `hosts` does not fit.
    NotApplicable
        The engine cannot run this plan: stages have different numbers of GPUs, or share a batch; or
        it does not take these GPUs, hosts or precisions; names the reason.
    UnknownName
        The engine is unknown.

    Notes
    -----
    Translated: the cuts between stages, how many GPUs a stage has and which, the data type (half
    where a GPU has no bf16), how long a sequence may be, and how many fit: the workload's batch
    times its microbatches in flight. How many tokens a microbatch has, vLLM, llama.cpp and
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
    in_flight = plan.in_flight if isinstance(plan, InFlightResult) else None
    placement = placement_in(plan, "settings")
    needs = ENGINES[engine]
    deployment = deployed(problem, placement, engine, hosts, in_flight)
    deployment.refuse_platforms(*needs.platforms, mixed=needs.mixed)
    if needs.kv:
        deployment.refuse_kv(needs.kv)
    if needs.host_by_host:
        deployment.refuse_scattered()
    return needs.launch(deployment)
