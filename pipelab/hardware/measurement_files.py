"""Measured times from the files of other tools: llama-bench, vLLM's benchmarks, Vidur's and Helix's profiles.

What a file does not say is stated by the caller (`Stated`); what nobody says is an error that names
the argument. `benchmark_json` and `profile_tables` read the formats.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelab.errors import InvalidData, InvalidValue, UnknownName, nearest, shown
from pipelab.hardware.benchmark_json import read_benchmarks
from pipelab.hardware.calibration import Measurement
from pipelab.hardware.known_gpus import GPUFacts
from pipelab.hardware.known_models import load_model, models
from pipelab.hardware.profile_tables import read_helix, read_vidur
from pipelab.hardware.timed_passes import Stated, Timed
from pipelab.io.csv_cells import NUMBER
from pipelab.io.whole_files import named, read_text

FORMATS = "llama-bench -o json, vllm bench serve or latency, Vidur's mlp.csv, Helix's …_bs2time.csv"


def stated_of(what: str, given: Mapping[str, Any]) -> Stated:
    """The arguments as facts, in the name of `what`, the function that was called.

    Raises
    ------
    InvalidValue
        One does not fit.
    UnknownName
        The model is unknown.
    """
    try:
        stated = Stated(**given)
    except InvalidValue as error:
        raise InvalidValue(what, error.problems) from None
    if stated.model is not None and stated.model not in models().index:
        known = nearest(stated.model, models().index)
        raise UnknownName(f"there is no model {shown(stated.model)}; {known}")
    return stated


def format_of(path: Path) -> str:
    """Whose file it is: "json", "vidur", "helix", or "own" for anything else."""
    text = read_text(path, "JSON" if path.suffix in (".json", ".jsonl") else "CSV").lstrip()
    if path.suffix in (".json", ".jsonl") or text[:1] in ("[", "{"):
        return "json"
    first = text.partition("\n")[0]
    if "time_stats." in first:
        return "vidur"
    cells = first.split(",")
    return "helix" if len(cells) == 2 and all(NUMBER.fullmatch(c.strip()) for c in cells) else "own"


def refuse_stated(what: str, path: Path, given: Mapping[str, Any]) -> None:
    """A table of one's own says everything in its columns."""
    for name, value in given.items():
        expected = (
            f"expected none: {named(path)} is a table that says it; arguments are for {FORMATS}"
        )
        raise InvalidValue(what, [(name, value, expected)])


def read_timed(
    path: Path, kind: str, stated: Stated, gpus: Mapping[str, GPUFacts], few: bool = False
) -> list[Timed]:
    """Every pass that the file has times of; at least one.

    Parameters
    ----------
    kind : str
        From `format_of`.
    few : bool
        Of a long profile only every second, fourth, eighth, … number of tokens.

    Raises
    ------
    InvalidData
        The file is torn or strange, or does not say what nobody states; names file and place.
    """
    if kind == "json":
        found = read_benchmarks(path, stated, gpus)
    elif kind == "vidur":
        found = read_vidur(path, stated, few)
    else:
        found = read_helix(path, stated)
    kept = [one for one in found if stated.phase in (None, one.phase)]
    if not kept:
        raise InvalidData(f"{named(path)}: it has no time of phase={stated.phase!r}")
    return kept


def measurements_of(
    path: Path, kind: str, stated: Stated, gpus: Mapping[str, GPUFacts]
) -> list[Measurement]:
    """The same as rows that `Roofline` can be fitted to."""
    found = []
    for one in read_timed(path, kind, stated, gpus, few=True):
        if one.model is None:
            raise one.unsaid("which model this is", "model")
        if one.tokens is None:
            raise one.unsaid("how long the context was", "tokens")
        row = Measurement(
            one.what, one.model, one.gpu_type, one.phase, one.batch, one.tokens, one.milliseconds,
            "ms", one.tensor_parallel, one.layers, stated.node_gb_per_s, one.engine, one.precision,
        )  # fmt: skip
        found.append(row)
    return found


def table_of(
    path: Path, kind: str, stated: Stated, gpus: Mapping[str, GPUFacts]
) -> dict[str, dict[tuple[int, float], float]]:
    """The same as a table for `Measured`: milliseconds of one layer by (1, batch), for each type of GPU."""
    found = read_timed(path, kind, stated, gpus)
    phases = sorted({one.phase for one in found})
    if len(phases) > 1:
        raise InvalidData(
            f"{named(path)}: it has times of prefill and of decode; say which with phase=…"
        )
    if kind == "json" and stated.tokens is not None:
        there = sorted({one.tokens or 0 for one in found})
        found = [one for one in found if one.tokens == stated.tokens]
        if not found:
            known = ", ".join(map(str, there[:20]))
            raise InvalidData(f"{named(path)}: no time with tokens={stated.tokens}; it has {known}")
    table: dict[str, dict[tuple[int, float], float]] = {}
    seen: dict[tuple[str, int], Timed] = {}
    for one in found:
        if one.tensor_parallel > 1:
            expected = "expected 1: such a table knows no stages that cut layers"
            raise InvalidData(f"{one.place}: tensor_parallel = {one.tensor_parallel}: {expected}")
        before = seen.setdefault((one.gpu_type, one.batch), one)
        if before is not one:
            other = f"{before.what} ({before.tokens} tokens) and {one.what} ({one.tokens} tokens)"
            raise InvalidData(
                f"{one.place}: batch {one.batch} occurs twice: {other}; say which with tokens=…, or keep one"
            )
        layers = one.layers
        if layers is None:
            if one.model is None:
                raise one.unsaid("which model this is", "model")
            layers = load_model(one.model).layers
        table.setdefault(one.gpu_type, {})[1, one.batch] = one.milliseconds / layers
    return table
