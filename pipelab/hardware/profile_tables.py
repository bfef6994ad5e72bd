"""Profiles of single layers: Vidur's mlp.csv, Helix's prompt_bs2time.csv and decode_bs2time.csv."""

import math
from pathlib import Path

from pipelab.errors import InvalidData, shown
from pipelab.hardware.known_models import load_model, models
from pipelab.hardware.timed_passes import Phase, Stated, Timed, unsaid
from pipelab.io.csv_cells import NUMBER, Row, number, read_rows
from pipelab.io.whole_files import named, read_text

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
    "n_head": "heads", "n_kv_head": "kv_heads", "n_embd": "d_model", "n_expanded_embd": "d_ff",
    "vocab_size": "vocab",
}  # fmt: skip
_TOKENS, _CUT = "num_tokens", "num_tensor_parallel_workers"
_DECODE_UP_TO = 128  # tokens at once: more are taken for prompts


def read_vidur(path: Path, stated: Stated, few: bool) -> list[Timed]:
    """One layer without its attention kernel, for so many tokens at once, whole (no tensor parallelism).

    `few` takes 1, 2, 4, … tokens, each as a sequence with no context, so that no attention is
    missing. Otherwise `stated.tokens` of them belong to one sequence, by default 1.

    Raises
    ------
    InvalidData
        A column is missing, a value does not fit, or nobody says which GPU or model this is.
    """
    gpu = _gpu(path, stated)
    columns = [f"time_stats.{kernel}.median" for kernel in _KERNELS]
    times: dict[int, list[float]] = {}
    rows = read_rows(path, [*columns, *_DIMENSIONS, _TOKENS, _CUT])
    model = _model_by_dimensions(rows[0], stated) if few else stated.model
    for row in rows:
        tokens, cut = _whole(row, _TOKENS), _whole(row, _CUT)
        total = sum(_milliseconds(row, column) for column in columns)
        for kernel, often in _MAYBE.items():
            if row.cells.get(f"time_stats.{kernel}.median"):
                total += often * _milliseconds(row, f"time_stats.{kernel}.median")
        if cut == 1:
            times.setdefault(tokens, []).append(total)
    if few and stated.tokens not in (None, 1):
        raise InvalidData(
            f"{named(path)}: tokens = {stated.tokens}: expected none: without attention, no length counts"
        )
    each = stated.tokens or 1
    kept = [n for n in sorted(times) if (n & (n - 1) == 0 if few else n % each == 0)]
    if not kept:
        raise InvalidData(
            f"{named(path)}: no row with {_CUT} = 1 and {_TOKENS} a {'power of 2' if few else f'multiple of {each}'}"
        )
    found = []
    for n in kept:
        phase: Phase = "decode" if (n <= _DECODE_UP_TO if few else each == 1) else "prefill"
        phase = phase if few else stated.phase or phase
        found.append(
            Timed(
                named(path), f"layer without attention, {n} tokens", gpu, phase, n // each,
                sum(times[n]) / len(times[n]), each, model, 1, stated.engine or "kernels",
                stated.precision or "fp16",
            )
        )  # fmt: skip
    return found


def read_helix(path: Path, stated: Stated) -> list[Timed]:
    """One layer: milliseconds for so many prompt tokens, or for so many sequences in decode.

    Raises
    ------
    InvalidData
        A line is no pair of numbers, or nobody says which GPU this is or how long a prompt was.
    """
    gpu, phase = _gpu(path, stated), stated.phase or _phase_by_name(path)
    if phase == "prefill" and stated.tokens is None:
        raise unsaid(named(path), "how many tokens a prompt had", "tokens")
    each = stated.tokens or 1 if phase == "prefill" else 1
    found, seen = [], set()
    for n, line in enumerate(read_text(path, "CSV").splitlines(), start=1):
        if not line.strip():
            continue
        place, cells = f"{named(path)}, row {n}", [cell.strip() for cell in line.split(",")]
        if len(cells) != 2 or not all(NUMBER.fullmatch(cell) for cell in cells):
            raise InvalidData(
                f"{place}: {shown(line)}: expected tokens (or sequences) and milliseconds"
            )
        size, milliseconds = map(float, cells)
        if size == milliseconds == 0:  # every such table begins so
            continue
        if not (0 < size < 1e9 and size == int(size)) or not 0 < milliseconds < math.inf:
            raise InvalidData(
                f"{place}: {shown(line)}: expected a whole number and milliseconds, both above 0"
            )
        if size in seen:
            raise InvalidData(f"{place}: {shown(line)}: {size:g} is listed already")
        seen.add(size)
        if size % each == 0:
            found.append(
                Timed(
                    place, f"layer, {phase}, {size:g} {'tokens' if phase == 'prefill' else 'sequences'}",
                    gpu, phase, int(size) // each, milliseconds, stated.tokens, stated.model, 1,
                    stated.engine or "kernels", stated.precision or "fp16",
                )
            )  # fmt: skip
    if not found:
        raise InvalidData(f"{named(path)}: no row with a multiple of tokens = {each}")
    return found


def _gpu(path: Path, stated: Stated) -> str:
    if stated.gpu_type is None:
        raise unsaid(named(path), "on which GPU it ran", "gpu_type")
    return stated.gpu_type


def _phase_by_name(path: Path) -> Phase:
    if path.name.startswith("prompt"):
        return "prefill"
    if path.name.startswith("decode"):
        return "decode"
    raise unsaid(
        named(path),
        "whether it is of prompts or of decode (prompt_bs2time.csv, decode_bs2time.csv)",
        "phase",
    )


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
    """The model of these widths; a stated one must have them, but for its vocabulary."""
    own = {name: _whole(row, column) for column, name in _DIMENSIONS.items()}
    if stated.model is not None:
        model = load_model(stated.model)
        for column, name in _DIMENSIONS.items():
            if name != "vocab" and getattr(model, name) != own[name]:
                expected = f"{stated.model} has {getattr(model, name)}; give another model=…"
                raise row.error(column, own[name], expected)
        return stated.model
    table = models()
    found = table.index[
        (table[list(own)] == list(own.values())).all(axis=1) & (table["experts"].fillna(1) == 1)
    ]
    if len(found) != 1:
        said = ", ".join(f"{column} {own[name]}" for column, name in _DIMENSIONS.items())
        raise InvalidData(f"{row.path}: no model has {said}; give model=…")
    return str(found[0])
