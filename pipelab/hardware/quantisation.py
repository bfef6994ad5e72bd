"""Precisions in which a checkpoint keeps weights, keys and values, matrix by matrix; or refused by name.

A quantisation stands in a field of `config.json`, or in a file beside it. It names modules, and how their
weights are stored: bits, how many have one scale, and how long that is. What is not known here is refused: nothing
counts as 16 bits without a word.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf
from pathlib import Path
from typing import Any, NamedTuple

from pipelab.errors import InvalidData, InvalidValue, shown
from pipelab.fields import is_list
from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import frame_of
from pipelab.files.reading_and_writing import named, read_json
from pipelab.hardware.layer_kinds import LayerKind, WeightTensor
from pipelab.hardware.transformer import PRECISIONS, Transformer

# Fields of config.json: of transformers and vLLM, of older compressed-tensors, of MLX.
FIELDS = ("quantization_config", "compression_config", "quantization")
_KNOWN = "fp8, mxfp4, awq, gptq, auto-round, compressed-tensors, modelopt or bitsandbytes"
_BITS = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "nvfp4"}
# compressed-tensors' formats in which weights of 8 bits have a byte each; those of 4 bits are the last.
_FORMATS = ("float-quantized", "int-quantized", "naive-quantized", None, "pack-quantized")
_PACKED = {"int4": "pack-quantized"}
_PACKED |= {name: f"{name}-pack-quantized" for name in ("nvfp4", "mxfp4")}
# Lists of modules that are not quantised.
_LISTS = {"ignore", "ignored_layers", "exclude_modules", "modules_to_not_convert"}
_LISTS |= {"llm_int8_skip_modules"}
# Objects that do not say which matrices have which precision.
_ASIDE = ("producer", "meta", "exllama_config", "config_groups", "quantized_layers")
_MIXED = "MIXED_PRECISION"


class _StoredWeights(NamedTuple):
    """The form in which matrices are stored."""

    precision: str
    rows: float  # with one scale
    columns: float
    scale_bytes: float  # with its zero

    def bytes_each(self, tensor: WeightTensor) -> float:
        """Return the bytes of each weight of a matrix, with scales."""
        scales = max(1, ceil(tensor.rows / self.rows)) * max(1, ceil(tensor.columns / self.columns))
        of_scales = self.scale_bytes * scales / (tensor.rows * tensor.columns)
        return PRECISIONS[self.precision] + of_scales


class QuantisationScheme:
    """A quantisation as a checkpoint states it."""

    def __init__(self, place: str, stated: Any, beside: Mapping[str, Any] | None = None) -> None:
        self.place, self.stated = place, stated
        values = stated if isinstance(stated, Mapping) else {}
        for key in FIELDS:  # the content may stand one level deeper
            if isinstance(values.get(key), Mapping):
                values = {k: v for k, v in values.items() if k != key} | values[key]
        self.values: Mapping[str, Any] = {**(beside or {}), **values}
        self.method = str(values.get("quant_method")).lower().replace("_tensors", "-tensors")
        if {"quant_algo", "kv_cache_quant_algo"} & set(values):
            self.method = "modelopt"

    def error(self, key: str, value: Any, expected: str, option: str = "precision") -> InvalidData:
        """Make an error that names file, field, value, and the argument that helps."""
        choice = {
            "precision": '"bf16", "fp8", "int8", "int4", "nvfp4" or "mxfp4", the nearest,',
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

    def stored(self, model: Transformer) -> Transformer | None:
        """Return the model with every matrix as it is stored; None: nothing is said of weights."""
        if not isinstance(self.stated, Mapping):
            raise self.error("", self.stated, "expected an object with quant_method")
        default, head = self._default()
        rules = [(_pattern([name], self.error), form) for name, form in self._of_modules()]
        if default is None and not rules:
            return None
        self._refuse_other_modules()
        # With a form for each module, what is in no list is stored as before.
        listed = [] if self._mixed else list(self._left_out())
        left_out = _pattern(listed, self.error)

        def form_of(module: str) -> _StoredWeights | None:
            if left_out.match(module):
                return None
            return next((form for pattern, form in rules if pattern.match(module)), default)

        weights: Counter[str] = Counter()

        def as_stored(tensor: WeightTensor, layer: int) -> WeightTensor:
            form = None if tensor.kept else form_of(f"model.layers.{layer}.{tensor.module}")
            weights[form.precision if form else "bf16"] += tensor.size
            each = form.bytes_each(tensor) if form else model.kept_bytes
            return replace(tensor, bytes_each=each)

        as_kinds = []
        for layer, number in enumerate(model.kind_of_layer):
            kind = model.layer_kinds[number]
            tensors = tuple(as_stored(tensor, layer) for tensor in kind.tensors)
            as_kinds.append(replace(kind, tensors=tensors))
        quantised = (head or rules) and not model.tied_embeddings
        of_head = form_of("lm_head") if quantised else None
        matrix = WeightTensor(module="lm_head", rows=model.vocab, columns=model.d_model)
        each = of_head.bytes_each(matrix) if of_head else None
        ((precision, _),) = weights.most_common(1)
        kinds = fields_of_kinds(as_kinds)
        return replace(model, precision=precision, head_bytes_each=each, **kinds)

    @property
    def _mixed(self) -> bool:
        return str(self.values.get("quant_algo")).upper() == _MIXED

    def _default(self) -> tuple[_StoredWeights | None, bool]:
        """Read how modules are stored that no rule names, and whether the head is among them; None: in 16 bits."""
        get, values = self.values.get, self.values
        if self._mixed:
            block = get("weight_block_size")
            return block and self._form("fp8", "weight_block_size", block, 4), False
        if self.method.startswith("modelopt"):
            return self._of_algorithm(get("quant_algo"), self.values), True
        if self.method in ("fp8", "fbgemm_fp8"):
            block = get("weight_block_size")
            return self._form("fp8", "weight_block_size", block, 4), self._listed
        if self.method == "mxfp4":
            return self._form("mxfp4", "group_size", 32, 1), self._listed
        if self.method == "awq" or (self.method == "none" and "w_bit" in values):
            return self._grouped(get("bits", get("w_bit")), get("group_size", get("q_group_size")))
        rounded = self.method.endswith("auto-round") and get("data_type") == "int"
        if rounded or self.method == "gptq" or (self.method == "none" and "desc_act" in values):
            form = "marlin" if get("is_marlin_format") else get("checkpoint_format")
            if form not in (None, "gptq", "gptq_v2"):
                raise self.error("checkpoint_format", form, "expected gptq or gptq_v2")
            return self._grouped(get("bits"), get("group_size"))
        if self.method == "compressed-tensors":
            # without groups, keys and values alone are quantised
            groups = [] if get("config_groups") == {} else list(self._groups())
            of_all = [form for targets, form in groups if targets == ["Linear"]]
            return (of_all[0] if of_all else None), True
        bits = bool(get("load_in_8bit")), bool(get("load_in_4bit"))
        # Scales of 4 bits may be in 8 bits themselves, 256 with one in 32 (bitsandbytes, functional.py).
        of_scale = 1 + 4 / 256 if get("bnb_4bit_use_double_quant") else 4
        forms = {(True, False): ("int8", "", -1, 4), (False, True): ("int4", "", 64, of_scale)}
        if self.method == "bitsandbytes" and bits in forms:
            return self._form(*forms[bits]), self._listed
        raise self.error("quant_method", get("quant_method"), f"expected {_KNOWN}")

    def _of_modules(self) -> Iterator[tuple[str, _StoredWeights]]:
        """Read rules that name modules: Model Optimizer's, or groups of compressed-tensors with targets."""
        layers = self.values.get("quantized_layers")
        if self._mixed:
            if not isinstance(layers, Mapping) or not layers:
                raise self.error("quantized_layers", layers, "expected an object with modules")
            for name, given in layers.items():
                stated = given if isinstance(given, Mapping) else {}
                form = self._of_algorithm(stated.get("quant_algo"), stated)
                if form is not None:
                    yield name, form
        elif self.method == "compressed-tensors" and self.values.get("config_groups") != {}:
            for targets, form in self._groups():
                yield from ((name, form) for name in targets if targets != ["Linear"])
        elif self.values.get("expert_dtype") == "fp4":  # beside the quantisation of DeepSeek-V4
            yield "*.experts.*", self._form("mxfp4", "", 32, 1)

    def _of_algorithm(self, algorithm: Any, values: Mapping[str, Any]) -> _StoredWeights | None:
        said = {key for key, value in self.values.items() if value and "kv_cache" not in key}
        if algorithm is None and "quant_algo" in self.values and said <= {"producer", *_LISTS}:
            return None  # keys and values alone
        known = frame_of(data_dir() / "quantisations.csv", "algorithm")
        if not isinstance(algorithm, str) or algorithm.upper() not in known.index:
            raise self.error("quant_algo", algorithm, f"expected one of {', '.join(known.index)}")
        row = known.loc[algorithm.upper()]
        precision, per_scale = str(row["precision"]), str(row["weights_per_scale"])
        group: Any = {"tensor": inf, "row": -1, "128x128": [128, 128]}.get(per_scale)
        if group is None:
            stated = values.get("group_size", 16 if precision == "nvfp4" else None)
            group = stated if per_scale == "group_size" else int(per_scale)
        return self._form(precision, "group_size", group, float(row["scale_bytes"]))

    def _grouped(self, bits: Any, group: Any) -> tuple[_StoredWeights, bool]:
        """Read AWQ's and GPTQ's: a scale of 16 bits and a zero as long as a weight for every group."""
        precision = self._named("bits", "int", bits)
        head = bool(self.values.get("lm_head"))
        return self._form(precision, "group_size", group, 2 + PRECISIONS[precision]), head

    def _groups(self) -> Iterator[tuple[list[str], _StoredWeights]]:
        groups = self.values.get("config_groups")
        if not isinstance(groups, Mapping) or not groups:
            raise self.error("config_groups", groups, "expected an object with groups")
        for key, one in groups.items():
            yield self._of_group(f"config_groups.{key[:40]}", one)

    def _of_group(self, place: str, group: Any) -> tuple[list[str], _StoredWeights]:
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            raise self.error(place, group, "expected one with weights")
        get, targets = weights.get, group.get("targets", ["Linear"])
        if not is_list(targets) or not all(isinstance(name, str) for name in targets):
            raise self.error(f"{place}.targets", targets, "expected a list of modules")
        precision = self._named("num_bits", get("type"), get("num_bits"))
        form = group.get("format") or self.values.get("format")
        if precision == "nvfp4" and form == _PACKED["mxfp4"]:
            precision = "mxfp4"
        if form not in ((_PACKED[precision],) if precision in _PACKED else _FORMATS):
            raise self.error("format", form, f"expected that of {precision}")
        size = get("block_structure") or get("group_size")
        size = inf if get("strategy") == "tensor" else size
        zero = PRECISIONS[precision] if get("symmetric") is False else 0
        of_scale = 1 if precision in ("nvfp4", "mxfp4") else 2 + zero
        return list(targets), self._form(precision, "group_size", size, of_scale)

    def _form(self, precision: str, key: str, size: Any, scale_bytes: float) -> _StoredWeights:
        """Read how many weights have one scale: a number, a block's two, or none for a row."""
        if size == inf:
            return _StoredWeights(precision, inf, inf, scale_bytes)
        of_row = [1, inf if size in (None, -1) else size]
        sizes = size if is_list(size) and len(size) == 2 else of_row
        if not all(one == inf or _whole(one) for one in sizes):
            expected = "expected a whole number, or -1 for a row, or two for a block"
            raise self.error(key, size, expected)
        return _StoredWeights(precision, float(sizes[0]), float(sizes[1]), scale_bytes)

    def _named(self, key: str, kind: Any, bits: Any) -> str:
        if not isinstance(kind, str) or (kind, _whole(bits)) not in _BITS:
            raise self.error(key, bits, "expected 4 or 8 bits as whole numbers, or 8 as float")
        return _BITS[kind, bits]

    def _left_out(self) -> Iterator[Any]:
        """List all modules that a list names, whatever the list's key is."""
        for key, names in self.values.items():
            if key in _LISTS and names is not None and not is_list(names):
                raise self.error(key, names, "expected a list of modules")
            of_names = is_list(names) and any(_whole(name) != name for name in names)
            if of_names and "kv_cache" not in key:
                yield from names

    @property
    def _listed(self) -> bool:
        """Whether a list names what is not quantised; without one, the head is not."""
        return any(self.values.get(key) is not None for key in _LISTS)

    def _refuse_other_modules(self) -> None:
        """Refuse what may give some matrices a form that is not known here."""
        for key, value in self.values.items():
            nested = isinstance(value, Mapping) and value.get("format") != "dense"  # not sparse
            of_some = nested or (key.endswith("_quant_algo") and not self._mixed)
            several = is_list(value) and any(map(is_list, value))
            unknown = key not in _ASIDE or (key == "quantized_layers" and not self._mixed)
            named_otherwise = "kv_cache" in key or key in _LISTS or key.endswith("block_size")
            if value and (of_some or several) and unknown and not named_otherwise:
                raise self.error(key, value, "expected forms of matrices that are known here")


def stored_in(model: Transformer, gb: float) -> Transformer:
    """Return a model whose weights take this number of GB: all share it, but for experts in 4-bit floats.

    So llama.cpp's files of gpt-oss are: experts as published, everything else in 8 bits.
    """
    kinds, apart = model.layer_kinds, model.precision in ("mxfp4", "nvfp4")
    numbers = model.numbers_of_kinds(range(model.layers))
    pairs = [(n * apart, kind) for n, kind in zip(numbers, kinds, strict=True)]
    experts = sum(n * model.layer_bytes(kind, only_routed=True) for n, kind in pairs)
    others = model.parameters() - sum(n * kind.routed for n, kind in pairs)
    if (each := (gb * 1e9 - experts) / others) <= 0:
        expected = f"expected one whose experts take less than the {gb:.4g} GB of the file"
        raise InvalidValue("a measurement", [("precision", model.precision, expected)])

    def stored(tensor: WeightTensor) -> WeightTensor:
        return tensor if apart and tensor.routed else replace(tensor, bytes_each=each)

    changed = tuple(replace(kind, tensors=tuple(map(stored, kind.tensors))) for kind in kinds)
    return replace(model, kinds=changed, pattern=model.kind_of_layer, head_bytes_each=each)


def fields_of_kinds(kinds: Sequence[LayerKind]) -> dict[str, Any]:
    """Return the fields of `Transformer` that say of which kind each layer is; the commonest is the ordinary one."""
    ordered = [kind for kind, _ in Counter(kinds).most_common()]
    return {"kinds": tuple(ordered), "pattern": tuple(map(ordered.index, kinds))}


def _pattern(names: Sequence[Any], error: Callable[..., InvalidData]) -> re.Pattern[str]:
    """Compile what a list of modules means: names or ends of names, with what is below, or patterns of either sort."""
    parts = []
    for name in names:
        if not isinstance(name, str):
            raise error("modules", name, "expected names of modules")
        if name.startswith("re:"):
            parts.append(name[3:])
            continue
        bare = re.sub(r"^((model|language_model|backbone)\.)+", "", name)
        glob = re.escape(bare).replace(r"\*", ".*")
        parts.append(rf"(.*\.)?{glob}(\..*)?$")
    try:
        return re.compile("|".join(f"(?:{part})" for part in parts) or r"(?!)")
    except (re.error, OverflowError) as wrong:
        raise error("modules", shown(str(wrong)), "expected patterns that can be read") from None


def _whole(value: Any) -> int:
    """Return a whole number above 0; else 0."""
    return value if type(value) is int and 0 < value <= 10**9 else 0


def schemes_of(path: Path, config: Mapping[str, Any]) -> list[QuantisationScheme]:
    """Find what the fields of a configuration, and the files beside it, say about quantisation.

    Of `config.json`, these are all with "quant" in their names, such as hf_quant_config.json,
    quantize_config.json or quant_config.json; of `X_config.json`, those that begin with "X_".
    """
    stated = [key for key in FIELDS if config.get(key) is not None]
    experts = {key: config[key] for key in ("expert_dtype",) if key in config}
    place = f"{named(path)}, field"
    of_fields = [QuantisationScheme(f"{place} {key!r}", config[key], experts) for key in stated]
    prefix = path.name.removesuffix("config.json") if path.name.endswith("config.json") else ""
    beside = [other for other in path.parent.glob("*quant*.json") if other.name != path.name]
    mine = sorted(other for other in beside if other.name.startswith(prefix))
    return of_fields + [QuantisationScheme(named(other), read_json(other)) for other in mine]


def agreed(
    schemes: Sequence[QuantisationScheme],
    option: str,
    read: Callable[[QuantisationScheme], Any],
    named_by: Callable[[Any], str] = str,
) -> Any:
    """Return what the first scheme says that says something, if all that do name one precision; else None."""
    said = [(scheme, value) for scheme in schemes if (value := read(scheme)) is not None]
    precisions = sorted({named_by(value) for _, value in said})
    if len(precisions) > 1:
        raise said[-1][0].error("", precisions, "expected one precision in all places", option)
    return said[0][1] if said else None
