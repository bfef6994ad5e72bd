"""Roofline: what a stage of real GPUs yields and needs.

A pass takes each layer as long as the slower of computing and moving bytes, plus what does not
overlap (Williams, Waterman and Patterson, 2009). The constants are few and named; each has one
value per type of GPU or one for all.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import InstanceOf

from pipelab.cluster import GPU
from pipelab.fields import Count, checked, checked_arguments, described
from pipelab.hardware.roofline.pass_times import seconds_of_pass
from pipelab.hardware.roofline.plans import RooflinePlans, WithDimensions
from pipelab.hardware.roofline.time_parts import layer_times
from pipelab.hardware.transformer import Transformer
from pipelab.io.csv_cells import path_of
from pipelab.problem import Workload

if TYPE_CHECKING:
    from pipelab.hardware.roofline.calibration import Calibration


@checked
class Roofline(RooflinePlans):
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

    nodes_matter_alone = True  # identical nodes are interchangeable: see `engine.stage_arrays`

    __hash__ = RooflinePlans.__hash__  # else it would be made anew, of fields without one

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
            The model is unknown.
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
        return layer_times(self, model, workload, gpu)
