"""Language models by name, from the dimensions of their published configurations, or from a `config.json`."""

import os
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pipelab.display import DataFrame
from pipelab.errors import InvalidData, InvalidValue, UnknownName, nearest, shown
from pipelab.fields import Count
from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import frame_of, read_by_name
from pipelab.files.reading_and_writing import json_of, named, path_of, read_text
from pipelab.hardware.config_json import model_of_config
from pipelab.hardware.transformer import LatentAttention, Transformer

_LATENT = {f"latent_{name}": Count for name in LatentAttention.__dataclass_fields__}


def load_model(
    name: str | Path,
    *,
    precision: str | None = None,
    kv_precision: str | None = None,
    path: str | Path | None = None,
) -> Transformer:
    """Load a model of `data/models.csv` by name, of a Hugging Face `config.json`, or of your own table.

    Parameters
    ----------
    name : str or Path
        One of `pl.hardware.models()`, or of your own file. Or the path of a `config.json`, or of the folder
        that has one: of the families of `data/model_families.toml`. Of a model that sees, too, the part for
        text (`text_config`), with a warning. Or the path of a small TOML or JSON with fields of
        `Transformer`, for a model in no table: layers, d_model, d_ff, heads, kv_heads, head_dim and vocab.
    precision, kv_precision : str
        In which weights, and keys and values, are kept: "bf16", "fp8", "int4", …. By default 16 bits,
        or what a checkpoint says in its `config.json`, or in a file beside it, such as
        `hf_quant_config.json`.
    path : str or Path, optional
        A CSV with the columns of `data/models.csv`.

    Returns
    -------
    Transformer
        With as many parameters as published.

    Raises
    ------
    UnknownName
        No such model or precision.
    InvalidData
        The file is not there or cannot be read, or a value does not fit; the message names row and
        column, or field. Or the family of a `config.json` is not known, or it has what is not
        counted, such as an encoder that reads the prompt; the message says what.
    InvalidValue
        `path` is not a path.

    References
    ----------
    `data/models.csv` names the source of every row, `notebooks/data.md` the meaning of every column.

    Examples
    --------
    >>> load_model("DeepSeek-V3", precision="fp8").kv_bytes
    1152.0
    """
    table = _bundled() if path is None else _read(path_of("load_model", path))
    if isinstance(name, str) and name in table:
        precision = "bf16" if precision is None else precision
        kv_precision = "bf16" if kv_precision is None else kv_precision
        return replace(table[name], precision=precision, kv_precision=kv_precision)
    if path is None and _is_config(name):
        file = path_of("load_model", name, "name")
        given = {"precision": precision, "kv_precision": kv_precision}
        if (stated := _stated_dimensions(file)) is not None:
            stated |= {key: value for key, value in given.items() if value is not None}
            return _of_dimensions(file, stated)
        return model_of_config(file, precision, kv_precision)
    instead = "" if path is not None else ", or give the path of a config.json, or of a TOML"
    raise UnknownName(f"there is no model {shown(name)}; {nearest(str(name), table)}{instead}")


def _is_config(name: str | Path) -> bool:
    """Whether it is to be a path: it says so itself, or something is there."""
    if isinstance(name, os.PathLike):
        return True
    if not isinstance(name, str) or not name:
        return False
    path = path_of("load_model", name, "name")
    return path.suffix.lower() in (".json", ".toml") or os.path.exists(path)


def _stated_dimensions(path: Path) -> dict[str, Any] | None:
    """Read a file with the fields of `Transformer`, in TOML or JSON; None: it is another's `config.json`."""
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".json") or os.path.isdir(path):
        return None
    text = read_text(path)
    try:
        values = tomllib.loads(text) if suffix == ".toml" else json_of(path, text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidData(f"{named(path)}: cannot be read as TOML ({str(error)[:200]})") from None
    stated = suffix == ".toml" or (isinstance(values, dict) and "d_model" in values)
    return values if stated and "model_type" not in values else None


def _of_dimensions(path: Path, values: dict[str, Any]) -> Transformer:
    """Make the model that a file states; its name is the file's, unless it says another."""
    try:
        if isinstance(values.get("latent"), dict):
            values["latent"] = LatentAttention(**{"query_rank": None, **values["latent"]})
        return Transformer(**{"name": path.stem, **values})
    except InvalidValue as error:
        field, value, expected = error.problems[0]
        raise InvalidData(f"{named(path)}, field {field!r}: {shown(value)}: {expected}") from None


@cache
def _bundled() -> dict[str, Transformer]:
    return _read(data_dir() / "models.csv")


def _read(path: Path) -> dict[str, Transformer]:
    renamed = {"name": "model"}
    return read_by_name(path, "model", Transformer, make=_make, more=_LATENT, renamed=renamed)


def _make(**values: Any) -> Transformer:
    latent = {c.removeprefix("latent_"): values.pop(c) for c in _LATENT if c in values}
    if latent:  # without a rank, queries are not compressed
        values["latent"] = LatentAttention(**{"query_rank": None, **latent})
    return Transformer(**values)


def models(path: str | Path | None = None) -> DataFrame:
    """Show the models as a table, one row each.

    Parameters
    ----------
    path : str or Path, optional
        A file of your own; by default `data/models.csv`.

    Returns
    -------
    pandas.DataFrame
        `parameters` and `parameters_a_token_meets` as computed from the dimensions, then the file's
        columns, among them the published totals; the index is `model`.

    Raises
    ------
    InvalidData
        The file is not there or cannot be read, or a value does not fit.
    InvalidValue
        The argument is not a path.

    Examples
    --------
    >>> import pipelab as pl
    >>> table = pl.hardware.models()
    >>> bool((table["parameters"] == table["parameters_published"]).all())
    True
    """
    path = data_dir() / "models.csv" if path is None else path_of("models", path)
    known = _read(path)
    table = frame_of(path, "model")
    table.insert(0, "parameters", [known[name].parameters() for name in table.index])
    met = [known[name].parameters(active=True) for name in table.index]
    table.insert(1, "parameters_a_token_meets", met)
    return table
