"""settings(problem, plan, engine): a plan as the settings of the engine that runs it.

What an engine demands stands in data/engine_rules.csv; its settings and its launch script in the
template of its name, which also says where the engine's code reads each setting.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, overload

from pipelab.deployment_and_flow import DeploymentPlan
from pipelab.display import counted
from pipelab.engine.answers import PlanAnswer, Result, placement_in
from pipelab.engine.deployments.result import Deployment
from pipelab.engine.runs_on import as_engine_fills
from pipelab.engine.serving.served import Served
from pipelab.engine.timeline.placement_timelines import TrainingTimeline
from pipelab.engine.training import TrainingResult
from pipelab.errors import InvalidValue
from pipelab.evaluation import evaluate
from pipelab.fields import Frozen, instance
from pipelab.hardware.engine_rules import rules_of
from pipelab.io.serving.demands import check
from pipelab.io.serving.engine_plan import EnginePlan, Host, Hosts, rpc_servers
from pipelab.io.torch_csv import to_csv
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True, kw_only=True)
class EngineSettings(Frozen):
    """A plan as the settings of one inference or training engine; made by `pl.settings`. Prints as a launch script.

    Attributes
    ----------
    engine : str
        Its name.
    version : str
        Of the engine, whose names of options these are.
    layers : tuple of int
        Decoder layers of each stage, in order.
    hosts : tuple of Host
        In the order of their first ranks, each with `name`, `address` (empty if none was given)
        and `gpus`: the GPUs used, as that host calls them, in the order of the ranks.
    tensor_parallel_size : int
        GPUs of every stage.
    environment : mapping of str to str
        Environment variables, the same on every host.
    arguments : tuple of str
        Of the engine's program, the same on every host.
    answers_at : str
        The address and the port at which it serves requests; empty if it does not, or its host has no address.
    notes : tuple of str
        What no setting says; empty if there is nothing to know.
    script : str
        For bash, with all of the above.
    """

    engine: str
    version: str
    layers: tuple[int, ...]
    hosts: tuple[Host, ...]
    tensor_parallel_size: int
    environment: Mapping[str, str]
    arguments: tuple[str, ...]
    answers_at: str
    notes: tuple[str, ...]
    script: str

    def __str__(self) -> str:
        return self.script

    def _repr_html_(self) -> str:
        head, mark, rest = self.script.partition("\n# What every script shares")
        shared, begin, commands = rest.partition("\nbegin\n")
        folded = f"<summary>What every script shares</summary><pre>{escape(mark + shared)}</pre>"
        return f"<pre>{escape(head)}</pre><details>{folded}</details><pre>{escape(begin + commands)}</pre>"


class DeploymentSettings(dict[str, EngineSettings]):
    """The settings of every pipeline of a deployment, by name. Prints all their scripts, and what balances requests.

    Attributes
    ----------
    nginx : str
        A configuration of nginx that gives each pipeline its share of the requests; empty where prompts and answers
        have pipelines of their own, or a pipeline answers at no address.
    """

    nginx: str = ""

    @property
    def files(self) -> dict[str, str]:
        """All scripts, and nginx's configuration where there is one, by the names that files may have."""
        scripts = {f"{name}.sh": one.script for name, one in self.items()}
        return scripts | ({"nginx.conf": self.nginx} if self.nginx else {})

    @property
    def notes(self) -> tuple[str, ...]:
        """What no setting says, of any of the pipelines, each once."""
        return tuple(dict.fromkeys(note for one in self.values() for note in one.notes))

    def __str__(self) -> str:
        return "\n".join(f"### {name}\n{text}" for name, text in self.files.items())


@overload
def settings(
    problem: Problem,
    placement: Placement | Result | TrainingTimeline | Served,
    engine: str,
    *,
    hosts: Hosts = None,
) -> EngineSettings: ...
@overload
def settings(
    problem: Problem, placement: DeploymentPlan, engine: str, *, hosts: Hosts = None
) -> dict[str, EngineSettings]: ...
def settings(
    problem: Problem,
    placement: Placement | Result | TrainingTimeline | DeploymentPlan | Served,
    engine: str,
    *,
    hosts: Hosts = None,
) -> EngineSettings | dict[str, EngineSettings]:
    """Translate a plan for an engine: a launch script for the plan's hosts, and its settings.

    Parameters
    ----------
    problem : Problem
        Its rules and rates count.
    placement : Placement, Result, TrainingTimeline, Deployment or Served
        Of a result, its placement; of a deployment, each of its pipelines; of requests that were simulated, what
        served them, with the `chunk` that they had; of a training step
        (`pl.timeline_of(…, training=True)`, or a result of `objective="step_time"`) its schedule,
        microbatches and recomputation, too, for Megatron and torchtitan.
    engine : str
        The engine that is to run it, by its name in `data/engine_rules.csv`.
    hosts : str or sequence of str, optional
        The address of every GPU's host, by GPU id; one text where all are on one host. By default a
        machine of the cluster is a host (`GPU.machine`), and the script takes the addresses from the
        variable HOSTS. GPUs have the numbers that the cluster says (`Cluster.index`); else a host counts
        its own from 0, in the order of their ids.

    Returns
    -------
    EngineSettings
        Prints as a launch script for bash. Of a deployment a dict of them by name, "pipeline-1",
        "pipeline-2", …, one for each pipeline: each has GPUs and ports of its own. It prints all of them, and
        (`nginx`) a configuration of nginx with the plan's shares, where `hosts` says the addresses.

    Raises
    ------
    InvalidPlacement
        The placement is not valid for this problem, or what the engine itself keeps in memory
        (`data/engine_memory.csv`) leaves too little for it.
    InvalidValue
        There is no placement, no pipeline, or `hosts` does not fit.
    NotApplicable
        The engine cannot run this placement: stages have different numbers of GPUs, or share a batch; or
        it does not take these GPUs, hosts, precisions or this schedule; names the reason.
    UnknownName
        The engine is unknown.

    Notes
    -----
    Translated: the cuts between stages, how many GPUs a stage has and which, the data type (half
    where a GPU has no bf16), how long a sequence may be, and how many fit: the workload's batch
    times the microbatches in flight of its attainable rate. GPUs of a stage cut its layers, even where the
    cost model would have them share its batch. Where a plan comes back to a host, or hosts have different
    numbers of GPUs, a host starts the engine several times. SGLang, TensorRT-LLM and transformers take the
    plan's batch; vLLM and llama.cpp make up batches at every step. `notes` say so, and when an engine keeps less in
    flight than the plan has. Keys and values take whole blocks of tokens (256 in llama.cpp), which count in
    memory. vLLM's `--gpu-memory-utilization` is what the cost model left to the engine (`Roofline.memory_share`), or
    else 0.9, or what the plan needs on its fullest GPU; at most what is free at its start, and as much less where
    some of a GPU is taken. torchtitan's options are those of its release; with TORCHTITAN=main the script takes those
    of its main branch. Chunks of prompts are those that were simulated, or
    else those for which memory counts. A script looks first whether version,
    addresses, GPUs and ports are the plan's; whatever ends it, it ends what it started. The templates in
    `pipelab/io/serving/templates` name the engine's code that reads each setting.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny")
    >>> plan = pl.Placement.of([(3, (1,)), (1, (0,))])
    >>> pl.settings(tiny, plan, "vLLM", hosts="10.0.0.1").environment["VLLM_PP_LAYER_PARTITION"]
    '3,1'
    """
    rules_of(engine)
    instance("settings", "problem", problem, Problem, "Problem(...)")
    chunk = placement.sent.chunk if isinstance(placement, Served) else None
    if isinstance(placement, Served):
        placement = placement.sent.plan
    if isinstance(placement, PlanAnswer) and placement.runs_on == engine:
        problem = as_engine_fills(problem, engine)
    if isinstance(placement, DeploymentPlan):
        return _of_pipelines(problem, placement, engine, hosts, chunk)
    chosen = placement_in(placement, "settings")
    placed = EnginePlan.of(problem, chosen, engine, hosts)
    placed = replace(placed, simulated_chunk=chunk)
    step = placement.step if isinstance(placement, TrainingResult) else placement
    if isinstance(step, TrainingTimeline):
        order = step.timeline.schedule
        placed = replace(placed, schedule=order, recomputed=step.recompute or ())
    return _launched(placed)


def _of_pipelines(
    problem: Problem, placement: DeploymentPlan, engine: str, hosts: Hosts, chunk: int | None
) -> dict[str, EngineSettings]:
    """Make one launch script for each pipeline, with its own workload."""
    if isinstance(placement, Deployment) and not placement.pipelines:
        expected = f"expected a deployment with a pipeline. {placement.sentence}"
        raise InvalidValue("settings", [("placement", placement.status, expected)])
    rates = [one.attainable for one in evaluate(problem, placement).pipelines]
    pairs = [(replica, p.workload) for p in placement.pipelines for replica in p.replicas]
    digits = len(str(len(pairs)))
    launched = DeploymentSettings()
    for i, (replica, load) in enumerate(pairs, start=1):
        plan = EnginePlan.of(replace(problem, workload=load), replica, engine, hosts, i)
        launched[f"pipeline-{i:0{digits}}"] = _launched(replace(plan, simulated_chunk=chunk))
    places = [one.answers_at for one in launched.values()]
    if len({load.phase for _, load in pairs}) == 1 and all(places):
        rows = list(zip(launched, places, rates, strict=True))
        launched.nginx = (
            _templates().get_template("nginx.conf.j2").render(rows=rows, most=max(rates))
        )
    return launched


def _launched(plan: EnginePlan) -> EngineSettings:
    """Fill in the engine's template for a plan that the engine can run."""
    check(plan)
    templates, name = _templates(), f"{plan.engine}.sh.j2"
    if name not in templates.list_templates():
        expected = f"expected a template pipelab/io/serving/templates/{name}; see docs/adding.md"
        raise plan.refuse("engine", plan.engine, expected)
    known = {"plan": plan, "rules": rules_of(plan.engine)}
    filled: Any = templates.get_template(name).make_module(known)
    ((host, port), *_) = getattr(filled, "listens", [(1, 0)])
    address = plan.hosts[host - 1].address if port else ""
    return EngineSettings(
        engine=plan.engine,
        version=filled.version,
        layers=plan.layers,
        hosts=plan.hosts,
        tensor_parallel_size=plan.size,
        environment=filled.environment,
        arguments=tuple(shlex.split(filled.arguments)),
        answers_at=f"{address}:{port}" if address else "",
        notes=tuple(filled.notes),
        script=str(filled),
    )


@cache
def _templates() -> "Environment":
    """Return the engines' templates; comments in them stand between <# and #>, as bash uses {#."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("pipelab.io.serving"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        comment_start_string="<#",
        comment_end_string="#>",
    )
    made.filters["lines"] = lambda text: [line for line in text.splitlines() if line.strip()]
    made.filters["plain"] = _plain
    made.globals |= {"counted": counted, "to_csv": to_csv, "rpc_servers": rpc_servers}
    return made


def _plain(text: str) -> str:
    """Return a text in one line, in which a name has no control characters or marks of direction.

    >>> _plain("Llama\\0 3\\n\\u202e8B")
    'Llama 3 8B'
    """
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
