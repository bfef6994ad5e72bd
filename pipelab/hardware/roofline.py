"""Roofline: what a stage of real GPUs yields and needs.

A pass takes each layer as long as the slower of computing and moving bytes, plus what does not
overlap (Williams, Waterman and Patterson, 2009). The constants are few and named; each has one
value per type of GPU or one for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

import numpy as np
from annotated_types import MinLen
from pydantic import InstanceOf

from pipelab.cluster import GPU
from pipelab.costs import StageCost
from pipelab.engine.stage_arrays import StageTables
from pipelab.errors import InvalidValue, UnknownName, nearest
from pipelab.fields import (
    Count,
    Flag,
    Later,
    NotNegative,
    Share,
    checked,
    checked_arguments,
    described,
    python_value,
)
from pipelab.hardware.engines import Engine, load_engines
from pipelab.hardware.known_gpus import GPUFacts, load_gpus
from pipelab.hardware.pass_times import Demand, Span, layer_times, seconds_of_pass
from pipelab.hardware.stage_modes import Candidates, cost_of_stage
from pipelab.hardware.transformer import Transformer
from pipelab.io.whole_files import path_of
from pipelab.problem import Problem, Workload

if TYPE_CHECKING:
    from pandas import DataFrame

    from pipelab.costs import TrainingCost
    from pipelab.evaluation import Evaluation, StageReport
    from pipelab.hardware.calibration import Calibration
    from pipelab.hardware.expected_rates import ExpectedRate
    from pipelab.hardware.what_fits import Capacity
    from pipelab.placement import Placement

TRAINER = "Megatron"  # trains where the engine is one for inference
WithDimensions = Annotated[
    Transformer, described("a model with dimensions, such as load_model('Llama-3-8B')")
]


@checked
class Roofline:
    """The physical cost model.

    Parameters
    ----------
    gpus : mapping of GPU type to GPUFacts, optional
        By default all of `data/gpus.csv`. `π` = fp16_tflop_per_s, `β` = memory_bandwidth_gb_per_s
        and `η_c` = compute_efficiency come from there.
    engine : str
        The engine: "vLLM", "TensorRT-LLM", "SGLang", "llama.cpp", "vLLM 0.2" (eager),
        "kernels" for the kernels alone, or another of `engines`. "Megatron" trains, and is what
        trains where the engine is for inference alone.
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
    prefer : {"rate", "time"}
        Which of the execution modes that fit in memory a stage runs in: the one with the
        highest rate, or the one with the shortest pass. Every method and `evaluate` take the same;
        they differ only if a batch is shared unevenly. Set "time" if the end-to-end latency is
        the objective (`solve_for_latency`).

    Raises
    ------
    InvalidValue
        A share is not above 0 and at most 1, a time is negative, or `gpus` is empty.
    UnknownName
        There is no engine of this name.

    Notes
    -----
    With t GPUs cutting a layer, in seconds:

        τ_c = matrix FLOPs / (t · π · η_c) + attention FLOPs / (t · π₁₆ · η_c)
        τ_m = (weights / (t · η_q) + KV / (min(t, K) · η_kv) + activations / t) / (β · η_m)
        τ_tp = 2 · (2(t − 1)/t · b·q·d·2 bytes / (η_l · bandwidth inside the node) + α_ar)
        T_stage = Σ layers [max(τ_c, τ_m) + (1 − φ) · min(τ_c, τ_m) + τ0 + τ_tp] + head + τ1(b)

    and the rate is the tokens of a pass over T_stage. FLOPs and bytes are those of `Demand`. φ,
    τ0, τ1, α_ar and all η except η_c belong to the `Engine`, which also has a factor of η_c in
    prefill. π is the peak at 16 bits (π₁₆) whatever the weights are stored in, except for fp8 on
    GPUs that have it; attention always computes at 16 bits. All-reduces of 64 MiB and more reach
    only `Engine.large_allreduce` of η_l, if the engine has one. k GPUs of a stage share the batch
    (each holds all layers of the stage), or cut the layers k ways, or form groups that do both:
    what is best (`prefer`) among what fits in memory. Shared evenly, the slowest GPU counts;
    balanced by speed, all finish together.

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
    messages and replicated down-projections. No published time of prompts with experts was
    compared (5 whole requests to Mixtral were); their rates are likely several times too high.
    Between stages of several GPUs, all goes over the slowest pair; network cards of their own would
    carry parts. Chunks of a long prompt read weights and earlier keys once more each, by a few
    percent.

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

    gpus: Annotated[
        Mapping[str, GPUFacts],
        MinLen(1),
        described("at least one type of GPU, or None for all known"),
        Later,
    ] = cast(Mapping[str, GPUFacts], None)
    engine: str = "vLLM"
    engines: Annotated[
        Mapping[str, Engine],
        MinLen(1),
        described("at least one engine, or None for all known"),
        Later,
    ] = cast(Mapping[str, Engine], None)
    hop_latency_s: NotNegative = 1e-5
    memory_share: Share = 0.9
    tensor_parallel: Flag = True
    prefer: Literal["rate", "time"] = "rate"

    nodes_matter_alone = True  # identical nodes are interchangeable: see `engine.stage_arrays`

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus", load_gpus() if self.gpus is None else dict(self.gpus))
        engines = load_engines() if self.engines is None else dict(self.engines)
        object.__setattr__(self, "engines", engines)
        if self.engine not in engines:
            raise UnknownName(
                f"there is no engine {self.engine!r}; {nearest(self.engine, engines)}"
            )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        numbers = [getattr(self, f.name) for f in fields(self) if f.name not in ("gpus", "engines")]
        return hash((tuple(self.gpus.items()), self.constants, *numbers))

    @property
    def constants(self) -> Engine:
        """Those of the engine that runs."""
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

    @cached_property
    def _trained(self) -> Self:
        if self.constants.gradient_bytes is not None:
            return self
        engines = {TRAINER: load_engines()[TRAINER], **self.engines}
        return replace(self, engines=engines, engine=TRAINER)

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

    def with_speed(self, gpu_type: str, speed: float) -> Self:
        """Return the same cost model with one type of GPU faster by a factor, in computing and in moving bytes.

        Parameters
        ----------
        gpu_type : str
            One of `gpu_types`.
        speed : float
            Above 0.

        Returns
        -------
        Roofline
            What the engine adds to every layer and step stays.
        """
        facts = self.gpus[gpu_type]
        changed = replace(
            facts,
            fp16_tflop_per_s=facts.fp16_tflop_per_s * speed,
            fp16_accumulate_tflop_per_s=_times(facts.fp16_accumulate_tflop_per_s, speed),
            fp8_tflop_per_s=_times(facts.fp8_tflop_per_s, speed),
            memory_bandwidth_gb_per_s=facts.memory_bandwidth_gb_per_s * speed,
        )
        return replace(self, gpus={**self.gpus, gpu_type: changed})

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
            The model is no `Transformer`, links are not counted in tokens, an engine for training
            is to write tokens, or a rate is not between 1e-9 and 1e15 tokens/s, beyond which
            solvers do not compute.
        """
        if not isinstance(problem.model, Transformer):
            expected = "expected a Transformer, such as load_model('Llama-3-70B'): Roofline needs its dimensions"
            raise InvalidValue("Problem", [("model", problem.model.name, expected)])
        if problem.link_units != "tokens":
            expected = (
                "expected 'tokens': Roofline's stages count tokens, and links must count the same"
            )
            raise InvalidValue("Problem", [("link_units", problem.link_units, expected)])
        load, spans = problem.workload, (range(1), range(problem.model.layers))
        if self.constants.activation_moves and load.phase in ("decode", "mixed"):
            expected = f"expected another engine for the phase {load.phase!r}: this one trains"
            raise InvalidValue("Problem", [("costs.engine", self.engine, expected)])
        for gpu in {kind.type: kind for kind in problem.cluster.kinds}.values():
            with np.errstate(all="ignore"):
                rates = load.tokens / np.array(
                    [seconds_of_pass(self, problem.model, load, gpu, x) for x in spans]
                )
            # no GPU's, and beyond what solvers compute with
            if not 1e-9 < rates.min() <= rates.max() < 1e15:
                expected = f"expected rates from 1e-9 to 1e15 tokens/s; {gpu.type} has {rates[0]:g} with one layer"
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
        sent = Demand(_known(problem), load).residual_bytes(load.batch_size)
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
            "weights", "KV cache", "activations" and "reserve", in GB (10^9 bytes).
        """
        demand, load = Demand(_known(problem), problem.workload), problem.workload
        span = Span.of(demand.model, layers)
        chunk = self.for_phase(load.phase).constants.chunk_tokens
        parts = demand.kept_gb(span, load.batch_size, 1, chunk)
        reserve = (1 - self.memory_share) * gpu.memory_gb
        return {name: float(value) for name, value in parts.items()} | {"reserve": reserve}

    def stage(
        self,
        model: Transformer,
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
        demand, span = Demand(model, workload), Span.of(model, layers)
        return cost_of_stage(self.for_phase(workload.phase), demand, tuple(gpus), span, batch_split)

    def stage_tables(
        self,
        model: Transformer,
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
        costs, demand = self.for_phase(workload.phase), Demand(model, workload)
        stages = Candidates(costs, demand, kinds, composition, Span.all(model))
        best = stages.best(stages.shared_batches(batch_split))
        return StageTables(best.rate, best.memory_gb, best.seconds)

    @checked_arguments
    def node_mixes(
        self,
        model: WithDimensions,
        workload: Annotated[Workload, described("a Workload")],
        gpu: Annotated[GPU, described("a GPU")],
        gpus: Count,
    ) -> "DataFrame":
        """Every mix of tensor parallelism, pipeline stages and replicas on one node.

        The sequences of the workload (`batch_size` · `in_flight`) are shared among the replicas; a
        replica has as many microbatches in flight as stages, each of an equal share, rounded up.
        Layers are cut so that the slowest stage is as fast as can be.

        Parameters
        ----------
        model : Transformer
            What the node serves.
        workload : Workload
            All that it serves at once.
        gpu : GPU
            One of the node's, all of which are equal, with `node` and `node_gb_per_s`.
        gpus : int
            How many the node has; every mix uses all of them.

        Returns
        -------
        pandas.DataFrame
            One row per mix, what fits first, then by rate: `tensor_parallel`, `stages`, `replicas`,
            `sequences` (after rounding), `tokens_per_s`, `seconds_per_turn` (in decode the time per
            token of every stream), `memory_needed_gb` on the fullest GPU, with what must stay free,
            `memory_offered_gb` and `fits`.

        Raises
        ------
        InvalidValue
            An argument is of another kind, the type is not known, the GPU has no node, or the phase
            is training.

        Examples
        --------
        >>> import pipelab as pl
        >>> gpu = pl.GPU("H100-SXM", 80, node="dgx", node_gb_per_s=450)
        >>> llama, load = pl.load_model("Llama-3-70B"), pl.Workload(4096, 32, "decode")
        >>> table = pl.Roofline().node_mixes(llama, load, gpu, 8)
        >>> table.loc[0, ["tensor_parallel", "stages", "replicas"]].tolist()
        [8, 1, 1]
        """
        from pipelab.hardware.what_fits import mixes_of_node

        return mixes_of_node(self, model, workload, gpu, gpus)

    def training_cost(
        self, problem: Problem, report: "StageReport", **options: Any
    ) -> "TrainingCost":
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
        from pipelab.hardware.training_times import training_cost

        return training_cost(self.for_training(), problem, report, **options)

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
        from pipelab.hardware.training_times import training_table

        return training_table(self.for_training(), problem, gpus, **options)

    def mfu(self, problem: Problem, placement: "Placement", tokens_per_s: float) -> float:
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
        from pipelab.hardware.training_times import training_flops

        load, gpus = problem.workload, problem.cluster.gpus
        used = [gpus[g].type for stage in placement.stages for g in stage.gpus]
        peak = sum(self.gpus[kind].fp16_tflop_per_s for kind in used) * 1e12
        return tokens_per_s * training_flops(problem.model, load) / (load.tokens * peak)

    def capacity(self, problem: Problem, placement: "Placement") -> "Capacity":
        """Return what a placement holds: the longest context, the most sequences, and which stage limits them.

        Parameters
        ----------
        problem : Problem
            Whose memory counts; its workload says how many sequences have the longest context, and
            how long the most sequences are. It need not fit itself.
        placement : Placement
            Valid but for memory.

        Returns
        -------
        Capacity
            `context` (tokens), `sequences` (at once), and `to_frame()` with both of every stage.

        Raises
        ------
        InvalidPlacement
            A rule besides memory is broken.
        InvalidValue
            An argument is of another kind.

        Examples
        --------
        >>> import pipelab as pl
        >>> cluster, load = pl.Cluster.from_counts({"L4": 1}, 24, 1), pl.Workload(8192, 1, "decode")
        >>> problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline(), link_units="tokens")
        >>> held = problem.costs.capacity(problem, pl.Placement.of([(32, (0,))]))
        >>> held.context > 40_000, held.sequences
        (True, 5)
        """
        from pipelab.hardware.what_fits import capacity

        return capacity(problem, placement)

    def expected_rate(self, problem: Problem, evaluation: "Evaluation") -> "ExpectedRate":
        """Say how far a plan's rate may be off, by published times that no constant was fitted to.

        Parameters
        ----------
        problem : Problem
            Whose phase counts.
        evaluation : Evaluation
            Of the plan, such as `result.evaluation`.

        Returns
        -------
        ExpectedRate
            `low` and `high` in tokens/s, between which four of five measured times lie; `within`, a
            share for `pl.sensitivity`; and a `sentence`. The first three are None where no such time
            was compared: prompts of mixtures of experts.

        Examples
        --------
        >>> import pipelab as pl
        >>> cluster, load = pl.Cluster.from_counts({"L4": 2}, 24, 1), pl.Workload(2048, 1, "decode")
        >>> problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline(), link_units="tokens")
        >>> result = pl.solve(problem)
        >>> expected = problem.costs.expected_rate(problem, result.evaluation)
        >>> expected.low < result.throughput < expected.high
        True
        """
        from pipelab.hardware.expected_rates import expected_rate

        return expected_rate(problem, evaluation, Roofline())

    def calibrated(self, file: str | Path, **stated: Any) -> "Calibration":
        """Fit the constants of engines and GPUs to measured times; today's are the priors.

        Parameters
        ----------
        file : str or Path
            A CSV with the columns of `data/measured_times.csv`; or what another tool measured:
            `llama-bench -o json`, `vllm bench serve` or `latency` (JSON), Vidur's `mlp.csv`, Helix's
            `prompt_bs2time.csv` and `decode_bs2time.csv`.
        **stated
            What such a file does not say, or says otherwise: `gpu_type`, `model`, `precision`,
            `engine`, `phase`, `batch`, `tokens`, `output_tokens`, `tensor_parallel` and
            `node_gb_per_s`. `notebooks/data.md` says what each format needs.

        Returns
        -------
        Calibration
            `costs`, the fitted Roofline; `table` with the error of every row before, after, and
            predicted from the other rows; `constants`; and `warnings` where rows contradict one
            another.

        Raises
        ------
        InvalidData
            The file is not there or cannot be read, a value does not fit, or neither the file nor
            `stated` says what is needed.
        InvalidValue
            `file` is not a path, or a stated fact does not fit.
        UnknownName
            The model is unknown.
        """
        from pipelab.hardware.calibration import calibrate, read_measurements
        from pipelab.hardware.measurement_files import measurements_of, stated_of

        path = path_of("calibrated", file, "file")
        kind, facts = stated_of("calibrated", path, stated)
        if kind == "own":
            return calibrate(self, [one for _, one in read_measurements(path)])
        return calibrate(self, measurements_of(path, kind, facts, self.gpus))

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
        return seconds_of_pass(self, model, workload, gpu, layers, tensor_parallel)

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
            its bytes; "overhead" (with attention scores, where they go through memory); and "layer", in which
            what overlaps counts once. All in seconds.

        Raises
        ------
        UnknownName
            The type of GPU is not known.

        Examples
        --------
        >>> import pipelab as pl
        >>> llama, load = pl.load_model("Llama-3-70B"), pl.Workload(2048, 1, "decode")
        >>> times = Roofline().layer_times(llama, load, pl.GPU("L4", 24))
        >>> max(times, key=times.get), times["weights"] > 100 * times["computing"]
        ('layer', True)
        """
        return layer_times(self, model, workload, gpu)


def _times(peak: float | None, speed: float) -> float | None:
    return None if peak is None else peak * speed


def _known(problem: Problem) -> Transformer:
    """Return the model, which `check` has found to have dimensions."""
    return cast(Transformer, problem.model)
