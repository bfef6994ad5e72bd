"""In which precision a checkpoint keeps weights, keys and values: read exactly, or refused by name.

A quantisation stands in a field of `config.json`, or in a file beside it. `Transformer` has one
precision for all matrices of the layers, and 16 bits for all else. A scheme is read if the weights
are then as large as the checkpoint's tensors, scales and zeros included, up to `_CLOSE`. What does it
differently is refused, and so is what is not known here: without a word, no file counts as 16 bits.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from pipelab.errors import InvalidData, shown
from pipelab.fields import is_list
from pipelab.files.reading_and_writing import named, read_json
from pipelab.hardware.transformer import PRECISIONS, Transformer

# Of config.json: transformers' and vLLM's; older compressed-tensors'; MLX's.
FIELDS = ("quantization_config", "compression_config", "quantization")
_CLOSE = 0.005  # of the checkpoint's bytes
_BITS = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4"}
_KNOWN = "fp8, fbgemm_fp8, awq, gptq, compressed-tensors, modelopt, or 8 bits of bitsandbytes"
# Model Optimizer's names: precision, and weights with one scale (None: a row; 0: `group_size`).
_ALGORITHMS: dict[str, tuple[str, float | None]] = {
    "FP8": ("fp8", inf),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", None),
    "FP8_PB_WO": ("fp8", 128 * 128),
    "FP8_BLOCK_SCALES": ("fp8", 128 * 128),
    "W8A16": ("int8", None),
    "W8A8_SQ_PER_CHANNEL": ("int8", None),
    "W4A16_AWQ": ("int4", 0),
    "W4A8_AWQ": ("int4", 0),
}
# How compressed-tensors stores weights of so many bits; without a format, 8 bits are stored as such.
_FORMATS = {
    8: (None, "float-quantized", "int-quantized", "naive-quantized", "pack-quantized"),
    4: ("pack-quantized",),
}
# Objects that say nothing about which matrices have which precision.
_ASIDE = ("producer", "meta", "exllama_config", "config_groups")
# What a list of modules that are not quantised may name: what has 16 bits anyway, or is not counted.
_PLAIN = re.compile(
    r"(lm_head|embed_tokens|router|norm|bias)$|vision|visual|multi_modal|audio|\bmtp\b"
)
# Where the schemes list them.
_LISTS = (
    "modules_to_not_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "llm_int8_skip_modules",
)
_GATE = re.compile(r"gate$")  # not if more may follow: gate_proj is a matrix


class Stored(NamedTuple):
    """How the matrices of the layers are stored."""

    precision: str
    group: float | None  # weights with one scale; None: those of a row
    scale_bytes: float = 4.0  # with the zero, where there is one
    head: bool = False  # it is stored so, too

    def bytes_each(self, model: Transformer) -> float:
        """Bytes per weight."""
        return PRECISIONS[self.precision] + self.scale_bytes / (self.group or model.d_model)


class Scheme:
    """A quantisation as a checkpoint states it."""

    def __init__(self, place: str, stated: Any) -> None:
        self.place, self.stated = place, stated
        if not isinstance(stated, Mapping):
            stated = {}
        for key in (
            "quantization",
            "quantization_config",
        ):  # whose content may stand one level deeper
            if isinstance(stated.get(key), Mapping):
                stated = {k: v for k, v in stated.items() if k != key} | stated[key]
        self.values: Mapping[str, Any] = stated

    def error(self, key: str, value: Any, expected: str, option: str = "precision") -> InvalidData:
        """Make an error that names file, field, value, and which argument helps."""
        nearest = '"fp8", "int8" or "int4", the nearest,'
        if option == "kv_precision":
            nearest = '"bf16", "fp8" or "int8"'
        place = f"{self.place}, {named(key)}" if key else self.place
        remedy = f"or give {option}={nearest} to load_model"
        return InvalidData(f"{place}: {shown(value)}: {expected}, {remedy}")

    def kv_precision(self) -> str | None:
        """Return that of keys and values; None if nothing is said of them."""
        found = None
        for key, value in self.values.items():
            if "kv_cache" not in key or not value:
                continue
            name = str(value).removesuffix("_e4m3").lower()
            if isinstance(value, Mapping):
                name = _BITS.get((str(value.get("type")), _whole(value.get("num_bits"))), "")
            if name not in ("fp8", "int8") or found not in (None, name):
                expected = "expected FP8 or INT8 for keys and values"
                raise self.error(key, value, expected, "kv_precision")
            found = name
        return found

    def weights(self) -> Stored | None:
        """Return how the matrices of the layers are stored; None if nothing is said of them."""
        if not isinstance(self.stated, Mapping):
            raise self.error("", self.stated, "expected an object with quant_method")
        stored, groups = self._by_method(), self.values.get("config_groups")
        if stored is None and groups is None:
            return None
        if groups is not None and (stored is None or self._compressed()[0] != stored[0]):
            raise self.error("config_groups", groups, "expected none, or those of the method")
        self._refuse_other_modules()
        return stored

    def _by_method(self) -> Stored | None:
        get = self.values.get
        method = str(get("quant_method")).lower().replace("_tensors", "-tensors")
        if method.startswith("modelopt") or {"quant_algo", "kv_cache_quant_algo"} & set(
            self.values
        ):
            return self._of_algorithm(get("quant_algo"))
        if method in ("fp8", "fbgemm_fp8"):
            return self._fp8(get("weight_block_size"))
        if method == "awq" or (method == "none" and "w_bit" in self.values):
            return self._grouped(get("bits", get("w_bit")), get("group_size", get("q_group_size")))
        if method == "gptq" or (method == "none" and "desc_act" in self.values):
            form = "marlin" if get("is_marlin_format") else get("checkpoint_format")
            if form not in (None, "gptq", "gptq_v2"):
                raise self.error("checkpoint_format", form, "expected gptq or gptq_v2")
            return self._grouped(get("bits"), get("group_size"))
        if method == "compressed-tensors":
            return self._compressed()
        if method == "bitsandbytes" and get("load_in_8bit") is True:
            return Stored("int8", None, head=self._head_in(list_alone=True))
        raise self.error("quant_method", get("quant_method"), f"expected {_KNOWN}")

    def _of_algorithm(self, algorithm: Any) -> Stored | None:
        if algorithm is None and "quant_algo" in self.values:
            return None  # keys and values alone
        if not isinstance(algorithm, str) or algorithm.upper() not in _ALGORITHMS:
            expected = f"expected one of {', '.join(_ALGORITHMS)}"
            raise self.error("quant_algo", algorithm, expected)
        precision, group = _ALGORITHMS[algorithm.upper()]
        if group == 0:
            group = self._group_size("group_size", self.values.get("group_size"))
        scale = 2.0 if precision == "int4" else 4.0
        return Stored(precision, group, scale, head=self._head_in())

    def _fp8(self, block: Any) -> Stored:
        head = self._head_in(list_alone=True)
        if block is None:
            return Stored("fp8", None, head=head)
        if not is_list(block) or len(block) != 2 or not all(map(_whole, block)):
            raise self.error("weight_block_size", block, "expected two whole numbers")
        return Stored("fp8", block[0] * block[1], head=head)

    def _grouped(self, bits: Any, group: Any) -> Stored:
        """Those of AWQ and GPTQ: every group has a scale of 16 bits, and a zero as long as a weight."""
        precision = self._precision("bits", "int", bits)
        head = self.values.get("lm_head", False)
        if not isinstance(head, bool):
            raise self.error("lm_head", head, "expected true or false")
        each = self._group_size("group_size", group)
        return Stored(precision, each, 2 + PRECISIONS[precision], head)

    def _group_size(self, key: str, group: Any) -> float | None:
        if group != -1 and not _whole(group):
            raise self.error(key, group, "expected a whole number, or -1 for a row")
        return None if group == -1 else group

    def _precision(self, key: str, kind: Any, bits: Any) -> str:
        if not isinstance(kind, str) or (kind, _whole(bits)) not in _BITS:
            raise self.error(key, bits, "expected 4 or 8 bits as whole numbers, or 8 as float")
        return _BITS[kind, bits]

    def _compressed(self) -> Stored:
        groups = self.values.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise self.error("config_groups", groups, "expected an object with groups")
        found = {self._of_group(name, group) for name, group in groups.items()}
        if len(found) > 1:
            precisions = sorted({one.precision for one in found})
            raise self.error("config_groups", precisions, "expected one precision")
        return found.pop()

    def _of_group(self, name: str, group: Any) -> Stored:
        place = f"config_groups.{name[:40]}"
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise self.error(place, group, "expected one with weights")
        targets = group.get("targets", ["Linear"])
        if targets != ["Linear"]:  # else the other matrices have 16 bits
            raise self.error(f"{place}.targets", targets, "expected ['Linear']: all matrices")
        get, symmetric = weights.get, weights.get("symmetric", True) is not False
        precision = self._precision("num_bits", get("type"), get("num_bits"))
        form = group.get("format") or self.values.get("format")
        if form not in _FORMATS[get("num_bits")]:
            expected = f"expected pack-quantized for {get('num_bits')} bits"
            raise self.error("format", form, expected)
        scale = 2 + PRECISIONS[precision] * (not symmetric)
        each: float | None = inf if get("strategy") == "tensor" else None
        if get("block_structure") is not None:
            return self._fp8(get("block_structure"))._replace(precision=precision)
        if get("group_size") is not None:
            each = self._group_size("group_size", get("group_size"))
        return Stored(precision, each, scale, head=self._head_in())

    # Modules that are left out

    def _left_out(self) -> Iterator[tuple[str, Any]]:
        """All modules that a list names, whatever its key is, with that key."""
        for key, names in self.values.items():
            known = key in _LISTS and names is not None
            if known and not is_list(names):
                raise self.error(key, names, "expected a list of modules")
            if known or (is_list(names) and any(isinstance(name, str) for name in names)):
                yield from ((key, name) for name in names if "kv_cache" not in key)

    def _head_in(self, list_alone: bool = False) -> bool:
        """Whether the head is stored as the layers' matrices are: no list names it.

        Parameters
        ----------
        list_alone : bool
            Without any list, it is not.
        """
        if list_alone and all(self.values.get(key) is None for key in _LISTS):
            return False
        return not any(_bare(name).endswith("lm_head") for _, name in self._left_out())

    def _refuse_other_modules(self) -> None:
        """Refuse matrices of the layers that have a precision of their own."""
        for key, name in self._left_out():
            if not isinstance(name, str) or not _has_16_bits_anyway(name):
                raise self.error(key, name, "expected every matrix of the layers in few bits")
        for key, value in self.values.items():
            aside = key in _ASIDE or "kv_cache" in key or not value
            if isinstance(value, Mapping):  # a sparse format has fewer weights
                aside = aside or value.get("format") == "dense"
            elif not key.endswith("_quant_algo"):  # of some matrices
                continue
            if not aside:
                raise self.error(key, value, "expected one precision for all matrices")

    def refuse_other_size(self, stored: Stored, model: Transformer) -> None:
        """Refuse what makes the weights larger or smaller than those of this model."""
        layers, each = range(model.layers), model.weight_bytes
        counted, plain = model.weight_gb(layers), replace(model, precision="bf16").weight_gb(layers)
        more = (plain - counted) / (PRECISIONS["bf16"] - each) * (stored.bytes_each(model) - each)
        head_bytes = stored.bytes_each(model) - (0 if model.tied_embeddings else model.kept_bytes)
        head = stored.head * model.vocab * model.d_model / 1e9 * head_bytes
        for key, value, gb in (
            ("group_size", stored.group, counted + more),
            ("lm_head", "in few bits", counted + more + head),
        ):
            if abs(counted / gb - 1) > _CLOSE:
                expected = f"expected {counted:.4g} GB of weights, as {model.precision} has"
                raise self.error(key, value, f"{expected}, and not {gb:.4g}")


def _whole(value: Any) -> int:
    """Return a whole number above 0; else 0."""
    return value if type(value) is int and 0 < value <= 10**9 else 0


def _bare(name: Any) -> str:
    """Return the name of a module without what makes it a pattern."""
    return re.sub(r"^re:|\.\*|[\\^$*]", "", str(name)).rstrip(".")


def _has_16_bits_anyway(name: str) -> bool:
    """Whether all that a name or pattern can mean is not counted in the layers' precision."""
    if re.search(r"[|()\[\]{}+?]", name):
        return False
    closed = not name.endswith("*") and (not name.startswith("re:") or name.endswith("$"))
    return bool(_PLAIN.search(_bare(name)) or (closed and _GATE.search(_bare(name))))


def schemes_of(path: Path, config: Mapping[str, Any]) -> list[Scheme]:
    """Find what a configuration, and the files beside it, say about quantisation.

    Parameters
    ----------
    path : Path
        Of the configuration. Files beside it are those with "quant" in their names, such as
        hf_quant_config.json, quantize_config.json and quant_config.json; of X_config.json, those
        that begin with X_.
    config : mapping
        Its fields.

    Raises
    ------
    InvalidData
        A file cannot be read, or is no object.
    """
    found = [
        Scheme(f"{named(path)}, field {key!r}", config[key])
        for key in FIELDS
        if config.get(key) is not None
    ]
    prefix = path.name.removesuffix("config.json") if path.name.endswith("config.json") else ""
    for other in sorted(path.parent.glob("*quant*.json")):
        if other.name.startswith(prefix) and other != path:
            found.append(Scheme(named(other), read_json(other)))
    return found


def kv_precision_of(schemes: Sequence[Scheme]) -> str:
    """Return the precision of keys and values that all schemes agree on; without one, 16 bits.

    Raises
    ------
    InvalidData
        It is not known here, or two schemes differ.
    """
    found = {name: scheme for scheme in schemes if (name := scheme.kv_precision())}
    if len(found) > 1:
        *_, last = found.values()
        expected = "expected one precision of keys and values"
        raise last.error("", sorted(found), expected, "kv_precision")
    return next(iter(found), "bf16")


def weights_of(schemes: Sequence[Scheme], model: Transformer) -> str | None:
    """Return the precision of the layers' matrices that all schemes agree on.

    Parameters
    ----------
    schemes : sequence of Scheme
        From `schemes_of`.
    model : Transformer
        In any precision.

    Returns
    -------
    str or None
        None if no scheme says anything of weights.

    Raises
    ------
    InvalidData
        A scheme is not known here, two differ, or `Transformer` has no such precision.
    """
    found = {}
    for scheme in schemes:
        stored = scheme.weights()
        if stored is not None:
            scheme.refuse_other_size(stored, replace(model, precision=stored.precision))
            found[stored.precision] = scheme
    if len(found) > 1:
        *_, last = found.values()
        raise last.error("", sorted(found), "expected one precision of weights")
    return next(iter(found), None)
