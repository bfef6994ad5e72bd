"""The problem: a cluster, a model, a workload, and the limits of a stage.

All are frozen; change one thing with `dataclasses.replace`. Every field checks itself
once, so nothing further down needs to ask again whether a number is sensible.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    cast,
    runtime_checkable,
)

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.display import counted, table
from pipelab.errors import InvalidValue, NotApplicable, nearest
from pipelab.fields import (
    MOST_COUNTED,
    Count,
    Flag,
    Later,
    Layers,
    Positive,
    checked,
    derived,
    is_list,
    is_real,
    python_value,
    whole_number,
)

if TYPE_CHECKING:
    from pandas import DataFrame


@runtime_checkable
class ModelLike(Protocol):
    """What a model must offer: `Model` does, and so does `pipelab.hardware`'s `Transformer`.

    Weights and work of several layers are the sums over these, and never change: each layer is
    requested once.
    """

    @property
    def name(self) -> str:
        """For titles and messages."""

    @property
    def layers(self) -> int:
        """Number of decoder layers."""

    @property
    def d_model(self) -> int:
        """Width of the residual stream, in elements."""

    @property
    def bytes_per_element(self) -> float:
        """Of activations."""

    @property
    def layer_weight_gb(self) -> float:
        """Weights of one ordinary layer."""

    @property
    def uniform(self) -> bool:
        """Whether all layers are identical."""

    def weight_gb(self, layers: range) -> float:
        """Weights of these layers."""

    def work(self, layers: range) -> float:
        """For how many ordinary layers these count in time."""


@checked
class Model:
    """A decoder-only language model, as far as its placement is concerned.

    Parameters
    ----------
    name : str
        For titles and messages.
    layers : int
        Number of decoder layers L, at most 100,000.
    d_model, d_hidden : int
        Width of the residual stream and of the feed-forward block, in elements.
    layer_weight_gb : float
        Weights of one ordinary layer, in the unit of `GPU.memory_gb`.
    bytes_per_element : float
        Of activations: 2 for fp16 and bf16.
    weight_factors, work_factors : sequence of float, length L, optional
        Where layers differ, one number per layer: how many ordinary layers it weighs, and how
        many it counts for in throughput. By default 1 for every layer.

    Raises
    ------
    InvalidValue
        A number is not finite and above 0, or there are not as many factors as layers.

    Examples
    --------
    >>> import pipelab as pl
    >>> model = pl.Model("heavy head", 4, 4096, 11008, 2.0, weight_factors=(1, 1, 1, 1.5))
    >>> model.weight_gb(range(2, 4)), model.uniform
    (5.0, False)
    """

    name: str
    layers: Layers
    d_model: Count
    d_hidden: Count
    layer_weight_gb: Positive
    bytes_per_element: Positive = 2
    weight_factors: tuple[Positive, ...] | None = None
    work_factors: tuple[Positive, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("weight_factors", "work_factors"):
            given = getattr(self, name)
            if given is not None and len(given) != self.layers:
                problem = (
                    name,
                    f"{len(given)} numbers",
                    f"expected one for each of the {self.layers} layers",
                )
                raise InvalidValue("Model", [problem])

    @derived
    def uniform(self) -> bool:
        """Whether all layers are identical."""
        given = (f for f in (self.weight_factors, self.work_factors) if f is not None)
        return all(len(set(factors)) == 1 for factors in given)

    def weight_gb(self, layers: range) -> float:
        """Weights of these layers.

        Parameters
        ----------
        layers : range
            Numbered from 0.

        Returns
        -------
        float
            In the unit of `layer_weight_gb`.
        """
        return _sum(self.weight_factors, layers) * self.layer_weight_gb

    def work(self, layers: range) -> float:
        """For how many ordinary layers these count in throughput.

        Parameters
        ----------
        layers : range
            Numbered from 0.

        Returns
        -------
        float
            The sum of their `work_factors`.
        """
        return _sum(self.work_factors, layers)


def _sum(factors: tuple[float, ...] | None, layers: range) -> float:
    return float(len(layers)) if factors is None else math.fsum(factors[layers.start : layers.stop])


Phase = Literal["prefill", "decode", "mixed", "training"]


@checked
class Workload:
    """The requests that the model serves, or the step that trains it.

    Parameters
    ----------
    sequence_length : int
        Tokens per sequence: the prompt in prefill, the length of the KV cache in decode.
    batch_size : int
        Sequences that go through the pipeline together: one microbatch.
    phase : {"prefill", "decode", "mixed", "training"}
        A microbatch reads whole prompts, or adds one token to every sequence, or does the latter
        and reads as many prompt tokens as keep new sequences coming, or goes forward and backward
        (for the objective "step_time" of `solve`). The write-up has prefill only.
    output_tokens : int, optional
        Tokens written per sequence; needed where the phase is "mixed", or `timed_at` is given.
    in_flight : int, optional
        Microbatches in the pipeline at a time; each keeps its KV cache on every stage. By default
        the number is chosen together with the placement: the one that yields most of those that
        memory holds (`evaluate`). A number that is given stays.
    microbatches : int
        Of a step; read in "training".
    timed_at : {"mean", "last"}, optional
        In decode and mixed, the token of an answer that a pass is timed at: "mean" over all of them, or the
        "last", whose context is longest. Memory holds the whole answer. By default "mean" in mixed, while
        decode without it has a cache of `sequence_length` tokens alone.

    Raises
    ------
    InvalidValue
        A count is not a whole number from 1 to 10^9, there is no such phase, or it is "mixed" or timed
        at a token of an answer without `output_tokens`.

    Examples
    --------
    >>> Workload(1000, 8, "mixed", output_tokens=500).tokens_passed  # 8 new ones and 16 of prompts
    24.0
    """

    sequence_length: Count
    batch_size: Count
    phase: Phase = "prefill"
    output_tokens: Count | None = None
    in_flight: Count | None = None
    microbatches: Count = 1
    timed_at: Literal["mean", "last"] | None = None

    def __post_init__(self) -> None:
        if self.output_tokens is None and (self.phase == "mixed" or self.timed_at):
            what = f"timed_at={self.timed_at!r}" if self.timed_at else "phase='mixed'"
            expected = f"expected how many tokens are written per sequence, with {what}"
            raise InvalidValue("Workload", [("output_tokens", None, expected)])

    @property
    def in_memory(self) -> int:
        """Microbatches that memory is counted for: `in_flight`, or 1 where that is to be chosen."""
        return 1 if self.in_flight is None else self.in_flight

    @property
    def tokens(self) -> float:
        """Tokens that one microbatch counts for: of whole sequences, else new ones."""
        whole = self.phase in ("prefill", "training")
        return float(self.batch_size * (self.sequence_length if whole else 1))

    @property
    def tokens_passed(self) -> float:
        """Tokens whose activations one microbatch carries from stage to stage."""
        more = self.sequence_length / self.written if self.phase == "mixed" else 0.0
        return self.tokens + self.batch_size * more

    @property
    def written(self) -> int:
        """Tokens that follow each prompt: `output_tokens` in mixed, and in decode with `timed_at`; else 0."""
        counts = self.phase == "mixed" or (self.phase == "decode" and self.timed_at)
        return cast(int, self.output_tokens) if counts else 0


# A stage that needs exactly the available memory fits, despite rounding.
MEMORY_SLACK = 1 + 1e-9


def fits_in(needed_gb: Any, memory_gb: Any) -> Any:
    """Whether so much memory is enough; numbers or arrays, which broadcast.

    >>> fits_in(80.0 + 1e-12, 80.0), fits_in(80.1, 80.0)
    (True, False)
    """
    return needed_gb <= memory_gb * MEMORY_SLACK


class StageCost(NamedTuple):
    """One stage: its rate, and per GPU its share of the batch and the memory it needs."""

    throughput: float  # tokens/s
    batch: tuple[float, ...]  # sequences on each GPU, on average
    memory_gb: tuple[float, ...]  # needed on each GPU
    # GPUs that split each layer (tensor parallelism); 1: each GPU holds its layers whole.
    degree: int = 1
    # Of one microbatch, in whole sequences; None: its tokens over the throughput.
    pass_seconds: float | None = None

    def fits(self, gpus: Sequence[GPU]) -> bool:
        """Whether the stage has a rate, and the memory that it needs on each of its GPUs."""
        needs = zip(self.memory_gb, gpus, strict=True)
        return self.throughput > 0 and all(fits_in(need, gpu.memory_gb) for need, gpu in needs)


@runtime_checkable
class CostModel(Protocol):
    """What a cost model must offer; anything that has these four members will do.

    Layers may count through their number, `model.work(layers)` and `model.weight_gb(layers)`: the
    engine asks once for all stages that agree in these, and refuses a model that answers otherwise
    for the last layers than for the first. Optional members make it faster or its
    reasons richer: `stage_tables`, `mixes_as_slowest`, `memory_parts`, all explained in
    `pipelab.stage_arrays`. For training, `training_cost(problem, report, **recipe)` gives a
    `TrainingCost`, as that of `Roofline` does; its `training_table` has them for many stages.
    """

    @property
    def gpu_types(self) -> Sequence[str]:
        """Names of the GPU types it knows."""

    def check(self, problem: "Problem") -> None:
        """Raise `InvalidValue` if the model has no answer for this problem.

        Parameters
        ----------
        problem : Problem
            Called when it is made.
        """

    def stage(
        self,
        model: ModelLike,
        workload: Workload,
        gpus: Sequence[GPU],
        layers: range,
        batch_split: str,
    ) -> StageCost:
        """Rate, batch shares and memory of a stage.

        Parameters
        ----------
        model : Model or Transformer
            Whose layers these are.
        workload : Workload
            What passes through them.
        gpus : sequence of GPU
            Those of the stage.
        layers : range
            Numbered from 0.
        batch_split : {"even", "balanced"}
            As in `Problem`.

        Returns
        -------
        StageCost
            In tokens/s, sequences and GB.
        """

    def link_throughput(self, problem: "Problem", bandwidth_gb_per_s: Any) -> Any:
        """Rate of links.

        Parameters
        ----------
        problem : Problem
            Whose tensor counts.
        bandwidth_gb_per_s : float or array of float
            In GB/s, of 10^9 bytes.

        Returns
        -------
        float or numpy.ndarray
            In tokens/s, unless the model has another unit as `link_units`.
        """


@checked
class Problem:
    """Everything a placement depends on; `Placement` lists the rules that it must obey.

    Parameters
    ----------
    cluster : Cluster
        The GPUs there are, and the links between them.
    model : Model or Transformer
        What is to be placed.
    workload : Workload
        The requests it serves.
    costs : cost model
        What a stage yields and needs: `LinearThroughput`, `Roofline`, `Measured`, or one of your
        own with their methods.
    max_gpus_per_stage : int, optional
        The most GPUs that may share one stage, each with a full copy of its layers. By default those
        of the cluster's largest node, and 1 where GPUs are in no node.
    same_type_stages : bool
        True: all GPUs of a stage are of one type.
    batch_split : {"even", "balanced"}
        How a stage's GPUs share the batch: equally, or so that all finish together.
    name : str
        For titles and messages.

    Raises
    ------
    InvalidValue
        A field does not fit, the cost model does not know a type of GPU, or its own `check` refuses
        the problem.

    Examples
    --------
    >>> import dataclasses, pipelab as pl
    >>> tiny = pl.load_case("tiny")
    >>> dataclasses.replace(tiny, max_gpus_per_stage=2).max_gpus_per_stage
    2
    """

    cluster: Cluster
    model: Any
    workload: Workload
    costs: Any
    max_gpus_per_stage: Annotated[Count, Later] = cast(int, None)
    same_type_stages: Flag = True
    batch_split: Literal["even", "balanced"] = "even"
    name: str = "problem"

    def __post_init__(self) -> None:
        remedies = {
            "model": (ModelLike, "a model, such as Model(…) or load_model('Llama-3-8B')"),
            "costs": (CostModel, "a cost model, such as load_coefficients()"),
        }
        bad = []
        for name, (protocol, remedy) in remedies.items():
            value = getattr(self, name)
            missing = [m for m in _members(protocol) if not hasattr(value, m)]
            if isinstance(value, type):
                bad.append((name, value, f"expected {remedy}; this is a class: call it"))
            elif missing:
                bad.append((name, value, f"expected {remedy}; this has no {', '.join(missing)}"))
        if bad:
            raise InvalidValue("Problem", bad)
        whole_number("Problem", "model.layers", self.model.layers, most=100_000)
        known = self.costs.gpu_types
        unknown = dict.fromkeys(g.type for g in self.cluster.kinds if g.type not in known)
        if unknown:
            remedy = "give costs=LinearThroughput({…}) for others"
            expected = f"not a GPU type the cost model knows ({remedy}); "
            raise InvalidValue(
                "Problem", [("gpu_type", t, expected + nearest(t, known)) for t in unknown]
            )
        if self.max_gpus_per_stage is None:
            object.__setattr__(self, "max_gpus_per_stage", self.cluster.largest_node)
        self.costs.check(self)

    def with_in_flight(self, number: int | None) -> "Problem":
        """The same problem with this number of microbatches in flight.

        Parameters
        ----------
        number : int or None
            None: to be chosen.

        Returns
        -------
        Problem
            With `Workload.in_flight` changed alone.
        """
        return replace(self, workload=load_with(self, number))

    def tensor_gb(self) -> float:
        """Size of the activations handed from one stage to the next.

        Returns
        -------
        float
            Of one microbatch, in GB of 10^9 bytes, as links are. `LinearThroughput` counts in GiB.
        """
        elements = self.workload.tokens_passed * self.model.d_model
        return elements * self.model.bytes_per_element / 1e9

    def link_throughput(self, bandwidth_gb_per_s: np.ndarray | float) -> Any:
        """Rate of links of these bandwidths, as the cost model has it.

        Parameters
        ----------
        bandwidth_gb_per_s : float or array of float
            In GB/s.

        Returns
        -------
        float or numpy.ndarray
            In tokens/s, or the cost model's own `link_units`; of the shape that was given.

        Raises
        ------
        InvalidValue
            A link that has a bandwidth has no rate above 0.
        """
        return link_answered(self, bandwidth_gb_per_s)

    def stage_cost(self, gpus: Sequence[GPU], layers: range) -> StageCost:
        """Rate, batch shares and memory of one stage, as the cost model has it.

        Parameters
        ----------
        gpus : sequence of GPU
            Those of the stage.
        layers : range
            Numbered from 0.

        Returns
        -------
        StageCost
            Its `fits` says whether the GPUs have the memory.

        Raises
        ------
        InvalidValue
            The cost model's answer has no valid number for each of the GPUs.
        """
        return answered(self.costs, self.model, self.workload, gpus, layers, self.batch_split)

    def message_seconds(
        self, bandwidth_gb_per_s: np.ndarray | float, latency_ms: np.ndarray | float
    ) -> Any:
        """From the first byte sent to the last received, of one microbatch's message.

        The link is taken for what its rate says; the latency only delays. For links counted in
        tokens/s.

        Parameters
        ----------
        bandwidth_gb_per_s : float or array of float
            In GB/s.
        latency_ms : float or array of float
            In ms; broadcasts with the bandwidth.

        Returns
        -------
        float or numpy.ndarray
            In seconds.
        """
        return python_value(
            self.workload.tokens / self.link_throughput(bandwidth_gb_per_s) + latency_ms / 1000
        )

    def to_frame(self) -> "DataFrame":
        """The problem as a table of names and values.

        Returns
        -------
        pandas.DataFrame
            Two columns of text, the first with the problem's name as its title.
        """
        import pandas as pd

        model, load, pool = self.model, self.workload, self.cluster.to_frame()
        gpus = zip(pool["count"], pool["type"], pool["memory_gb"], strict=True)
        differ = "" if model.uniform else ", more or less where layers differ"
        phase = "" if load.phase == "prefill" else f", {load.phase}"
        same = ", all of one type" if self.same_type_stages else ""
        rows = {
            "model": f"{model.name}, {counted(model.layers, 'layer')}",
            "weights of one layer": f"{model.layer_weight_gb:g} GB{differ}",
            "batch × sequence": f"{load.batch_size} × {load.sequence_length} tokens{phase}",
            "tensor between stages": f"{self.tensor_gb():.4g} GB",
            "GPUs": ", ".join(f"{count} × {kind} ({gb:g} GB)" for count, kind, gb in gpus),
            "GPUs per stage": f"at most {self.max_gpus_per_stage}{same}",
            "batch split": self.batch_split,
            "links counted in": f"{link_unit(self.costs)}/s",
        }
        return pd.DataFrame(rows.items(), columns=[self.name, "value"])

    def _repr_html_(self) -> str:
        return table(self.to_frame())


def _members(protocol: type) -> list[str]:
    """The names that a protocol asks for, in the order of its definition."""
    return [name for name in vars(protocol) if not name.startswith("_")]


def require_identical_layers(problem: Problem, method: str) -> None:
    """Raise `NotApplicable` for a method that needs identical layers, if they are not."""
    if not problem.model.uniform:
        expected = "expected identical layers; 'aggregated', 'joint' and 'single_gpu' take others"
        raise NotApplicable(method, [("model", problem.model.name, expected)])


def load_with(problem: Problem, number: int | None) -> Workload:
    """The workload with this number in flight, which only a long latency makes larger than can be counted."""
    if number is not None and number > MOST_COUNTED:
        expected = f"expected less: a full pipeline would have {number:,} microbatches in flight, of at most 10^9"
        longest = float(problem.cluster.latency_ms.max())
        raise InvalidValue("Problem", [("cluster.latency_ms", longest, expected)])
    return replace(problem.workload, in_flight=number)


def answered(
    costs: CostModel,
    model: ModelLike,
    workload: Workload,
    gpus: Sequence[GPU],
    layers: range,
    batch_split: str,
) -> StageCost:
    """What a cost model answers about a stage, in Python's numbers.

    Raises
    ------
    InvalidValue
        It is not a `StageCost`, a number is not valid, or there is not one for each GPU.
        A rate of 0 says that the model has no answer; infinite memory says that the stage fits
        nowhere.
    """
    cost, each = costs.stage(model, workload, gpus, layers, batch_split), []
    expected = f"expected a number of at least 0 for each of {counted(len(gpus), 'GPU')}"
    bad: list[tuple[str, object, str]] = []
    if isinstance(cost, StageCost):
        rate, passes = _number(cost.throughput), _number(cost.pass_seconds)
        if not is_real(rate):
            bad.append(("throughput", rate, "expected a finite number of tokens/s"))
        if rate and passes is not None and not (is_real(passes) and passes > 0):
            bad.append(("pass_seconds", passes, "expected seconds, more than 0, or None"))
        for name, values in (("batch", cost.batch), ("memory_gb", cost.memory_gb)):
            numbers = [_number(v) for v in values] if is_list(values) else []
            fit = [is_real(v) or v == math.inf for v in numbers]
            if len(numbers) != len(gpus) or not all(fit) or min(numbers) < 0:
                bad.append((name, values, expected))
            each.append(numbers)
    else:
        bad.append(("answer", cost, "expected a StageCost"))
    if bad:
        raise InvalidValue(f"{type(costs).__name__}.stage", bad)
    batch, memory = (tuple(map(float, numbers)) for numbers in each)
    passes = None if passes is None else float(passes)
    return StageCost(float(rate), batch, memory, int(cost.degree), passes)


def _number(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number."""
    return value.item() if isinstance(value, np.ndarray) and not value.ndim else python_value(value)


def link_unit(costs: CostModel) -> str:
    """Return what a cost model counts on links: tokens, or what its attribute `link_units` says.

    Only the write-up's model has one: "transfers", compared with a stage's tokens by mistake.
    """
    return getattr(costs, "link_units", "tokens")


def link_answered(problem: Problem, bandwidth_gb_per_s: Any) -> Any:
    """What the problem's cost model answers about links: `Problem.link_throughput`.

    Raises
    ------
    InvalidValue
        It is not a number, or not above 0 where the bandwidth is.
    """
    rate = python_value(problem.costs.link_throughput(problem, bandwidth_gb_per_s))
    if isinstance(bandwidth_gb_per_s, float) and isinstance(rate, float) and rate > 0:
        return rate  # one link of very many
    given = np.asarray(bandwidth_gb_per_s)
    try:
        # A model may take all links for equally fast, and answer with one number.
        rates = np.broadcast_to(np.asarray(rate, float), given.shape)
        bad = given[(given > 0) & ~(rates > 0)]
        expected = (
            f"expected more than 0 {link_unit(problem.costs)}/s where the bandwidth is above 0"
        )
        found = rate if not bad.size else f"{rates[given == bad[0]][0]} at {bad[0]:g} GB/s"
    except (TypeError, ValueError):
        bad, found = given, rate
        expected = "expected a number, or an array of the shape of bandwidth_gb_per_s"
    if bad.size:
        raise InvalidValue(
            f"{type(problem.costs).__name__}.link_throughput", [("rate", found, expected)]
        )
    return rates.copy() if given.ndim else rates.item()
