"""The problem: a cluster, a model, a workload, and the limits of a stage.

All are frozen; change one thing with `dataclasses.replace`. Every field checks itself
once, so nothing further down needs to ask again whether a number is sensible.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Annotated, Any, Literal, NamedTuple, Self, cast, get_args

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.display import DataFrame, counted, data_frame, table
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
    described,
    is_list,
    is_real,
    python_value,
    whole_number,
)
from pipelab.placement import Placement
from pipelab.spans import Spans, layer_factors, spans_from_factors


class ModelLike:
    """What pipelab asks of a model: `Model` and `pipelab.hardware`'s `Transformer` answer it.

    A model of your own is a subclass with the first four attributes. Where its layers differ, it also has
    `weight_gb` and `work`. The numbers of several layers are the sums over these, and never change: each
    layer is requested once.

    Attributes
    ----------
    name : str
        For titles and messages.
    layers : int
        Number of decoder layers.
    d_model : int
        Width of the residual stream, in elements.
    layer_weight_gb : float
        Weights of one ordinary layer.
    bytes_per_element : float
        Of activations.
    d_hidden : int
        Width of the feed-forward block, in elements; only `LinearThroughput` reads it. 0: not known.
    heads : int
        Heads of attention, which GPUs that cut a layer share; 0 where this does not matter.
    window : int or None
        A token looks back at no more tokens than these.
    precision, kv_precision : str
        Of weights, and of keys and values, as inference engines call it; empty: not known.
    has_experts : bool
        Whether layers have a router.
    unmeasured : str
        What no measured model has; empty if there are measurements of such models.
    """

    name: str
    layers: int
    d_model: int
    layer_weight_gb: float
    bytes_per_element: float = 2
    d_hidden: int = 0
    heads: int = 0
    window: int | None = None
    precision: str = ""
    kv_precision: str = ""
    has_experts: bool = False
    unmeasured: str = ""

    def weight_gb(self, layers: range) -> float:
        """Return the weights of these layers, in the unit of `layer_weight_gb`."""
        return len(layers) * self.layer_weight_gb

    def work(self, layers: range) -> float:
        """Return for how many ordinary layers these count in time."""
        return float(len(layers))

    def cached_bytes(self, layers: range, tokens: int) -> float:
        """Return the bytes of keys and values that these layers keep of a sequence with so many tokens."""
        return len(layers) * min(self.window or tokens, tokens) * self.kv_bytes

    @derived
    def kv_bytes(self) -> float:
        """Bytes of keys and values per token and layer; by default, of as many heads as there are of queries."""
        return 2 * self.d_model * self.bytes_per_element

    @derived
    def uniform(self) -> bool:
        """Whether all layers are identical."""
        return self.spans.uniform

    @derived
    def spans(self) -> Spans:
        """The different kinds of consecutive layers: by default by their number, weight and work.

        Raises
        ------
        InvalidValue
            Weights or work of several layers are not the sum of those of each.
        """
        asked: dict[str, Callable[[range], float]] = {
            "weight_gb": lambda layers: self.weight_gb(layers) / self.layer_weight_gb,
            "work": self.work,
        }
        factors = layer_factors(type(self).__name__, self.layers, asked)
        return spans_from_factors(self.layers, *factors)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of copies what is large and follows from the model."""
        return {name: value for name, value in vars(self).items() if name != "spans"}


@checked
class Model(ModelLike):
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
    d_hidden: Count = field()  # must be given here, where `ModelLike` has a default
    layer_weight_gb: Positive
    bytes_per_element: Positive = 2
    weight_factors: tuple[Positive, ...] | None = None
    work_factors: tuple[Positive, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("weight_factors", "work_factors"):
            given = getattr(self, name)
            if given is not None and len(given) != self.layers:
                expected = f"expected one for each of the {self.layers} layers"
                raise InvalidValue("Model", [(name, f"{len(given)} numbers", expected)])

    @derived
    def uniform(self) -> bool:
        """Whether all layers are identical."""
        given = (f for f in (self.weight_factors, self.work_factors) if f is not None)
        return all(len(set(factors)) == 1 for factors in given)

    @derived
    def spans(self) -> Spans:
        """The different kinds of consecutive layers: by number, weight and work."""
        return spans_from_factors(self.layers, self.weight_factors, self.work_factors)

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
Filling = Literal["synchronous", "by_stages", "dynamic", "micro_batches", "one"]


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
        memory holds (`evaluate`). A number that is given stays, unless an engine cannot have so many
        (`CostModel.filling`): then it is the most.
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

    def seconds(self, tokens: float) -> float:
        """Return the seconds of one microbatch that counts for so many tokens."""
        return tokens / self.throughput if self.pass_seconds is None else self.pass_seconds

    def fits(self, gpus: Sequence[GPU]) -> bool:
        """Whether the stage has a rate, and the memory that it needs on each of its GPUs."""
        needs = zip(self.memory_gb, gpus, strict=True)
        return self.throughput > 0 and all(fits_in(need, gpu.memory_gb) for need, gpu in needs)


class StageTables(NamedTuple):
    """Many candidate stages: C compositions (how many GPUs of each kind) times U kinds of run of layers.

    Where all layers are identical, U is the number of layers and column n-1 is n of them.
    """

    throughput: np.ndarray  # (C, U) tokens/s
    memory_gb: np.ndarray  # (C, K, U) needed on a GPU of kind K; 0 where the composition has none
    pass_seconds: np.ndarray | None = None  # (C, U) as `StageCost.pass_seconds`

    def fits(self, kinds: Sequence[GPU]) -> np.ndarray:
        """Which candidates have a rate, and the memory on every GPU of theirs; bool, shape (C, U)."""
        memory = np.array([kind.memory_gb for kind in kinds])[None, :, None]
        return np.all(fits_in(self.memory_gb, memory), axis=1) & (self.throughput > 0)


class CostModel(ABC):
    """What stages yield and need, and what links carry.

    A cost model of your own is a subclass with `gpu_types` and `stage`; `docs/adding.md` shows one. It may look at
    layers through their number, `model.work(layers)` and `model.weight_gb(layers)`: the engine asks once for all
    stages that agree in these, and refuses a cost model that answers otherwise for the last layers than for the first.

    All else has a default. What else a cost model says, and why:

    ======================================  ===================================================================
    `check`                                 refuses problems without an answer
    `link_throughput`, `link_units`         links carry something else than the activations' bytes
    `memory_parts`                          names what memory is for, where a problem is infeasible
    `stage_tables`                          many stages at once, which is faster
    `mixes_as_slowest`                      a promise that saves the engine the mixtures of GPU types
    `nodes_matter_alone`                    a promise that makes identical nodes interchangeable
    `memory_by_size`                        a promise that lets GPUs of equal memory count together
    `cuts_every_layer`, `most_gpus`         rules for stages and pipelines, beyond those of the problem
    `prefer`, `preferring_rate`             stages have several execution modes
    `for_training`, `training_cost`,        gradients, optimizer and what memory keeps of them, for the objective
    `training_table`, `mfu`                 "step_time"
    `engine`, `runs_on`, `memory_share`,    the cost model describes an inference engine: `pl.settings` and
    `chunk_tokens`, `memory_as_sold`,       `runs_on` of `pl.solve` ask for these
    `counting_memory_of`,
    `cutting_every_layer`
    `cutting_no_layer`                      `Measured` takes memory from this cost model
    `with_link_units`                       links can be counted in another unit
    `filling`, `filling_number`             the engine fills a pipeline otherwise than with microbatches that
                                            never wait for each other; `pipelab.costs.filled` changes it
    ======================================  ===================================================================

    Attributes
    ----------
    link_units : str
        What links are counted in. Only the write-up has another unit than "tokens": "transfers", compared with a
        stage's tokens by mistake.
    prefer : {"rate", "time"}
        Which of its execution modes a stage runs in. With "rate" no stage is faster with more in flight.
    nodes_matter_alone : bool
        Whether nodes matter at most to stages of identical GPUs of one node, and only through `node_gb_per_s`.
    cuts_every_layer : bool
        Whether all GPUs of a stage cut every layer among them, and so are identical and in one node.
    most_gpus : float
        More GPUs than these no pipeline may have.
    engine : str
        The inference engine whose times a stage has; empty: none, or not known.
    runs_on : str
        The engine whose own memory counts, a row of `data/engine_memory.csv`; empty: none.
    memory_share : float or None
        Share of a GPU's memory that the engine may take. None: as much as a plan needs.
    chunk_tokens : int or None
        Tokens of prompts in one pass, for which memory counts. None: not known.
    filling : {"synchronous", "by_stages", "dynamic", "micro_batches", "one"}
        How the engine fills a pipeline, see `pipelab.filling`.
    filling_number : int
        With the filling "by_stages", batches in flight beyond one for each stage; with "micro_batches", the most
        parts in the pipeline at a time, and 0 for any number.
    """

    link_units: str = "tokens"
    prefer: Literal["rate", "time"] = "rate"
    nodes_matter_alone: bool = False
    cuts_every_layer: bool = False
    most_gpus: float = math.inf
    engine: str = ""
    runs_on: str = ""
    memory_share: float | None = None
    chunk_tokens: int | None = None
    filling: Filling = "synchronous"
    filling_number: int = 0

    @property
    @abstractmethod
    def gpu_types(self) -> Sequence[str]:
        """Names of the GPU types it knows; an attribute of the class will do."""

    @abstractmethod
    def stage(
        self,
        model: ModelLike,
        workload: Workload,
        gpus: Sequence[GPU],
        layers: range,
        batch_split: str,
    ) -> StageCost:
        """Return rate, batch shares and memory of one stage.

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
            In tokens/s, sequences and GB. A rate of 0 says that there is no answer for this stage.
        """

    def check(self, problem: "Problem") -> None:
        """Raise `InvalidValue` if there is no answer for this problem; by default none is refused.

        Parameters
        ----------
        problem : Problem
            Called when it is made.
        """
        return

    def link_throughput(self, problem: "Problem", bandwidth_gb_per_s: Any) -> Any:
        """Return the rate of links: by default bandwidth over tensor size, times the tensor's tokens.

        Parameters
        ----------
        problem : Problem
            Whose tensor counts.
        bandwidth_gb_per_s : float or array of float
            In GB/s, of 10^9 bytes.

        Returns
        -------
        float or numpy.ndarray
            In `link_units` per second; one number may stand for all links.
        """
        return python_value(bandwidth_gb_per_s / problem.tensor_gb() * problem.workload.tokens)

    def memory_parts(self, problem: "Problem", gpu: GPU, layers: range) -> dict[str, float]:
        """Return the memory that layers need on one GPU alone, by what it is for.

        Parameters
        ----------
        problem : Problem
            Whose model and workload count.
        gpu : GPU
            Works on the whole batch.
        layers : range
            Numbered from 0.

        Returns
        -------
        dict of str to float
            In GB; by default "weights" and "all else".
        """
        model = problem.model
        cost = answered(self, model, problem.workload, [gpu], layers, problem.batch_split)
        weights = model.weight_gb(layers)
        return {"weights": weights, "all else": cost.memory_gb[0] - weights}

    def stage_tables(
        self,
        model: ModelLike,
        workload: Workload,
        kinds: Sequence[GPU],
        composition: np.ndarray,
        batch_split: str,
    ) -> StageTables:
        """Return what `stage` says of every composition and every kind of consecutive layers (`model.spans`).

        Parameters
        ----------
        model : Model or Transformer
            With U kinds of span.
        workload : Workload
            What passes through them.
        kinds : sequence of GPU
            The K different GPUs.
        composition : array of int, shape (C, K)
            How many GPUs of each kind a candidate stage has; every row has at least one.
        batch_split : {"even", "balanced"}
            As in `Problem`.

        Returns
        -------
        StageTables
            By default `stage` is asked for one after the other.
        """
        starts, sizes = model.spans.examples
        shape = len(composition), len(starts)
        throughput, memory = np.empty(shape), np.zeros((shape[0], len(kinds), shape[1]))
        passes = np.empty(shape)
        for c, counts in enumerate(composition):
            which = np.repeat(np.arange(len(kinds)), counts)
            gpus = [kinds[int(k)] for k in which]

            def ask(start: int, stop: int, gpus: Sequence[GPU] = gpus) -> StageCost:
                return answered(self, model, workload, gpus, range(start, stop), batch_split)

            for u, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
                cost = ask(start, start + size)
                throughput[c, u] = cost.throughput
                memory[c, which, u] = cost.memory_gb
                seconds = workload.tokens / cost.throughput if cost.throughput > 0 else np.inf
                passes[c, u] = seconds if cost.pass_seconds is None else cost.pass_seconds
            if len(gpus) == 1:
                _refuse_positions(self, model, ask, throughput[c], memory[c, which[0]])
        return StageTables(throughput, memory, passes)

    def mixes_as_slowest(self, problem: "Problem") -> bool:
        """Whether a mixed stage is exactly as fast as the slowest stage of its size of one of its kinds.

        And fits where all of those fit. Then mixtures need not be listed to know their rates.

        Parameters
        ----------
        problem : Problem
            Whose batch split and nodes count.

        Returns
        -------
        bool
            By default False.
        """
        return False

    def memory_by_size(self, problem: "Problem") -> bool:
        """Whether a stage's memory depends on its layers and its number of GPUs alone, and every stage has a rate.

        Parameters
        ----------
        problem : Problem
            Whose batch split counts.

        Returns
        -------
        bool
            By default False.
        """
        return False

    def preferring_rate(self) -> Self:
        """Return this cost model with `prefer` set to "rate".

        Returns
        -------
        CostModel
            By default itself.
        """
        return self

    def for_training(self) -> Self:
        """Return this cost model with an engine that trains.

        Returns
        -------
        CostModel
            By default itself.
        """
        return self

    @property
    def knows_training(self) -> bool:
        """Whether it says what training takes and keeps: it has its own `training_cost`."""
        return type(self).training_cost is not CostModel.training_cost

    def training_cost(self, problem: "Problem", report: Any, **recipe: Any) -> tuple[float, ...]:
        """Return what one stage of a placement takes and keeps in training.

        Parameters
        ----------
        problem : Problem
            Its batch is one microbatch of whole sequences.
        report : StageReport
            Of the stage, from `evaluate`.
        **recipe
            Such as `recompute` and `bytes_per_parameter`, where the cost model knows training.

        Returns
        -------
        TrainingCost
            By default both gradients take as long as the forward, and memory counts microbatches.
        """
        return report.seconds, report.seconds, report.seconds, 0.0, 0.0, 1.0, 0.0, 0.0

    def training_table(
        self, problem: "Problem", gpus: Sequence[int], **recipe: Any
    ) -> np.ndarray | None:
        """Return `training_cost` for every kind of span of a stage of these GPUs: (8, U).

        Parameters
        ----------
        problem : Problem
            With a workload of training.
        gpus : sequence of int
            Ids of the stage's GPUs.
        **recipe
            As for `training_cost`.

        Returns
        -------
        numpy.ndarray or None
            By default None: `training_cost` is asked.
        """
        return None

    def mfu(self, problem: "Problem", placement: Placement, tokens_per_s: float) -> float | None:
        """Return the model FLOPs utilization of training: what a model needs, over what the GPUs could compute at most.

        Parameters
        ----------
        problem : Problem
            Whose model is trained.
        placement : Placement
            Whose GPUs count.
        tokens_per_s : float
            At which it is trained.

        Returns
        -------
        float or None
            A share; by default None: not known.
        """
        return None

    def memory_as_sold(self, gpu_type: str) -> float | None:
        """Return the GB that GPUs of a type have when nothing else uses them.

        Parameters
        ----------
        gpu_type : str
            Of a cluster.

        Returns
        -------
        float or None
            By default None: not known.
        """
        return None

    def counting_memory_of(self, engine: str, most_share: float) -> Self:
        """Return this cost model with what an engine keeps in memory.

        Parameters
        ----------
        engine : str
            A row of `data/engine_memory.csv`.
        most_share : float
            Of a GPU's memory, the engine takes no more.

        Returns
        -------
        CostModel
            By default itself: it cannot count it.
        """
        return self

    def cutting_every_layer(self) -> Self:
        """Return this cost model without stages whose GPUs share the batch.

        Returns
        -------
        CostModel
            By default itself: it cannot tell.
        """
        return self

    def cutting_no_layer(self) -> Self:
        """Return this cost model without stages whose GPUs cut layers.

        Returns
        -------
        CostModel
            By default itself: it has none.
        """
        return self

    def with_link_units(self, unit: Any) -> Self:
        """Return this cost model with links in another unit.

        Parameters
        ----------
        unit : str
            Such as "tokens".

        Returns
        -------
        CostModel
            By default itself.

        Raises
        ------
        InvalidValue
            There is no such unit; by default there are only "tokens".
        """
        if unit != "tokens":
            expected = "expected 'tokens': LinearThroughput alone has links in transfers/s"
            raise InvalidValue("Problem", [("link_units", unit, expected)])
        return self


_A_MODEL = "a model, such as Model(…) or load_model('Llama-3-8B'), or your subclass of pipelab.problem.ModelLike"
_A_COST_MODEL = "a cost model, such as Roofline() or LayerTimes(…), or your subclass of pipelab.problem.CostModel"


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
    costs : CostModel
        What a stage yields and needs: `LinearThroughput`, `Roofline`, `Measured`, `LayerTimes`, or one of your own.
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
    model: Annotated[ModelLike, described(_A_MODEL)]
    workload: Workload
    # may hold a dict, which has no hash
    costs: Annotated[CostModel, described(_A_COST_MODEL)] = field(hash=False)
    max_gpus_per_stage: Annotated[Count, Later] = cast(int, None)
    same_type_stages: Flag = True
    batch_split: Literal["even", "balanced"] = "even"
    name: str = "problem"

    def __post_init__(self) -> None:
        missing = [name for name in ModelLike.__annotations__ if not hasattr(self.model, name)]
        if missing:
            told = f"expected a model with {', '.join(missing)}"
            raise InvalidValue("Problem", [("model", type(self.model).__name__, told)])
        whole_number("Problem", "model.layers", self.model.layers, most=100_000)
        known = self.costs.gpu_types
        unknown = dict.fromkeys(g.type for g in self.cluster.kinds if g.type not in known)
        if unknown:
            remedy = "give costs=LinearThroughput({…}) for others"
            expected = f"not a GPU type the cost model knows ({remedy}); "
            problems = [("gpu_type", t, expected + nearest(t, known)) for t in unknown]
            raise InvalidValue("Problem", problems)
        if self.max_gpus_per_stage is None:
            object.__setattr__(self, "max_gpus_per_stage", self.cluster.largest_node)
        if self.costs.filling not in get_args(Filling):
            known = nearest(self.costs.filling, get_args(Filling))
            raise InvalidValue("Problem", [("costs.filling", self.costs.filling, known)])
        self.costs.check(self)

    def with_in_flight(self, number: int | None) -> "Problem":
        """Make this problem with a number of microbatches in flight.

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

    @property
    def parts(self) -> int:
        """Parts into which an engine cuts a microbatch: with the filling "micro_batches" by its tokens in one pass."""
        chunk = self.costs.chunk_tokens
        if self.costs.filling != "micro_batches" or self.workload.phase != "prefill" or not chunk:
            return 1
        return math.ceil(self.workload.tokens_passed / chunk)

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
        rate = python_value(self.costs.link_throughput(self, bandwidth_gb_per_s))
        if isinstance(bandwidth_gb_per_s, float) and isinstance(rate, float) and rate > 0:
            return rate  # one link of very many
        given = np.asarray(bandwidth_gb_per_s)
        try:
            # A model may take all links for equally fast, and answer with one number.
            rates = np.broadcast_to(np.asarray(rate, float), given.shape)
            bad = given[(given > 0) & ~(rates > 0)]
            expected = (
                f"expected more than 0 {self.costs.link_units}/s where the bandwidth is above 0"
            )
            found = rate if not bad.size else f"{rates[given == bad[0]][0]} at {bad[0]:g} GB/s"
        except (TypeError, ValueError):
            bad, found = given, rate
            expected = "expected a number, or an array of the shape of bandwidth_gb_per_s"
        if bad.size:
            asked = f"{type(self.costs).__name__}.link_throughput"
            raise InvalidValue(asked, [("rate", found, expected)])
        return rates.copy() if given.ndim else rates.item()

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

    def stage_tables(self, kinds: Sequence[GPU], composition: np.ndarray) -> StageTables:
        """Rate and memory of many stages, as the cost model has them.

        Parameters
        ----------
        kinds : sequence of GPU
            The K different GPUs.
        composition : array of int, shape (C, K)
            How many GPUs of each kind a stage has; every row has at least one.

        Returns
        -------
        StageTables
            For each composition and each kind of consecutive layers.
        """
        load, split = self.workload, self.batch_split
        return self.costs.stage_tables(self.model, load, kinds, composition, split)

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
        sending = self.workload.tokens / self.link_throughput(bandwidth_gb_per_s)
        return python_value(sending + latency_ms / 1000)

    def to_frame(self) -> DataFrame:
        """The problem as a table of names and values.

        Returns
        -------
        pandas.DataFrame
            Two columns of text, the first with the problem's name as its title.
        """
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
            "links counted in": f"{self.costs.link_units}/s",
            "pipelines filled": self.costs.filling,
        }
        return data_frame(rows.items(), columns=[self.name, "value"])

    def _repr_html_(self) -> str:
        return table(self.to_frame())


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


def _refuse_positions(
    costs: CostModel,
    model: ModelLike,
    ask: Callable[[int, int], StageCost],
    throughput: np.ndarray,
    memory_gb: np.ndarray,
) -> None:
    """Refuse a cost model for which layers differ that the `model` calls identical.

    Each layer alone is looked at, and of every number of layers the last ones: where the head is.
    """
    last = model.layers
    for start, stop in sorted({(i, end) for i in range(last) for end in (i + 1, last)}):
        kind = int(model.spans.kind[start, stop - start - 1])
        first = int(model.spans.examples[0][kind])
        if first == start:
            continue
        cost = ask(start, stop)
        found, expected = (cost.throughput, cost.memory_gb[0]), (throughput[kind], memory_gb[kind])
        if not all(map(math.isclose, found, expected)):  # up to 1e-9
            like = f"as range({first}, {first + stop - start}): {expected[0]:g} and {expected[1]:g}"
            shown = f"{found[0]:g} tokens/s and {found[1]:g} GB"
            remedy = "where layers differ, give the model weight_factors or work_factors that do"
            problem = (f"range({start}, {stop})", shown, f"expected the same {like}; {remedy}")
            raise InvalidValue(f"{type(costs).__name__}.stage", [problem])
