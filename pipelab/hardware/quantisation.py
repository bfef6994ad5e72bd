"""Precisions in which a checkpoint keeps weights, keys and values: read exactly, or refused by name.

A quantisation stands in a field of `config.json`, or in a file beside it. `Transformer` has one
precision for all matrices of the layers, and 16 bits for all else. A scheme is read if the weights
are then as large as the checkpoint's tensors, with their scales and zeros. What is stored differently
is refused, and so is what is not known here: nothing counts as 16 bits without a word.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from pathlib import Path
from typing import Any, NamedTuple

from pipelab.errors import InvalidData, shown
from pipelab.fields import is_list
from pipelab.files.reading_and_writing import named, read_json
from pipelab.hardware.transformer import PRECISIONS, Transformer

# Fields of config.json: of transformers and vLLM, of older compressed-tensors, of MLX.
FIELDS = ("quantization_config", "compression_config", "quantization")
_SIZE_TOLERANCE = 0.008  # of the checkpoint's bytes: 4 bits with a scale but no zero for 128 weights have 0.76 % less
_KNOWN = "fp8, fbgemm_fp8, awq, gptq, compressed-tensors, modelopt, or 8 bits of bitsandbytes"
_BITS = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4"}
# Model Optimizer's `quant_algo`: precision, weights with one scale (None: `group_size`, -1: a row).
_ALGORITHMS: dict[str, tuple[str, float | None]] = {
    "FP8": ("fp8", inf),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", -1),
    "FP8_PB_WO": ("fp8", 128 * 128),
    "W4A16_AWQ": ("int4", None),
}
# compressed-tensors' formats in which weights of 8 bits have a byte each; only the last has 4 bits.
_FORMATS = ("float-quantized", "int-quantized", "naive-quantized", None, "pack-quantized")
# Lists of modules that are not quantised. What they may name has 16 bits anyway, or is not counted;
# a gate only if no more may follow, as gate_proj is a matrix.
_LISTS = (
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "modules_to_not_convert",
    "llm_int8_skip_modules",
)
_PLAIN = r"(lm_head|embed_tokens|router|norm|bias)$|vision|visual|multi_modal|audio|\bmtp\b"
# Objects that do not say which matrices have which precision.
_ASIDE = ("producer", "meta", "exllama_config", "config_groups")


class _StoredWeights(NamedTuple):
    """The form in which the layers' matrices are stored, and the head, too, if `head`."""

    precision: str
    group: float  # weights with one scale; -1: a row
    scale_bytes: float  # with its zero
    head: bool


class QuantisationScheme:
    """A quantisation as a checkpoint states it."""

    def __init__(self, place: str, stated: Any) -> None:
        self.place, self.stated = place, stated
        values = stated if isinstance(stated, Mapping) else {}
        for key in FIELDS:  # the content may stand one level deeper
            if isinstance(values.get(key), Mapping):
                values = {k: v for k, v in values.items() if k != key} | values[key]
        self.values: Mapping[str, Any] = values
        self.method = str(values.get("quant_method")).lower().replace("_tensors", "-tensors")
        if {"quant_algo", "kv_cache_quant_algo"} & set(values):
            self.method = "modelopt"

    def error(self, key: str, value: Any, expected: str, option: str = "precision") -> InvalidData:
        """Make an error that names file, field, value, and the argument that helps."""
        choice = {
            "precision": '"bf16", "fp8", "int8" or "int4", the nearest,',
            "kv_precision": '"bf16", "fp8" or "int8"',
        }
        place = f"{self.place}, {named(key)}" if key else self.place
        remedy = f"or give {option}={choice[option]} to load_model"
        return InvalidData(f"{place}: {shown(value)}: {expected}, {remedy}")

    def kv_precision(self) -> str | None:
        """Return that of keys and values; None if nothing is said of them."""
        precision = None
        for key, value in self.values.items():
            if "kv_cache" not in key or not value:
                continue
            name = str(value).lower().removesuffix("_e4m3")
            if isinstance(value, Mapping):
                name = _BITS.get((str(value.get("type")), _whole(value.get("num_bits"))), "")
            if name not in ("fp8", "int8") or precision not in (None, name):
                expected = "expected FP8 or INT8 for keys and values"
                raise self.error(key, value, expected, "kv_precision")
            precision = name
        return precision

    def precision(self, model: Transformer) -> str | None:
        """Return that of the layers' matrices, if this model then has the right size; None: nothing is said."""
        if not isinstance(self.stated, Mapping):
            raise self.error("", self.stated, "expected an object with quant_method")
        stored, groups = self._stored(), self.values.get("config_groups")
        if stored is None:
            return None
        if groups is not None and self._compressed().precision != stored.precision:
            raise self.error("config_groups", groups, f"expected those of {stored.precision}")
        self._refuse_other_modules()
        self._refuse_other_size(stored, replace(model, precision=stored.precision))
        return stored.precision

    def _stored(self) -> _StoredWeights | None:
        get, values = self.values.get, self.values
        if self.method.startswith("modelopt"):
            return self._of_algorithm(get("quant_algo"))
        if self.method in ("fp8", "fbgemm_fp8"):
            block = get("weight_block_size")
            return _StoredWeights(
                "fp8", self._group("weight_block_size", block), 4, self._has_head()
            )
        if self.method == "awq" or (self.method == "none" and "w_bit" in values):
            return self._grouped(get("bits", get("w_bit")), get("group_size", get("q_group_size")))
        if self.method == "gptq" or (self.method == "none" and "desc_act" in values):
            form = "marlin" if get("is_marlin_format") else get("checkpoint_format")
            if form not in (None, "gptq", "gptq_v2"):
                raise self.error("checkpoint_format", form, "expected gptq or gptq_v2")
            return self._grouped(get("bits"), get("group_size"))
        if self.method == "compressed-tensors":
            # without groups, keys and values alone are quantised
            return None if get("config_groups") == {} else self._compressed()
        bits = (get("load_in_8bit"), get("load_in_4bit") or False)
        if self.method == "bitsandbytes" and bits == (True, False):
            return _StoredWeights("int8", -1, 4, self._has_head())
        raise self.error("quant_method", get("quant_method"), f"expected {_KNOWN}")

    def _of_algorithm(self, algorithm: Any) -> _StoredWeights | None:
        said = {key for key, value in self.values.items() if value and "kv_cache" not in key}
        if algorithm is None and "quant_algo" in self.values and said <= {"producer", *_LISTS}:
            return None  # keys and values alone
        if not isinstance(algorithm, str) or algorithm.upper() not in _ALGORITHMS:
            raise self.error("quant_algo", algorithm, f"expected one of {', '.join(_ALGORITHMS)}")
        precision, group = _ALGORITHMS[algorithm.upper()]
        if group is None:
            group = self._group("group_size", self.values.get("group_size"))
        return _StoredWeights(precision, group, 2 if precision == "int4" else 4, self._has_head())

    def _grouped(self, bits: Any, group: Any) -> _StoredWeights:
        """Read AWQ's and GPTQ's: a scale of 16 bits and a zero as long as a weight for every group."""
        precision = self._named("bits", "int", bits)
        head = bool(self.values.get("lm_head"))
        return _StoredWeights(
            precision, self._group("group_size", group), 2 + PRECISIONS[precision], head
        )

    def _compressed(self) -> _StoredWeights:
        groups = self.values.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise self.error("config_groups", groups, "expected an object with groups")
        stored = {self._of_group(f"config_groups.{key[:40]}", one) for key, one in groups.items()}
        if len(stored) > 1:
            precisions = sorted({one.precision for one in stored})
            raise self.error("config_groups", precisions, "expected one precision in equal groups")
        return stored.pop()

    def _of_group(self, place: str, group: Any) -> _StoredWeights:
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise self.error(place, group, "expected one with weights")
        get, targets = weights.get, group.get("targets", ["Linear"])
        if targets != ["Linear"]:
            raise self.error(f"{place}.targets", targets, "expected ['Linear'], all matrices")
        precision = self._named("num_bits", get("type"), get("num_bits"))
        form = group.get("format") or self.values.get("format")
        if form not in (_FORMATS[-1:] if precision == "int4" else _FORMATS):
            raise self.error("format", form, f"expected that of {precision}")
        size = get("block_structure") or get("group_size")
        group_size = inf if get("strategy") == "tensor" else self._group("group_size", size)
        zero = PRECISIONS[precision] if get("symmetric") is False else 0
        return _StoredWeights(precision, group_size, 2 + zero, self._has_head())

    def _named(self, key: str, kind: Any, bits: Any) -> str:
        if not isinstance(kind, str) or (kind, _whole(bits)) not in _BITS:
            raise self.error(key, bits, "expected 4 or 8 bits as whole numbers, or 8 as float")
        return _BITS[kind, bits]

    def _group(self, key: str, size: Any) -> float:
        """Read how many weights have one scale: a number, a block's two, or none for a row."""
        sizes = size if is_list(size) and len(size) == 2 else [size]
        if size in (None, -1) or all(map(_whole, sizes)):
            return -1 if size in (None, -1) else prod(sizes)
        raise self.error(key, size, "expected a whole number, or -1 for a row, or two for a block")

    def _left_out(self) -> Iterator[tuple[str, Any]]:
        """List all modules that a list names, with the list's key, whatever that is."""
        for key, names in self.values.items():
            if key in _LISTS and names is not None and not is_list(names):
                raise self.error(key, names, "expected a list of modules")
            of_names = is_list(names) and any(_whole(name) != name for name in names)
            if of_names and "kv_cache" not in key:
                yield from ((key, name) for name in names)

    def _has_head(self) -> bool:
        """Whether the head is quantised: no list leaves it out, and nobody does without a list."""
        unlisted = all(self.values.get(key) is None for key in _LISTS)
        if unlisted and self.method in ("fp8", "fbgemm_fp8", "bitsandbytes"):
            return False
        return not any(_bare(name).endswith("lm_head") for _, name in self._left_out())

    def _refuse_other_modules(self) -> None:
        """Refuse matrices of the layers that have another precision."""
        for key, name in self._left_out():
            if not isinstance(name, str) or not _has_16_bits_anyway(name):
                raise self.error(key, name, "expected every matrix of the layers in few bits")
        for key, value in self.values.items():
            nested = isinstance(value, Mapping) and value.get("format") != "dense"  # not sparse
            of_some = nested or key.endswith("_quant_algo")
            if value and of_some and key not in _ASIDE and "kv_cache" not in key:
                raise self.error(key, value, "expected one precision for all matrices")

    def _refuse_other_size(self, stored: _StoredWeights, model: Transformer) -> None:
        layers, bytes_per_weight = range(model.layers), model.weight_bytes
        group = model.d_model if stored.group == -1 else stored.group
        bytes_with_scale = PRECISIONS[model.precision] + stored.scale_bytes / group
        counted, plain = model.weight_gb(layers), replace(model, precision="bf16").weight_gb(layers)
        matrices = (plain - counted) / (PRECISIONS["bf16"] - bytes_per_weight)  # 10^9 weights
        gb = counted + matrices * (bytes_with_scale - bytes_per_weight)
        kept = 0 if model.tied_embeddings else model.kept_bytes
        head = stored.head * model.vocab * model.d_model / 1e9 * (bytes_with_scale - kept)
        sizes = {"group_size": (stored.group, gb), "lm_head": ("in few bits", gb + head)}
        for key, (value, there) in sizes.items():
            if abs(counted / there - 1) > _SIZE_TOLERANCE:
                expected = f"expected {counted:.4g} GB of weights, as {model.precision} has"
                raise self.error(key, value, f"{expected}, and not {there:.4g}")


def _whole(value: Any) -> int:
    """Return a whole number above 0; else 0."""
    return value if type(value) is int and 0 < value <= 10**9 else 0


def _bare(name: Any) -> str:
    """Return a module's name without what makes it a pattern."""
    return re.sub(r"^re:|\.\*|[\\^$*]", "", str(name)).rstrip(".")


def _has_16_bits_anyway(name: str) -> bool:
    """Whether all that a name or pattern can mean is not counted in the layers' precision."""
    closed = not name.endswith("*") and (not name.startswith("re:") or name.endswith("$"))
    several = re.search(r"[|()\[\]{}+?]", name)
    return not several and bool(
        re.search(_PLAIN, _bare(name)) or (closed and _bare(name).endswith("gate"))
    )


def schemes_of(path: Path, config: Mapping[str, Any]) -> list[QuantisationScheme]:
    """Find what the fields of a configuration, and the files beside it, say about quantisation.

    Of `config.json`, these are all with "quant" in their names, such as hf_quant_config.json,
    quantize_config.json or quant_config.json; of `X_config.json`, those that begin with "X_".
    """
    stated = [key for key in FIELDS if config.get(key) is not None]
    of_fields = [QuantisationScheme(f"{named(path)}, field {key!r}", config[key]) for key in stated]
    prefix = path.name.removesuffix("config.json") if path.name.endswith("config.json") else ""
    beside = [other for other in path.parent.glob("*quant*.json") if other.name != path.name]
    mine = sorted(other for other in beside if other.name.startswith(prefix))
    return of_fields + [QuantisationScheme(named(other), read_json(other)) for other in mine]


def agreed(
    schemes: Sequence[QuantisationScheme],
    option: str,
    read: Callable[[QuantisationScheme], str | None],
) -> str | None:
    """Return the one precision that is read from the schemes which say something; None if none does."""
    by_precision = {name: scheme for scheme in schemes if (name := read(scheme)) is not None}
    if len(by_precision) > 1:
        *_, last = by_precision.values()
        expected = "expected one precision in all places"
        raise last.error("", sorted(by_precision), expected, option)
    return next(iter(by_precision), None)
