"""Measured times from the files of other tools: llama-bench, vLLM's benchmarks, Vidur's and Helix's profiles.

What a file does not say is stated by the caller (`Stated`); what nobody says is an error that names
the argument. `llama-bench -o json` (or jsonl) and vLLM's benchmarks have times of whole models; Vidur's
mlp.csv, and Helix's prompt_bs2time.csv and decode_bs2time.csv, have profiles of single layers.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pipelab.errors import InvalidData, InvalidValue, UnknownName, nearest, shown
from pipelab.fields import Count, Positive, checked, is_real
from pipelab.hardware.calibration import Measurement
from pipelab.hardware.known_gpus import GPUFacts, type_of_named
from pipelab.hardware.known_models import load_model, models
from pipelab.io.csv_cells import NUMBER, Row, number, read_rows
from pipelab.io.whole_files import json_of, named, read_text

_FORMATS = (
    "llama-bench -o json, vllm bench serve or latency, Vidur's mlp.csv, Helix's …_bs2time.csv"
)
Phase = Literal["prefill", "decode"]


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

    def said(self, argument: str, place: str, what: str) -> Any:
        """Return an argument that the file cannot do without.

        Raises
        ------
        InvalidData
            It is not given.
        """
        value = getattr(self, argument)
        if value is None:
            raise _unsaid(place, what, argument)
        return value


@dataclass(frozen=True)
class _Timed:
    """One traversal of a batch, and where it is written."""

    place: str  # file and record
    what: str
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


def _unsaid(place: str, what: str, argument: str) -> InvalidData:
    """Make an error: the file does not say something, and an argument would."""
    return InvalidData(f"{place}: the file does not say {what}; give {argument}=…")


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
    if "time_stats." in first:
        return "vidur"
    cells = first.split(",")
    return "helix" if len(cells) == 2 and all(NUMBER.fullmatch(c.strip()) for c in cells) else "own"


def measurements_of(
    path: Path, kind: str, stated: Stated, gpus: Mapping[str, GPUFacts]
) -> list[Measurement]:
    """Read the times of a file as rows that `Roofline` can be fitted to.

    Of a long profile only every second, fourth, eighth, … number of tokens. `kind` is from
    `stated_of`.

    Raises
    ------
    InvalidData
        The file is torn or strange, or does not say what nobody states; names file and place.
    """
    found = []
    for one in _timed(path, kind, stated, gpus, few=True):
        if one.model is None:
            raise _unsaid(one.place, "which model this is", "model")
        if one.tokens is None:
            raise _unsaid(one.place, "how long the context was", "tokens")
        same = {f: getattr(one, f) for f in Measurement.__dataclass_fields__ if hasattr(one, f)}
        node = stated.node_gb_per_s
        found.append(Measurement(**same, measured=one.milliseconds, unit="ms", node_gb_per_s=node))
    return found


def table_of(
    path: Path, kind: str, stated: Stated, gpus: Mapping[str, GPUFacts]
) -> dict[str, dict[tuple[int, float], float]]:
    """Read the times of a file as a table for `Measured`: milliseconds of one layer by (1, batch), per GPU type."""
    found = _timed(path, kind, stated, gpus)
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
            other = f"{before.what} ({before.tokens} tokens) and {one.what} ({one.tokens} tokens)"
            raise InvalidData(
                f"{one.place}: batch {one.batch} occurs twice: {other}; say which with tokens=…, or keep one"
            )
        layers = one.layers
        if layers is None:
            if one.model is None:
                raise _unsaid(one.place, "which model this is", "model")
            layers = load_model(one.model).layers
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
        if not one.gpu_type:
            raise _unsaid(one.place, "on which GPU it ran", "gpu_type")
    return kept


# Benchmarks: JSON


@dataclass(frozen=True)
class _Record:
    """One JSON object of a file."""

    place: str
    fields: Mapping[str, Any]

    def error(self, field: str, value: Any, expected: str) -> InvalidData:
        return InvalidData(f"{self.place}, field {field!r}: {shown(value)}: {expected}")

    def number(self, field: str, default: float | None = None) -> float:
        """Return a finite number above 0; with a default at least 0."""
        value, least = (
            self.fields.get(field, default),
            "above" if default is None else "of at least",
        )
        if not is_real(value) or value < 0 or (default is None and value == 0):
            raise self.error(field, value, f"expected a number {least} 0")
        return float(value)

    def whole(self, field: str, default: int | None = None) -> int:
        value = self.fields.get(field, default)
        if type(value) is not int or not 0 <= value <= 10**9:
            raise self.error(field, value, "expected a whole number from 0 to 10^9")
        return value

    def text(self, field: str) -> str:
        value = self.fields.get(field)
        if not isinstance(value, str) or not value.strip():
            raise self.error(field, value, "expected text that is not empty")
        return value.strip()


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
    """Every time of one result of llama-bench, or of `vllm bench serve` and `latency`."""
    if "n_prompt" in record.fields or "avg_ns" in record.fields:
        return [_llama_bench(record, stated, gpus)]
    if "avg_latency" in record.fields:
        return [_vllm_latency(record, stated)]
    if "total_input_tokens" in record.fields:
        return _vllm_serve(record, stated)
    keys = ", ".join(map(str, list(record.fields)[:12])) or "nothing"
    raise InvalidData(
        f"{record.place}: fields {shown(keys)}: expected those of llama-bench (n_prompt, avg_ns, …), "
        "vllm bench serve (total_input_tokens, median_tpot_ms, …) or latency (avg_latency)"
    )


# Where llama-bench says that all is on the GPU, and keys and values have 16 bits; older files have no such fields.
_ON_THE_GPU = {
    "n_cpu_moe": (0,),
    "no_kv_offload": (False, 0),
    "tensor_buft_overrides": ("none", "", "-"),
    "type_k": ("f16", "bf16"),
    "type_v": ("f16", "bf16"),
}
# llama.cpp's words for what weights are stored in, and the nearest of ours. Its int8 has 8.5 bits
# per weight with the scales, its 4-bit kinds 4.5 to 4.9.
_PRECISION = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "Q8_0": "int8", "Q4_": "int4"}
_LLAMA_CPP_TYPE = re.compile(r"(?:^| )(F32|F16|BF16|Q8_0|Q4_(?=[01K]))")


def _llama_bench(record: _Record, stated: Stated, gpus: Mapping[str, GPUFacts]) -> _Timed:
    """Read one test: a prompt of n_prompt tokens, or n_gen tokens one after the other, of one sequence."""
    prompt, generated, depth = (record.whole(f, 0) for f in ("n_prompt", "n_gen", "n_depth"))
    if bool(prompt) == bool(generated):
        expected = "expected a prompt (-p) or generation (-n), not both: leave out -pg"
        raise record.error("n_prompt, n_gen", (prompt, generated), expected)
    if prompt and depth:
        expected = "expected 0: a prompt after others (-d) is none of the passes known here"
        raise record.error("n_depth", depth, expected)
    model = _model_by_size(record, stated)
    offloaded, layers = record.fields.get("n_gpu_layers", -1), load_model(model).layers
    if not isinstance(offloaded, int) or 0 <= offloaded <= layers:
        expected = f"expected all {layers} layers of {model} and its head on the GPU (-ngl 99)"
        raise record.error("n_gpu_layers", offloaded, expected)
    for field, fits in _ON_THE_GPU.items():
        if record.fields.get(field, fits[0]) not in fits:
            expected = f"expected {shown(fits[0])}: all on the GPU, keys and values in 16 bits"
            raise record.error(field, record.fields[field], expected)
    milliseconds = record.number("avg_ns") / 1e6
    kind = _LLAMA_CPP_TYPE.search(record.text("model_type"))
    precision = stated.precision or (_PRECISION[kind[1]] if kind else None)
    if precision is None:
        expected = f"none of {', '.join(_PRECISION)}…; give precision=…"
        raise record.error("model_type", record.fields["model_type"], expected)
    what = f"{model} {precision}, {f'pp{prompt}' if prompt else f'tg{generated}'}"
    gpu = stated.gpu_type or _gpu_by_name(record, gpus)
    if prompt:
        phase: Phase = "prefill"
        tokens, time = prompt, milliseconds
    else:  # the context grows from `depth` by one token each: its mean
        phase, tokens = "decode", max(1, depth + generated // 2)
        time = milliseconds / generated
    return _Timed(record.place, what, phase, 1, time, tokens, model, "llama.cpp", precision, gpu)


def _model_by_size(record: _Record, stated: Stated) -> str:
    """Find the model with this number of parameters; a stated one must have about as many."""
    size, near = record.number("model_n_params"), [stated.model or ""]
    expected = "no model has so many parameters; give model=…"
    if stated.model is None:
        published = models()["parameters_published"].dropna()
        near = [str(name) for name, own in published.items() if abs(size / own - 1) < 1e-4]
    else:
        own = load_model(stated.model).parameters()
        if abs(size / own - 1) > 0.02:
            near, expected = [], f"{stated.model} has {own:,}; give another model=…"
    if len(near) != 1:
        raise record.error("model_n_params", int(size), expected)
    return near[0]


def _gpu_by_name(record: _Record, gpus: Mapping[str, GPUFacts]) -> str:
    info = record.text("gpu_info")
    if "," in info:
        expected = "expected one GPU, as with CUDA_VISIBLE_DEVICES=0: stages of several are computed, not measured"
        raise record.error("gpu_info", info, expected)
    try:
        return type_of_named(info, gpus, "give gpu_type=…")
    except UnknownName as error:
        raise record.error("gpu_info", info, str(error)) from None


def _vllm_serve(record: _Record, stated: Stated) -> list[_Timed]:
    """Take decode from the time per output token; prefill from the time to the first, if no request waits.

    With several requests in flight, the first token of one waits for the others, and the
    time per token is the median, in which few prompts of others count.
    """
    model = _served(record, stated)
    requests = record.number("completed")
    asked = record.number("total_input_tokens") / requests
    answered = record.number("total_output_tokens", default=0.0) / requests
    batch = stated.batch
    if batch is None and record.fields.get("max_concurrency") is None:
        raise _unsaid(record.place, "how many requests ran at once (max_concurrency)", "batch")
    if batch is None:
        rate = record.fields.get("request_rate")
        if rate is not None and str(rate).lower() not in ("inf", "infinity"):
            expected = "expected inf: requests one by one leave places empty; give batch=…, as many as ran at once"
            raise record.error("request_rate", rate, expected)
        batch = min(record.whole("max_concurrency"), int(requests))
        if not batch:
            raise record.error("max_concurrency", 0, "expected a whole number of at least 1")
    found = []
    if batch == 1 and "median_ttft_ms" in record.fields:
        prompt, time = max(1, round(asked)), record.number("median_ttft_ms")
        found.append(_of_vllm(record, stated, model, "prefill", 1, prompt, time))
    if answered >= 2:
        context, time = max(1, round(asked + answered / 2)), record.number("median_tpot_ms")
        found.append(_of_vllm(record, stated, model, "decode", batch, context, time))
    if not found:
        expected = (
            "expected 2 tokens in each answer, or one request at a time: this has no time of a pass"
        )
        written = record.fields.get("total_output_tokens")
        raise record.error("total_output_tokens", written, expected)
    return found


def _vllm_latency(record: _Record, stated: Stated) -> _Timed:
    """Read one batch from prompt to end: avg_latency in seconds, and nothing about what was run."""
    model, batch, prompt, answer = (
        stated.said(argument, record.place, what)
        for argument, what in (
            ("model", "which model this is"),
            ("batch", "how many sequences ran at once (--batch-size)"),
            ("tokens", "how long the prompts were (--input-len)"),
            ("output_tokens", "how long the answers were (--output-len)"),
        )
    )
    seconds = record.number("avg_latency")
    if 1 < answer < 4 * prompt:
        lengths = f"measure with --output-len 1 (prefill) or {4 * prompt} (decode)"
        expected = (
            f"with prompts of {prompt} tokens, prefill and decode cannot be told apart; {lengths}"
        )
        raise record.error("avg_latency", seconds, expected)
    phase: Phase = "prefill" if answer == 1 else "decode"
    tokens = prompt if answer == 1 else prompt + answer // 2
    # A short prompt takes about as long as one token more: reading the weights.
    time = 1000 * seconds / answer
    return _of_vllm(record, stated, model, phase, batch, tokens, time)


def _of_vllm(
    record: _Record, stated: Stated, model: str, phase: Phase, batch: int, tokens: int, time: float
) -> _Timed:
    precision, cut = stated.precision or "bf16", stated.tensor_parallel or 1
    what = f"{model} {precision}, {phase} of {batch} × {tokens} tokens"
    return _Timed(
        record.place, what, phase, batch, time, tokens, model, "vLLM", precision, "", None, cut
    )


_QUANTISED = re.compile(r"(?i)fp8|fp4|int[48]|w\da\d|awq|gptq|gguf|bnb|[48]bit")
_SUFFIX = re.compile(r"(?i)(-(instruct|chat|hf|it|base|v\d[\d.]*))+$")


def _served(record: _Record, stated: Stated) -> str:
    """Find the model by its name on the hub, which has a maker in front and a purpose behind."""
    given = record.text("model_id") if stated.model is None or stated.precision is None else ""
    if stated.precision is None and _QUANTISED.search(given):
        expected = "its name speaks of quantised weights; give precision=…"
        raise record.error("model_id", given, expected)
    if stated.model is not None:
        return stated.model
    plain = _SUFFIX.sub("", given.rpartition("/")[2].removeprefix("Meta-"))
    known = {str(name).lower(): str(name) for name in models().index}
    if plain.lower() not in known:
        expected = f"no model has this name; {nearest(plain, known.values())}; give model=…"
        raise record.error("model_id", given, expected)
    return known[plain.lower()]


# Profiles: CSV

# The kernels of a layer but for attention itself, which Vidur times in another file; `add` runs twice.
_KERNELS = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_post_proj",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
)
_MAYBE = {"attn_rope": 1, "post_attention_layernorm": 1, "add": 2}
_DIMENSIONS = {
    "n_head": "heads",
    "n_kv_head": "kv_heads",
    "n_embd": "d_model",
    "n_expanded_embd": "d_ff",
    "vocab_size": "vocab",
}
_TOKENS, _CUT = "num_tokens", "num_tensor_parallel_workers"
_DECODE_UP_TO = 128  # tokens at once: more are taken for prompts


def _vidur(path: Path, stated: Stated, few: bool) -> list[_Timed]:
    """Read times of one layer without its attention kernel, by tokens at once, without tensor parallelism.

    `few` takes 1, 2, 4, … tokens, each as a sequence with no context, so that no attention is
    missing. Otherwise `stated.tokens` of them belong to one sequence, by default 1.
    """
    often = {f"time_stats.{kernel}.median": 1 for kernel in _KERNELS}
    rows = read_rows(path, [*often, *_DIMENSIONS, _TOKENS, _CUT])
    model = _model_by_dimensions(rows[0], stated) if few else stated.model
    maybe = {f"time_stats.{kernel}.median": times for kernel, times in _MAYBE.items()}
    times: dict[int, list[float]] = {}
    for row in rows:
        tokens, cut = _whole(row, _TOKENS), _whole(row, _CUT)
        there = often | {column: n for column, n in maybe.items() if row.cells.get(column)}
        total = sum(n * _milliseconds(row, column) for column, n in there.items())
        if cut == 1:
            times.setdefault(tokens, []).append(total)
    if few and stated.tokens not in (None, 1):
        expected = "expected none: without attention, no length counts"
        raise InvalidData(f"{named(path)}: tokens = {stated.tokens}: {expected}")
    each = stated.tokens or 1
    kept = [n for n in sorted(times) if (n & (n - 1) == 0 if few else n % each == 0)]
    if not kept:
        wanted = "power of 2" if few else f"multiple of {each}"
        raise InvalidData(f"{named(path)}: no row with {_CUT} = 1 and {_TOKENS} a {wanted}")
    found = []
    for n in kept:
        phase: Phase = "decode" if (n <= _DECODE_UP_TO if few else each == 1) else "prefill"
        what, time = f"layer without attention, {n} tokens", sum(times[n]) / len(times[n])
        own = phase if few else stated.phase or phase
        found.append(_of_layer(named(path), what, own, n // each, time, each, model))
    return found


def _helix(path: Path, stated: Stated) -> list[_Timed]:
    """Read times of one layer, by prompt tokens, or by sequences in decode."""
    phase, each = stated.phase or _phase_by_name(path), 1
    if phase == "prefill":
        each = stated.said("tokens", named(path), "how many tokens a prompt had")
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
        if not (0 < size < 1e9 and size == int(size)) or not 0 < milliseconds < math.inf:
            expected = "expected a whole number and milliseconds, both above 0"
            raise InvalidData(f"{place}: {shown(line)}: {expected}")
        if size in seen:
            raise InvalidData(f"{place}: {shown(line)}: {size:g} is listed already")
        seen.add(size)
        if size % each == 0:
            what = f"layer, {phase}, {size:g} {'tokens' if phase == 'prefill' else 'sequences'}"
            batch, tokens = int(size) // each, stated.tokens
            found.append(_of_layer(place, what, phase, batch, milliseconds, tokens, stated.model))
    if not found:
        raise InvalidData(f"{named(path)}: no row with a multiple of tokens = {each}")
    return found


def _of_layer(
    place: str,
    what: str,
    phase: Phase,
    batch: int,
    time: float,
    tokens: int | None,
    model: str | None,
) -> _Timed:
    return _Timed(
        place, what, phase, batch, time, tokens, model, "kernels", "fp16", gpu_type="", layers=1
    )


def _phase_by_name(path: Path) -> Phase:
    if path.name.startswith("prompt"):
        return "prefill"
    if path.name.startswith("decode"):
        return "decode"
    of = "whether it is of prompts or of decode (prompt_bs2time.csv, decode_bs2time.csv)"
    raise _unsaid(named(path), of, "phase")


def _milliseconds(row: Row, column: str) -> float:
    value = float(number(row, column))
    if not 0 <= value < math.inf:
        raise row.error(column, row.cells[column], "expected milliseconds, at least 0")
    return value


def _whole(row: Row, column: str) -> int:
    value = float(number(row, column))
    if not 1 <= value <= 1e9 or value != int(value):
        raise row.error(column, row.cells[column], "expected a whole number, at least 1")
    return int(value)


def _model_by_dimensions(row: Row, stated: Stated) -> str:
    """Find the model of these widths; a stated one must have them, except for its vocabulary."""
    own = {name: _whole(row, column) for column, name in _DIMENSIONS.items()}
    if stated.model is not None:
        model = load_model(stated.model)
        for column, name in _DIMENSIONS.items():
            if name != "vocab" and getattr(model, name) != own[name]:
                expected = f"{stated.model} has {getattr(model, name)}; give another model=…"
                raise row.error(column, own[name], expected)
        return stated.model
    table = models()
    same = (table[list(own)] == list(own.values())).all(axis=1)
    found: Sequence[Any] = table.index[same & (table["experts"].fillna(1) == 1)]
    if len(found) != 1:
        said = ", ".join(f"{column} {own[name]}" for column, name in _DIMENSIONS.items())
        raise InvalidData(f"{row.path}: no model has {said}; give model=…")
    return str(found[0])
