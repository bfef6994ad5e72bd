"""A case's `config.csv`: which parameter stands for which field, and errors that name its row."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelab.errors import InvalidData, InvalidValue, nearest
from pipelab.io.csv_cells import NUMBER, Row, read_rows

MODEL = {
    "name": "model_name",
    "layers": "num_decoder_layers",
    "d_model": "d_model",
    "d_hidden": "d_hidden",
    "layer_weight_gb": "layer_weight_memory_gb",
    "bytes_per_element": "bytes_per_element",
}
WORKLOAD = {"sequence_length": "sequence_length", "batch_size": "batch_size"}
RULES = {n: n for n in ("max_gpus_per_stage", "same_type_stages", "batch_split", "link_units")}
COSTS = {"efficiency": "stage_efficiency", "activation_overhead": "activation_overhead"}
REQUIRED = (
    "sequence_length",
    "batch_size",
    "num_decoder_layers",
    "d_model",
    "d_hidden",
    "layer_weight_memory_gb",
)
# The write-up's files carry these too; no stage or link depends on them; see `author_settings`.
UNUSED = ("vocab_size", "num_attention_heads", "time_limit_seconds", "optimality_gap")
KNOWN = (*MODEL.values(), *WORKLOAD.values(), *COSTS.values(), *RULES, *UNUSED)


def read_config(folder: Path) -> dict[str, Row]:
    """The rows of config.csv by parameter name.

    Raises
    ------
    InvalidData
        The file cannot be read, or it has a parameter twice.
    """
    parameters: dict[str, Row] = {}
    for row in read_rows(folder / "config.csv", ("parameter", "value")):
        name = row.cells["parameter"]
        if name in parameters:
            raise row.error("parameter", name, f"is already in row {parameters[name].number}")
        parameters[name] = row
    return parameters


def check_names(
    path: Path, parameters: Mapping[str, Row], required: Sequence[str], known: Sequence[str]
) -> None:
    """Refuse a configuration without a parameter that is needed; warn of one that is not known.

    Raises
    ------
    InvalidData
    """
    for name in required:
        if name not in parameters:
            raise InvalidData(f"{path}: parameter {name!r} is missing; {nearest(name, parameters)}")
    for name, row in parameters.items():
        if name not in known:
            place_text = f"{path}, row {row.number}: parameter {name!r} is not used by pipelab"
            warnings.warn(f"{place_text}; {nearest(name, known)}", stacklevel=4)


def part_of(
    make: Callable,
    columns: Mapping[str, str],
    parameters: Mapping[str, Row],
    defaults: Mapping = {},
) -> Any:
    """Make a Model, a Workload or costs; a refused value is reported at its row of config.csv."""
    values = {f: text_of(parameters[c], f) for f, c in columns.items() if c in parameters}
    defaults = dict(defaults)
    first = [defaults.pop("obj")] if "obj" in defaults else []
    try:
        return make(*first, **{**defaults, **values})
    except InvalidValue as error:
        field, value, expected = error.problems[0]
        column = columns.get(field, field)
        if column not in parameters:
            raise
        raise parameters[column].error("value", value, f"{expected} ({column})") from None


def text_of(row: Row, field: str) -> str:
    """The text of a parameter; of all but the model's name, text that reads as a number."""
    text = row.cells["value"]
    if field != "name" and not NUMBER.fullmatch(text):
        raise row.error("value", text, f"expected a number ({row.cells['parameter']})")
    return text


def flag_of(row: Row) -> bool:
    """True or false."""
    text = row.cells["value"].lower()
    if text not in ("true", "false"):
        expected = f"expected true or false ({row.cells['parameter']})"
        raise row.error("value", row.cells["value"], expected)
    return text == "true"
