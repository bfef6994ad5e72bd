"""The problem that a command is about: a case, or a model on GPUs, from the options of the command line."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command

from pipelab.cli.printing import say
from pipelab.errors import InvalidValue, nearest

if TYPE_CHECKING:
    from pipelab.cluster import Cluster
    from pipelab.hardware.known_gpus import GPUFacts
    from pipelab.problem import Problem

# What a model on GPUs has where nothing is said; a case has its own. Other defaults are the package's.
_LENGTH, _BATCH = 2048, 8

Text = str | None
Whole = int | None
Real = float | None
Flag = bool | None


def option(help: str, *names: str, **more: Any) -> Any:
    """Declare an option of the command line."""
    return typer.Option(*names, help=help, **more)


_model = partial(option, rich_help_panel="A model on GPUs, instead of a case")
_load = partial(option, rich_help_panel="Workload")
_rule = partial(option, rich_help_panel="Rules")

Case = Annotated[
    Text, typer.Argument(help="A bundled case, or a folder of CSV files; or else give --model.")
]
Json = Annotated[bool, option("Print JSON for programs.", "--json")]


@dataclass(frozen=True)
class Wanted:
    """The options that describe a problem, as given on the command line; None if not given."""

    model: Annotated[Text, _model("Such as Llama-3-70B, or a Hugging Face config.json.")] = None
    gpus: Annotated[Text, _model("Types and counts, such as a100=4,l4=8.")] = None
    gpu_facts: Annotated[Text, _model("Your own GPUs: a CSV with columns of data/gpus.csv.")] = None
    cluster: Annotated[Text, _model("Or a known cluster, or a folder of listings.")] = None
    precision: Annotated[Text, _model("Of weights: bf16, fp8, int4, …")] = None
    kv_precision: Annotated[Text, _model("Of keys and values.")] = None
    per_node: Annotated[Whole, _model("Of a type per node; 8 by default.", min=1)] = None
    per_machine: Annotated[
        Whole, _model("Of a type per machine; those of a node by default.", min=1)
    ] = None
    network_gbit: Annotated[Real, _model("Between machines, in Gbit/s; 100 by default.")] = None
    rates: Annotated[Text, _model("Engine whose speed counts; vLLM by default.")] = None
    batch: Annotated[
        Whole, _load(f"Sequences per microbatch (with node: of all); {_BATCH} without a case.")
    ] = None
    length: Annotated[Whole, _load(f"Tokens per sequence; {_LENGTH} without a case.")] = None
    phase: Annotated[Text, _load("prefill (without a case), decode, mixed or training.")] = None
    output_tokens: Annotated[
        Whole, _load("Written per sequence; for --phase mixed, and for requests.")
    ] = None
    in_flight: Annotated[
        Whole, _load("Microbatches in flight; chosen with the placement by default.")
    ] = None
    microbatches: Annotated[Whole, _load("Of a step, with --phase training.")] = None
    max_gpus: Annotated[Whole, _rule("Per stage; without a case those of a node.")] = None
    same_type: Annotated[Flag, _rule("Stages of one type, or any.", "--same-type/--mixed")] = None

    @property
    def describes_model(self) -> bool:
        """Whether a model on GPUs is described, and not a case."""
        return bool(self.model or self.gpus or self.cluster)

    def said(self, case: str | None) -> str:
        """Return what was asked, as written on the command line."""
        given = {n: getattr(self, n) for n in _NAMES if getattr(self, n) is not None}
        return " ".join([*([case] if case else []), *(f"{_flag(n)} {v}" for n, v in given.items())])

    def problem(self, case: str | None) -> "Problem":
        """Return the problem of a case, or of a model on GPUs.

        Raises
        ------
        InvalidValue
            Neither is given, or both, or an option that does not fit.
        """
        if case is None and not self.describes_model:
            expected = "expected a case (see pipelab cases), or --model and --gpus"
            raise _refused("a case", None, expected)
        if self.phase == "mixed" and self.output_tokens is None:
            expected = "expected how many tokens are written per sequence, with --phase mixed"
            raise _refused("--output-tokens", None, expected)
        if case is None:
            return self._of_model()
        from pipelab.writeup.cases_csv import load_case

        return self.of_case(partial(load_case, case))

    def _given(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the given options among these names, by the fields that they set."""
        values = {field: getattr(self, name) for name, field in names.items()}
        return {field: value for field, value in values.items() if value is not None}

    def of_case(self, load: Callable[..., "Problem"]) -> "Problem":
        """Return the problem that `load` makes of a case and the given rules, with the given workload.

        Raises
        ------
        InvalidValue
            An option is given that belongs to a model on GPUs.
        """
        for name in _NAMES[: _NAMES.index("batch")]:
            if getattr(self, name) is not None:
                expected = "expected it without a case, which has a model and GPUs"
                raise _refused(_flag(name), getattr(self, name), expected)
        problem = load(**self._given(_RULE_FIELDS))
        return replace(problem, workload=replace(problem.workload, **self._given(_LOAD_FIELDS)))

    def _of_model(self) -> "Problem":
        from pipelab.evaluation import tally
        from pipelab.hardware.known_gpus import load_gpus
        from pipelab.hardware.known_models import load_model
        from pipelab.hardware.roofline import Roofline
        from pipelab.problem import Problem, Workload

        if not self.model:
            raise _refused("--model", None, "expected a model beside --gpus or --cluster")
        precisions = {name: name for name in ("precision", "kv_precision")}
        model = load_model(self.model, **self._given(precisions))
        load: dict[str, Any] = {"sequence_length": _LENGTH, "batch_size": _BATCH}
        load |= self._given(_LOAD_FIELDS)
        facts = load_gpus(self.gpu_facts)
        cluster = self._cluster(facts)
        costs = Roofline(gpus=facts, **self._given({"rates": "engine"}))
        name = f"{model.name} on {tally(tuple(gpu.type for gpu in cluster.gpus))}"
        rules = self._given(_RULE_FIELDS)
        return Problem(cluster, model, Workload(**load), costs, name=name, **rules)

    def _cluster(self, facts: "Mapping[str, GPUFacts]") -> "Cluster":
        from pipelab.hardware.known_clusters import cluster_of_counts, load_cluster

        if bool(self.gpus) == bool(self.cluster):
            expected = "expected --gpus or --cluster beside --model, and not both"
            raise _refused("--cluster", self.cluster, expected)
        if self.gpus:
            named = {"per_node": "gpus_per_node", "per_machine": "gpus_per_machine"}
            options = self._given({**named, "network_gbit": "network_gbit_per_s"})
            return cluster_of_counts(counts_of(self.gpus, facts), gpus=facts, **options)
        for name in ("per_node", "per_machine"):
            if getattr(self, name) is not None:
                raise _refused(_flag(name), getattr(self, name), "expected it beside --gpus")
        return load_cluster(str(self.cluster), gpus=facts, network_gbit_per_s=self.network_gbit)


_NAMES = [field.name for field in fields(Wanted)]
# The fields of a problem, and of its workload, that options set.
_RULE_FIELDS = {"max_gpus": "max_gpus_per_stage", "same_type": "same_type_stages"}
_LOAD_FIELDS = {"batch": "batch_size", "length": "sequence_length"}
_LOAD_FIELDS |= {name: name for name in ("phase", "output_tokens", "in_flight", "microbatches")}
# Those that a sweep varies.
VARIED = (
    "batch",
    "length",
    "in_flight",
    "output_tokens",
    "max_gpus",
    "network_gbit",
    "per_node",
    "per_machine",
)


class ProblemCommand(TyperCommand):
    """A command that has the options of `Wanted` after its own, and finds them in `context.obj`."""

    def __init__(self, *args: Any, params: list, **kwargs: Any) -> None:
        super().__init__(*args, params=[*params, *_shared_options()], **kwargs)

    def invoke(self, ctx: Any) -> Any:
        ctx.obj = Wanted(**{name: ctx.params.pop(name) for name in _NAMES})
        return super().invoke(ctx)


@cache
def _shared_options() -> list:
    app = typer.Typer(add_completion=False)
    app.command()(Wanted)
    return get_command(app).params


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _refused(option: str, value: object, expected: str) -> InvalidValue:
    return InvalidValue("options", [(option, value, expected)])


def counts_of(text: str, known: "Mapping[str, GPUFacts]") -> dict[str, int]:
    """Read counts by type: "a100=4,l4=8" is four A100-SXM-80 (the first of those with most memory) and eight L4."""
    counts: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals or not (number.isascii() and number.isdigit() and len(number) <= 6):
            expected = "expected TYPE=COUNT with counts up to 999999, such as a100=4,l4=8"
            raise _refused("--gpus", part, expected)
        kind = gpu_type(name, known)
        counts[kind] = counts.get(kind, 0) + int(number)
    if not any(counts.values()):
        raise _refused("--gpus", text, "expected at least one GPU")
    return {kind: count for kind, count in counts.items() if count}


def gpu_type(name: str, known: "Mapping[str, GPUFacts]") -> str:
    """Find a known type by its name, a driver's name, or a beginning that several share, which is said."""
    from pipelab.hardware.known_gpus import HOW_TO_ADD_A_GPU, type_of

    wanted = name.lower()
    exact = next((t for t in known if t.lower() == wanted), None) or type_of(name, known)
    if exact:
        return exact
    family = [t for t in known if wanted and t.lower().startswith(f"{wanted}-")]
    if not family:
        expected = f"expected a known GPU; {nearest(name, known)}; or {HOW_TO_ADD_A_GPU}"
        raise _refused("--gpus", name, expected)
    chosen = max(family, key=lambda t: known[t].memory_gb)
    if len(family) > 1:
        _say_once(f"{name} is taken for {chosen}, of {', '.join(family)}")
    return chosen


@cache
def _say_once(message: str) -> None:
    say(message)


def changed(wanted: Wanted, point: Mapping[str, Any]) -> Wanted:
    """Change the values of some options; the name of a GPU type stands for its count.

    Raises
    ------
    InvalidValue
        There is no such option, or a type's count is to change and no --gpus are given.
    """
    options = {name: value for name, value in point.items() if name in VARIED}
    counts = {name: value for name, value in point.items() if name not in VARIED}
    if counts:
        from pipelab.hardware.known_gpus import load_gpus

        known = load_gpus(wanted.gpu_facts)
        before = {} if not wanted.gpus else counts_of(wanted.gpus, known)
        pool = before | {gpu_type(name, known): count for name, count in counts.items()}
        options["gpus"] = ",".join(f"{kind}={count}" for kind, count in pool.items())
    return replace(wanted, **options)
