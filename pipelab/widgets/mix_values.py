"""The values of the mix explorer, the problem they describe, and the code that makes the same problem."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from functools import cache
from typing import Annotated, Any, Literal, cast

from pipelab.cluster import Cluster
from pipelab.errors import InvalidValue, refuse_unknown
from pipelab.fields import Count, Later, Positive, checked, whole_number
from pipelab.hardware.engine_rules import known_rules, rules_of
from pipelab.hardware.known_clusters import cluster_of_counts
from pipelab.hardware.known_gpus import load_gpus
from pipelab.hardware.known_models import load_model, models
from pipelab.hardware.roofline import Roofline
from pipelab.placement import Placement
from pipelab.problem import CostModel, Problem, Workload
from pipelab.widgets.shown_code import Script, Term, literal, public
from pipelab.writeup.cases_csv import cases, load_case

# Counts on the sliders when a model is chosen: a strong, a middling and a small type.
_FIRST_COUNTS = {"A100-SXM-40": 2, "L4": 4, "T4": 4}
_NETWORK_GB_PER_S = 12.5  # 100 Gbit/s between any two GPUs
# What the batch is chosen from; `_FIRST_BATCH` first, then those near to the best so far.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_FIRST_BATCH = 16

# What each named cost model changes in its class's defaults: linear ones of cases, rooflines of models.
LINEAR: Mapping[str, Mapping[str, Any]] = {
    "linear": {},
    "linear, no loss": {"efficiency": 1.0},  # GPUs that share a stage lose nothing
}
ROOFLINE: Mapping[str, Mapping[str, Any]] = {
    "Roofline": {},
    "Roofline, eager": {"engine": "vLLM 0.2"},  # launches without CUDA graphs
    "Roofline, llama.cpp": {"engine": "llama.cpp"},
}


@checked
class Mix:
    """One state of the explorer; every field is a control.

    Parameters
    ----------
    source : str
        A bundled case (its own model and GPUs) or a model of `pl.hardware.models()` (GPU types of
        `pl.hardware.gpus()`).
    counts : tuple of (str, int)
        How many GPUs of each type.
    phase, batch, context, output_tokens, in_flight
        The workload; see `Workload`. A batch that is None is chosen among `BATCHES` with the placement.
    network_gb_per_s : float or None
        Between any two GPUs; None keeps a case's own links.
    gpus_per_node : int
        Of one type each; inside a node its GPUs' own links count. 1: no nodes. A case keeps its own.
    gpus_per_stage : int
        Most GPUs per stage.
    batch_split : "even" or "balanced"
    costs : str or CostModel, optional
        One of `cost_models(source)`, the first by default; or a cost model of your own, which the code
        that is shown calls `costs`.
    runs_on : str or None
        Only plans that this engine can start; None: any plan.
    tpot_ms, ttft_ms : float or None
        Limits on the time per output token and to the first token. With one of them requests count,
        each with a prompt of `context` tokens and an answer of `output_tokens`.
    within : float, "band" or None
        How far off speeds may be, as for `pl.solve`: the placement that loses least. None: the best as predicted.

    Raises
    ------
    InvalidValue
        A value is outside its control's range.
    """

    source: str
    counts: tuple[tuple[str, int], ...]
    phase: Literal["prefill", "decode", "mixed"] = "prefill"
    batch: Count | None = _FIRST_BATCH
    context: Count = 2048
    output_tokens: Count = 256
    in_flight: Count | None = None
    network_gb_per_s: Positive | None = None
    gpus_per_node: Count = 1
    gpus_per_stage: Count = 1
    batch_split: Literal["even", "balanced"] = "even"
    # The hash leaves it out: a cost model may hold mappings.
    costs: Annotated[str | CostModel, Later] = field(default=cast(str, None), hash=False)
    runs_on: str | None = None
    tpot_ms: Positive | None = None
    ttft_ms: Positive | None = None
    within: Positive | Literal["band"] | None = None

    def __post_init__(self) -> None:
        known = cost_models(self.source)
        if self.runs_on is not None:
            rules_of(self.runs_on)
        for name, without in (("tpot_ms", "prefill"), ("ttft_ms", "decode")):
            if getattr(self, name) is not None and self.phase == without:
                expected = f"expected None: the phase {without} has no such time"
                raise InvalidValue("explore_mix", [(name, getattr(self, name), expected)])
        if self.within is not None and (self.runs_on is not None or self.limits):
            expected = "expected None beside runs_on and limits on times"
            raise InvalidValue("explore_mix", [("within", self.within, expected)])
        if self.costs is None:
            object.__setattr__(self, "costs", known[0])
        if not isinstance(self.costs, CostModel) and self.costs not in known:
            expected = f"{self.source} has {', '.join(map(repr, known))}, or give a cost model"
            raise InvalidValue("explore_mix", [("costs", self.costs, expected)])

    @property
    def is_case(self) -> bool:
        """Whether the source is a bundled case and not a model."""
        return self.source in _cases()

    @property
    def batches(self) -> tuple[int, ...] | None:
        """What `solve` and `deploy` choose the batch from; None where it is given."""
        return BATCHES if self.batch is None else None

    @property
    def limits(self) -> dict[str, Any]:
        """Limits that are set, as `deploy` takes them; empty where tokens count."""
        limits = {"tpot_ms": self.tpot_ms, "ttft_ms": self.ttft_ms}
        return {name: ms for name, ms in limits.items() if ms is not None}

    def with_one_more(self, gpu_type: str) -> "Mix":
        """Return the same mix with one more GPU of this type."""
        return replace(self, counts=tuple((t, n + (t == gpu_type)) for t, n in self.counts))


@cache
def sources() -> tuple[str, ...]:
    """Return everything a mix can be about: the bundled cases, smallest first, then the models."""
    return (*_cases(), *models().index)


def engines() -> tuple[str, ...]:
    """Return the engines that serve: those on which a mix may be asked to run."""
    return tuple(name for name, rules in known_rules().items() if not rules.trains)


_cases = cache(cases)
# Read once: from key to key all but the numbers of GPUs is one and the same object, which is quick to compare.
_load_case, _load_model, _roofline = cache(load_case), cache(load_model), cache(Roofline)


def _case(source: str) -> Problem:
    return _load_case(source, link_units="tokens")


def types_of(source: str) -> tuple[str, ...]:
    """Return the GPU types that can be mixed: a case's own, or all bundled ones.

    >>> types_of("tiny")
    ('A100', 'V100')
    """
    if source in _cases():
        return tuple(dict.fromkeys(gpu.type for gpu in _case(source).cluster.gpus))
    return tuple(load_gpus())


def cost_models(source: str) -> tuple[str, ...]:
    """Return the names of the cost models for a case or model; its own comes first.

    >>> cost_models("tiny")
    ('linear', 'linear, no loss')
    """
    # A case's model has no attention heads to speak of, and Roofline needs them.
    return tuple(LINEAR if source in _cases() else ROOFLINE)


def beginning(source: str, counts: Mapping[str, int] | None = None, **values: Any) -> Mix:
    """Return the state to begin with: a case as it is, or a model with a small mix of GPUs.

    Raises
    ------
    UnknownName
        No such case, model, GPU type or control.
    InvalidValue
        A value is outside its control's range.

    Examples
    --------
    >>> beginning("tiny").counts, beginning("tiny").batch
    ((('A100', 2), ('V100', 2)), 16)
    """
    refuse_unknown("case or model", source, sources())
    if source in _cases():
        case = _case(source)
        first = dict(Counter(gpu.type for gpu in case.cluster.gpus))
        begins: dict[str, Any] = {
            "batch": case.workload.batch_size,
            "context": case.workload.sequence_length,
            "gpus_per_stage": case.max_gpus_per_stage,
            "batch_split": case.batch_split,
        }
    else:
        first = _FIRST_COUNTS
        begins = {"network_gb_per_s": _NETWORK_GB_PER_S, "batch": None}
    if counts is not None:
        for name in counts:
            refuse_unknown(f"GPU type of {source} named", name, types_of(source))
        # A case keeps the types that are not named; of a model's many types, only the named ones
        # are shown.
        first = {**first, **counts} if source in _cases() else dict(counts)
    known = [f for f in Mix.__dataclass_fields__ if f not in ("source", "counts")]
    for name in values:
        refuse_unknown("control", name, known)
    for name, count in first.items():  # here, where the message can name the type
        whole_number("explore_mix", name, count, least=0, most=10_000)
    return Mix(source, tuple(first.items()), **(begins | values))


def problem_of(mix: Mix) -> Problem:
    """Return the problem of a mix; links are counted in tokens. A batch to be chosen begins with 16.

    Raises
    ------
    InvalidValue
        The values contradict each other; the message says which and why.

    Examples
    --------
    >>> problem = problem_of(beginning("tiny", gpus_per_stage=2))
    >>> problem.name, len(problem.cluster), problem.max_gpus_per_stage
    ('tiny', 4, 2)
    """
    if not sum(n for _, n in mix.counts):
        expected = "expected at least one: move a slider to the right"
        raise InvalidValue("explore_mix", [("GPUs", 0, expected)])
    if not mix.is_case and mix.network_gb_per_s is None:
        names = ", ".join(_cases())
        expected = f"expected a number of GB/s: only the cases {names} have links of their own"
        raise InvalidValue("explore_mix", [("network", "as in the case", expected)])
    return script_of(mix)[1].value


def code_of(mix: Mix, placement: Placement | None = None) -> str:
    """Return the lines that make the same problem and its optimum; with a placement, also its score.

    Examples
    --------
    >>> space = {}
    >>> exec(code_of(beginning("tiny", gpus_per_stage=2)), space)
    >>> round(space["result"].throughput, 3)
    301.784
    """
    script, _ = script_of(mix)
    chosen = "" if mix.batches is None else f", batches={mix.batches}"
    chosen += "" if mix.runs_on is None else f", runs_on={mix.runs_on!r}"
    if mix.limits:
        chosen += "".join(f", {name}={ms!r}" for name, ms in mix.limits.items())
        script.lines.append(f"best = pl.deploy(problem, single=True{chosen})")
    else:
        script.lines.append(f'result = pl.solve(problem, "aggregated"{chosen})')
    if mix.within is not None:
        script.lines.append(f"robust = pl.solve(result.problem, within={mix.within!r})")
    if placement is not None and not mix.limits:
        parts = [(len(stage.layers), stage.gpus) for stage in placement.stages]
        problem = "problem" if not chosen else "result.problem"
        script.lines.append(f"placement = pl.Placement.of({parts!r})")
        script.lines.append(f"score = pl.score({problem}, placement, result)")
    return script.code


def script_of(mix: Mix) -> tuple[Script, Term]:
    """Return the script of a mix's problem, and the problem as its last term."""
    script = Script()
    rules = {"max_gpus_per_stage": mix.gpus_per_stage, "batch_split": mix.batch_split}
    answers = mix.phase == "mixed" or (mix.phase == "decode" and mix.limits)
    written = (mix.output_tokens,) if answers else ()
    flight = {} if mix.in_flight is None else {"in_flight": mix.in_flight}
    load = public(Workload)(mix.context, mix.batch or _FIRST_BATCH, mix.phase, *written, **flight)
    if not mix.is_case:
        cluster, costs = _cluster(script, mix), _costs(script, mix)
        model = script.let("model", public(_load_model)(mix.source))
        load = script.let("load", load)
        problem = public(Problem)(cluster, model, load, costs, **rules, name=mix.source)
        return script, script.let("problem", problem)
    case = public(_load_case)(mix.source, link_units="tokens")
    case = script.let("case", case)
    changed: dict[str, Any] = {"workload": load, **rules}
    cluster = script.let("cluster", case.cluster.with_counts(dict(mix.counts)))
    if mix.network_gb_per_s is not None:
        together = Term("[0] * len(cluster)", lambda: [0] * len(cluster.value))
        whole = public(Cluster)(cluster.gpus, [[mix.network_gb_per_s]], together)
        changed["cluster"] = script.let("cluster", whole)
    changed.setdefault("cluster", cluster)
    if isinstance(mix.costs, CostModel):
        changed["costs"] = _costs(script, mix)
    elif LINEAR[mix.costs]:
        changed["costs"] = _replaced(case.costs, **LINEAR[mix.costs])
    return script, script.let("problem", _replaced(case, **changed))


def _replaced(term: Term, **changes: Any) -> Term:
    return Term("dataclasses.replace", lambda: replace)(term, **changes)


def trained_by(script: Script, problem: Term, *load: Any, **more: Any) -> Term:
    """Add the line that gives a problem the workload of training."""
    workload = public(Workload)(*load, "training", **more)
    return script.let("problem", _replaced(problem, workload=workload))


def _cluster(script: Script, mix: Mix) -> Term:
    counts = dict(mix.counts)
    if mix.gpus_per_node > 1:
        some = {t: n for t, n in counts.items() if n}
        gbit = 8 * (mix.network_gb_per_s or 0.0)
        joined = public(cluster_of_counts, "pl.hardware")
        return script.let("cluster", joined(some, mix.gpus_per_node, gbit))
    named = script.let("counts", literal(counts))
    facts = script.let("facts", public(load_gpus, "pl.hardware")())

    def of_each(name: str, field: str) -> Term:
        text = f"{{t: facts[t].{field} for t in counts}}"
        values = Term(text, lambda: {t: getattr(facts.value[t], field) for t in counts})
        return script.let(name, values)

    memory, price = of_each("memory", "memory_gb"), of_each("price", "usd_per_hour")
    made = public(Cluster).from_counts(named, memory, mix.network_gb_per_s, price)
    return script.let("cluster", made)


def _costs(script: Script, mix: Mix) -> Term:
    if isinstance(mix.costs, CostModel):
        script.lines.append("# costs is the cost model that explore_mix was given")
        return Term("costs", lambda: mix.costs)
    return script.let("costs", public(_roofline)(**ROOFLINE[mix.costs]))
