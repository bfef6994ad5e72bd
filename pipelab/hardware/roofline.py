"""Roofline: what a stage of real GPUs yields and needs.

A pass takes each layer as long as the slower of computing and moving bytes, plus what does not
overlap (Williams, Waterman and Patterson, 2009). The constants are few and named; each has one
value per type of GPU or one for all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self, cast

import numpy as np
from annotated_types import MinLen
from pydantic import InstanceOf

from pipelab.cluster import GPU
from pipelab.costs import TrainingCost, pass_time, whole_sequences
from pipelab.errors import InvalidValue, UnknownName, nearest
from pipelab.evaluation import StageReport
from pipelab.fields import (
    Count,
    Flag,
    Natural,
    NotNegative,
    Share,
    checked,
    checked_arguments,
    checked_value,
    derived,
    described,
    python_value,
)
from pipelab.hardware.engine_memory import memory_of
from pipelab.hardware.known_gpus import GPUFacts, load_gpus
from pipelab.hardware.pass_times import Demand, Hardware, Span, moved_bytes
from pipelab.hardware.published_times import Band, band_of, group_of
from pipelab.hardware.serving_engines import Engine, load_engines
from pipelab.hardware.training_memory import (
    OPTIMIZER_BYTES,
    UPDATE_BYTES,
    WEIGHT_BYTES,
    Recompute,
    activation_bytes,
    head_bytes,
    weight_share,
)
from pipelab.hardware.transformer import Transformer
from pipelab.placement import Placement
from pipelab.problem import (
    MEMORY_SLACK,
    CostModel,
    Filling,
    ModelLike,
    Problem,
    StageCost,
    StageTables,
    Workload,
)

TRAINER = "Megatron"  # trains where the engine is one for inference
WithDimensions = Annotated[
    Transformer, described("a model with dimensions, such as load_model('Llama-3-8B')")
]


@checked
class Roofline(CostModel):
    """The physical cost model.

    Parameters
    ----------
    gpus : mapping of GPU type to GPUFacts, optional
        By default all of `data/gpus.csv`. `π` = fp16_tflop_per_s, `β` = memory_bandwidth_gb_per_s
        and `η_c` = compute_efficiency come from there.
    engine : str
        The engine: "vLLM", "TensorRT-LLM", "SGLang", "llama.cpp", "vLLM 0.2" (of 2023, eager),
        "llama.cpp 2024" (without fused attention), "kernels" for the kernels alone, or another of
        `engines`. "Megatron" trains, and is what trains where the engine is for inference alone.
    engines : mapping of name to Engine, optional
        By default all of `data/engines.csv`.
    hop_latency_s : float
        `α`, what sending a message to another node takes besides its bytes, in seconds; the link is
        busy for that long. The time on the wire belongs to the link (`Cluster.latency_ms`) and
        delays no other message.
    memory_share : float
        Share of a GPU's memory that may be used.
    tensor_parallel : bool
        Whether the GPUs of a stage that share a node, and are identical (`GPU`), may also cut
        each layer among them.
    copies : bool
        Whether the GPUs of a stage may each hold all its layers and share the batch. Without, all of
        them cut every layer among them, and a stage whose GPUs cannot do that has no rate; engines
        start no other stages (`pl.settings`).
    prefer : {"rate", "time"}
        Which of the execution modes that fit in memory a stage runs in: the one with the
        highest rate, or the one with the shortest pass. Every method and `evaluate` take the same;
        they differ only if a batch is shared unevenly. Set "time" if the end-to-end latency is
        the objective (`solve_for_least`).
    runs_on : str
        The engine whose own memory counts, a row of `data/engine_memory.csv`: `solve`, `deploy` and
        `settings` set it. Empty: no engine's memory counts, only weights, cache and activations.
    filling : {"synchronous", "by_stages", "dynamic", "micro_batches", "one"}
        How a pipeline is filled (`pipelab.filling`). `runs_on` of `pl.solve` takes the engine's in its place.
    filling_number : int
        With "by_stages", batches in flight beyond one for each stage; with "micro_batches", the most parts in the
        pipeline at a time, and 0 for any number.

    Raises
    ------
    InvalidValue
        A share is not above 0 and at most 1, a time is negative, or `gpus` is empty.
    UnknownName
        There is no engine of this name.

    Notes
    -----
    With t GPUs cutting a layer, in seconds (computed in `pass_times`, `Hardware.layers_seconds`):

        τ_c = matrix FLOPs / (t · π · η_c) + attention FLOPs / (t · π₁₆ · η_c)
        τ_m = (weights / (t · η_q) + KV / (min(t, K) · η_kv) + activations / t) / (β · η_m)
        τ_tp = 2 · (2(t − 1)/t · b·q·d·2 bytes / (η_l · bandwidth inside the node) + α_ar)
        T_stage = Σ layers [max(τ_c, τ_m) + (1 − φ) · min(τ_c, τ_m) + τ0 + τ_tp] + head + τ1(b)

    and the rate is the tokens of a pass over T_stage. FLOPs and bytes are those of `Demand`. φ,
    τ0, τ1, α_ar and all η except η_c belong to the `Engine`, which also has a factor of η_c in
    prefill. π is the peak at 16 bits (π₁₆) whatever the weights are stored in, except for fp8 on
    GPUs that have it, of which `GPUFacts.fp8_share` is reached; attention always computes at 16 bits.
    All-reduces of 64 MiB and more reach only `Engine.large_allreduce` of η_l, if the engine has one,
    and those of three and more GPUs over PCIe no more than `data/pcie_allreduce.csv` says. Experts
    compute at `Engine.experts_efficiency` of the speed, and a layer that has them takes
    `experts_overhead_us` more, and the time to move their rows (`Demand.expert_bytes`). k GPUs of a
    stage share the batch (each holds all layers of the stage), or cut the layers k ways, or form groups
    that do both: what is best (`prefer`) among what fits in memory. Shared evenly, the slowest GPU
    counts; balanced by speed, all finish together.

    Shares b need not be whole in the rate: GPUs that take turns at whole batches do at least as
    well in the long run, as T_stage(k·b) ≤ k·T_stage(b); large all-reduces that are slower are the
    exception. No sequence is shared in a single pass
    without cutting layers, so a pass takes the longest T_stage(⌈b⌉) of the stage's GPUs or groups
    of GPUs (`pipelab.costs`). Both hold at once wherever T_stage is straight between ⌊b⌋ and
    ⌈b⌉; at the bend from reading to computing, a full pipeline may need turns at whole batches, and
    longer passes, for the rate. Memory is for whole sequences: ⌈b · in flight⌉ in the
    KV cache, ⌈b⌉ at work.

    A message occupies its link for α + bytes / bandwidth, and is there after the link's latency. It
    has as many tensors as the engine sends (`Engine.stage_tensors`).

    Left out: in models with experts and latent attention (DeepSeek-V3), data-parallel attention
    with expert parallelism, as it is deployed, with an eighth of the KV cache per GPU, all-to-all
    messages and replicated down-projections. `band` says for which problems times were compared,
    and how far off they were. Between stages of several GPUs, all goes over the slowest pair; network
    cards of their own would carry parts. Chunks of a long prompt read weights and earlier keys once more
    each, by a few percent.

    References
    ----------
    S. Williams, A. Waterman, D. Patterson, *Roofline*, Communications of the ACM 52, 2009; R. Pope
    et al., *Efficiently Scaling Transformer Inference*, 2022. The facts of GPUs have their sources
    in `data/gpus.csv`.

    Examples
    --------
    >>> import pipelab as pl
    >>> roof, load = Roofline(), pl.Workload(1000, 1)
    >>> a100 = pl.GPU("A100-SXM-40", 40)
    >>> cost = roof.stage(pl.load_model("Llama-2-70B"), load, [a100], range(1, 2), "even")
    >>> round(1000 * load.tokens / cost.throughput, 2)  # ms for one layer; Helix measured 8
    8.39
    """

    gpus: Annotated[Mapping[str, GPUFacts], MinLen(1), described("at least one type of GPU")] = (
        field(default_factory=load_gpus)
    )
    engine: str = "vLLM"
    engines: Annotated[Mapping[str, Engine], MinLen(1), described("at least one engine")] = field(
        default_factory=load_engines
    )
    hop_latency_s: NotNegative = 1e-5
    memory_share: Share = 0.9
    tensor_parallel: Flag = True
    copies: Flag = True
    prefer: Literal["rate", "time"] = "rate"
    runs_on: str = ""
    filling: Filling = "synchronous"
    filling_number: Natural = 0

    nodes_matter_alone = True  # identical nodes are interchangeable

    def __post_init__(self) -> None:
        if self.engine not in self.engines:
            known = nearest(self.engine, self.engines)
            raise UnknownName(f"there is no engine {self.engine!r}; {known}")
        if self.runs_on:
            memory_of(self.runs_on)

    def __hash__(self) -> int:
        return self._hash

    @derived
    def _hash(self) -> int:
        numbers = [getattr(self, f.name) for f in fields(self) if f.name not in ("gpus", "engines")]
        return hash((tuple(self.gpus.items()), self.constants, *numbers))

    @property
    def constants(self) -> Engine:
        """Return the constants of the engine that runs."""
        return self.engines[self.engine]

    def running(self, engine: str) -> Self:
        """Return the same cost model with another of its engines.

        Parameters
        ----------
        engine : str
            One of `engines`.

        Returns
        -------
        Roofline
            This one itself, if it is its engine.
        """
        return self if engine == self.engine else replace(self, engine=engine)

    def for_training(self) -> Self:
        """Return the same cost model with an engine that trains: its own, or else Megatron.

        Returns
        -------
        Roofline
            This one itself, if its engine trains (`Engine.gradient_bytes`).
        """
        return self._trained

    @derived
    def _trained(self) -> Self:
        if self.constants.gradient_bytes is not None:
            return self
        engines = {TRAINER: load_engines()[TRAINER], **self.engines}
        return replace(self, engines=engines, engine=TRAINER)

    @derived
    def cuts_every_layer(self) -> bool:
        """Whether no stage's GPUs share the batch, so that all of them cut every layer."""
        return not self.copies

    @derived
    def chunk_tokens(self) -> int | None:
        """Tokens of prompts in one pass: the engine's."""
        return self.constants.chunk_tokens

    def preferring_rate(self) -> Self:
        return self if self.prefer == "rate" else replace(self, prefer="rate")

    def memory_as_sold(self, gpu_type: str) -> float | None:
        """Return the GB that GPUs of a type have when nothing else uses them.

        Parameters
        ----------
        gpu_type : str
            As in `gpus`.

        Returns
        -------
        float or None
            None of a type that is not among them.
        """
        return self.gpus[gpu_type].memory_gb if gpu_type in self.gpus else None

    def counting_memory_of(self, engine: str, most_share: float) -> Self:
        """Return this cost model with `runs_on`, and no larger share of memory than an engine takes.

        Parameters
        ----------
        engine : str
            A row of `data/engine_memory.csv`.
        most_share : float
            Of a GPU's memory.

        Returns
        -------
        Roofline
            With `memory_share` of at most this.
        """
        return replace(self, runs_on=engine, memory_share=min(self.memory_share, most_share))

    def cutting_every_layer(self) -> Self:
        return replace(self, copies=False)

    def cutting_no_layer(self) -> Self:
        return replace(self, tensor_parallel=False)

    def for_phase(self, phase: str) -> Self:
        """Return the cost model that runs a workload of this phase: in training `for_training`.

        Parameters
        ----------
        phase : str
            As in `Workload`.

        Returns
        -------
        Roofline
            This one itself, unless it trains.
        """
        return self.for_training() if phase == "training" else self

    def hardware(self, demand: Demand, kinds: Sequence[GPU]) -> Hardware:
        """Return what GPUs reach with the engine that runs, under a demand.

        Parameters
        ----------
        demand : Demand
            Of a model under a load.
        kinds : sequence of GPU
            Each of a type that this model knows.

        Returns
        -------
        Hardware
            With one number per GPU.

        Raises
        ------
        InvalidValue
            The type of a GPU is not known.
        """
        for kind in kinds:
            if kind.type not in self.gpus:
                problem = ("gpu.type", kind.type, nearest(kind.type, self.gpus))
                raise InvalidValue("Roofline", [problem])
        return Hardware.of(self.constants, self.gpus, demand, kinds)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Names of the GPU types this model knows."""
        return tuple(self.gpus)

    def check(self, problem: Problem) -> None:
        """Refuse what has no meaning here; called by `Problem` when it is made.

        Parameters
        ----------
        problem : Problem
            What this model is to serve.

        Raises
        ------
        InvalidValue
            The model is not a `Transformer`, an engine for training is to write tokens, or a rate is
            not between 1e-9 and 1e15 tokens/s, beyond which solvers do not compute.
        """
        if not isinstance(problem.model, Transformer):
            expected = "expected a Transformer, such as load_model('Llama-3-70B'): Roofline needs its dimensions"
            raise InvalidValue("Problem", [("model", problem.model.name, expected)])
        load = problem.workload
        if self.constants.activation_moves and load.phase in ("decode", "mixed"):
            expected = f"expected another engine for the phase {load.phase!r}: this one trains"
            raise InvalidValue("Problem", [("costs.engine", self.engine, expected)])
        gpus = tuple({kind.type: kind for kind in problem.cluster.kinds}.values())
        demand = Demand(problem.model, replace(load, in_flight=None))
        rates = _extreme_rates(self.for_phase(load.phase), demand, gpus)
        # no GPU's, and beyond what solvers compute with
        for gpu, (least, most) in zip(gpus, rates, strict=True):
            if not 1e-9 < least <= most < 1e15:
                expected = f"expected rates from 1e-9 to 1e15 tokens/s; {gpu.type} has {most:g} with one layer"
                raise InvalidValue("Problem", [("costs.gpus", gpu.type, expected)])

    def link_throughput(self, problem: Problem, bandwidth_gb_per_s: np.ndarray | float) -> Any:
        """Rate of links that carry one microbatch after the other.

        Parameters
        ----------
        problem : Problem
            Whose model and workload count.
        bandwidth_gb_per_s : float or array of float
            In GB/s.

        Returns
        -------
        float or numpy.ndarray
            In tokens/s, of the shape of `bandwidth_gb_per_s`.
        """
        load = problem.workload
        sent = Demand(dimensions_of(problem.model), load).residual_bytes(load.batch_size)
        sent *= self.for_phase(load.phase).constants.stage_tensors
        # A GPU's link to itself may be infinite; without latency that takes no time at all.
        with np.errstate(divide="ignore"):
            seconds = self.hop_latency_s + sent / (np.asarray(bandwidth_gb_per_s) * 1e9)
            return python_value(problem.workload.tokens / seconds)

    def mixes_as_slowest(self, problem: Problem) -> bool:
        """Whether a mixed stage is exactly as fast as the slowest pure one of its size (see `LinearThroughput`).

        Parameters
        ----------
        problem : Problem
            Whose batch split and nodes count.

        Returns
        -------
        bool
            True for an even split where no layer can be cut.
        """
        cut = self.tensor_parallel and any(kind.node for kind in problem.cluster.kinds)
        return problem.batch_split == "even" and not cut

    def memory_parts(self, problem: Problem, gpu: GPU, layers: range) -> dict[str, float]:
        """Return the memory that these layers need on one GPU alone, by what it is for.

        Parameters
        ----------
        problem : Problem
            Whose model and workload count.
        gpu : GPU
            Of whose memory `memory_share` may be used.
        layers : range
            Numbered from 0.

        Returns
        -------
        dict of str to float
            "weights", "KV cache", "activations" and "reserve", in GB (10^9 bytes); with `runs_on`
            also "buffers" of the engine.
        """
        load = problem.workload
        demand = Demand(dimensions_of(problem.model), load)
        span = Span.of(demand.model, layers)
        parts = needed_gb(self.for_phase(load.phase), demand, [gpu], span, load.batch_size, 1)
        return {name: float(np.squeeze(value)) for name, value in parts.items()}

    def stage(
        self,
        model: ModelLike,
        workload: Workload,
        gpus: Sequence[GPU],
        layers: range | int,
        batch_split: str,
    ) -> StageCost:
        """Rate, batch shares and memory of one stage.

        Parameters
        ----------
        model : Transformer
            Whose layers these are.
        workload : Workload
            What passes through them.
        gpus : sequence of GPU
            Those of the stage.
        layers : range or int
            Numbered from 0; a number stands for so many layers from the first.
        batch_split : {"even", "balanced"}
            As in `Problem`.

        Returns
        -------
        StageCost
            `throughput` in tokens/s, `batch` in sequences and `memory_gb` in GB (both one number
            per GPU), `degree`, the GPUs that cut each layer among them, and `pass_seconds`.
        """
        layers = range(layers) if isinstance(layers, int) else layers
        demand = Demand(dimensions_of(model), workload)
        span = Span.of(demand.model, layers)
        return cost_of_stage(self.for_phase(workload.phase), demand, tuple(gpus), span, batch_split)

    def stage_tables(
        self,
        model: ModelLike,
        workload: Workload,
        kinds: Sequence[GPU],
        composition: np.ndarray,
        batch_split: str,
    ) -> StageTables:
        """`stage` for every composition and every kind of span (`model.spans`) at once.

        Parameters
        ----------
        model : Transformer
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
            `throughput` (C, U) in tokens/s, `memory_gb` (C, K, U) in GB, and `pass_seconds` (C, U).
        """
        costs, demand = self.for_phase(workload.phase), Demand(dimensions_of(model), workload)
        stages = Candidates(costs, demand, kinds, composition, Span.all(demand.model))
        best = stages.best(stages.shared_batches(batch_split))
        return StageTables(best.rate, best.memory_gb, best.seconds)

    def training_cost(self, problem: Problem, report: StageReport, **options: Any) -> TrainingCost:
        """Return what one stage of a placement takes and keeps in training.

        Parameters
        ----------
        problem : Problem
            With a workload of prefill or training: its batch is one microbatch of whole sequences.
        report : StageReport
            Of the stage, from `evaluate`.
        **options
            `recompute`: "none", "selective" (the same where attention is fused, as here) or "full".
            `bytes_per_parameter` of weights, gradients and the optimizer's state: by default 14 with
            Adam in mixed precision, and the engine's gradients: 18 in all for Megatron, which adds
            them up in fp32.

        Returns
        -------
        TrainingCost
            Seconds of one microbatch, and gigabytes on the fullest GPU.

        Notes
        -----
        The constants are those of the engine, if it trains, else of Megatron (`for_training`).
        F = (M + A)/speed + X, I = (M + 2.5·A)/speed + X and W = M/speed, with the FLOPs M of
        matrices, the head on all tokens among them, and A of attention. X is what norms and the like
        move: `Engine.activation_moves` times the activations that are kept, over the bandwidth;
        all-reduces of cut layers come with X. A step adds up the gradients of the GPUs that share a
        stage, over their slowest link, and updates the weights, as fast as memory allows. Memory:
        see `pipelab.hardware.training_memory`. `course.training_errors` holds all of it against
        published times.
        """
        layers, gpus, model = report.stage.layers, report.stage.gpus, dimensions_of(problem.model)
        span, parameters = Span.of(model, layers), float(model.parameters(layers))
        even = (problem.workload.batch_size / len(gpus),) * len(gpus)
        batch = report.batch if report.degree == 1 else even
        costs = self.for_training()
        numbers = _stages(costs, problem, gpus, span, parameters, batch, **options)
        return TrainingCost(*(float(value) for value in numbers))

    def training_table(
        self, problem: Problem, gpus: Sequence[int], **options: Any
    ) -> np.ndarray | None:
        """`training_cost` for every kind of span (`model.spans`) of a stage of these GPUs at once.

        Parameters
        ----------
        problem : Problem
            With a workload of training.
        gpus : sequence of int
            Ids of the stage's GPUs.
        **options
            As for `training_cost`.

        Returns
        -------
        numpy.ndarray or None
            Shape (8, U): the fields of `TrainingCost`. None where different GPUs share the batch
            unevenly.
        """
        kinds = {problem.cluster.gpus[g] for g in gpus}
        if problem.batch_split != "even" and len(kinds) > 1:
            return None
        model = dimensions_of(problem.model)
        parts = (range(i, i + n) for i, n in zip(*model.spans.examples, strict=True))
        parameters = np.array([float(model.parameters(part)) for part in parts])
        batch = (problem.workload.batch_size / len(gpus),) * len(gpus)
        costs = self.for_training()
        return _stages(costs, problem, gpus, Span.all(model), parameters, batch, **options)

    def band(self, problem: Problem, placement: Placement | None = None) -> Band:
        """Say how far off predictions like this problem's were, by published times to which nothing was fitted.

        Parameters
        ----------
        problem : Problem
            Whose phase and model count.
        placement : Placement, optional
            One GPU, GPUs that cut every layer, or a pipeline. Without, that of all GPUs of the cluster.

        Returns
        -------
        Band
            Median and worst error of the bundled constants, how many measurements, and a `sentence`.

        Examples
        --------
        >>> import pipelab as pl
        >>> cluster, load = pl.Cluster.from_counts({"L4": 2}, 24, 1), pl.Workload(2048, 1, "decode")
        >>> problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, Roofline())
        >>> problem.costs.band(problem, pl.Placement.of([(32, (0,))])).measurements > 10
        True
        """
        return band_of(group_of(problem, self.engine, placement), Roofline())

    def mfu(self, problem: Problem, placement: Placement, tokens_per_s: float) -> float:
        """Model FLOPs utilization: what a model needs, over what the GPUs could compute at most.

        Parameters
        ----------
        problem : Problem
            Whose model is trained, on sequences of its workload.
        placement : Placement
            Whose GPUs count, at their peak of 16-bit products.
        tokens_per_s : float
            At which it is trained.

        Returns
        -------
        float
            A share. As PaLM counts it: three times the FLOPs of a forward, with attention as if none
            of its pairs were masked, and nothing for what is recomputed.

        References
        ----------
        A. Chowdhery et al., *PaLM: Scaling Language Modeling with Pathways*, 2022, appendix B.
        """
        load, gpus = problem.workload, problem.cluster.gpus
        used = [gpus[g].type for stage in placement.stages for g in stage.gpus]
        peak = sum(self.gpus[kind].fp16_tflop_per_s for kind in used) * 1e12
        flops = training_flops(dimensions_of(problem.model), load)
        return tokens_per_s * flops / (load.tokens * peak)

    @checked_arguments
    def pass_seconds(
        self,
        model: WithDimensions,
        workload: Annotated[Workload, described("a Workload")],
        gpu: Annotated[GPU, described("a GPU")],
        layers: Annotated[
            range, InstanceOf(), described("consecutive layers, such as range(0, 4)")
        ],
        tensor_parallel: Count = 1,
    ) -> float:
        """Time of one pass of the whole batch on this GPU, or on so many of its node that cut each layer.

        Parameters
        ----------
        model : Transformer
            Whose layers these are.
        workload : Workload
            Its batch passes once.
        gpu : GPU
            Of a type that this model knows.
        layers : range
            Numbered from 0.
        tensor_parallel : int
            GPUs of the node that cut each layer among them.

        Returns
        -------
        float
            In seconds.

        Raises
        ------
        InvalidValue
            An argument is of another kind, the type is not known, these are no layers of the model,
            or several GPUs are to cut a layer and the GPU has no node.

        Examples
        --------
        >>> import pipelab as pl
        >>> llama, load = pl.load_model("Llama-3-8B"), pl.Workload(1024, 1, "decode")
        >>> 1 / Roofline().pass_seconds(llama, load, pl.GPU("RTX4090", 24), range(32)) > 45  # tokens/s
        True
        """
        costs = self.for_phase(workload.phase)
        if not 0 <= layers.start < layers.stop <= model.layers or layers.step != 1:
            expected = f"expected consecutive layers among range(0, {model.layers})"
            raise InvalidValue("pass_seconds", [("layers", layers, expected)])
        if tensor_parallel > 1 and not gpu.node:
            expected = "expected a GPU with a node where it is more than 1"
            raise InvalidValue("pass_seconds", [("tensor_parallel", tensor_parallel, expected)])
        hardware, span = costs.hardware(Demand(model, workload), [gpu]), Span.of(model, layers)
        return float(hardware.take(0).stage_seconds(span, workload.batch_size, tensor_parallel))

    def layer_times(self, model: Transformer, workload: Workload, gpu: GPU) -> dict[str, float]:
        """Divide the time of one ordinary layer into its parts: one pass of the whole batch on one GPU, in seconds.

        Parameters
        ----------
        model : Transformer
            Whose layer it is.
        workload : Workload
            Its batch passes once.
        gpu : GPU
            Of a type that this model knows.

        Returns
        -------
        dict of str to float
            "computing"; "weights", "keys and values" and "activations", each with the time to move
            its bytes; "overhead" (with attention scores and rows of experts that go through memory); and
            "layer", in which what overlaps counts once. All in seconds.

        Raises
        ------
        InvalidValue
            The type of GPU is not known.

        Examples
        --------
        >>> import pipelab as pl
        >>> llama, load = pl.load_model("Llama-3-70B"), pl.Workload(2048, 1, "decode")
        >>> times = Roofline().layer_times(llama, load, pl.GPU("L4", 24))
        >>> max(times, key=times.get), times["weights"] > 100 * times["computing"]
        ('layer', True)
        """
        demand, engine, b = Demand(model, workload), self.constants, workload.batch_size
        hardware, ordinary = self.hardware(demand, [gpu]).take(0), model.layer_kinds[0]
        sizes = moved_bytes(engine, demand, ordinary, b, 1)
        weights, cached, activations = (size / hardware.bandwidth for size in sizes)
        computing = hardware.computing_seconds(ordinary, b)
        besides = hardware.besides_seconds(ordinary, b, 1)
        overhead = engine.layer_overhead_us * 1e-6 + besides
        seconds = {
            "computing": computing,
            "weights": weights,
            "keys and values": cached,
            "activations": activations,
            "overhead": overhead,
            "layer": hardware.slower(computing, weights + cached + activations) + overhead,
        }
        return {name: float(value) for name, value in seconds.items()}


def dimensions_of(model: ModelLike) -> Transformer:
    """Return a problem's model as the `Transformer` that `Roofline.check` has seen."""
    return cast(Transformer, model)


# The execution modes of a stage: its GPUs share the batch, cut its layers, or both; and the best of
# them. All is computed for C compositions of K kinds of GPU times U kinds of span at once; a single
# stage is the case with one of each. Tests hold both against formulas written out once more.


class Table(NamedTuple):
    """One execution mode for each candidate stage: C compositions of K kinds of GPU times U kinds of span."""

    rate: np.ndarray  # (C, U) tokens/s
    seconds: np.ndarray  # (C, U) of one pass
    memory_gb: np.ndarray  # (C, K, U); 0 where the composition has none of that kind
    degree: np.ndarray  # (C, U) GPUs that cut each layer

    def or_better(self, other: "Table", limit: np.ndarray, prefer: str) -> "Table":
        """Choose the better of two modes, for each stage by itself.

        If both fit in `limit` GB, shape (1, K, 1), the one with the greater "rate" or the shorter
        "time" of a pass. If only one fits, that one; if neither, the one that lacks less.
        """
        mine, theirs = self.shortfall(limit), other.shortfall(limit)
        both_fit = (mine <= 0) & (theirs <= 0)
        preferred = other.rate > self.rate if prefer == "rate" else other.seconds < self.seconds
        lacks_less = theirs < np.maximum(mine, 0)  # false wherever this one fits
        take_other = np.where(both_fit, preferred, lacks_less)
        where = Table(take_other, take_other, take_other[:, None, :], take_other)
        return Table(*map(np.where, where, other, self))

    def take(self, rows: np.ndarray) -> "Table":
        """The stages of these compositions."""
        return Table(*(column[rows] for column in self))

    def put(self, rows: np.ndarray, other: "Table") -> None:
        """Replace the stages of these compositions by others."""
        for column, better in zip(self, other, strict=True):
            column[rows] = better

    def shortfall(self, limit: np.ndarray) -> np.ndarray:
        """GB missing on the GPU that lacks most; 0 or less where all fits; shape (C, U)."""
        return np.where(self.memory_gb > 0, self.memory_gb - limit, -np.inf).max(axis=1)


@dataclass(frozen=True)
class Candidates:
    """Candidate stages: C compositions of K kinds of GPU, each with U kinds of span, under a demand."""

    costs: Roofline
    demand: Demand
    kinds: Sequence[GPU]
    composition: np.ndarray  # (C, K)
    span: Span

    @derived
    def _hardware(self) -> Hardware:
        return self.costs.hardware(self.demand, self.kinds)

    def degrees(self) -> list[int]:
        """List how many GPUs may cut a layer in some stage of one node (see `can_cut`)."""
        if not self.costs.tensor_parallel:
            return []
        alone = self.composition.max(axis=1) == self.composition.sum(axis=1)
        in_a_node = [bool(kind.node) for kind in self.kinds]
        sizes = {int(n) for n in self.composition[alone][:, in_a_node].ravel() if n > 1}
        divisors = {t for n in sizes for t in range(2, n + 1) if n % t == 0}
        chosen = divisors if self.costs.copies else sizes
        return sorted(t for t in chosen if can_cut(self.demand.model, t))

    def best(self, shared: np.ndarray) -> Table:
        """Per stage the preferred mode among those that fit; if none fits, the one that lacks least memory.

        `shared` is the batch of every GPU where all hold their layers whole, from `shared_batches`.
        """
        best = self._table(shared, 1)
        if not self.costs.copies:
            return self._all_cut(best)
        limit = np.array([kind.memory_gb for kind in self.kinds])[None, :, None] * MEMORY_SLACK
        for t in self.degrees():
            rows = self._can_be_cut(t)
            divisible = replace(self, composition=self.composition[rows])
            cut = divisible._table(divisible.groups(t), t)
            best.put(rows, best.take(rows).or_better(cut, limit, self.costs.prefer))
        return best

    def _all_cut(self, one: Table) -> Table:
        """Stages of one GPU as they are, and larger ones whose GPUs all cut every layer; others have no rate."""
        size = self.composition.sum(axis=1)
        one.rate[size > 1], one.seconds[size > 1] = 0.0, np.inf
        for t in self.degrees():
            rows = self._can_be_cut(t)
            rows = rows[size[rows] == t]
            divisible = replace(self, composition=self.composition[rows])
            one.put(rows, divisible._table(divisible.groups(t), t))
        return one

    def shared_batches(self, batch_split: str) -> np.ndarray:
        """Sequences for a GPU of each kind: (C, 1, 1) in equal shares, (C, K, U) by speed."""
        even = self.groups(1)
        mixed = (self.composition > 0).sum(axis=1) > 1
        if batch_split == "even" or not mixed.any():
            return even

        def taken(b: Any, kind: Any, which: Any) -> np.ndarray:
            return self._hardware.take(kind).stage_seconds(self.span.take(which), b, 1)

        spans, whole = len(self.span), self.demand.load.batch_size
        batch = np.broadcast_to(even, (*self.composition.shape, spans)).copy()
        batch[mixed] = balanced_batches(taken, self.composition[mixed], spans, whole)
        return batch

    def groups(self, t: int) -> np.ndarray:
        """Sequences for every group of t GPUs, which share the batch evenly: (C, 1, 1)."""
        return (self.demand.load.batch_size * t / self.composition.sum(axis=1))[:, None, None]

    def _can_be_cut(self, t: int) -> np.ndarray:
        """Numbers of the compositions whose GPUs are of one node, and come in groups of t."""
        size = self.composition.sum(axis=1)
        in_a_node = [bool(kind.node) for kind in self.kinds]
        one_node = ((self.composition == size[:, None]) & in_a_node).any(axis=1)
        return np.flatnonzero(one_node & (size % t == 0))

    def _table(self, batch: np.ndarray, t: int) -> Table:
        """Rate and memory where a GPU of each kind works on `batch` sequences: (C, K, U), or 1 where all are equal."""
        there = (self.composition > 0)[:, :, None]
        hardware = self._hardware.take(np.s_[:, None])

        def longest(b: np.ndarray) -> np.ndarray:
            seconds = hardware.stage_seconds(self.span, b, t)
            return np.where(there & (b > 0), seconds, 0.0).max(axis=1)

        interval, whole = longest(batch), whole_sequences(batch)
        passes = interval if np.array_equal(whole, batch) else pass_time(interval, longest(whole))
        needed = needed_gb(self.costs, self.demand, self.kinds, self.span, batch, t)
        memory = np.where(there, sum(needed.values()), 0.0)
        rate = self.demand.load.tokens / interval
        return Table(rate, passes, memory, np.full(interval.shape, t))


def needed_gb(
    costs: Roofline, demand: Demand, kinds: Sequence[GPU], span: Span, b: Any, t: int
) -> dict[str, Any]:
    """GB on one GPU of each of K kinds, with what stays free, by what it is for; `b` and `t` as of `Demand.kept_gb`."""
    chunk = costs.constants.chunk_tokens
    engine = memory_of(costs.runs_on) if costs.runs_on else None
    block = None if engine is None else engine.cache_tokens
    parts = demand.kept_gb(span, b, t, chunk, block)
    if engine is None or not engine.share_of:
        unused = 1 - costs.memory_share
        return parts | {"reserve": np.array([[unused * kind.memory_gb] for kind in kinds])}
    return parts | engine.parts_gb(kinds, demand, span, b, t, chunk, costs.memory_share)


def can_cut(model: Transformer, t: int) -> bool:
    """Whether t GPUs can cut a layer: heads, and what is cached, come out even."""
    parts = model.kv_parts
    return model.heads % t == 0 and (parts % t == 0 or t % parts == 0)


@lru_cache(maxsize=1000)  # many problems differ in the number in flight alone
def _extreme_rates(costs: Roofline, demand: Demand, gpus: tuple[GPU, ...]) -> list[list[float]]:
    """Return the least and the greatest tokens/s of each GPU with one layer and with all, even in vain."""
    hardware, model, b = costs.hardware(demand, gpus), demand.model, demand.load.batch_size
    spans = [Span.of(model, range(number)) for number in (1, model.layers)]
    with np.errstate(all="ignore"):
        rates = [demand.load.tokens / hardware.stage_seconds(span, b, 1) for span in spans]
    return np.sort(rates, axis=0).T.tolist()


@lru_cache(maxsize=10_000)  # many placements have the same stages
def cost_of_stage(
    costs: Roofline, demand: Demand, gpus: tuple[GPU, ...], span: Span, batch_split: str
) -> StageCost:
    """Return the best mode of one stage, GPU by GPU."""
    kinds = tuple(dict.fromkeys(gpus))
    composition = np.array([[gpus.count(kind) for kind in kinds]])
    stage = Candidates(costs, demand, kinds, composition, span)
    shared = stage.shared_batches(batch_split)
    best = stage.best(shared)
    degree = int(best.degree[0, 0])
    batch = shared if degree == 1 else stage.groups(degree)
    of_kind = [kinds.index(gpu) for gpu in gpus]
    shares = np.broadcast_to(batch, (1, len(kinds), 1))[0, of_kind, 0]
    memory = best.memory_gb[0, of_kind, 0]
    rate, seconds = float(best.rate[0, 0]), float(best.seconds[0, 0])
    return StageCost(rate, tuple(shares.tolist()), tuple(memory.tolist()), degree, seconds)


def balanced_batches(
    seconds: Callable, composition: np.ndarray, spans: int, whole: float
) -> np.ndarray:
    """Sequences for a GPU of each kind, shape (C, K, U), so that each stage's GPUs finish at one time.

    Parameters
    ----------
    seconds : function of (b, kind, span), arrays of one shape
        Time for b sequences; grows with b. A GPU that is still reading weights when the others have
        finished gets nothing.
    composition : int array, shape (C, K)
    spans : int
        U, number of kinds of span.
    whole : float
        Sequences of the whole batch.
    """
    from scipy.optimize.elementwise import find_root

    stages, kinds = composition.shape
    count = composition
    grids = np.meshgrid(np.arange(stages), np.arange(spans), indexing="ij")
    row, span = (grid.ravel() for grid in grids)
    kind = np.arange(kinds)[:, None]
    which_kind, which = kind + 0 * span[:spans], kind * 0 + np.arange(spans)
    idle, alone = (seconds(np.full((kinds, spans), b), which_kind, which) for b in (0.0, whole))

    def done_by(time: np.ndarray, row: np.ndarray, span: np.ndarray) -> np.ndarray:
        """Sequences that a GPU of each kind finishes by then, shape (n, K)."""
        time, which, at = np.broadcast_arrays(time[:, None], kind.T, span[:, None])
        start, end = idle[which, at], alone[which, at]
        between = (time > start) & (time < end)
        b = np.where(time >= end, whole, 0.0)
        if between.any():
            args = (time[between], which[between], at[between])
            zeros = np.zeros(between.sum())
            root = find_root(
                lambda b, time, which, at: seconds(b, which, at) - time,
                (zeros, zeros + whole),
                args=args,
            )
            b[between] = root.x
        return b

    def surplus(time: np.ndarray, row: np.ndarray, span: np.ndarray) -> np.ndarray:
        return (count[row] * done_by(time, row, span)).sum(axis=1) - whole

    there = count[row] > 0
    low = np.where(there, idle[:, span].T, np.inf).min(axis=1)
    high = np.where(there, alone[:, span].T, np.inf).min(axis=1)
    time = find_root(surplus, (low, high), args=(row, span)).x
    b = np.where(there, done_by(time, row, span), 0.0)
    b *= (whole / (count[row] * b).sum(axis=1))[:, None]  # the last bits
    return b.reshape(stages, spans, kinds).transpose(0, 2, 1)


# A stage in training, by the roofline: forward, both gradients, the step, and what is kept.
# With M the FLOPs of the matrices in a forward and A those of (causal, fused) attention, an input
# gradient takes M + 2.5·A, as attention computes its scores again and five products instead of two,
# and a weight gradient takes M. Between the products, norms, activations and the like move every byte
# that is kept of a microbatch so many times (`Engine.activation_moves`), in the forward and again in
# the input gradient; a weight gradient has products alone. The input gradient all-reduces as often as
# the forward, weight gradients never. Selective recomputation is what fused attention does already;
# full recomputation runs the forward again.


class Attention(NamedTuple):
    """FLOPs of attention in training, over those of a causal forward."""

    forward: float
    backward: float


FUSED = Attention(1.0, 2.5)  # FlashAttention: causal, and the scores are computed again
UNFUSED = Attention(2.0, 4.0)  # all pairs, of which half are masked; the scores are kept


def _stages(
    costs: Roofline,
    problem: Problem,
    ids: Sequence[int],
    span: Span,
    parameters: Any,
    batch: tuple[float, ...],
    *,
    recompute: Recompute = "none",
    bytes_per_parameter: float | None = None,
) -> np.ndarray:
    """Return the fields of `TrainingCost`, one number for one span, or an array for many."""
    if bytes_per_parameter is not None:
        checked_value("training_cost", "bytes_per_parameter", bytes_per_parameter, NotNegative)
    model, load = dimensions_of(problem.model), replace(problem.workload, phase="training")
    demand, gpus = Demand(model, load), tuple(problem.cluster.gpus[g] for g in ids)
    # No sequence is shared: the GPU with most whole sequences counts, or a slower one with fewer.
    # Serving may prefer to share the batch where training has to cut layers, and so may this.
    shared = {1: batch} if costs.copies or len(gpus) == 1 else {}
    kinds = tuple(dict.fromkeys(gpus))
    counts = np.array([[gpus.count(kind) for kind in kinds]])
    for t in Candidates(costs, demand, kinds, counts, span).degrees():
        shared[t] = (load.batch_size * t / len(gpus),) * len(gpus)
    if not shared:  # GPUs that share no batch and cannot cut layers are no stage
        return np.full((len(TrainingCost._fields), *np.shape(span.layers)), np.inf)
    modes, busy, sharded = [], [], costs.constants.sequence_parallel
    for t, shares in shared.items():
        whole = [float(whole_sequences(share)) for share in shares]
        times = [
            gradients(costs, demand, gpu, span, b, t, demand.stored_bytes(span, b, t, sharded))
            for gpu, b in dict.fromkeys(zip(gpus, whole, strict=True))
            if b > 0
        ]
        forward, back, weight = (np.maximum.reduce(column) for column in zip(*times, strict=True))
        busy.append(forward + back + weight)
        tokens = max(whole) * load.sequence_length
        cut = {"degree": t, "sequence_parallel": sharded}
        kept = _kept(costs, demand, span, tokens, recompute, cut)
        if recompute == "full":
            back = back + forward
        step = _step(costs, demand, problem, ids, t, parameters / t, (back + weight, forward))
        each = bytes_per_parameter
        if each is None:
            each = WEIGHT_BYTES + _gradient_bytes(costs) + OPTIMIZER_BYTES / _shards(costs, ids, t)
        state = parameters / t * each / 1e9
        modes.append(np.stack(np.broadcast_arrays(forward, back, weight, step, state, *kept)))
    best = np.argmin(np.stack(busy), axis=0)
    return np.take_along_axis(np.stack(modes), best[None, None], axis=0)[0]


def _kept(
    costs: Roofline, demand: Demand, span: Span, tokens: float, recompute: Recompute, cut: Any
) -> tuple[Any, Any, float]:
    """GB of activations until the input gradient, from there to the weight gradient, and once."""
    model, sequence = demand.model, demand.load.sequence_length
    one_layer = activation_bytes(model, tokens, sequence=sequence, recompute=recompute, **cut)
    if costs.constants.fused_gate and recompute != "full":  # without the gate's activation
        one_layer -= 2 * model.block_width * tokens / cut["degree"]
    head = span.last * head_bytes(model, tokens, **cut)
    # Not recomputed: of one layer all is there again while its backward runs, and what weight
    # gradients need stays until they run.
    stored = activation_bytes(model, tokens, sequence=sequence, **cut)
    return (
        (span.layers * one_layer + head) / 1e9,
        (span.layers * weight_share(model) * stored + head) / 1e9,
        stored / 1e9 if recompute == "full" else 0.0,
    )


def gradients(
    costs: Roofline,
    demand: Demand,
    gpu: GPU,
    span: Span,
    b: float,
    degree: int,
    stored: Any,
    attention: Attention = FUSED,
) -> tuple[Any, Any, Any]:
    """Seconds of forward, input gradient and weight gradient on one GPU.

    Parameters
    ----------
    stored : float or float array
        Bytes that these layers keep of a microbatch on this GPU.
    attention : Attention
        How it is computed.
    """
    hardware = costs.hardware(demand, [gpu]).take(0)
    causal = hardware.layers_seconds(span, b, degree)
    shared: Any = 0.0
    if degree > 1:
        shared = span.layers * hardware.layer_collectives(b, degree)
    matrices, pairs = _forward_flops(demand, span, b)
    alone = (causal - shared) / (matrices + pairs)
    besides = shared + hardware.moving_seconds(stored)
    return (
        alone * (matrices + attention.forward * pairs) + besides,
        alone * (matrices + attention.backward * pairs) + besides,
        alone * matrices,
    )


def training_flops(model: Transformer, load: Workload) -> float:
    """FLOPs of a microbatch, forward and backward, by which MFU is counted.

    As Chowdhery et al. (PaLM, 2022) and Korthikanti et al. count them: three times those of a
    forward, of attention all pairs of tokens as if none were masked, nothing recomputed.
    """
    demand = Demand(model, replace(load, phase="training"))
    matrices, pairs = _forward_flops(demand, Span.of(model, range(model.layers)), load.batch_size)
    return float(3 * (matrices + UNFUSED.forward * pairs))


def _forward_flops(demand: Demand, span: Span, b: float) -> tuple[Any, Any]:
    """FLOPs of matrices, and of causal attention, in a forward of b sequences."""
    kinds = list(demand.of_kinds(span))
    matrices = sum(number * demand.layer_flops(kind, b) for kind, number in kinds)
    pairs = sum(number * b * demand.attention_flops(kind) for kind, number in kinds)
    return matrices + span.last * demand.head_flops(b), pairs


def _gradient_bytes(costs: Roofline) -> float:
    """Per parameter; `for_training` has chosen an engine that says so."""
    return costs.constants.gradient_bytes or 0.0


def update_seconds(costs: Roofline, bandwidth: float, parameters: Any) -> Any:
    """Seconds of Adam's step on this number of parameters of one GPU."""
    return parameters * (_gradient_bytes(costs) + UPDATE_BYTES) / bandwidth


def _step(
    costs: Roofline,
    demand: Demand,
    problem: Problem,
    ids: Sequence[int],
    degree: int,
    parameters: Any,
    beside: tuple[Any, Any],
) -> Any:
    """Seconds to add up the gradients of the stage's replicas in a ring, and to update its weights.

    Of an engine with buckets, what the last backward and the first forward of a step do not hide (`beside`, in
    seconds). Megatron's first stage sends bucket by bucket; later ones send all at once, while stages before them
    still run backward.
    """
    cluster = problem.cluster
    gpus = [cluster.gpus[g] for g in ids]
    alone = (costs.hardware(demand, [gpu]).take(0) for gpu in dict.fromkeys(gpus))
    slowest = min(float(hardware.bandwidth) for hardware in alone)
    replicas, shards = len(gpus) // degree, _shards(costs, ids, degree)
    update = update_seconds(costs, slowest, parameters / shards)
    if replicas == 1:
        return update
    link = min(cluster.bandwidth_between(i, j) for i in ids for j in ids if i != j)
    # Gradients are added up, and come back to all; or a part to each, whose updated weights then go to all.
    each = (replicas - 1) / replicas * parameters / (link * 1e9) if link else np.inf
    there = _gradient_bytes(costs) * each
    back = WEIGHT_BYTES * each if shards > 1 else there
    if shards > 1 and (bucket := costs.constants.bucket_parameters):
        last = np.minimum(1.0, bucket / parameters)
        there = np.maximum(last * there, there - beside[0])
        back = np.maximum(last * back, back - beside[1])
    return update + there + back


def _shards(costs: Roofline, ids: Sequence[int], degree: int) -> int:
    """Count the copies of a stage's layers that divide the optimizer's state; 1 if each holds all of it."""
    return len(ids) // degree if costs.constants.shards_optimizer else 1
