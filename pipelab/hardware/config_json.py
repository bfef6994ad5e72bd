"""A Hugging Face `config.json` as a `Transformer`: exactly, or refused by name.

A model is read only if `Transformer` has every one of its parameters and its whole cache; what it
cannot hold (layers with a state, an encoder that reads the prompt) is refused by name, not
approximated. Of a model that also sees or hears, the part that reads and writes text is read, and a
warning says that the rest is left out.

`_FAMILIES` says how the fields of each family become those of `Transformer`. What a file leaves out
has the default of its class in transformers.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from pipelab.errors import InvalidData, InvalidValue, nearest, shown
from pipelab.fields import is_list
from pipelab.files.reading_and_writing import named, read_json
from pipelab.hardware.layer_kinds import Formulas, family_tables
from pipelab.hardware.quantisation import (
    FIELDS,
    QuantisationScheme,
    agreed,
    fields_of_kinds,
    schemes_of,
)
from pipelab.hardware.transformer import LatentAttention, Transformer


@dataclass(frozen=True)
class _Config:
    """The fields of a configuration; null is the same as absent."""

    path: Path
    values: Mapping[str, Any]

    def error(self, key: str, expected: str) -> InvalidData:
        """Make an error that names file, field, value and what was expected."""
        value = shown(self.values[key]) if key in self.values else "is missing"
        return InvalidData(f"{named(self.path)}, field {key!r}: {value}: {expected}")

    def refused(self, what: str, reason: str) -> InvalidData:
        """Make an error for a model that `Transformer` cannot hold."""
        instead = "describe a similar model with pl.hardware.Transformer(…), if an estimate will do"
        return InvalidData(f"{named(self.path)}: {what} is not supported: {reason}; {instead}")

    def get(self, key: str, default: Any = None) -> Any:
        """Return any value; the default where it is absent or null."""
        value = self.values.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number."""
        value = self.get(key, default)
        if type(value) is not int or not least <= value <= 10**9:
            raise self.error(key, f"expected a whole number from {least} to 10^9")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "expected true or false")
        return value


def model_of_config(path: Path, precision: str | None, kv_precision: str | None) -> Transformer:
    """Read the model that a configuration describes.

    Parameters
    ----------
    path : Path
        A `config.json`, or the folder that has one.
    precision, kv_precision : str, optional
        By default those of the checkpoint, in a field of the configuration or in a file beside it;
        without one 16 bits.

    Raises
    ------
    InvalidData
        The file is not there, is torn or strange, or the model is not supported.
    """
    if os.path.isdir(path):
        path = path / "config.json"
    c = _text_part(_read(path))
    kind = c.get("model_type")
    _refuse_unsupported(c, kind)
    fields = _FAMILIES[kind].fields(c) if kind in _FAMILIES else _fields_by_formulas(c, kind)
    unsaid = precision is None or kv_precision is None
    schemes = schemes_of(c.path, c.values) if unsaid else []
    if kv_precision is None:
        kv_precision = agreed(schemes, "kv_precision", QuantisationScheme.kv_precision) or "bf16"
    try:
        model = Transformer(_name(c), **fields, kv_precision=kv_precision)
        if precision is not None:
            return replace(model, precision=precision)
        stored = agreed(
            schemes, "precision", lambda one: one.stored(model), attrgetter("precision")
        )
        return stored or replace(model, precision=_plain_precision(c))
    except InvalidValue as error:
        field, _, expected = error.problems[0]
        raise c.error(_KEYS.get(field, field), expected) from None


# The field of a configuration that a field of `Transformer` comes from, where that may not fit.
_KEYS = {
    "layers": "num_hidden_layers",
    "kv_heads": "num_key_value_heads",
    "experts_per_token": "num_experts_per_tok",
    "dense_layers": "first_k_dense_replace",
}


def _read(path: Path) -> _Config:
    values = read_json(path)
    if not isinstance(values, dict) or not values.get("model_type"):
        expected = 'expected the config.json of a Hugging Face model, an object with "model_type"'
        raise InvalidData(f"{named(path)}: {expected}")
    return _Config(path, values)


def _name(c: _Config) -> str:
    """Return the last part of the model's name; without one, the folder's or the file's."""
    stated = c.get("_name_or_path")
    stem = c.path.parent.name if c.path.stem == "config" else c.path.stem
    name = stated.rstrip("/").rpartition("/")[2] if isinstance(stated, str) else ""
    return (name or stem or "config.json")[:100]


# What the text part of a model that sees or hears may leave to the whole.
_SHARED = ("torch_dtype", "dtype", "tie_word_embeddings", "_name_or_path", *FIELDS)


def _text_part(c: _Config) -> _Config:
    """Return the text part of a model that also sees or hears, if it can be read; warn of the rest."""
    text = c.values.get("text_config")
    if not isinstance(text, dict) or str(text.get("model_type")) not in _known():
        return c
    kind = shown(c.get("model_type"))
    left_out = "its encoders of images or sound, their weights and their memory, are left out"
    warnings.warn(
        f"{named(c.path)}: of model_type {kind} only text_config is read; {left_out}", stacklevel=4
    )
    shared = {key: c.values[key] for key in _SHARED if key in c.values}
    part = {key: value for key, value in text.items() if value is not None or key not in FIELDS}
    for key in FIELDS:
        if shared.get(key) is not None and shared[key] != part.get(key, shared[key]):
            raise c.error(key, f"expected the same as in text_config: {shown(part[key])}")
    return _Config(c.path, shared | part)


def _refuse_other_attention(c: _Config) -> None:
    """Refuse windows in a family without them: all layers look back at everything."""
    kinds = c.get("layer_types")
    if kinds is not None and (not is_list(kinds) or set(map(str, kinds)) != {"full_attention"}):
        expected = f"expected full_attention in every layer of a {c.get('model_type')} model"
        raise c.error("layer_types", expected)


def _refuse_unsupported(c: _Config, kind: Any) -> None:
    what = f"model_type {shown(kind)}"
    if not isinstance(kind, str) or kind not in _known():
        reason = f"its parameters are not counted here. {nearest(str(kind), _known())}"
        raise c.refused(what, reason)
    for key in ("is_encoder_decoder", "text_config", "vision_config"):
        if c.get(key) not in (None, False):
            raise c.refused(what, f"with {key}, it has an encoder beside the layers that write")


# The families


class _FamilyRules(NamedTuple):
    """The rules by which one family's configurations become the fields of `Transformer`."""

    kv_per_head: bool = False  # without num_key_value_heads, every head has its own keys and values
    biased: bool = False  # `attention_bias` and `mlp_bias` count
    windows: Callable[[_Config], dict[str, Any]] | None = None  # None: all look back at everything
    norms: Callable[[dict[str, Any]], int] | None = None  # beside the two of every layer
    more: Callable[[_Config], dict[str, Any]] | None = None
    defaults: Mapping[str, Any] = {}  # of the family's class in transformers

    def fields(self, c: _Config) -> dict[str, Any]:
        """Read the fields of `Transformer`, but for name and precision."""
        absent = {key: value for key, value in self.defaults.items() if c.get(key) is None}
        c = _Config(c.path, {**c.values, **absent})
        if "qk_nope_head_dim" in c.values:  # latent attention's name for it
            c = _Config(c.path, {**c.values, "head_dim": c.values["qk_nope_head_dim"]})
        fields = self._dimensions(c)
        if self.windows is None:
            _refuse_other_attention(c)
        else:
            fields |= self.windows(c)
        extra = self.norms(fields) if self.norms else 0
        if self.biased and c.flag("mlp_bias"):
            extra += 2 * fields["d_ff"] + fields["d_model"]
        if self.biased and c.flag("attention_bias"):  # of queries, keys, values and output
            extra += fields["d_model"]
            fields["qkv_bias"] = True
        return fields | {"extra_parameters": extra} | (self.more(c) if self.more else {})

    def _dimensions(self, c: _Config) -> dict[str, Any]:
        width, heads = c.whole("hidden_size"), c.whole("num_attention_heads")
        if c.get("head_dim") is None and width % heads:
            expected = f"expected a divisor of hidden_size = {width}, or a head_dim"
            raise c.error("num_attention_heads", expected)
        return {
            "layers": c.whole("num_hidden_layers"),
            "d_model": width,
            "d_ff": c.whole("intermediate_size"),
            "heads": heads,
            "kv_heads": c.whole("num_key_value_heads", heads if self.kv_per_head else None),
            "head_dim": c.whole("head_dim", width // heads),
            "vocab": c.whole("vocab_size"),
            "tied_embeddings": c.flag("tie_word_embeddings"),
        }


def _windows(c: _Config, default: int | None = None, every: int = 0) -> dict[str, Any]:
    """Read how far back the layers look: those of `Transformer.full_layers` at everything.

    Parameters
    ----------
    default : int, optional
        Tokens of the window where the file has no `sliding_window`; null is no window.
    every : int
        Unless `layer_types` says otherwise, each so-many-th layer looks back at everything; 0: none.
    """
    layers, full = c.whole("num_hidden_layers"), _full_layers(c, every)
    size = c.get("sliding_window") if "sliding_window" in c.values else default
    if size is None and c.get("layer_types") is None:
        full = list(range(layers))
    if len(full) == layers:
        return {"window": None}
    return {"window": c.whole("sliding_window", default), "full_layers": tuple(full)}


def _full_layers(c: _Config, every: int) -> list[int]:
    """List the layers that look back at everything: by `layer_types`, or each so-many-th; the others have a window."""
    layers = c.whole("num_hidden_layers")
    full = [every > 0 and (i + 1) % every == 0 for i in range(layers)]
    default = ["full_attention" if one else "sliding_attention" for one in full]
    kinds = c.get("layer_types", default)
    if not is_list(kinds) or len(kinds) != layers:
        raise c.error("layer_types", f"expected a list of num_hidden_layers = {layers} kinds")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            expected = f"expected full_attention or sliding_attention, not {shown(kind)}"
            raise c.error("layer_types", expected)
    return [i for i, kind in enumerate(kinds) if kind == "full_attention"]


def _windows_if_used(c: _Config) -> dict[str, Any]:
    """Read Qwen's windows: of `use_sliding_window`, in the layers from `max_window_layers` on."""
    if not c.flag("use_sliding_window"):
        return {"window": None}
    windows = _windows(c, 4096)
    if windows["window"] is None or c.get("layer_types") is not None:
        return windows
    layers, full = c.whole("num_hidden_layers"), c.whole("max_window_layers", least=0)
    return {"window": None} if full >= layers else windows | {"full_layers": tuple(range(full))}


def _gemma3_windows(c: _Config) -> dict[str, Any]:
    """Read Gemma 3's windows: five layers with one, then a layer without."""
    if c.flag("use_bidirectional_attention"):
        reason = "a token looks ahead, too, and it writes none"
        raise c.refused("use_bidirectional_attention", reason)
    older, newer = "sliding_window_pattern", "_sliding_window_pattern"
    return _windows(c, 4096, every=c.whole(newer if newer in c.values else older, 6))


def _mixtral_experts(c: _Config) -> dict[str, Any]:
    return {
        "experts": c.whole("num_local_experts", least=2),
        "experts_per_token": c.whole("num_experts_per_tok"),
    }


def _qwen_experts(c: _Config) -> dict[str, Any]:
    """Read the routed experts of every layer but the first few."""
    if c.whole("decoder_sparse_step", 1) != 1:
        raise c.error("decoder_sparse_step", "expected 1: experts in every layer but the first few")
    dense = c.get("mlp_only_layers", [])
    if not is_list(dense) or list(dense) != list(range(len(dense))):
        raise c.error("mlp_only_layers", "expected the first layers, such as [] or [0, 1]")
    return {
        "experts": c.whole("num_experts", least=2),
        "experts_per_token": c.whole("num_experts_per_tok"),
        "expert_ff": c.whole("moe_intermediate_size"),
        "dense_layers": len(dense),
    }


def _qwen2_experts(c: _Config) -> dict[str, Any]:
    fields = _qwen_experts(c)
    if fields["dense_layers"]:  # which have no gate of a shared expert
        raise c.error("mlp_only_layers", "expected []")
    shared, width = c.whole("shared_expert_intermediate_size"), fields["expert_ff"]
    if shared % width:
        expected = f"expected a multiple of moe_intermediate_size = {width}"
        raise c.error("shared_expert_intermediate_size", expected)
    return fields | {"shared_experts": shared // width, "qkv_bias": c.flag("qkv_bias", True)}


def _deepseek(c: _Config) -> dict[str, Any]:
    """Read latent attention, and experts in all but the first layers."""
    if c.whole("moe_layer_freq", 1) != 1:
        raise c.error("moe_layer_freq", "expected 1: experts in every layer but the first few")
    query_rank = None if c.get("q_lora_rank") is None else c.whole("q_lora_rank")
    kv_rank, rope_dim = c.whole("kv_lora_rank"), c.whole("qk_rope_head_dim")
    biases = 0
    if c.flag("attention_bias"):  # of what is projected down, and of the output
        biases = (query_rank or 0) + kv_rank + rope_dim + c.whole("hidden_size")
    none = 0 if "n_shared_experts" in c.values else None  # null; the classes' defaults differ
    return {
        "latent": LatentAttention(query_rank, kv_rank, rope_dim, c.whole("v_head_dim")),
        "extra_parameters": biases,
        "experts": c.whole("n_routed_experts", least=2),
        "experts_per_token": c.whole("num_experts_per_tok"),
        "shared_experts": c.whole("n_shared_experts", none, least=0),
        "expert_ff": c.whole("moe_intermediate_size"),
        "dense_layers": c.whole("first_k_dense_replace", least=0),
        "router_bias": c.get("topk_method") == "noaux_tc",
    }


def _glm4_experts(c: _Config) -> dict[str, Any]:
    """Read GLM-4.5's: a bias of queries, keys and values alone, and norms of queries and keys if it says so."""
    return {
        "experts": c.whole("n_routed_experts", least=2),
        "experts_per_token": c.whole("num_experts_per_tok"),
        "shared_experts": c.whole("n_shared_experts", 1, least=0),
        "expert_ff": c.whole("moe_intermediate_size"),
        "dense_layers": c.whole("first_k_dense_replace", 1, least=0),
        "router_bias": True,
        "qkv_bias": c.flag("attention_bias"),
        "extra_parameters": 2 * c.whole("head_dim", 128) * c.flag("use_qk_norm"),
    }


def _minimax_experts(c: _Config) -> dict[str, Any]:
    """Read MiniMax-M2's: norms of all queries together, and of all keys."""
    heads = c.whole("num_attention_heads") + c.whole("num_key_value_heads")
    norms = heads * c.whole("head_dim") * c.flag("use_qk_norm", True)
    bias = c.flag("use_routing_bias", True)
    return _mixtral_experts(c) | {"router_bias": bias, "extra_parameters": norms}


def _fields_by_formulas(c: _Config, kind: str) -> dict[str, Any]:
    """Read the fields of `Transformer` of a family of `data/model_families.toml`."""
    family = family_tables()[kind]
    family = family_tables().get(family.get("like"), family)
    for key, reason in family.get("refused", {}).items():
        if c.get(key):
            raise c.refused(key, reason)

    def ask(key: str) -> Any:
        value = c.get(key, family.get("defaults", {}).get(key))
        number = type(value) is int and 0 <= value <= 10**9
        if not number and not isinstance(value, bool | str) and not is_list(value):
            raise c.error(
                key, "expected a whole number from 0 to 10^9, true, false, text or a list"
            )
        return value

    names = Formulas(ask, family, {"i": 0})
    try:
        fields = {field: names[name] for field, name in _FIELDS_OF_FORMULAS.items()}
        of_layers = [Formulas(ask, family, {"i": i}) for i in range(fields["layers"])]
        parts = [[one.value(part) for part in family["layers"]] for one in of_layers]
        kinds = [
            one.kind([part for part in chosen if part])
            for one, chosen in zip(of_layers, parts, strict=True)
        ]
    except InvalidData:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"its fields do not fit those of {kind}"
        raise InvalidData(f"{named(c.path)}: {what}: {shown(str(error))}") from None
    return fields | fields_of_kinds(kinds)


# Fields of `Transformer`, by names of `data/model_families.toml`.
_FIELDS_OF_FORMULAS = {
    "layers": "layers",
    "d_model": "d",
    "d_ff": "d_ff",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "head_dim": "head",
    "vocab": "vocab",
    "tied_embeddings": "tied",
    "experts": "experts",
    "experts_per_token": "per_token",
    "expert_ff": "expert_ff",
    "shared_experts": "shared",
    "last_parameters": "last_parameters",
}


_LLAMA = _FamilyRules(kv_per_head=True, biased=True)
_MISTRAL = _FamilyRules(windows=partial(_windows, default=4096))
_GEMMA = _FamilyRules(biased=True, defaults={"head_dim": 256, "tie_word_embeddings": True})
# Gemma 2 has norms before and after both blocks; every other layer has a window, the first among them.
_GEMMA2 = _GEMMA._replace(
    windows=partial(_windows, default=4096, every=2), norms=lambda f: 2 * f["d_model"]
)
_GEMMA3 = _GEMMA2._replace(
    windows=_gemma3_windows,
    norms=lambda f: 2 * f["d_model"] + 2 * f["head_dim"],
    defaults={
        **_GEMMA.defaults,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262_208,
    },
)
# Qwen 3 has norms of queries and of keys; OLMo 2 of those of all heads together.
_QWEN2 = _FamilyRules(windows=_windows_if_used, more=lambda _: {"qkv_bias": True})
_QWEN3 = _FamilyRules(biased=True, windows=_windows_if_used, norms=lambda f: 2 * f["head_dim"])
_OLMO2 = _LLAMA._replace(norms=lambda f: (f["heads"] + f["kv_heads"]) * f["head_dim"])
_DEEPSEEK_V3 = _FamilyRules(kv_per_head=True, more=_deepseek, defaults={"topk_method": "noaux_tc"})
_FAMILIES = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "phi3": _FamilyRules(kv_per_head=True, windows=_windows),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3._replace(defaults={"head_dim": 128}),
    "olmo2": _OLMO2,
    "mixtral": _FamilyRules(windows=_windows, more=_mixtral_experts),
    # norms: the shared expert's gate
    "qwen2_moe": _QWEN2._replace(norms=lambda f: f["d_model"], more=_qwen2_experts),
    "qwen3_moe": _QWEN3._replace(more=_qwen_experts),
    "deepseek_v2": _DEEPSEEK_V3._replace(defaults={}),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "qwen3_vl_text": _QWEN3._replace(defaults={"head_dim": 128}),
    "qwen3_vl_moe_text": _QWEN3._replace(more=_qwen_experts),
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "mimo": _QWEN2,
    "minimax_m2": _FamilyRules(more=_minimax_experts),
    "glm4_moe": _FamilyRules(more=_glm4_experts),
}


def _known() -> list[str]:
    """List the families that are read."""
    return [*_FAMILIES, *(family_tables().keys() - {"names", "parts"})]


_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "bf16"}  # 32 bits are loaded in 16


def _plain_precision(c: _Config) -> str:
    """Return the precision of weights that are not quantised."""
    key = "dtype" if c.get("torch_dtype") is None else "torch_dtype"
    kind = str(c.get(key, "bfloat16")).removeprefix("torch.")
    if kind not in _DTYPES:
        raise c.error(key, f"expected one of {', '.join(_DTYPES)}, or quantization_config")
    return _DTYPES[kind]
