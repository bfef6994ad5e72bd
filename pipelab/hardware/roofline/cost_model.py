"""Roofline: what a stage of real GPUs yields and needs.

A pass takes each layer as long as the slower of computing and moving bytes, plus what does not
overlap (Williams, Waterman and Patterson, 2009). The constants are few and named; each has one
value per type of GPU or one for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

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
from pipelab.hardware.roofline.arrays import Span
from pipelab.hardware.roofline.demand import Demand
from pipelab.hardware.roofline.execution_modes import best_modes
from pipelab.hardware.roofline.pass_times import hardware_of, slower, stage_seconds
from pipelab.hardware.roofline.single_stage import cost_of_stage
from pipelab.hardware.transformer import Transformer
from pipelab.io.csv_cells import path_of
from pipelab.problem import Problem, Workload

if TYPE_CHECKING:
    from pandas import DataFrame

    from pipelab.hardware.roofline.calibration import Calibration
    from pipelab.hardware.what_fits import Capacity
    from pipelab.placement import Placement

_WithDimensions = Annotated[
    Transformer, described("a model with dimensions, such as load_model('Llama-3-8B')")
]


@checked
class Roofline:
    """The physical cost model.

    Parameters
    ----------
    gpus : mapping of GPU type to GPUFacts, optional
        By default all of `data/gpus.csv`. `F` = fp16_tflop_per_s, `B` = memory_bandwidth_gb_per_s
        and `η_c` = compute_efficiency come from there.
    engine : str
        The inference engine: "vLLM", "TensorRT-LLM", "SGLang", "llama.cpp", "vLLM 0.2" (eager),
        "kernels" for the kernels alone, or another of `engines`.
    engines : mapping of name to Engine, optional
        By default all of `data/engines.csv`.
    hop_latency_s : float
        `α`, what sending a message to another node takes besides its bytes, in seconds; the link is
        taken for that long. How long a byte is on the way is the link's own (`Cluster.latency_ms`), and keeps no
        other message from it.
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

        T_c = FLOPs / (t · F · η_c)
        T_m = (weights / t + KV / min(t, K) + activations / t) / (B · η_m)
        T_tp = 2 · (2(t − 1)/t · b·q·d·2 bytes / (η_l · bandwidth inside the node) + α_ar)
        T_stage = Σ layers [max(T_c, T_m) + (1 − ω) · min(T_c, T_m) + τ0 + T_tp] + head + τ1

    and the rate is the tokens of a pass over T_stage. FLOPs and bytes are those of `Demand`; η_m,
    η_l, ω, τ0, τ1 and α_ar belong to the `Engine`, and so does a factor of η_c in prefill, where ω
    = 1. Arithmetic runs at 16 bits whatever the weights are stored in, but for fp8 on GPUs that
    have it. k GPUs of a stage share the batch
    (each holds all layers of the stage), or cut the layers k ways, or form groups that do both:
    what is best (`prefer`) among what fits in memory. Shared evenly, the slowest GPU counts;
    balanced by speed, all finish together.

    Shares b need not be whole in the rate: GPUs that take turns at whole batches do at least as
    well in the long run, as T_stage(k·b) ≤ k·T_stage(b). No sequence is shared in a single pass
    without cutting layers, so a pass takes the longest T_stage(⌈b⌉) of the stage's GPUs or groups
    of GPUs (`pipelab.costs`). Both hold at once wherever T_stage is straight between ⌊b⌋ and
    ⌈b⌉; at the bend from reading to computing, a full pipeline may need turns at whole batches, and
    longer passes, for the rate. Memory is for whole sequences: ⌈b · in flight⌉ in the
    KV cache, ⌈b⌉ at work.

    A message occupies its link for α + bytes / bandwidth, and is there after the link's latency.

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
    7.94
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus", load_gpus() if self.gpus is None else dict(self.gpus))
        engines = load_engines() if self.engines is None else dict(self.engines)
        object.__setattr__(self, "engines", engines)
        if self.engine not in engines:
            raise UnknownName(
                f"there is no engine {self.engine!r}; {nearest(self.engine, engines)}"
            )

    nodes_matter_alone = True  # identical nodes are interchangeable: see `engine.stage_arrays`

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

    def running(self, engine: str) -> "Roofline":
        """The same with another of its engines.

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

    def with_speed(self, gpu_type: str, speed: float) -> "Roofline":
        """The same with one type of GPU that computes, and moves bytes, so many times as fast.

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
            `node_gb_per_s`. `data/README.md` says what each format needs.

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
            There is no such model.
        """
        from pipelab.hardware.measurement_files import (
            format_of,
            measurements_of,
            refuse_stated,
            stated_of,
        )
        from pipelab.hardware.roofline.calibration import calibrate
        from pipelab.hardware.roofline.measurement_rows import measurement_of, read_measurements

        path, facts = path_of("calibrated", file, "file"), stated_of("calibrated", stated)
        kind = format_of(path)
        if kind != "own":
            return calibrate(self, measurements_of(path, kind, facts, self.gpus))
        refuse_stated("calibrated", path, stated)
        return calibrate(self, [measurement_of(row) for row in read_measurements(path)])

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
            The model is no `Transformer`, links are not counted in tokens, or a rate is not between
            1e-9 and 1e15 tokens/s, beyond which solvers do not compute.
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
        for gpu in {kind.type: kind for kind in problem.cluster.kinds}.values():
            with np.errstate(all="ignore"):
                rates = load.tokens / np.array(
                    [self.pass_seconds(problem.model, load, gpu, x) for x in spans]
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
        sent = Demand(_known(problem), problem.workload).handed_on_bytes(
            problem.workload.batch_size
        )
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
        """What these layers need on one GPU alone, by what it is for.

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
        parts = demand.kept_gb(problem.model.weight_gb(layers), len(layers), load.batch_size, 1)
        reserve = (1 - self.memory_share) * gpu.memory_gb
        return {name: float(value) for name, value in parts.items()} | {"reserve": reserve}

    @checked_arguments
    def pass_seconds(
        self,
        model: _WithDimensions,
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
        if gpu.type not in self.gpus:
            raise InvalidValue(
                "pass_seconds", [("gpu.type", gpu.type, nearest(gpu.type, self.gpus))]
            )
        if not 0 <= layers.start < layers.stop <= model.layers or layers.step != 1:
            expected = f"expected consecutive layers among range(0, {model.layers})"
            raise InvalidValue("pass_seconds", [("layers", layers, expected)])
        degree = tensor_parallel
        if degree > 1 and not gpu.node:
            expected = "expected a GPU with a node where it is more than 1"
            raise InvalidValue("pass_seconds", [("tensor_parallel", degree, expected)])
        demand, span = Demand(model, workload), Span.of(model, layers)
        return float(
            stage_seconds(
                self,
                demand,
                hardware_of(self, demand, [gpu]),
                span,
                np.array([workload.batch_size]),
                degree,
            )[0]
        )

    @checked_arguments
    def node_mixes(
        self,
        model: _WithDimensions,
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
            An argument is of another kind, the type is not known, or the GPU has no node.

        Examples
        --------
        >>> import pipelab as pl
        >>> gpu = pl.GPU("H100-SXM", 80, node="dgx", node_gb_per_s=450)
        >>> llama, load = pl.load_model("Llama-3-70B"), pl.Workload(4096, 32, "decode")
        >>> table = Roofline().node_mixes(llama, load, gpu, 8)
        >>> table.loc[0, ["tensor_parallel", "stages", "replicas"]].tolist()
        [8, 1, 1]
        """
        from pipelab.hardware.roofline.node_mixes import mixes_of_node

        return mixes_of_node(self, model, workload, gpu, gpus)

    def capacity(self, problem: Problem, placement: "Placement") -> "Capacity":
        """What a placement holds: the longest context, the most sequences, and which stage limits them.

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
        >>> problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, Roofline(), link_units="tokens")
        >>> held = problem.costs.capacity(problem, pl.Placement.of([(32, (0,))]))
        >>> held.context > 40_000, held.sequences
        (True, 5)
        """
        from pipelab.hardware.what_fits import capacity

        return capacity(problem, placement)

    def layer_times(self, model: Transformer, workload: Workload, gpu: GPU) -> dict[str, float]:
        """Where the time of one ordinary layer goes: one pass of the whole batch on one GPU, in seconds.

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
        if gpu.type not in self.gpus:
            raise UnknownName(f"no facts of GPU type {gpu.type!r}; {nearest(gpu.type, self.gpus)}")
        demand, b = Demand(model, workload), np.array([workload.batch_size])
        hardware = hardware_of(self, demand, [gpu])
        moved = {
            "weights": demand.layer_weight_bytes("ordinary", b),
            "keys and values": demand.kv_bytes(b),
            "activations": demand.activation_bytes(b),
        }
        seconds = {"computing": demand.layer_flops("ordinary", b) / hardware.flops}
        seconds |= {name: size / hardware.bandwidth for name, size in moved.items()}
        both = slower(self, demand, seconds["computing"], sum(moved.values()) / hardware.bandwidth)
        scores = demand.score_bytes(self.constants.score_bytes, b) / hardware.bandwidth
        overhead = self.constants.layer_overhead_us * 1e-6 + scores[0]
        seconds |= {
            "overhead": np.array([overhead]),
            "layer": both + overhead,
        }
        return {name: float(value[0]) for name, value in seconds.items()}

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
        return cost_of_stage(
            self, Demand(model, workload), tuple(gpus), Span.of(model, layers), batch_split
        )

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
        best = best_modes(
            self, Demand(model, workload), tuple(kinds), composition, Span.all(model), batch_split
        )
        return StageTables(best.rate, best.memory_gb, best.seconds)


def _times(peak: float | None, speed: float) -> float | None:
    return None if peak is None else peak * speed


def _known(problem: Problem) -> Transformer:
    """The model, which `check` has found to have dimensions."""
    return cast(Transformer, problem.model)
