"""Measured times from other tools' files: benchmarks of llama.cpp, vLLM and SGLang, Vidur's and Helix's profiles.

What a file does not say is stated by the caller (`Stated`); what nobody says is an error that names
the argument. `llama-bench -o json` (or jsonl) and the benchmarks of servers have times of whole models;
Vidur's mlp.csv, and Helix's prompt_bs2time.csv and decode_bs2time.csv, have profiles of single layers.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import AllowInfNan, Strict, StringConstraints

from pipelab.errors import InvalidData, InvalidValue, UnknownName, nearest, shown
from pipelab.fields import Count, NotNegative, Positive, checked, described, instance, is_list
from pipelab.files.csv_rows import NUMBER, Row, place, read_objects
from pipelab.files.reading_and_writing import json_of, named, path_of, read_text
from pipelab.hardware.calibration import Calibration, Measurement, fit_constants, read_measurements
from pipelab.hardware.known_gpus import GPUFacts, type_of_named
from pipelab.hardware.known_models import load_model, models
from pipelab.hardware.roofline import Roofline

_FORMATS = (
    "llama-bench -o json, vllm bench serve --save-result, vllm bench latency --output-json, SGLang's bench_serving "
    "--output-file, Vidur's mlp.csv, Helix's …_bs2time.csv"
)
Phase = Literal["prefill", "decode"]
# In JSON, where "3" is not a number.
_Above = Annotated[float, Strict(), Gt(0), AllowInfNan(False), described("a number above 0")]
_Whole = Annotated[int, Strict(), Ge(0), Le(10**9), described("a whole number from 0 to 10^9")]
_Text = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1),
    described("text that is not empty"),
]


@checked
class Stated:
    """What the caller says of the measurements in a file; what is stated counts, whatever the file says."""

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


@dataclass(frozen=True)
class _Timed:
    """One traversal of a batch, and where it is written."""

    place: str  # file and record
    phase: Phase
    batch: int
    milliseconds: float
    tokens: int | None  # of a prompt, or of the context in decode
    model: str | None
    engine: str
    precision: str
    gpu_type: str = ""
    layers: int | None = None  # of a profile; None: the whole model with its head
    tensor_parallel: int = 1

    @property
    def what(self) -> str:
        """What was timed."""
        which = "a layer of " if self.layers else ""
        run = f"{which}{self.model or 'a model'} {self.precision}"
        return f"{run}, {self.phase} of {self.batch} × {self.tokens or 'any'} tokens"


def _said(value: Any, argument: str, place: str, what: str) -> Any:
    """Return what the file or the caller says; if nobody does, the error names the argument that would."""
    if value in (None, ""):
        raise InvalidData(f"{place}: the file does not say {what}; give {argument}=…")
    return value


def stated_of(what: str, path: Path, given: Mapping[str, Any]) -> tuple[str, Stated]:
    """Return whose file it is ("json", "vidur", "helix", or "own" for anything else), and the arguments as facts.

    Raises
    ------
    InvalidValue
        In the name of `what`, the function that was called: an argument does not fit, or stands beside
        a table of one's own, which says everything in its columns.
    UnknownName
        The model is unknown.
    """
    try:
        stated = Stated(**given)
    except InvalidValue as error:
        raise InvalidValue(what, error.problems) from None
    if stated.model is not None and stated.model not in models().index:
        known = nearest(stated.model, models().index)
        raise UnknownName(f"there is no model {shown(stated.model)}; {known}")
    kind = _format_of(path)
    for name, value in given.items() if kind == "own" else ():
        expected = f"{named(path)} already contains this; arguments are for {_FORMATS}"
        raise InvalidValue(what, [(name, value, f"expected none: {expected}")])
    return kind, stated


def _format_of(path: Path) -> str:
    text = read_text(path).lstrip()
    if path.suffix in (".json", ".jsonl") or text[:1] in ("[", "{"):
        return "json"
    first = text.partition("\n")[0]
    if first.startswith(("|", "=")) or "avg_ns" in first:  # what a benchmark prints
        raise InvalidData(f"{named(path)}, row 1: {shown(first[:80])}: expected {_FORMATS}")
    if "time_stats." in first:
        return "vidur"
    cells = first.split(",")
    return "helix" if len(cells) == 2 and all(NUMBER.fullmatch(c.strip()) for c in cells) else "own"


def measurements_of(path: Path, kind: str, stated: Stated, costs: Roofline) -> list[Measurement]:
    """Read the times of a file as rows that `Roofline` can be fitted to.

    Of a long profile only every second, fourth, eighth, … number of tokens. `kind` is from
    `stated_of`.

    Raises
    ------
    InvalidData
        The file is torn or strange, does not say what nobody states, or has a time that is too short to be
        true; names file and place.
    """
    found = []
    for one in _timed(path, kind, stated, costs.gpus, few=True):
        _said(one.model, "model", one.place, "which model this is")
        _said(one.tokens, "tokens", one.place, "how long the context was")
        same = {f: getattr(one, f) for f in Measurement.__dataclass_fields__ if hasattr(one, f)}
        node = stated.node_gb_per_s
        made = Measurement(**same, measured=one.milliseconds, unit="ms", node_gb_per_s=node)
        try:
            text = made.too_fast(costs)
        except InvalidValue as error:
            field, value, expected = error.problems[0]
            text = f"{field} = {shown(value)}: {expected}; give {field}=…"
        if text:
            raise InvalidData(f"{one.place}: {text}")
        found.append(made)
    return found


def table_of(
    path: Path, kind: str, stated: Stated, gpus: Mapping[str, GPUFacts], engine: str | None = None
) -> dict[str, dict[tuple[int, float], float]]:
    """Read the times of a file as a table for `Measured`: milliseconds of one layer by (1, batch), per GPU type.

    They are to be of `engine`, or of kernels alone.
    """
    found = _timed(path, kind, stated, gpus)
    for one in found:
        if engine is not None and one.engine not in (engine, "kernels"):
            remedy = f"give pl.Roofline(engine={one.engine!r}), or engine={engine!r} if they count for it"
            raise InvalidData(f"{one.place}: times of {one.engine}, not of {engine}: {remedy}")
    if len({one.phase for one in found}) > 1:
        raise InvalidData(
            f"{named(path)}: it has times of prefill and of decode; say which with phase=…"
        )
    if kind == "json" and stated.tokens is not None:
        there = sorted({one.tokens or 0 for one in found})
        found = [one for one in found if one.tokens == stated.tokens]
        if not found:
            known = ", ".join(map(str, there[:20]))
            raise InvalidData(f"{named(path)}: no time with tokens={stated.tokens}; it has {known}")
    table: dict[str, dict[tuple[int, float], float]] = {}
    seen: dict[tuple[str, int], _Timed] = {}
    for one in found:
        if one.tensor_parallel > 1:
            expected = "expected 1: such a table knows no stages that cut layers"
            raise InvalidData(f"{one.place}: tensor_parallel = {one.tensor_parallel}: {expected}")
        before = seen.setdefault((one.gpu_type, one.batch), one)
        if before is not one:
            other = f"{before.what} and {one.what}"
            raise InvalidData(
                f"{one.place}: batch {one.batch} occurs twice: {other}; say which with tokens=…, or keep one"
            )
        layers = one.layers
        if layers is None:
            model = _said(one.model, "model", one.place, "which model this is")
            layers = load_model(model).layers
        table.setdefault(one.gpu_type, {})[1, one.batch] = one.milliseconds / layers
    return table


def _timed(
    path: Path, kind: str, stated: Stated, gpus: Mapping[str, GPUFacts], few: bool = False
) -> list[_Timed]:
    """Every pass that the file has times of; at least one."""
    if kind == "json":
        found = [one for record in _records(path) for one in _benchmark(record, stated, gpus)]
    elif kind == "vidur":
        found = _vidur(path, stated, few)
    else:
        found = _helix(path, stated)
    kept = [one for one in found if stated.phase in (None, one.phase)]
    if not kept:
        raise InvalidData(f"{named(path)}: it has no time of phase={stated.phase!r}")
    names = ("gpu_type", "engine", "precision")
    counts = {name: value for name in names if (value := getattr(stated, name)) is not None}
    kept = [replace(one, **counts) for one in kept]
    for one in kept:
        _said(one.gpu_type, "gpu_type", one.place, "on which GPU it ran")
    return kept


# Benchmarks: JSON


@dataclass(frozen=True)
class _Record:
    """One JSON object of a file."""

    place: str
    fields: Mapping[str, Any]

    def error(self, field: str, expected: str) -> InvalidData:
        value = self.all_fields.get(field)
        return InvalidData(f"{self.place}, field {field!r}: {shown(value)}: {expected}")

    @property
    def all_fields(self) -> dict[str, Any]:
        """Its fields, and those of the objects in it, such as SGLang's server_info."""
        found: dict[str, Any] = {}
        for inside in (value for value in self.fields.values() if isinstance(value, dict)):
            found |= inside
        return {**found, **self.fields}

    def read(self, cls: type) -> Any:
        """Make an object of the fields that a class has; the others are passed over."""
        known = [f.name for f in fields(cls) if f.name in self.fields]
        try:
            return cls(**{name: self.fields[name] for name in known})
        except InvalidValue as error:
            field, _, expected = error.problems[0]
            raise self.error(field, expected) from None


def _records(path: Path) -> list[_Record]:
    """Objects in a list, alone, or one in each line."""
    text = read_text(path)
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        whole = json_of(path, text)
    except InvalidData:
        if len(lines) < 2 or not all(line.lstrip().startswith("{") for line in lines):
            raise
        whole = [json_of(path, line) for line in lines]
    objects = whole if isinstance(whole, list) else [whole]
    if not objects:
        raise InvalidData(f"{named(path)}: an empty list; expected results of a benchmark")
    records = [_Record(f"{named(path)}, result {n}", one) for n, one in enumerate(objects, start=1)]
    for record in records:
        if not isinstance(record.fields, dict):
            found = shown(record.fields)
            raise InvalidData(f"{record.place}: {found}: expected an object with fields")
    return records


def _benchmark(record: _Record, stated: Stated, gpus: Mapping[str, GPUFacts]) -> list[_Timed]:
    """Every time of one result of llama-bench, or of the benchmarks of vLLM and SGLang."""
    if "n_prompt" in record.fields or "avg_ns" in record.fields:
        return [_llama_bench(record, stated, gpus)]
    if "avg_latency" in record.fields:
        return [_vllm_latency(record, stated)]
    if "total_input_tokens" in record.fields:
        return _serving(record, stated)
    keys = ", ".join(map(str, list(record.fields)[:12])) or "nothing"
    raise InvalidData(
        f"{record.place}: fields {shown(keys)}: expected those of llama-bench (n_prompt, avg_ns, …), "
        "vllm bench serve, SGLang's bench_serving (total_input_tokens, …) or vllm bench latency (avg_latency)"
    )


_ALL = "a model that is all on the GPU, with keys and values in 16 bits"


@checked
class _LlamaBench:
    """One test of llama-bench; older files do not say that all is on the GPU, and KV in 16 bits."""

    model_n_params: _Above
    avg_ns: _Above
    model_type: _Text
    n_prompt: _Whole = 0
    n_gen: _Whole = 0
    n_depth: _Whole = 0
    n_gpu_layers: Annotated[int, Strict()] = -1
    gpu_info: str | None = None
    n_cpu_moe: Annotated[Literal[0], described(_ALL)] = 0
    fit_target: Annotated[Literal[0], described(_ALL)] = 0  # -fitt moves what does not fit
    no_kv_offload: Annotated[Literal[False, 0], described(_ALL)] = False
    tensor_buft_overrides: Annotated[Literal["none", "", "-"], described(_ALL)] = "none"
    type_k: Annotated[Literal["f16", "bf16"], described(_ALL)] = "f16"
    type_v: Annotated[Literal["f16", "bf16"], described(_ALL)] = "f16"
    backends: str | None = None
    devices: str | None = None
    split_mode: str | None = None
    tensor_split: str | None = None


# llama.cpp's words for what weights are stored in, and the nearest of ours. Its int8 has 8.5 bits
# per weight with the scales, its 4-bit kinds 4.5 to 4.9.
_PRECISION = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "Q8_0": "int8", "Q4_": "int4"}
_LLAMA_CPP_TYPE = re.compile(r"(?:^| )(F32|F16|BF16|Q8_0|Q4_(?=[01K]))")


def _llama_bench(record: _Record, stated: Stated, gpus: Mapping[str, GPUFacts]) -> _Timed:
    """Read one test: a prompt of n_prompt tokens, or n_gen tokens one after the other, of one sequence."""
    test = record.read(_LlamaBench)
    if bool(test.n_prompt) == bool(test.n_gen):
        raise record.error("n_gen", "expected a prompt (-p) or generation (-n): leave out -pg")
    if test.n_prompt and test.n_depth:
        expected = "expected 0: a prompt after others (-d) is none of the passes known here"
        raise record.error("n_depth", expected)
    model = _model_by_size(record, test.model_n_params, stated)
    layers = load_model(model).layers
    if 0 <= test.n_gpu_layers <= layers:
        expected = f"expected all {layers} layers of {model} and its head on the GPU (-ngl 99)"
        raise record.error("n_gpu_layers", expected)
    _refuse_several_gpus(record, test)
    kind = _LLAMA_CPP_TYPE.search(test.model_type)
    precision = stated.precision or (_PRECISION[kind[1]] if kind else None)
    if precision is None:
        expected = f"none of {', '.join(_PRECISION)}…; give precision=…"
        raise record.error("model_type", expected)
    gpu = stated.gpu_type or _gpu_by_name(record, test.gpu_info, gpus)
    phase: Phase = "prefill"
    tokens, time = test.n_prompt, test.avg_ns / 1e6
    if test.n_gen:  # the context grows from the depth by one token each: its mean
        phase, tokens = "decode", max(1, test.n_depth + test.n_gen // 2)
        time /= test.n_gen
    return _Timed(record.place, phase, 1, time, tokens, model, "llama.cpp", precision, gpu)


def _refuse_several_gpus(record: _Record, test: _LlamaBench) -> None:
    """Refuse a run on other than one GPU; without a choice, all that llama.cpp found share the layers."""
    devices = re.split("[,/]", (test.devices or "auto"))
    shares = re.split("[,/]", (test.tensor_split or ""))
    used = sum(bool(re.search("[1-9]", share)) for share in shares)
    chosen = test.split_mode == "none" or devices != ["auto"] or used == 1
    wrong = {
        "backends": re.search(r"\bRPC|^(CPU|BLAS)$", test.backends or ""),
        "devices": len(devices) > 1 or re.match("none|CPU|RPC", devices[0]),
        "tensor_split": used > 1 and test.split_mode != "none",
        "gpu_info": ("," in (test.gpu_info or "") and not chosen)
        or (test.gpu_info == "" and test.backends),  # it found no GPU
    }
    for field in (field for field, is_wrong in wrong.items() if is_wrong):
        expected = "expected one GPU, as with CUDA_VISIBLE_DEVICES=0 or -sm none"
        if "RPC" in str(record.fields[field]):
            expected += "; older builds name RPC without using it: run a newer one"
        raise record.error(field, expected)


def _model_by_size(record: _Record, size: float, stated: Stated) -> str:
    """Find the model with this number of parameters; a stated one must have about as many."""
    if stated.model is not None:
        own = load_model(stated.model).parameters()
        if abs(size / own - 1) > 0.02:
            expected = f"{stated.model} has {own:,}; give another model=…"
            raise record.error("model_n_params", expected)
        return stated.model
    published = models()["parameters_published"].dropna()
    near = [str(name) for name, own in published.items() if abs(size / own - 1) < 1e-4]
    if len(near) != 1:
        raise record.error(
            "model_n_params", "no known model has this number of parameters; give model=…"
        )
    return near[0]


def _gpu_by_name(record: _Record, info: str | None, gpus: Mapping[str, GPUFacts]) -> str:
    if not info or "," in info:
        what = "one GPU, as with CUDA_VISIBLE_DEVICES=0" if info else "text that is not empty"
        raise record.error("gpu_info", f"expected {what}; or give gpu_type=…")
    try:
        return type_of_named(info, gpus, "give gpu_type=…")
    except UnknownName as error:
        raise record.error("gpu_info", str(error)) from None


@checked
class _Serving:
    """One result of `vllm bench serve`, or of SGLang's `bench_serving`."""

    completed: _Above
    total_input_tokens: _Above
    total_output_tokens: Annotated[NotNegative, Strict()] = 0.0
    model_id: str | None = None
    max_concurrency: _Whole | None = None
    request_rate: Any = None
    ramp_up_strategy: Any = None  # vLLM's, where the rate is inf nevertheless
    median_ttft_ms: _Above | None = None
    median_tpot_ms: _Above | None = None


def _serving(record: _Record, stated: Stated) -> list[_Timed]:
    """Take decode from the time per output token; prefill from the time to the first, if no request waits.

    With several requests in flight, the first token of one waits for the others, and the
    time per token is the median, in which few prompts of others count.
    """
    run = record.read(_Serving)
    asked, answered = (n / run.completed for n in (run.total_input_tokens, run.total_output_tokens))
    batch = stated.batch
    if batch is None:
        _said(run.max_concurrency, "batch", record.place, "how many requests ran at once")
        at_once = str(run.request_rate).lower() in ("none", "inf", "infinity")
        if run.ramp_up_strategy or not at_once:
            expected = "expected all at once (inf), or places stay empty; give batch=…, as many as ran at once"
            raise record.error("ramp_up_strategy" if at_once else "request_rate", expected)
        batch = min(run.max_concurrency, int(run.completed))
        if not batch:
            raise record.error("max_concurrency", "expected a whole number of at least 1")
    timed = _of_engine(record, stated, _served(record, run.model_id, stated))
    found = []
    if batch == 1 and run.median_ttft_ms is not None:
        found.append(timed("prefill", 1, run.median_ttft_ms, max(1, round(asked))))
    if answered >= 2:
        if stated.phase != "prefill":
            _refuse_drafts(record)
        if run.median_tpot_ms is None:
            raise record.error("median_tpot_ms", "expected a number above 0")
        context = max(1, round(asked + answered / 2))
        found.append(timed("decode", batch, run.median_tpot_ms, context))
    if not found:
        expected = (
            "expected 2 tokens in each answer, or one request at a time: this has no time of a pass"
        )
        raise record.error("total_output_tokens", expected)
    return found


def _refuse_drafts(record: _Record) -> None:
    """Refuse answers of which a pass makes several tokens, as vLLM's and SGLang's benchmarks say of drafts."""
    for key, value in record.all_fields.items():
        if value and re.match("spec_decode_|accept_length$|speculative_algorithm$", key):
            raise record.error(key, "expected none: without drafts, a pass makes one token")


@checked
class _VllmLatency:
    """One result of `vllm bench latency`, which does not say what was run."""

    avg_latency: _Above  # seconds of one batch from prompt to end


def _vllm_latency(record: _Record, stated: Stated) -> _Timed:
    model, batch, prompt, answer = (
        _said(getattr(stated, argument), argument, record.place, what)
        for argument, what in (
            ("model", "which model this is"),
            ("batch", "how many sequences ran at once (--batch-size)"),
            ("tokens", "how long the prompts were (--input-len)"),
            ("output_tokens", "how long the answers were (--output-len)"),
        )
    )
    # A short prompt takes about as long as one token more: reading the weights.
    time = 1000 * record.read(_VllmLatency).avg_latency / answer
    if 1 < answer < 4 * prompt:
        lengths = f"measure with --output-len 1 (prefill) or {4 * prompt} (decode)"
        expected = (
            f"with prompts of {prompt} tokens, prefill and decode cannot be told apart; {lengths}"
        )
        raise record.error("avg_latency", expected)
    timed = _of_engine(record, stated, model, of_form="vLLM")
    if answer == 1:
        return timed("prefill", batch, time, prompt)
    return timed("decode", batch, time, prompt + answer // 2)


def _of_engine(
    record: _Record, stated: Stated, model: str, of_form: str | None = None
) -> partial[_Timed]:
    """Say who measured: whoever the file names, or whose form it has."""
    backend = record.fields.get("backend") or record.fields.get("endpoint_type") or ""
    known = [name for start, name in _BACKENDS.items() if str(backend).lower().startswith(start)]
    engine = stated.engine or next(iter(known), of_form if not backend else None)
    if engine is None:
        if not backend or str(backend).startswith("openai"):  # which any engine speaks
            _said(None, "engine", record.place, "whose engine answered")
        known_names = ", ".join(_BACKENDS.values())
        raise record.error("backend", f"expected one of {known_names}, or give engine=…")
    if _QUANTISED.search(model):
        _said(stated.precision, "precision", record.place, "in which precision its weights were")
    return partial(
        _Timed,
        record.place,
        model=model,
        engine=engine,
        precision=stated.precision or "bf16",
        tensor_parallel=stated.tensor_parallel or _tensor_parallel(record),
    )


# How the names of backends begin, in vLLM's and SGLang's benchmarks.
_BACKENDS = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt-llm": "TensorRT-LLM",
    "trt": "TensorRT-LLM",
    "llama.cpp": "llama.cpp",
}
_TENSOR, _OTHERWISE = ("tp", "tensor_parallel"), ("pp", "pipeline_parallel", "dp", "data_parallel")


def _tensor_parallel(record: _Record) -> int:
    """Return how many GPUs cut each layer, if the file says it; refuse a run that is split otherwise."""
    found = 1
    for key, value in record.all_fields.items():
        name = key.lower().replace("-", "_").removesuffix("_size")
        if name not in _TENSOR + _OTHERWISE or str(value) in ("1", "None", ""):
            continue
        if name in _OTHERWISE or not re.fullmatch(r"[1-9]\d{0,3}", str(value)):
            raise record.error(key, "expected one copy, all of whose layers are on the same GPUs")
        found = int(value)
    return found


# DeepSeek's own weights have 8 bits.
_QUANTISED = re.compile(r"(?i)fp8|fp4|int[48]|w\da\d|awq|gptq|gguf|bnb|[48]bit|deepseek-(v3|r1)")
_PURPOSE = r"(-(instruct|chat|hf|it|base|v\d[\d.]*|\d{4}))*"


def _served(record: _Record, name: str | None, stated: Stated) -> str:
    """Find the model by its name on the hub, which has a maker in front, and a purpose or month behind."""
    if not name and (stated.model is None or stated.precision is None):
        expected = "expected text that is not empty; or give model=… and precision=…"
        raise record.error("model_id", expected)
    if stated.precision is None and _QUANTISED.search(name or ""):
        expected = "its name is one of quantised weights; give precision=…"
        raise record.error("model_id", expected)
    if stated.model is not None:
        return stated.model
    plain = (name or "").rpartition("/")[2].removeprefix("Meta-")
    for known in map(str, models().index):
        if re.fullmatch(re.escape(known) + _PURPOSE, plain, re.IGNORECASE):
            return known
    expected = f"no model has this name; {nearest(plain, models().index)}; give model=…"
    raise record.error("model_id", expected)


# Profiles: CSV


@checked
class _VidurRow:
    """One row of Vidur's mlp.csv: what the layer is, and milliseconds of its kernels but for attention."""

    n_head: Count
    n_kv_head: Count
    n_embd: Count
    n_expanded_embd: Count
    vocab_size: Count
    num_tokens: Count
    num_tensor_parallel_workers: Count
    input_layernorm: NotNegative
    attn_pre_proj: NotNegative
    attn_post_proj: NotNegative
    mlp_up_proj: NotNegative
    mlp_act: NotNegative
    mlp_down_proj: NotNegative
    attn_rope: NotNegative = 0.0
    post_attention_layernorm: NotNegative = 0.0
    add: NotNegative = 0.0  # runs twice

    @property
    def milliseconds(self) -> float:
        """Of one layer without its attention."""
        return sum(getattr(self, kernel) for kernel in _KERNELS) + self.add


_DIMENSIONS = {
    "n_head": "heads",
    "n_kv_head": "kv_heads",
    "n_embd": "d_model",
    "n_expanded_embd": "d_ff",
    "vocab_size": "vocab",
}
_KERNELS = list(_VidurRow.__dataclass_fields__)[len(_DIMENSIONS) + 2 :]
_DECODE_UP_TO = 128  # tokens at once: more are taken for prompts


def _vidur(path: Path, stated: Stated, few: bool) -> list[_Timed]:
    """Read times of one layer without its attention kernel, by tokens at once, without tensor parallelism.

    `few` takes 1, 2, 4, … tokens, each as a sequence with no context, so that no attention is
    missing. Otherwise `stated.tokens` of them belong to one sequence, by default 1.
    """
    columns = {kernel: f"time_stats.{kernel}.median" for kernel in _KERNELS}
    rows = read_objects(path, _VidurRow, renamed=columns)
    model = _model_by_dimensions(*rows[0], stated) if few else stated.model
    times: dict[int, list[float]] = {}
    for _, one in rows:
        if one.num_tensor_parallel_workers == 1:
            times.setdefault(one.num_tokens, []).append(one.milliseconds)
    if few and stated.tokens not in (None, 1):
        expected = "expected none: without attention, no length counts"
        raise InvalidData(f"{named(path)}: tokens = {stated.tokens}: {expected}")
    each = stated.tokens or 1
    kept = [n for n in sorted(times) if (n & (n - 1) == 0 if few else n % each == 0)]
    if not kept:
        wanted = "power of 2" if few else f"multiple of {each}"
        expected = f"no row with num_tensor_parallel_workers = 1 and num_tokens a {wanted}"
        raise InvalidData(f"{named(path)}: {expected}")
    found = []
    for n in kept:
        phase: Phase = "decode" if (n <= _DECODE_UP_TO if few else each == 1) else "prefill"
        own = phase if few else stated.phase or phase
        time = sum(times[n]) / len(times[n])
        found.append(_of_layer(named(path), own, n // each, time, each, model))
    return found


def _model_by_dimensions(row: Row, one: _VidurRow, stated: Stated) -> str:
    """Find the model of these widths; a stated one must have them, except for its vocabulary."""
    own = {name: getattr(one, column) for column, name in _DIMENSIONS.items()}
    if stated.model is not None:
        model = load_model(stated.model)
        for column, name in _DIMENSIONS.items():
            if name != "vocab" and getattr(model, name) != own[name]:
                expected = f"{stated.model} has {getattr(model, name)}; give another model=…"
                raise row.error(column, own[name], expected)
        return stated.model
    table = models()
    same = (table[list(own)] == list(own.values())).all(axis=1)
    found = [str(name) for name in table.index[same & (table["experts"].fillna(1) == 1)]]
    if len(found) != 1:
        said = ", ".join(f"{column} {own[name]}" for column, name in _DIMENSIONS.items())
        raise InvalidData(f"{row.path}: no model has {said}; give model=…")
    return found[0]


def _helix(path: Path, stated: Stated) -> list[_Timed]:
    """Read times of one layer, by prompt tokens, or by sequences in decode."""
    phase, each = stated.phase or _phase_by_name(path), 1
    if phase == "prefill":
        each = _said(stated.tokens, "tokens", named(path), "how many tokens a prompt had")
    found, seen = [], set()
    for n, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        place, cells = f"{named(path)}, row {n}", [cell.strip() for cell in line.split(",")]
        if len(cells) != 2 or not all(NUMBER.fullmatch(cell) for cell in cells):
            expected = "expected tokens (or sequences) and milliseconds"
            raise InvalidData(f"{place}: {shown(line)}: {expected}")
        size, milliseconds = map(float, cells)
        if size == milliseconds == 0:  # every such table begins so
            continue
        if not (0 < size < 1e9 and size == int(size)) or not 0 < milliseconds < float("inf"):
            expected = "expected a whole number and milliseconds, both above 0"
            raise InvalidData(f"{place}: {shown(line)}: {expected}")
        if size in seen:
            raise InvalidData(f"{place}: {shown(line)}: {size:g} is listed already")
        seen.add(size)
        if size % each == 0:
            batch, tokens = int(size) // each, stated.tokens
            found.append(_of_layer(place, phase, batch, milliseconds, tokens, stated.model))
    if not found:
        raise InvalidData(f"{named(path)}: no row with a multiple of tokens = {each}")
    return found


def _of_layer(
    place: str, phase: Phase, batch: int, time: float, tokens: int | None, model: str | None
) -> _Timed:
    return _Timed(place, phase, batch, time, tokens, model, "kernels", "fp16", layers=1)


def _phase_by_name(path: Path) -> Phase:
    phases: dict[str, Phase] = {"prompt": "prefill", "decode": "decode"}
    of = "whether it is of prompts or of decode (prompt_bs2time.csv, decode_bs2time.csv)"
    return _said(phases.get(path.name[:6]), "phase", named(path), of)


def calibrate(
    costs: Roofline, path: str | Path | Sequence[str | Path], **stated: Any
) -> Calibration:
    """Fit the constants of engines and GPUs to measured times, of one file or of several together.

    Parameters
    ----------
    costs : Roofline
        Whose constants are the priors.
    path : str, Path, or sequence of these
        A file, a folder of which every .csv, .json and .jsonl file counts, or several of these. Each is a
        CSV with the columns of `data/measured_times.csv`; or what another tool measured:
        `llama-bench -o json`, `vllm bench serve` or `latency`, SGLang's `bench_serving` (JSON), Vidur's
        `mlp.csv`, Helix's `prompt_bs2time.csv` and `decode_bs2time.csv`. It counts for the engine that
        was measured.
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
        A file is not there or cannot be read, a folder has none, a value does not fit, neither the file
        nor `stated` says what is needed, or a time is below what the GPU needs for the products or the
        bytes alone.
    InvalidValue
        `path` is not a path, or a stated fact does not fit.
    UnknownName
        The model is unknown.
    """
    instance("calibrate", "costs", costs, Roofline, "Roofline()")
    several: Any = path if is_list(path) else [path]
    files = [file for one in several for file in _files(one)]
    if not files:
        raise InvalidValue("calibrate", [("path", path, "expected at least one file")])
    tables = [file for file in files if _format_of(file) == "own"]
    if len(tables) == len(files):  # none that anything could be stated of
        stated_of("calibrate", files[0], stated)
    rows = []
    for file in files:
        if file in tables:
            rows += [_slow_enough(row, one, costs) for row, one in read_measurements(file)]
        else:
            kind, facts = stated_of("calibrate", file, stated)
            rows += measurements_of(file, kind, facts, costs)
    return fit_constants(costs, rows)


def _files(path: str | Path) -> list[Path]:
    """Return a file, or the files of a folder in the order of their names."""
    path = path_of("calibrate", path)
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in (".csv", ".json", ".jsonl"))
    if not found:
        raise InvalidData(f"{path}: no .csv, .json or .jsonl file is in this folder")
    return found


def _slow_enough(row: Row, one: Measurement, costs: Roofline) -> Measurement:
    """Return a measurement that physics allows."""
    if text := place(row, {}, partial(one.too_fast, costs)):
        raise row.error("measured", row.cells["measured"], text)
    return one
