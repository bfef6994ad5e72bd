"""Language models by name, from the dimensions of their published configurations."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipelab.errors import UnknownName, nearest
from pipelab.hardware.fact_rows import facts_from
from pipelab.hardware.transformer import LatentAttention, Transformer
from pipelab.io.csv_cells import frame_of, path_of
from pipelab.io.paths import data_dir

if TYPE_CHECKING:
    from pandas import DataFrame

_REQUIRED = ["layers", "d_model", "d_ff", "heads", "kv_heads", "head_dim", "vocab"]
_EXPERTS = ["experts", "experts_per_token", "shared_experts", "expert_ff", "dense_layers"]
_FLAGS = ["qkv_bias", "router_bias", "tied_embeddings"]
_LATENT = ["latent_query_rank", "latent_kv_rank", "latent_rope_dim", "latent_value_dim"]


def load_model(
    name: str,
    *,
    precision: str = "bf16",
    kv_precision: str = "bf16",
    file: str | Path | None = None,
) -> Transformer:
    """A model of `data/models.csv` by name, or one of your own file with the same columns.

    Parameters
    ----------
    name : str
        One of `pl.models()`, or of your own file.
    precision, kv_precision : str
        In which weights, and keys and values, are kept: "bf16", "fp8", "int4", ….
    file : str or Path, optional
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
        The file is not there or cannot be read, or a row does not fit; the message names row and
        column.
    InvalidValue
        `file` is not a path.

    References
    ----------
    `data/models.csv` names the source of every row, `data/README.md` the meaning of every column.

    Examples
    --------
    >>> load_model("DeepSeek-V3", precision="fp8").kv_elements
    576
    """
    table = _bundled() if file is None else _read(path_of("load_model", file, "file"))
    if not isinstance(name, str) or name not in table:
        raise UnknownName(f"there is no model {name!r}; {nearest(str(name), table)}")
    from dataclasses import replace

    return replace(table[name], precision=precision, kv_precision=kv_precision)


@cache
def _bundled() -> dict[str, Transformer]:
    return _read(data_dir() / "models.csv")


def _read(path: Path) -> dict[str, Transformer]:
    return facts_from(path, "model", _make, _REQUIRED, [*_EXPERTS, *_FLAGS, *_LATENT], flags=_FLAGS)


def _make(name: str, values: dict) -> Transformer:
    latent = {c.removeprefix("latent_"): values.pop(c) for c in _LATENT if c in values}
    return Transformer(name, **values, latent=LatentAttention(**latent) if latent else None)


def models(file: str | Path | None = None) -> "DataFrame":
    """The models as a table, one row each.

    Parameters
    ----------
    file : str or Path, optional
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
    >>> table = pl.models()
    >>> bool((table["parameters"] == table["parameters_published"]).all())
    True
    """
    path = data_dir() / "models.csv" if file is None else path_of("models", file, "file")
    found = _read(path)
    table = frame_of(path, "model")
    table.insert(0, "parameters", [found[name].parameters() for name in table.index])
    table.insert(
        1, "parameters_a_token_meets", [found[name].parameters(active=True) for name in table.index]
    )
    return table
