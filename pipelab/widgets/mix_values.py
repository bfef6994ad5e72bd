"""The values of the mix explorer, the problem they describe, and the code that makes the same problem."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Annotated, Any, Literal, cast

import numpy as np

from pipelab.cluster import Cluster
from pipelab.errors import InvalidValue, UnknownName, nearest
from pipelab.fields import Count, Later, Positive, checked, given, whole_number
from pipelab.hardware.known_clusters import cluster_of_counts
from pipelab.hardware.known_gpus import load_gpus
from pipelab.hardware.known_models import load_model, models
from pipelab.io.cases_csv import cases, load_case
from pipelab.placement import Placement
from pipelab.problem import Problem, Workload
from pipelab.widgets.mix_costs import LINEAR, ROOFLINE, code_of_costs, costs_of, knows

# Counts on the sliders when a model is chosen: a strong, a middling and a small type.
_FIRST_COUNTS = {"A100-SXM-40": 2, "L4": 4, "T4": 4}
_NETWORK_GB_PER_S = 12.5  # 100 Gbit/s between any two GPUs
# What the batch is chosen from; `_BATCH` first, then those near to the best so far.
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_BATCH = 16


@checked
class Mix:
    """One state of the explorer; every field is a control.

    Parameters
    ----------
    source : str
        A bundled case (its own model and GPUs) or a model of `pl.models()` (GPU types of
        `pl.gpus()`).
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
    costs : str, optional
        One of `cost_models(source)`, the first by default.

    Raises
    ------
    InvalidValue
        A value is outside its control's range.
    """

    source: str
    counts: tuple[tuple[str, int], ...]
    phase: Literal["prefill", "decode", "mixed"] = "prefill"
    batch: Count | None = _BATCH
    context: Count = 2048
    output_tokens: Count = 256
    in_flight: Count | None = None
    network_gb_per_s: Positive | None = None
    gpus_per_node: Count = 1
    gpus_per_stage: Count = 1
    batch_split: Literal["even", "balanced"] = "even"
    costs: Annotated[str, Later] = cast(str, None)

    def __post_init__(self) -> None:
        known = cost_models(self.source)
        if self.costs is None:
            object.__setattr__(self, "costs", known[0])
        if self.costs not in known:
            expected = f"{self.source} has {', '.join(map(repr, known))}"
            raise InvalidValue("explore_mix", [("costs", self.costs, expected)])

    @property
    def is_case(self) -> bool:
        """Whether the source is a bundled case and not a model."""
        return self.source in _cases()

    @property
    def known_types(self) -> tuple[str, ...]:
        """Its GPU types that the cost model has numbers for."""
        return tuple(t for t, _ in self.counts if self.is_case or knows(self.costs, t))

    @property
    def batches(self) -> tuple[int, ...] | None:
        """What `solve` and `deploy` choose the batch from; None where it is given."""
        return BATCHES if self.batch is None else None

    def with_one_more(self, gpu_type: str) -> "Mix":
        """The same with one more GPU of this type."""
        return replace(self, counts=tuple((t, n + (t == gpu_type)) for t, n in self.counts))


@cache
def sources() -> tuple[str, ...]:
    """Everything a mix can be about: the bundled cases, smallest first, then the models."""
    return (*_cases(), *models().index)


_cases = cache(cases)
# reading medium's files takes longer than drawing it
_case = cache(partial(load_case, link_units="tokens"))


def types_of(source: str) -> tuple[str, ...]:
    """The GPU types that can be mixed: a case's own, or all bundled ones.

    >>> types_of("tiny")
    ('A100', 'V100')
    """
    if source in _cases():
        return tuple(dict.fromkeys(gpu.type for gpu in _case(source).cluster.gpus))
    return tuple(load_gpus())


def cost_models(source: str) -> tuple[str, ...]:
    """Names of the cost models that a case or model can be seen by; its own comes first.

    >>> cost_models("tiny")
    ('linear', 'linear, no loss')
    """
    # A case's model has no attention heads to speak of, and Roofline needs them.
    return tuple(LINEAR) if source in _cases() else (*ROOFLINE, *LINEAR)


def beginning(source: str, counts: Mapping[str, int] | None = None, **values: Any) -> Mix:
    """The state to begin with: a case as it is, or a model with a small mix of GPUs.

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
    if source not in sources():
        raise UnknownName(
            f"there is no case or model {source!r}; {nearest(str(source), sources())}"
        )
    own: dict[str, Any] = {}
    if source in _cases():
        case = _case(source)
        there = [gpu.type for gpu in case.cluster.gpus]
        first = {t: there.count(t) for t in types_of(source)}
        own = {
            "batch": case.workload.batch_size,
            "context": case.workload.sequence_length,
            "gpus_per_stage": case.max_gpus_per_stage,
            "batch_split": case.batch_split,
        }
    else:
        first, own["network_gb_per_s"] = _FIRST_COUNTS, _NETWORK_GB_PER_S
        # The linear models know no KV cache: the largest batch would always seem best.
        own["batch"] = _BATCH if values.get("costs") in LINEAR else None
    if counts is not None:
        for name in counts:
            if name not in types_of(source):
                raise UnknownName(
                    f"{source} knows no GPU type {name!r}; {nearest(str(name), types_of(source))}"
                )
        # A case keeps the types that are not named; of a model's many types, only the named ones
        # are shown.
        first = {**first, **counts} if source in _cases() else dict(counts)
    known = [f for f in Mix.__dataclass_fields__ if f not in ("source", "counts")]
    for name in values:
        if name not in known:
            raise UnknownName(f"the explorer has no control {name!r}; {nearest(name, known)}")
    for name, count in first.items():  # here, where the message can name the type
        whole_number("explore_mix", name, count, least=0, most=10_000)
    return Mix(source, tuple(first.items()), **(own | values))


def problem_of(mix: Mix) -> Problem:
    """The problem of a mix; links are counted in tokens. A batch to be chosen begins with 16 sequences.

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
    counts = dict(mix.counts)
    if not sum(counts.values()):
        raise InvalidValue(
            "explore_mix", [("GPUs", 0, "expected at least one: move a slider to the right")]
        )
    written = mix.output_tokens if mix.phase == "mixed" else None
    load = Workload(mix.context, mix.batch or _BATCH, mix.phase, written, mix.in_flight)
    rules: dict[str, Any] = {
        "max_gpus_per_stage": mix.gpus_per_stage,
        "batch_split": mix.batch_split,
    }
    if mix.is_case:
        case = _case(mix.source)
        cluster = case.cluster.with_counts(counts)
        if mix.network_gb_per_s is not None:
            cluster = Cluster(
                cluster.gpus, np.array([[mix.network_gb_per_s]]), np.zeros(len(cluster), int)
            )
        costs = replace(case.costs, **LINEAR[mix.costs])
        return replace(case, cluster=cluster, workload=load, costs=costs, **rules)
    if mix.network_gb_per_s is None:
        expected = f"expected a number of GB/s: only the cases {', '.join(_cases())} have links of their own"
        raise InvalidValue("explore_mix", [("network", "as in the case", expected)])
    facts = load_gpus()
    memory, price = (
        {t: getattr(facts[t], name) for t in counts} for name in ("memory_gb", "usd_per_hour")
    )
    if mix.gpus_per_node > 1:
        some = {t: n for t, n in counts.items() if n}
        cluster = cluster_of_counts(some, mix.gpus_per_node, 8 * mix.network_gb_per_s)
    else:
        cluster = Cluster.from_counts(counts, memory, mix.network_gb_per_s, price)
    costs = costs_of(mix.costs, [t for t, n in counts.items() if n])
    return Problem(
        cluster, load_model(mix.source), load, costs, **rules, link_units="tokens", name=mix.source
    )


def code_of(mix: Mix, placement: Placement | None = None) -> str:
    """The few lines that make the same problem and its optimum; with a placement, also its score.

    Examples
    --------
    >>> space = {}
    >>> exec(code_of(beginning("tiny", gpus_per_stage=2)), space)
    >>> round(space["result"].throughput, 3)
    301.784
    """
    lines = code_of_problem(mix)
    chosen = "" if mix.batches is None else f", batches={mix.batches}"
    lines += [f'result = pl.solve(problem, "aggregated"{chosen})']
    if placement is not None:
        parts = [(len(stage.layers), stage.gpus) for stage in placement.stages]
        lines += [
            f"placement = pl.Placement.of({parts!r})",
            f"score = pl.score({'' if mix.batches is None else 'result.'}problem, placement, result)",
        ]
    return "\n".join(lines) + "\n"


def code_of_problem(mix: Mix) -> list[str]:
    """The lines that make `problem`, with their imports."""
    counts = dict(mix.counts)
    written = f", {mix.output_tokens}" if mix.phase == "mixed" else ""
    flight = "" if mix.in_flight is None else f", in_flight={mix.in_flight}"
    load = f"pl.Workload({mix.context}, {mix.batch or _BATCH}, {mix.phase!r}{written}{flight})"
    rules = f"max_gpus_per_stage={mix.gpus_per_stage}, batch_split={mix.batch_split!r}"
    if mix.is_case:
        lines = ["import dataclasses", "", "import pipelab as pl", ""]
        lines += [f'case = pl.load_case({mix.source!r}, link_units="tokens")']
        lines += [f"cluster = case.cluster.with_counts({counts!r})"]
        if mix.network_gb_per_s is not None:
            lines += [
                f"cluster = pl.Cluster(cluster.gpus, [[{mix.network_gb_per_s!r}]], [0] * len(cluster))"
            ]
        changed = "".join(f", {field}={value!r}" for field, value in LINEAR[mix.costs].items())
        lines += [f"costs = dataclasses.replace(case.costs{changed})"] if changed else []
        rules += ", costs=costs" if changed else ""
        lines += [f"problem = dataclasses.replace(case, cluster=cluster, workload={load}, {rules})"]
    else:
        lines = ["import pipelab as pl", ""]
        lines += _code_of_cluster(mix, counts)
        lines += [f"model, load = pl.load_model({mix.source!r}), {load}"]
        lines += [f'rules = dict({rules}, link_units="tokens", name={mix.source!r})']
        lines += code_of_costs(mix.costs, [t for t, n in mix.counts if n])
        lines += ["problem = pl.Problem(cluster, model, load, costs, **rules)"]
    return lines


def _code_of_cluster(mix: Mix, counts: dict[str, int]) -> list[str]:
    """The lines that make the cluster of a model's mix."""
    if mix.gpus_per_node > 1:
        some = {t: n for t, n in counts.items() if n}
        return [
            "from pipelab.hardware.known_clusters import cluster_of_counts",
            "",
            f"cluster = cluster_of_counts({some!r}, {mix.gpus_per_node}, {8 * given(mix.network_gb_per_s)!r})",
        ]
    return [
        f"counts, facts = {counts!r}, pl.load_gpus()",
        "memory = {t: facts[t].memory_gb for t in counts}",
        "price = {t: facts[t].usd_per_hour for t in counts}",
        f"cluster = pl.Cluster.from_counts(counts, memory, {mix.network_gb_per_s!r}, price)",
    ]
