"""A Hugging Face `config.json` as a `Transformer`: exactly, or refused by name.

A model is read only if `Transformer` has every one of its parameters and its whole cache; what it
cannot hold (layers with a state, an encoder that reads the prompt) is refused by name, not
approximated. Of a model that also sees or hears, the part that reads and writes text is read, and a
warning says that the rest is left out.

`data/model_families.toml` says how the fields of each family become layers of a `Transformer`. What a file leaves
out has the default of its class in transformers.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from pipelab.errors import InvalidData, InvalidValue, PipelabError, nearest, shown
from pipelab.fields import is_list
from pipelab.files.reading_and_writing import named, read_json
from pipelab.hardware.layer_kinds import Formulas, model_families
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
        needed = "layers, d_model, d_ff, heads, kv_heads, head_dim and vocab"
        instead = f"if an estimate will do, give a TOML file with {needed} of a similar model"
        return InvalidData(f"{named(self.path)}: {what} is not supported: {reason}; {instead}")

    def get(self, key: str, default: Any = None) -> Any:
        """Return any value; the default where it is absent or null."""
        value = self.values.get(key)
        return default if value is None else value

    def asked_by(self, family: Mapping[str, Any]) -> Callable[[str], Any]:
        """Return what answers the formulas of a family: a field of the sort of its default, or else a whole number."""

        def ask(key: str) -> Any:
            default = None if key in family["required"] else family["defaults"].get(key)
            null = key in self.values and type(default) is int
            value = self.get(key, 0 if null else default)
            sort = int if default is None else type(default)
            fits = is_list(value) if sort is list else type(value) is sort
            if not fits or (sort is int and not 0 <= value <= 10**9):
                raise self.error(key, f"expected {_SORTS[sort]}")
            if value and key in family["marks"]:
                self._check_marks(key, value, family["marks"][key])
            return value

        return ask

    def _check_marks(self, key: str, given: Sequence[Any], known: Sequence[Any]) -> None:
        """Refuse a list that does not say one of the `known` things of each layer."""
        layers = self.get("num_hidden_layers", len(given))
        if type(layers) is not int or len(given) < layers:
            raise self.error(key, f"expected a list of num_hidden_layers = {layers} kinds")
        for mark in given:
            if isinstance(mark, bool) or mark not in known:
                names = " or ".join(map(str, known))
                raise self.error(key, f"expected {names}, not {shown(mark)}")


_MOST_LAYERS = 2_000  # of a configuration, each of which is computed
_SORTS = {
    int: "a whole number from 0 to 10^9",
    bool: "true or false",
    str: "text",
    list: "a list",
    dict: "an object",
}


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
    family = model_families()[kind]
    fields = _fields(c, family)
    schemes = schemes_of(c.path, c.values) if None in (precision, kv_precision) else []
    if kv_precision is None:
        kv_precision = agreed(schemes, "kv_precision", QuantisationScheme.kv_precision) or "bf16"
    try:
        model = Transformer(_name(c), **fields, kv_precision=kv_precision)
        if precision is not None:
            return replace(model, precision=precision)
        of_scheme = attrgetter("precision")
        stored = agreed(schemes, "precision", lambda scheme: scheme.stored(model), of_scheme)
        return stored or replace(model, precision=_plain_precision(c))
    except InvalidValue as error:
        field, _, expected = error.problems[0]
        names = family["names"]  # of the field's formula, which may be a field of the configuration
        raise c.error(names.get(family["fields"].get(field), field), expected) from None


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
    if not isinstance(text, dict) or str(text.get("model_type")) not in model_families():
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


def _refuse_unsupported(c: _Config, kind: Any) -> None:
    what = f"model_type {shown(kind)}"
    if not isinstance(kind, str) or kind not in model_families():
        reason = f"its parameters are not counted here. {nearest(str(kind), model_families())}"
        raise c.refused(what, reason)
    for key in ("is_encoder_decoder", "text_config", "vision_config"):
        if c.get(key) not in (None, False):
            raise c.refused(what, f"with {key}, it has an encoder beside the layers that write")


def _fields(c: _Config, family: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fields of `Transformer` by the formulas of a family."""
    for key, reason in family["refused"].items():
        if c.get(key):
            raise c.refused(key, reason)
    names = Formulas(c.asked_by(family), family, {"i": 0})
    for key in family["marks"]:  # also where no formula asks
        names.ask(key)
    try:
        fields = {field: names[name] for field, name in family["fields"].items()}
        if family["layers"][0] == "latent":
            widths = (names["query_rank"] or None, names["kv_rank"], names["rope"], names["value"])
            fields["latent"] = LatentAttention(*widths)
        if fields["layers"] > _MOST_LAYERS:
            raise c.error("num_hidden_layers", f"expected at most {_MOST_LAYERS:,}")
        layers = [Formulas(names.ask, family, {"i": i}) for i in range(fields["layers"])]
        kinds = [one.kind(list(filter(None, map(one.value, family["layers"])))) for one in layers]
    except PipelabError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        doubt = f"its fields do not fit a model of type {c.get('model_type')}"
        raise InvalidData(f"{named(c.path)}: {doubt}: {shown(str(error))}") from None
    return fields | fields_of_kinds(kinds)


_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "bf16"}  # 32 bits are loaded in 16


def _plain_precision(c: _Config) -> str:
    """Return the precision of weights that are not quantised."""
    key = "dtype" if c.get("torch_dtype") is None else "torch_dtype"
    kind = str(c.get(key, "bfloat16")).removeprefix("torch.")
    if kind not in _DTYPES:
        raise c.error(key, f"expected one of {', '.join(_DTYPES)}, or quantization_config")
    return _DTYPES[kind]
