"""Published times: the rows of the bundled tables, what a cost model predicts for them, and how far off that is.

A cost model asks for its own errors (`Roofline.band`), so nothing here knows `Roofline`: a `Predictor` is what it is.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from pipelab.cluster import GPU
from pipelab.display import DataFrame, counted
from pipelab.errors import InvalidValue, nearest
from pipelab.fields import Count, Positive, checked
from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import Row, bundled_frame, frame_of, place, read_objects
from pipelab.hardware.known_gpus import GPUFacts, type_of
from pipelab.hardware.known_models import load_model, models
from pipelab.hardware.pass_times import Demand, Hardware, Span
from pipelab.hardware.quantisation import stored_in
from pipelab.hardware.serving_engines import Engine
from pipelab.hardware.transformer import Transformer
from pipelab.placement import Placement
from pipelab.problem import Problem, Workload

# How engines' names begin in the tables and benchmarks of others.
ENGINE_NAMES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt-llm": "TensorRT-LLM",
    "trt": "TensorRT-LLM",
    "llama.cpp": "llama.cpp",
}


class Predictor(Hashable, Protocol):
    """A cost model that predicts times, such as `Roofline`."""

    @property
    def gpus(self) -> Mapping[str, GPUFacts]:
        """GPU types by name."""

    @property
    def engine(self) -> str:
        """The engine that runs."""

    @property
    def engines(self) -> Mapping[str, Engine]:
        """Engines by name."""

    @property
    def memory_share(self) -> float:
        """Share of a GPU's memory that may be used."""

    def running(self, engine: str) -> "Predictor":
        """Return this cost model with another of its engines."""

    def hardware(self, demand: Demand, kinds: Sequence[GPU]) -> Hardware:
        """Return what GPUs reach with the engine that runs."""


def engine_named(name: str) -> str | None:
    """Return the engine whose name begins so, in the tables and benchmarks of others; None if there is none."""
    known = (full for start, full in ENGINE_NAMES.items() if name.lower().startswith(start))
    return next(known, None)


@checked
class Measurement:
    """One measured time of `data/measured_times.csv`, or of a file of its columns."""

    what: str
    model: str
    gpu_type: str
    phase: Literal["prefill", "decode", "mixed"]
    batch: Count
    tokens: Count
    measured: Positive
    unit: Literal["ms", "tokens/s"]
    tensor_parallel: Count = 1
    layers: Count | None = None
    node_gb_per_s: Positive | None = None
    engine: str = ""
    precision: str = ""
    weights_gb: Positive | None = None  # of the whole file, where no precision says it

    @property
    def workload(self) -> Workload:
        """The batch that was timed."""
        return Workload(self.tokens, self.batch, self.phase)

    @property
    def milliseconds(self) -> float:
        """Time of one traversal of the whole batch."""
        return self.measured if self.unit == "ms" else 1000 * self.workload.tokens / self.measured

    def too_fast(self, costs: Predictor) -> str:
        """Say why the time cannot be true: it is below what physics needs; else nothing."""
        least, what = Traversal(self, costs).least(costs.gpus[self.gpu_type])
        if self.milliseconds >= least:
            return ""
        text = f"{self.milliseconds:.4g} ms is less than the {least:.4g} ms that {self.gpu_type} takes for {what}"
        return f"{text}; expected the time of one pass of the whole batch"

    def predicted(self, costs: Predictor) -> float:
        """Predict the time by this cost model, in milliseconds."""
        return Traversal(self, costs).milliseconds(costs)


class Traversal:
    """The work and the GPU of one measurement, from which any cost model predicts its time."""

    def __init__(self, row: Measurement, costs: Predictor) -> None:
        model = load_model(row.model, precision=row.precision or "bf16")
        if row.weights_gb:
            model = stored_in(model, row.weights_gb)
        self.engine = row.engine or costs.engine
        if self.engine not in costs.engines:
            raise _unknown("engine", "an engine", self.engine, costs.engines)
        if row.gpu_type not in costs.gpus:
            raise _unknown("gpu_type", "a GPU", row.gpu_type, costs.gpus)
        if row.layers and row.layers > max(1, model.layers - 2):
            expected = f"expected at most {model.layers - 2} layers from the middle of {model.name}, or empty for all"
            raise InvalidValue("a measurement", [("layers", row.layers, expected)])
        if row.tensor_parallel > 1 and not row.node_gb_per_s:
            expected = "expected the bandwidth inside the node where GPUs cut layers"
            raise InvalidValue("a measurement", [("node_gb_per_s", row.node_gb_per_s, expected)])
        memory = costs.gpus[row.gpu_type].memory_gb
        node = "measured" if row.node_gb_per_s else ""
        self.gpu = GPU(row.gpu_type, memory, None, node, row.node_gb_per_s)
        # A profile of single layers is one from the middle: no embedding, no head.
        layers = range(1, 1 + row.layers) if row.layers else range(model.layers)
        self.demand, self.span = Demand(model, row.workload), Span.of(model, layers)
        self.batch, self.degree = row.batch, row.tensor_parallel

    def milliseconds(self, costs: Predictor) -> float:
        """Predict the time with the constants of this cost model, of which only the row's engine counts."""
        hardware = costs.running(self.engine).hardware(self.demand, [self.gpu]).take(0)
        return 1000 * float(hardware.stage_seconds(self.span, self.batch, self.degree))

    def least(self, facts: GPUFacts) -> tuple[float, str]:
        """Return the milliseconds that no engine can beat, and what takes them.

        All products at the highest peak of the GPU, or all weights (of experts those that one token visits), keys
        and values once at the peak of its memory: whichever takes longer.
        """
        demand, span, batch, gpus = self.demand, self.span, self.batch, self.degree
        flops, moved = span.last * demand.head_flops(batch), span.last * demand.head_bytes
        for kind, number in demand.of_kinds(span):
            cache = demand.kv_bytes(kind, batch) * (demand.load.phase == "decode")
            weights = demand.layer_weight_bytes(kind, 1 / demand.new_tokens)
            attention = batch * demand.attention_flops(kind)
            flops += number * (demand.layer_flops(kind, batch) + attention)
            moved += number * (weights + cache)
        peaks = [facts.fp16_tflop_per_s, facts.fp16_accumulate_tflop_per_s or 0.0]
        if demand.model.precision in ("fp8", "int8", "int4"):
            peaks.append(facts.fp8_tflop_per_s or 0.0)
        elif demand.model.precision in ("nvfp4", "mxfp4"):
            peaks.append(2 * (facts.fp8_tflop_per_s or 0.0))
        speed = facts.memory_bandwidth_gb_per_s
        among = f" on each of {gpus} GPUs" if gpus > 1 else ""
        computing = 1000 * flops / (gpus * max(peaks) * 1e12)
        moving = 1000 * moved / (gpus * speed * 1e9)
        if computing > moving:
            what = f"{flops / gpus / 1e12:.3g} TFLOP at {max(peaks):g} TFLOP/s{among}"
            return float(computing), what
        what = f"{moved / gpus / 1e9:.3g} GB of weights, keys and values at {speed:g} GB/s{among}"
        return float(moving), what


def _unknown(column: str, what: str, name: str, known: Mapping[str, Any]) -> InvalidValue:
    """Make the error of a row whose GPU or engine the cost model does not know."""
    expected = f"expected {what} of the cost model; {nearest(name, known)}"
    return InvalidValue("a measurement", [(column, name, expected)])


def read_measurements(path: Path) -> list[tuple[Row, Measurement]]:
    """Read and check the rows of a file with the columns of `data/measured_times.csv`.

    Raises
    ------
    InvalidData
        Naming the file, the row and the column.
    """
    return of_known_models(read_objects(path, Measurement))


def _pass_ms(costs: Predictor, model: Transformer, load: Workload, gpu: GPU, degree: int) -> float:
    """Milliseconds of one pass of the whole batch through the whole model."""
    hardware = costs.hardware(Demand(model, load), [gpu]).take(0)
    span = Span.of(model, range(model.layers))
    return 1000 * float(hardware.stage_seconds(span, load.batch_size, degree))


def held_out_milliseconds(costs: Predictor, row: Any) -> float:
    """Predict a row of `data/held_out_times.csv`; a request is its prompt, and then token by token."""
    timed = partial(
        Measurement,
        what="",
        model=row.model,
        gpu_type=row.gpu_type,
        batch=int(row.batch),
        measured=1.0,
        unit="ms",
        tensor_parallel=int(row.tensor_parallel),
        node_gb_per_s=None if np.isnan(row.node_gb_per_s) else row.node_gb_per_s,
        engine=row.engine,
        precision=row.precision,
    )
    if row.phase != "request":
        return timed(phase=row.phase, tokens=int(row.prompt)).predicted(costs)
    reading = timed(phase="prefill", tokens=int(row.prompt))
    step = timed(phase="decode", tokens=int(row.prompt + row.output // 2))
    return reading.predicted(costs) + (row.output - 1) * step.predicted(costs)


@checked
class ServedTime:
    """Times of a server with so many requests at once: a row of a file with the columns of `data/served_times.csv`."""

    model: str
    gpu: str
    engine: str
    fp8: bool
    tensor_parallel: Count
    concurrent_requests: Count
    prompt_tokens: Count
    output_tokens: Count
    tpot_ms: Positive
    ttft_ms: Positive

    def predicted(self, costs: Predictor) -> tuple[float, float]:
        """Predict TPOT and TTFT in milliseconds; not a number where the GPUs cannot hold the weights.

        In a mixed load, n requests that run take o passes for n answers of o tokens. Of this time a request
        waits for its first token: until the pass that runs has ended, its prompt is read, and before it those
        of the engine's share of the others (`Engine.prompts_ahead`). The rest is its TPOT, o − 1 times.
        Requests that memory does not hold wait before, for those that run.

        Raises
        ------
        InvalidValue
            The cost model has no such GPU or engine.
        UnknownName
            There is no such model.
        """
        gpu_type, engine = type_of(self.gpu, costs.gpus), engine_named(self.engine)
        if gpu_type is None:
            raise _unknown("gpu", "a GPU", self.gpu, costs.gpus)
        if engine is None or engine not in costs.engines:
            raise _unknown("engine", "an engine", self.engine, costs.engines)
        facts, costs, degree = costs.gpus[gpu_type], costs.running(engine), self.tensor_parallel
        cache = _caches_of_fp8().get(self.model) if self.fp8 else None
        model = load_model(self.model, precision="fp8" if self.fp8 else "bf16", kv_precision=cache)
        gpu = GPU(gpu_type, facts.memory_gb, None, "measured", facts.link_gb_per_s)
        running = min(self.concurrent_requests, self._held(costs, model, gpu))
        if not running:
            return np.nan, np.nan
        prompt, answer = self.prompt_tokens, self.output_tokens
        mixed = _pass_ms(costs, model, Workload(prompt, running, "mixed", answer), gpu, degree)
        reading = _pass_ms(costs, model, Workload(prompt, 1), gpu, degree)
        ahead = costs.engines[engine].prompts_ahead * (running - 1)
        first = mixed + reading + ahead * reading
        waiting = (self.concurrent_requests / running - 1) * answer * mixed
        return (answer * mixed - first) / max(1, answer - 1), waiting + first

    def _held(self, costs: Predictor, model: Transformer, gpu: GPU) -> int:
        """Count the requests whose keys and values memory holds, beside the weights."""
        load = Workload(self.prompt_tokens, 1, "mixed", self.output_tokens)
        span, chunk = Span.of(model, range(model.layers)), costs.engines[costs.engine].chunk_tokens
        needed = Demand(model, load).kept_gb(span, 1, self.tensor_parallel, chunk, None)
        one = float(needed.pop("KV cache"))
        free = costs.memory_share * gpu.memory_gb - float(sum(needed.values()))
        return max(0, int(free / one))


def served_rows(costs: Predictor, path: Path) -> DataFrame:
    """Return a file with the columns of `data/served_times.csv` with the `tpot_error` and `ttft_error` of every row.

    Raises
    ------
    InvalidData
        Naming the file, the row and the column.
    """
    table, errors = frame_of(path, "id").reset_index(), []
    for row, one in of_known_models(read_objects(path, ServedTime)):
        tpot, ttft = place(row, {}, partial(one.predicted, costs))
        errors.append((tpot / one.tpot_ms - 1, ttft / one.ttft_ms - 1))
    table[["tpot_error", "ttft_error"]] = errors
    return table


@cache
def _caches_of_fp8() -> dict[str, str]:
    """Return the precisions of keys and values that servers keep of models in fp8, where these are not 16 bits."""
    return models()["fp8_cache"].dropna().to_dict()


def of_known_models(rows: list[tuple[Row, Any]]) -> list[tuple[Row, Any]]:
    """Refuse a row whose model has no other name."""
    known = models().index
    for row, one in rows:
        if one.model not in known:
            expected = f"there is no such model; {nearest(one.model, known)}"
            raise row.error("model", one.model, expected)
    return rows


class TimeGroup(NamedTuple):
    """What published times have in common; None stands for any."""

    phase: str | None
    experts: bool  # a mixture of experts, or dense
    layout: str | None  # ONE_GPU, TENSOR_PARALLELISM or PIPELINE
    engine: str | None
    unmeasured: str = ""  # what no measured model has (`Transformer.unmeasured`)

    @property
    def words(self) -> str:
        """The group in words, such as "decode, dense, one GPU, vLLM"."""
        kind = "mixtures of experts" if self.experts else "dense"
        parts = (self.phase, kind, self.unmeasured, self.layout, self.engine)
        return ", ".join(filter(None, parts))

    def widened(self) -> "list[TimeGroup]":
        """List this group, and those that it is part of: of any engine, any layout, any phase."""
        groups = [self, self._replace(engine=None), self._replace(engine=None, layout=None)]
        return [*groups, self._replace(phase=None, layout=None, engine=None)]


ONE_GPU, TENSOR_PARALLELISM, PIPELINE = "one GPU", "tensor parallelism", "pipeline"
LEAST_TIMES = 10  # of a group; of fewer an error says little


def group_of(problem: Problem, engine: str, placement: Placement | None = None) -> TimeGroup:
    """Return the group of a placement; without one, of all GPUs.

    GPUs of one node that may be one stage cut its layers; others are a pipeline.
    """
    gpus = problem.cluster.gpus
    together = gpus[0].node and len(set(gpus)) == 1 and len(gpus) <= problem.max_gpus_per_stage
    sizes = [len(gpus)] if together else [1] * len(gpus)
    if placement is not None:
        sizes = [len(stage.gpus) for stage in placement.stages]
    alone = TENSOR_PARALLELISM if sizes[0] > 1 else ONE_GPU
    layout = PIPELINE if len(sizes) > 1 else alone
    model = problem.model
    return TimeGroup(problem.workload.phase, model.has_experts, layout, engine, model.unmeasured)


@dataclass(frozen=True, kw_only=True)
class Band:
    """How far off predictions of a group of published times are.

    Attributes
    ----------
    group : TimeGroup
        Phase, dense or experts, one GPU, tensor parallelism or pipeline, and engine.
    measurements : int
        Published times of the group to which nothing was fitted.
    median, worst : float or None
        Of predicted over measured time less 1, without its sign; None of fewer than ten.
    low, high : float or None
        Between which four of five lie, with their signs.
    """

    group: TimeGroup
    measurements: int
    median: float | None = None
    worst: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def sentence(self) -> str:
        """Say how far off, and by how many measurements that is known."""
        kind, times = f"of this kind ({self.group.words})", self.measurements
        if self.median is None:
            few = f"Only {counted(times, 'published time')}" if times else "No published time"
            return f"{few} {'are' if times > 1 else 'is'} {kind}: how far off such predictions are is not known."
        return (
            f"Predicted times {kind} are off by {self.median:.1%} in the median and {self.worst:.0%} at worst, "
            f"by {times} published times."
        )


@lru_cache(maxsize=256)  # an explorer asks again at every step
def band_of(group: TimeGroup, costs: Predictor) -> Band:
    """Return the errors of this cost model in a group."""
    table = published_errors(costs)
    inside = table["experts"] == group.experts
    for column in ("phase", "layout", "engine"):
        if (value := getattr(group, column)) is not None:
            inside &= table[column] == value
    errors = table.loc[inside & (not group.unmeasured), "error"]
    if len(errors) < LEAST_TIMES:
        return Band(group=group, measurements=len(errors))
    low, high = errors.quantile([0.1, 0.9]).tolist()
    sizes = errors.abs()
    return Band(
        group=group,
        measurements=len(errors),
        median=float(sizes.median()),
        worst=float(sizes.max()),
        low=low,
        high=high,
    )


@lru_cache(maxsize=4)
def published_errors(costs: Predictor) -> DataFrame:
    """Predict every published time of the two tables that are not for fitting: held-out rows, and servers.

    Returns
    -------
    pandas.DataFrame
        `phase`, `experts`, `layout`, `engine` (the columns of `TimeGroup`), `gpu_type`, and `error`, predicted
        over measured time less 1. Of servers, the time per token counts.
    """
    import pandas as pd

    served = served_rows(costs, data_dir() / "served_times.csv")
    served["engine"] = served["engine"].map(engine_named)
    served["gpu_type"] = [type_of(name, costs.gpus) for name in served["gpu"]]
    served["phase"], served["error"] = "mixed", served["tpot_error"]
    columns = ["phase", "model", "gpu_type", "engine", "tensor_parallel", "error"]
    parts = [held_out_rows(costs)[columns], served[columns]]
    table = pd.concat(parts, ignore_index=True)
    table["experts"] = [load_model(name).has_experts for name in table.pop("model")]
    cut = table.pop("tensor_parallel") > 1
    table["layout"] = np.where(cut, TENSOR_PARALLELISM, ONE_GPU)
    # Errors of whole pipelines are appended here, with the layout PIPELINE.
    return table[table["error"].notna()]


def held_out_rows(costs: Predictor) -> DataFrame:
    """Return `data/held_out_times.csv` with the `error` of every row; a request is mostly decoding."""
    rows = bundled_frame("held_out_times.csv")
    times = [held_out_milliseconds(costs, row) / row.seconds / 1000 for row in rows.itertuples()]
    errors = [time - 1 for time in times]
    return rows.assign(error=errors, phase=rows["phase"].replace("request", "decode"))
