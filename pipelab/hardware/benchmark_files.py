"""Measured times of whole models from benchmarks of llama.cpp, vLLM, SGLang and TensorRT-LLM.

They are JSON, or what is printed: llama-bench's CSV and Markdown, the others' tables, which become the fields of the
JSON that the same benchmark writes.

What a file does not say is stated by the caller (`StatedFacts`); what nobody says is an error that names
the argument. Every format is a class: its fields are those that are read, `refused` lists what no time can be
read from, and `passes` makes times of the fields.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le
from pydantic import AllowInfNan, Strict

from pipelab.errors import InvalidData, InvalidValue, nearest, shown
from pipelab.fields import Count, NotNegative, Positive, checked, described, instance, is_list
from pipelab.files.csv_rows import Row, place
from pipelab.files.reading_and_writing import json_of, named, path_of, read_text
from pipelab.hardware.calibration import Calibration, fit_constants
from pipelab.hardware.known_gpus import GPUFacts, type_of_named
from pipelab.hardware.known_models import load_model, models
from pipelab.hardware.printed_benchmarks import in_vllm_names, is_printed, printed_results
from pipelab.hardware.published_times import (
    ENGINE_NAMES,
    Measurement,
    engine_named,
    read_measurements,
)
from pipelab.hardware.roofline import Roofline

_FORMATS = (
    "llama-bench -o json, jsonl, csv or md, vllm bench serve --save-result, vllm bench latency --output-json, SGLang's "
    "bench_serving --output-file, trtllm-bench --report_json, or the tables that these print"
)
Phase = Literal["prefill", "decode"]
# In JSON, where "3" is not a number.
_Above = Annotated[float, Strict(), Gt(0), AllowInfNan(False), described("a number above 0")]
_Whole = Annotated[int, Strict(), Ge(0), Le(10**9), described("a whole number from 0 to 10^9")]
_Facts = Mapping[str, GPUFacts]


@checked
class StatedFacts:
    """Facts that the caller states of the times in a file; they count, whatever the file says."""

    gpu_type: str | None = None
    model: str | None = None
    precision: str | None = None
    engine: str | None = None
    phase: Phase | None = None
    batch: Count | None = None
    tokens: Count | None = None
    output_tokens: Count | None = None
    tensor_parallel: Count | None = None
    node_gb_per_s: Positive | None = None


def _needed(value: Any, argument: str, place: str, what: str) -> Any:
    """Return a fact that the file or the caller says; if nobody does, the error names the argument."""
    if value in (None, ""):
        remedy = f"give {argument}=…, or a field {argument!r} in the file (vllm bench serve --metadata {argument}=…)"
        raise InvalidData(f"{place}: the file does not say {what}; {remedy}")
    return value


def _stated_facts(given: Mapping[str, Any]) -> StatedFacts:
    """Return the arguments of `calibrate` as facts; the model must be known."""
    try:
        stated = StatedFacts(**given)
    except InvalidValue as error:
        raise InvalidValue("calibrate", error.problems) from None
    if stated.model is not None:
        load_model(stated.model)  # refuses what is not known, and no configuration either
    return stated


def _is_benchmark(path: Path) -> bool:
    """Tell a benchmark's file from a table of measurements."""
    text = read_text(path).lstrip()
    return path.suffix in (".json", ".jsonl") or text[:1] in ("[", "{") or is_printed(text)


def measurements_of(path: Path, stated: StatedFacts, costs: Roofline) -> list[Measurement]:
    """Read the times of a benchmark as rows that `Roofline` can be fitted to; at least one.

    Raises
    ------
    InvalidData
        The file is torn or strange, does not say what nobody states, or has a time that is too short to be
        true; names file and place.
    """
    rows = []
    for result in _results(path):
        try:
            facts = _with_said(stated, result)
            passes = list(result.passes(facts, costs.gpus))
            wanted = [timed for timed in passes if facts.phase in (None, timed.phase)]
            rows += [_with_stated(timed, facts, result.place, costs) for timed in wanted]
        except InvalidValue as error:
            field, value, expected = error.problems[0]
            doubt = f"{field} = {shown(value)}: {expected}; give {field}=…"
            raise InvalidData(f"{result.place}: {doubt}") from None
    if not rows:
        raise InvalidData(f"{named(path)}: it has no time of phase={stated.phase!r}")
    return rows


def _with_stated(
    timed: Measurement, stated: StatedFacts, place: str, costs: Roofline
) -> Measurement:
    """Return a time with what is stated of it; it must say its GPU, and be possible."""
    names = ("gpu_type", "engine", "precision", "node_gb_per_s")
    facts = {name: value for name in names if (value := getattr(stated, name)) is not None}
    row = replace(timed, **facts)
    _needed(row.gpu_type, "gpu_type", place, "on which GPU it ran")
    tokens = f"{row.batch} × {row.tokens} tokens"
    row = replace(row, what=f"{row.model} {row.precision}, {row.phase} of {tokens}")
    if doubt := row.too_fast(costs):
        raise InvalidData(f"{place}: {doubt}")
    return row


def _with_said(stated: StatedFacts, result: "_BenchmarkRecord") -> StatedFacts:
    """Return what is stated, or else said by a field of this name: --metadata of vLLM's benchmark writes text."""
    facts = asdict(stated)
    said = {name: result.fields[name] for name in facts if result.fields.get(name)}
    said = {name: int(fact) if str(fact).isdecimal() else fact for name, fact in said.items()}
    return StatedFacts(**(said | {name: fact for name, fact in facts.items() if fact is not None}))


@dataclass(frozen=True)
class _BenchmarkRecord:
    """One JSON object of a file: a result of a benchmark."""

    place: str
    fields: Mapping[str, Any]

    @property
    def all_fields(self) -> dict[str, Any]:
        """Its fields, and those of the objects in it, such as SGLang's server_info."""
        inner = [value for value in self.fields.values() if isinstance(value, dict)]
        return {name: value for part in (*inner, self.fields) for name, value in part.items()}

    def error(self, field: str, expected: str) -> InvalidData:
        value = self.all_fields.get(field)
        return InvalidData(f"{self.place}, field {field!r}: {shown(value)}: {expected}")

    def passes(self, stated: StatedFacts, gpus: _Facts) -> Iterator[Measurement]:
        """Read its times, by the format whose marks it has."""
        forms = (_LlamaBench, _VllmLatency, _Serving)
        columns = [form for form in forms if form.marks & set(self.fields)]
        if not columns:
            keys = ", ".join(map(str, list(self.fields)[:12])) or "nothing"
            raise InvalidData(
                f"{self.place}: fields {shown(keys)}: expected those of llama-bench (n_prompt, avg_ns, …), "
                "vllm bench serve, SGLang's bench_serving (total_input_tokens, …) or vllm bench latency (avg_latency)"
            )
        known = [f.name for f in fields(columns[0]) if f.name in self.fields]
        try:
            run = columns[0](**{name: self.fields[name] for name in known})
        except InvalidValue as error:
            field, _, expected = error.problems[0]
            raise self.error(field, expected) from None
        for field, expected in run.refused(stated):
            raise self.error(field, expected)
        return run.passes(self, stated, gpus)


def _results(path: Path) -> list[_BenchmarkRecord]:
    """Read objects in a list, alone, or one in each line, or what is printed in their place."""
    text = read_text(path)
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        whole = list(printed_results(text)) if is_printed(text) else json_of(path, text)
    except InvalidData:
        if len(lines) < 2 or not all(line.lstrip().startswith("{") for line in lines):
            raise
        whole = [json_of(path, line) for line in lines]
    objects = whole if isinstance(whole, list) else [whole]
    if not objects:
        raise InvalidData(f"{named(path)}: an empty list; expected results of a benchmark")
    records = []
    for number, fields_given in enumerate(objects, 1):
        place = f"{named(path)}, result {number}"
        if not isinstance(fields_given, dict):
            raise InvalidData(f"{place}: {shown(fields_given)}: expected an object with fields")
        records.append(_BenchmarkRecord(place, in_vllm_names(fields_given)))
    return records


_Refused = Iterator[tuple[str, str]]  # fields that no time can be read with, and what was expected
_ON_GPU = "a model that is all on the GPU, with keys and values in 16 bits"
_Zero = Annotated[Literal[0, False], described(_ON_GPU)]
_Cache16 = Annotated[Literal["f16", "bf16"], described(_ON_GPU)]
# llama.cpp's words for what weights are stored in, and the nearest of ours. Its int8 has 8.5 bits
# per weight with the scales, its 4-bit kinds 4.5 to 4.9.
_PRECISION = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "Q8_0": "int8", "Q4_": "int4"}
_PRECISION |= {"MXFP4": "mxfp4", "NVFP4": "nvfp4"}
_LLAMA_CPP_TYPE = re.compile(r"(?:^| )(F32|F16|BF16|Q8_0|Q4_(?=[01K]))")
# What only some matrices are stored in: the bytes of a weight are those of the file's size.
_MIXED_TYPE = re.compile(r"(?:^| )(MXFP4|NVFP4|IQ\d_|Q[2356]_|Q4_K)")


@checked
class _LlamaBench:
    """One test of llama-bench; older files do not say that all is on the GPU, and KV in 16 bits."""

    marks: ClassVar = {"n_prompt", "avg_ns"}
    model_n_params: _Above
    avg_ns: _Above
    model_type: str
    model_size: _Above | None = None  # bytes
    n_prompt: _Whole = 0
    n_gen: _Whole = 0
    n_depth: _Whole = 0
    n_gpu_layers: Annotated[int, Strict()] = -1
    gpu_info: str | None = None
    n_cpu_moe: _Zero = 0
    fit_target: _Zero = 0  # -fitt moves what does not fit
    no_kv_offload: _Zero = False
    tensor_buft_overrides: Annotated[Literal["none", "", "-"], described(_ON_GPU)] = "none"
    type_k: _Cache16 = "f16"
    type_v: _Cache16 = "f16"
    backends: str | None = None
    devices: str | None = None
    split_mode: str | None = None
    tensor_split: str | None = None
    rounding: _Above = 1e-4  # of the parameters, as a share

    def refused(self, _: StatedFacts) -> _Refused:
        """List what is not one pass on one GPU; without a choice, all that llama.cpp found share the layers."""
        if bool(self.n_prompt) == bool(self.n_gen):
            yield "n_gen", "expected a prompt (-p) or generation (-n): leave out -pg"
        if self.n_prompt and self.n_depth:
            yield (
                "n_depth",
                "expected 0: a prompt after others (-d) is none of the passes known here",
            )
        one_gpu = "expected one GPU, as with CUDA_VISIBLE_DEVICES=0 or -sm none"
        backends, devices = self.backends or "", self.devices or "auto"
        if re.search(r"\bRPC", backends):
            remedy = "older builds name RPC without using it: run a newer one"
            yield "backends", f"{one_gpu}; {remedy}"
        if backends in ("CPU", "BLAS"):
            yield "backends", one_gpu
        if re.search("[,/]|^(none|CPU|RPC)", devices):
            yield "devices", one_gpu
        shares = len(re.findall("[^,/]*[1-9][^,/]*", self.tensor_split or ""))
        if shares > 1 and self.split_mode != "none":
            yield "tensor_split", one_gpu
        chosen = self.split_mode == "none" or devices != "auto" or shares == 1
        several, no_gpu = "," in (self.gpu_info or ""), self.gpu_info == "" and backends
        if (several and not chosen) or no_gpu:
            yield "gpu_info", one_gpu

    def passes(
        self, result: _BenchmarkRecord, stated: StatedFacts, gpus: _Facts
    ) -> Iterator[Measurement]:
        """Read a prompt of n_prompt tokens, or n_gen tokens one after the other, of one sequence."""
        model = _model_by_size(result, self.model_n_params, stated, self.rounding)
        one = load_model(model)
        # Of the model without drafts.
        size_gb = (self.model_size or 0) / 1e9 * one.parameters() / self.model_n_params
        if 0 <= self.n_gpu_layers <= one.layers:
            expected = f"expected all {one.layers} layers of {model} and its head there (-ngl 99)"
            raise result.error("n_gpu_layers", expected)
        mixed = _MIXED_TYPE.search(self.model_type) if self.model_size else None
        stored = mixed or _LLAMA_CPP_TYPE.search(self.model_type)
        if stored is None and stated.precision is None:
            expected = f"none of {', '.join(_PRECISION)}…; give precision=…"
            raise result.error("model_type", expected)
        yield Measurement(
            what="",
            unit="ms",
            phase="decode" if self.n_gen else "prefill",
            batch=1,
            measured=self.avg_ns / 1e6 / (self.n_gen or 1),
            # the context grows from the depth by one token each: its mean
            tokens=self.n_prompt or max(1, self.n_depth + self.n_gen // 2),
            model=model,
            engine="llama.cpp",
            precision=_PRECISION.get(stored[1], "int4") if stored else "",
            weights_gb=size_gb if mixed and not stated.precision else None,
            gpu_type=stated.gpu_type or _gpu_by_name(result, self.gpu_info, gpus),
        )


def _model_by_size(
    result: _BenchmarkRecord, size: float, stated: StatedFacts, rounding: float
) -> str:
    """Find the model with this number of parameters; a stated one must have about as many."""
    if stated.model is not None:
        parameters = load_model(stated.model).parameters()
        # GGUF counts layers for multi-token prediction, too.
        if not -0.02 < size / parameters - 1 < 0.04:
            expected = f"{stated.model} has {parameters:,}; give another model=…"
            raise result.error("model_n_params", expected)
        return stated.model
    published = models()["parameters_published"]
    near = published.index[(size / published - 1).abs() < rounding]
    if len(near) != 1:
        several = f"{' and '.join(near)} have" if len(near) else "no known model has"
        expected = f"{several} this number of parameters; give model=…"
        raise result.error("model_n_params", expected)
    return str(near[0])


def _gpu_by_name(result: _BenchmarkRecord, name: str | None, gpus: _Facts) -> str:
    if not name or "," in name:
        what = "one GPU, as with CUDA_VISIBLE_DEVICES=0" if name else "text that is not empty"
        raise result.error("gpu_info", f"expected {what}; or give gpu_type=…")
    return type_of_named(name, gpus, "give gpu_type=…", partial(result.error, "gpu_info"))


@checked
class _Serving:
    """One result of `vllm bench serve`, or of SGLang's `bench_serving`."""

    marks: ClassVar = {"total_input_tokens"}
    completed: _Above
    total_input_tokens: _Above
    total_output_tokens: Annotated[NotNegative, Strict()] = 0.0
    model_id: str | None = None
    max_concurrency: _Whole | None = None
    request_rate: Any = None
    ramp_up_strategy: Any = None  # vLLM's, where the rate is inf nevertheless
    median_ttft_ms: _Above | None = None
    median_tpot_ms: _Above | None = None

    def refused(self, stated: StatedFacts) -> _Refused:
        """List why as many as the file says do not run at once all the time."""
        if stated.batch is not None or self.max_concurrency is None:
            return
        expected = "expected inf (all at once), or places stay empty; or give batch=…, how many ran"
        if str(self.request_rate).lower() not in ("none", "inf", "infinity"):
            yield "request_rate", expected
        if self.ramp_up_strategy:
            yield "ramp_up_strategy", expected
        if not min(self.max_concurrency, int(self.completed)):
            yield "max_concurrency", "expected a whole number of at least 1"

    def passes(
        self, result: _BenchmarkRecord, stated: StatedFacts, gpus: _Facts
    ) -> Iterator[Measurement]:
        """Take decode from the time per output token; prefill from the time to the first, if no request waits.

        With several requests in flight, the first token of one waits for the others, and the
        time per token is the median, in which few prompts of others count.
        """
        batch, at_once = stated.batch, "how many requests ran at once"
        if batch is None:
            most = _needed(self.max_concurrency, "batch", result.place, at_once)
            batch = min(most, int(self.completed))
        timed = _of_engine(result, stated, _model_by_name(result, self.model_id, stated))
        prompt = self.total_input_tokens / self.completed
        answer = self.total_output_tokens / self.completed
        first, later = self.median_ttft_ms, self.median_tpot_ms
        if batch == 1 and first is not None:
            yield timed(phase="prefill", batch=1, measured=first, tokens=max(1, round(prompt)))
        elif answer < 2:
            expected = "expected 2 tokens in each answer, or one request at a time: this has no time of a pass"
            raise result.error("total_output_tokens", expected)
        if answer >= 2:
            if stated.phase != "prefill":
                _refuse_drafts(result)
            if later is None:
                raise result.error("median_tpot_ms", "expected a number above 0")
            context = max(1, round(prompt + answer / 2))
            yield timed(phase="decode", batch=batch, measured=later, tokens=context)


def _refuse_drafts(result: _BenchmarkRecord) -> None:
    """Refuse answers of which a pass makes several tokens, as vLLM's and SGLang's benchmarks say of drafts."""
    for field, value in result.all_fields.items():
        if value and re.match("spec_decode_|accept_length$|speculative_algorithm$", field):
            raise result.error(field, "expected none: without drafts, a pass makes one token")


@checked
class _VllmLatency:
    """One result of `vllm bench latency`, which does not say what was run."""

    marks: ClassVar = {"avg_latency"}
    avg_latency: _Above  # seconds of one batch from prompt to end

    def refused(self, stated: StatedFacts) -> _Refused:
        """List lengths with which prefill and decode cannot be told apart."""
        prompt, answer = stated.tokens, stated.output_tokens
        if prompt and answer and 1 < answer < 4 * prompt:
            lengths = f"measure with --output-len 1 (prefill) or {4 * prompt} (decode)"
            apart = "prefill and decode cannot be told apart"
            yield "avg_latency", f"with prompts of {prompt} tokens, {apart}; {lengths}"

    def passes(
        self, result: _BenchmarkRecord, stated: StatedFacts, gpus: _Facts
    ) -> Iterator[Measurement]:
        """Read a batch of prompts, or of answers so long that the prompt counts as one token more."""
        needed = {
            "model": "which model this is",
            "batch": "how many sequences ran at once (--batch-size)",
            "tokens": "how long the prompts were (--input-len)",
            "output_tokens": "how long the answers were (--output-len)",
        }
        model, batch, prompt, answer = (
            _needed(getattr(stated, name), name, result.place, what)
            for name, what in needed.items()
        )
        timed = _of_engine(result, stated, model, of_form="vLLM")
        yield timed(
            phase="prefill" if answer == 1 else "decode",
            batch=batch,
            # A short prompt takes about as long as one token more: reading the weights.
            measured=1000 * self.avg_latency / answer,
            tokens=prompt if answer == 1 else prompt + answer // 2,
        )


# DeepSeek's own weights have 8 bits.
_QUANTISED = re.compile(r"(?i)fp8|fp4|int[48]|w\da\d|awq|gptq|gguf|bnb|[48]bit|deepseek-(v3|r1)")
_PURPOSE = r"(-(instruct|chat|hf|it|base|v\d[\d.]*|\d{4}))*"
# Fields that say how many GPUs cut a layer, or in how many stages or copies a model is.
_PARALLEL = r"(?i)(?:(tp|tensor.parallel)|pp|dp|(pipeline|data).parallel)(.size)?"


def _of_engine(
    result: _BenchmarkRecord, stated: StatedFacts, model: str, of_form: str | None = None
) -> partial[Measurement]:
    """Say who measured: whoever the file names, or whose form it has."""
    backend = result.fields.get("backend") or result.fields.get("endpoint_type") or ""
    engine = stated.engine or engine_named(str(backend)) or (of_form if not backend else None)
    if engine is None:
        if not backend or str(backend).startswith("openai"):  # which any engine speaks
            _needed(None, "engine", result.place, "whose engine answered")
        known_names = ", ".join(ENGINE_NAMES.values())
        raise result.error("backend", f"expected one of {known_names}, or give engine=…")
    if _QUANTISED.search(model):
        what = "in which precision its weights were"
        _needed(stated.precision, "precision", result.place, what)
    return partial(
        Measurement,
        what="",
        unit="ms",
        gpu_type="",
        model=model,
        engine=engine,
        precision="bf16",
        tensor_parallel=stated.tensor_parallel or _tensor_parallel(result),
    )


def _tensor_parallel(result: _BenchmarkRecord) -> int:
    """Return how many GPUs cut each layer, if the file says it; refuse a run that is split otherwise."""
    gpus = 1
    for field, value in result.all_fields.items():
        split = re.fullmatch(_PARALLEL, field)
        if split and str(value) not in ("1", "None", ""):
            if not split[1] or not re.fullmatch(r"[1-9]\d{0,3}", str(value)):
                raise result.error(field, "expected one copy, with all layers on the same GPUs")
            gpus = int(value)
    return gpus


def _model_by_name(result: _BenchmarkRecord, name: str | None, stated: StatedFacts) -> str:
    """Find the model by its name on the hub, which has a maker in front, and a purpose or month behind."""
    if not name and (stated.model is None or stated.precision is None):
        expected = "expected text that is not empty; or give model=… and precision=…"
        raise result.error("model_id", expected)
    if stated.precision is None and _QUANTISED.search(name or ""):
        expected = "its name is one of quantised weights; give precision=…"
        raise result.error("model_id", expected)
    if stated.model is not None:
        return stated.model
    plain = (name or "").rpartition("/")[2].removeprefix("Meta-")
    for known in map(str, models().index):
        if re.fullmatch(re.escape(known) + _PURPOSE, plain, re.IGNORECASE):
            return known
    expected = f"no model has this name; {nearest(plain, models().index)}; give model=…"
    raise result.error("model_id", expected)


def calibrate(
    costs: Roofline, path: str | Path | Sequence[str | Path], **stated: Any
) -> Calibration:
    """Fit the constants of engines and GPUs to measured times, of one file or of several together.

    Parameters
    ----------
    costs : Roofline
        Whose constants are the priors.
    path : str, Path, or sequence of these
        A CSV with the columns of `data/measured_times.csv`; what a benchmark wrote (JSON): `llama-bench -o
        json`, `vllm bench serve` or `latency`, SGLang's `bench_serving`, `trtllm-bench`; or what these print
        (llama-bench's CSV and Markdown, the others' tables); or several files of these sorts. A benchmark
        counts for the engine that was measured.
    **stated
        What a benchmark does not say, or says otherwise: `gpu_type`, `model` (one of `models()`, or the path of
        a `config.json`), `precision`, `engine`, `phase`, `batch`, `tokens`, `output_tokens`, `tensor_parallel` and
        `node_gb_per_s`. Fields of these names in the file say it, too (`--metadata` of `vllm bench serve`).
        `notebooks/data.md` says what each format needs.

    Returns
    -------
    Calibration
        `costs`, the fitted Roofline; `table` with the error of every row before, after, and
        predicted from the other rows; and `constants`.

    Raises
    ------
    InvalidData
        A file is not there or cannot be read, a value does not fit, neither the file nor `stated` says what
        is needed, or a time is below what the GPU needs for the products or the bytes alone.
    InvalidValue
        `path` is not a path, or a stated fact does not fit.
    UnknownName
        The model is unknown.
    """
    instance("calibrate", "costs", costs, Roofline, "Roofline()")
    paths: Any = path if is_list(path) else [path]
    files = [path_of("calibrate", given) for given in paths]
    if not files:
        raise InvalidValue("calibrate", [("path", path, "expected at least one file")])
    facts = _stated_facts(stated)
    if stated and not any(map(_is_benchmark, files)):
        name, value = next(iter(stated.items()))
        expected = f"expected none: {named(files[0])} contains this; arguments are for {_FORMATS}"
        raise InvalidValue("calibrate", [(name, value, expected)])
    rows = []
    for file in files:
        if _is_benchmark(file):
            rows += measurements_of(file, facts, costs)
        elif file.suffix.lower() != ".csv":
            expected = f"a .csv with the columns of data/measured_times.csv, or what one of these writes: {_FORMATS}"
            raise InvalidData(f"{named(file)}: expected {expected}")
        else:
            rows += [_slow_enough(row, one, costs) for row, one in read_measurements(file)]
    return fit_constants(costs, rows)


def _slow_enough(row: Row, one: Measurement, costs: Roofline) -> Measurement:
    """Return a measurement that physics allows."""
    if text := place(row, {}, partial(one.too_fast, costs)):
        raise row.error("measured", row.cells["measured"], text)
    return one
