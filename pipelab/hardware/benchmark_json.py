"""Results of `llama-bench -o json` (or jsonl) and of vLLM's benchmarks: times of whole models."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelab.errors import InvalidData, nearest, shown
from pipelab.fields import is_real
from pipelab.hardware.known_gpus import GPUFacts, nearest_name, type_of
from pipelab.hardware.known_models import load_model, models
from pipelab.hardware.timed_passes import Stated, Timed, unsaid
from pipelab.io.whole_files import named, read_text

# Where llama-bench says that all is on the GPU, and keys and values have 16 bits; older files have no such fields.
_ON_THE_GPU = {
    "n_cpu_moe": (0,), "no_kv_offload": (False, 0), "tensor_buft_overrides": ("none", "", "-"),
    "type_k": ("f16", "bf16"), "type_v": ("f16", "bf16"),
}  # fmt: skip
# llama.cpp's words for what weights are stored in, and the nearest of ours. Its int8 has 8.5 bits
# per weight with the scales, its 4-bit kinds 4.5 to 4.9.
_PRECISION = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "Q8_0": "int8", "Q4_": "int4"}
_LLAMA_CPP_TYPE = re.compile(r"(?:^| )(F32|F16|BF16|Q8_0|Q4_(?=[01K]))")
_QUANTISED = re.compile(r"(?i)fp8|fp4|int[48]|w\da\d|awq|gptq|gguf|bnb|[48]bit")
_SUFFIX = re.compile(r"(?i)-(instruct|chat|hf|it|base|v\d[\d.]*)$")


@dataclass(frozen=True)
class _Record:
    """One JSON object of a file."""

    path: Path
    place: str
    fields: Mapping[str, Any]

    def error(self, field: str, value: Any, expected: str) -> InvalidData:
        return InvalidData(f"{self.place}, field {field!r}: {shown(value)}: {expected}")

    def number(self, field: str, least: float = 0.0, default: Any = None) -> float:
        """A finite number of at least `least`; more than that where it is 0 and there is no default."""
        value = self.fields.get(field, default)
        positive = least == 0 and default is None
        if not is_real(value) or value < least or (positive and value == 0):
            raise self.error(
                field,
                value,
                f"expected a number {'above' if positive else 'of at least'} {least:g}",
            )
        return float(value)

    def whole(self, field: str, default: int | None = None) -> int:
        value = self.fields.get(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**9:
            raise self.error(field, value, "expected a whole number from 0 to 10^9")
        return value

    def text(self, field: str) -> str:
        value = self.fields.get(field)
        if not isinstance(value, str) or not value.strip():
            raise self.error(field, value, "expected text that is not empty")
        return value.strip()


def read_benchmarks(path: Path, stated: Stated, gpus: Mapping[str, GPUFacts]) -> list[Timed]:
    """Every time of a file of llama-bench, or of `vllm bench serve` and `latency`.

    Raises
    ------
    InvalidData
        The file is torn or strange, or does not say what nobody states.
    """
    found: list[Timed] = []
    for record in _records(path):
        if "n_prompt" in record.fields or "avg_ns" in record.fields:
            found.append(_llama_bench(record, stated, gpus))
        elif "avg_latency" in record.fields:
            found.append(_vllm_latency(record, stated))
        elif "total_input_tokens" in record.fields:
            found += _vllm_serve(record, stated)
        else:
            keys = ", ".join(map(str, list(record.fields)[:12])) or "nothing"
            raise InvalidData(
                f"{record.place}: fields {shown(keys)}: expected those of llama-bench (n_prompt, avg_ns, …), "
                "vllm bench serve (total_input_tokens, median_tpot_ms, …) or latency (avg_latency)"
            )
    return found


def _records(path: Path) -> list[_Record]:
    """Objects in a list, alone, or one in each line."""
    text = read_text(path, "JSON")
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            whole = [json.loads(line) for line in lines]
            if len(whole) < 2 or not all(isinstance(one, dict) for one in whole):
                raise ValueError
        except (ValueError, RecursionError):
            raise InvalidData(
                f"{named(path)}: cannot be read as JSON ({str(error)[:200]})"
            ) from None
    objects = whole if isinstance(whole, list) else [whole]
    if not objects:
        raise InvalidData(f"{named(path)}: an empty list; expected results of a benchmark")
    for n, one in enumerate(objects, start=1):
        if not isinstance(one, dict):
            raise InvalidData(
                f"{named(path)}, result {n}: {shown(one)}: expected an object with fields"
            )
    places = [f"{named(path)}, result {n}" for n in range(1, len(objects) + 1)]
    return [_Record(path, place, one) for place, one in zip(places, objects, strict=True)]


def _llama_bench(record: _Record, stated: Stated, gpus: Mapping[str, GPUFacts]) -> Timed:
    """One test: a prompt of n_prompt tokens, or n_gen tokens one after the other, of one sequence."""
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
    return Timed(
        record.place, f"{model} {precision}, {f'pp{prompt}' if prompt else f'tg{generated}'}",
        stated.gpu_type or _gpu_by_name(record, gpus), "prefill" if prompt else "decode", 1,
        milliseconds if prompt else milliseconds / generated,
        # The context grows from `depth` by one token each: its mean.
        prompt or max(1, depth + generated // 2), model, None, stated.engine or "llama.cpp", precision,
    )  # fmt: skip


def _model_by_size(record: _Record, stated: Stated) -> str:
    """The model with so many parameters; a stated one must have about as many."""
    size = record.number("model_n_params")
    published = models()["parameters_published"].dropna()
    if stated.model is not None:
        expected = load_model(stated.model).parameters()
        if abs(size / expected - 1) > 0.02:
            raise record.error(
                "model_n_params",
                int(size),
                f"{stated.model} has {expected:,}; give another model=…",
            )
        return stated.model
    near = [str(name) for name, own in published.items() if abs(size / own - 1) < 1e-4]
    if len(near) != 1:
        raise record.error(
            "model_n_params", int(size), "no model has so many parameters; give model=…"
        )
    return near[0]


def _gpu_by_name(record: _Record, gpus: Mapping[str, GPUFacts]) -> str:
    info = record.text("gpu_info")
    names = [name.strip() for name in info.split(",")]
    if len(names) > 1:
        expected = "expected one GPU, as with CUDA_VISIBLE_DEVICES=0: stages of several are computed, not measured"
        raise record.error("gpu_info", info, expected)
    kind = type_of(names[0], gpus)
    if kind is None:
        known = nearest_name(info, gpus)
        raise record.error(
            "gpu_info", info, f"no type of GPU has this name; {known}; or give gpu_type=…"
        )
    return kind


def _vllm_serve(record: _Record, stated: Stated) -> list[Timed]:
    """Decode from the time per output token; prefill from the time to the first, if no request waits.

    With several requests in flight, the first token of one waits for the others, and the
    time per token is the median, in which few prompts of others count.
    """
    model, precision = _served(record, stated)
    requests = record.number("completed")
    asked = record.number("total_input_tokens") / requests
    answered = record.number("total_output_tokens", default=0.0) / requests
    batch = stated.batch
    if batch is None and record.fields.get("max_concurrency") is None:
        raise unsaid(record.place, "how many requests ran at once (max_concurrency)", "batch")
    if batch is None:
        rate = record.fields.get("request_rate")
        if rate is not None and str(rate).lower() not in ("inf", "infinity"):
            expected = "expected inf: requests one by one leave places empty; give batch=…, as many as ran at once"
            raise record.error("request_rate", rate, expected)
        batch = min(record.whole("max_concurrency"), int(requests))
        if not batch:
            raise record.error("max_concurrency", 0, "expected a whole number of at least 1")
    rows = []
    if batch == 1 and "median_ttft_ms" in record.fields:
        prompt = max(1, round(asked)), "prefill", record.number("median_ttft_ms")
        rows.append(prompt)
    if answered >= 2:
        context = max(1, round(asked + answered / 2)), "decode", record.number("median_tpot_ms")
        rows.append(context)
    if not rows:
        expected = (
            "expected 2 tokens in each answer, or one request at a time: this has no time of a pass"
        )
        raise record.error(
            "total_output_tokens", record.fields.get("total_output_tokens"), expected
        )
    return [
        _of_vllm(record.place, stated, model, precision, phase, batch, tokens, time)
        for tokens, phase, time in rows
    ]


def _vllm_latency(record: _Record, stated: Stated) -> Timed:
    """One batch from prompt to end: avg_latency in seconds, and nothing of what was run."""
    for argument, what in (
        ("model", "which model this is"), ("batch", "how many sequences ran at once (--batch-size)"),
        ("tokens", "how long the prompts were (--input-len)"),
        ("output_tokens", "how long the answers were (--output-len)"),
    ):  # fmt: skip
        if getattr(stated, argument) is None:
            raise unsaid(record.place, what, argument)
    seconds = record.number("avg_latency")
    prompt, answer, batch = stated.tokens or 1, stated.output_tokens or 1, stated.batch or 1
    if 1 < answer < 4 * prompt:
        lengths = f"measure with --output-len 1 (prefill) or {4 * prompt} (decode)"
        expected = (
            f"with prompts of {prompt} tokens, prefill and decode cannot be told apart; {lengths}"
        )
        raise record.error("avg_latency", seconds, expected)
    phase, tokens = ("prefill", prompt) if answer == 1 else ("decode", prompt + answer // 2)
    # A short prompt takes about as long as one token more: reading the weights.
    milliseconds = 1000 * seconds / answer
    precision = stated.precision or "bf16"
    return _of_vllm(
        record.place, stated, stated.model, precision, phase, batch, tokens, milliseconds
    )


def _of_vllm(
    place: str, stated: Stated, model: Any, precision: str, phase: Any, batch: int, tokens: int,
    milliseconds: float,
) -> Timed:  # fmt: skip
    if stated.gpu_type is None:
        raise unsaid(place, "on which GPU it ran", "gpu_type")
    return Timed(
        place, f"{model} {precision}, {phase} of {batch} × {tokens} tokens", stated.gpu_type, phase,
        batch, milliseconds, tokens, model, None, stated.engine or "vLLM", precision,
        stated.tensor_parallel or 1,
    )  # fmt: skip


def _served(record: _Record, stated: Stated) -> tuple[str, str]:
    """Model and precision; names on the hub have a maker in front and a purpose behind."""
    given = record.text("model_id") if stated.model is None or stated.precision is None else ""
    if stated.precision is None and _QUANTISED.search(given):
        raise record.error(
            "model_id", given, "its name speaks of quantised weights; give precision=…"
        )
    if stated.model is not None:
        return stated.model, stated.precision or "bf16"
    plain = given.rpartition("/")[2].removeprefix("Meta-")
    while _SUFFIX.search(plain):
        plain = _SUFFIX.sub("", plain)
    known = {str(name).lower(): str(name) for name in models().index}
    if plain.lower() not in known:
        raise record.error(
            "model_id",
            given,
            f"no model has this name; {nearest(plain, known.values())}; give model=…",
        )
    return known[plain.lower()], stated.precision or "bf16"
