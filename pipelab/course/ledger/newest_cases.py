"""A case in the newest form of its author's repository: batch ranges, tensor parallelism, prices, limits.

gangmuk/LLM_placement_solver at 1221697. Its rates come from the dimensions of model and GPU, so the
problem has pipelab's `Roofline`; what `Problem` has no place for is named in one warning.
"""

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pipelab.cluster import GPU, Cluster
from pipelab.errors import InvalidData, InvalidValue, UnknownName, nearest
from pipelab.fields import Positive, checked, python_value
from pipelab.files.case_tables import (
    PoolRow,
    check_names,
    number_of,
    part_of,
    read_bandwidth,
    read_pool,
)
from pipelab.files.csv_rows import Row, place, read_rows
from pipelab.hardware.known_gpus import load_gpus
from pipelab.hardware.roofline import Roofline
from pipelab.hardware.transformer import Transformer
from pipelab.problem import Problem, Workload

_MODEL = {
    "name": "model_name",
    "layers": "num_decoder_layers",
    "d_model": "d_model",
    "d_ff": "d_hidden",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
}
_WORKLOAD = {
    "sequence_length": "sequence_length",
    "batch_size": "max_batch_size",
    "output_tokens": "output_length",
}
_WEIGHT, _LEAST, _BYTES = "layer_weight_memory_gb", "min_batch_size", "bytes_per_element"
_PHASE = "workload_phase"
_REQUIRED = (
    *(_WORKLOAD["sequence_length"], _LEAST, _WORKLOAD["batch_size"]),
    *(v for v in _MODEL.values() if v != "model_name"),
)
_AS_SETTINGS = ("time_limit_seconds", "optimality_gap")  # see `author_settings`
# Limits, goals and shortcuts of its search.
NOT_MODELLED = (
    *("enable_segment_quantization", "max_pipeline_stages", "min_layers_per_stage"),
    *("min_memory_utilization", "network_bandwidth_percentile_threshold"),
    *("optimization_priority", "cost_throughput_weight", "max_hourly_cost"),
    *("max_cost_per_million_token", "max_cost_per_token", "max_total_cost"),
    *("max_total_runtime_hours", "throughput_normalization", "cost_normalization"),
    *("total_tokens_to_process", "storage_bandwidth_gbps"),
)
_KNOWN = (*_MODEL.values(), *_WORKLOAD.values(), _WEIGHT, _LEAST, _BYTES, _PHASE, *_AS_SETTINGS)
_PRECISIONS = {4.0: "fp32", 2.0: "fp16", 1.0: "fp8"}
# Of its code and its scripts: GPUs that cut a layer, at most, all of one type; whose prices; and the
# GB/s within and across types that `--generate-network 400 200` gives.
_MOST_GPUS = 8
_PROVIDER = "AWS"
_WITHIN, _ACROSS = 400.0, 200.0
_MOST_GENERATED = 4_000  # every two GPUs have a link: 128 MB


@checked
class _PricedPoolRow(PoolRow):
    """One row of gpu_pool.csv, with a price by any of its names."""

    dollar_per_hour: Positive | None = None
    cost_per_hour: Positive | None = None

    @property
    def price(self) -> float | None:
        """In $ per hour."""
        return self.dollar_per_hour or self.cost_per_hour or self.usd_per_hour


def newest_case(folder: Path, parameters: Mapping[str, Row], provider: str | None) -> Problem:
    """Read the problem that such a folder describes; warn once of what it leaves out.

    Raises
    ------
    InvalidData
        A file, column, row or value does not fit.
    UnknownName
        There is no such provider.
    """
    check_names(folder / "config.csv", parameters, _REQUIRED, (*_KNOWN, *NOT_MODELLED))
    model, workload = _model(folder, parameters), _workload(parameters)
    gpus, unpriced = _gpus(folder, provider)
    matrix, generated = _network(folder, gpus)
    joined = _in_nodes(gpus, matrix)
    cluster = Cluster(tuple(joined), matrix)
    most = min(_MOST_GPUS, cluster.largest_node)
    problem = Problem(cluster, model, workload, Roofline(), most, name=folder.name)
    notes = [_left_out(parameters), *_doubts(parameters, model), generated, unpriced]
    said = "; ".join(note for note in notes if note)
    told = f"{folder}: read with pl.Roofline in place of its author's rates"
    warnings.warn(f"{told}{'; ' if said else ''}{said}", stacklevel=3)
    return problem


def _model(folder: Path, parameters: Mapping[str, Row]) -> Transformer:
    precision = "fp16"
    if _BYTES in parameters:
        row, known = parameters[_BYTES], _PRECISIONS.get(float(number_of(parameters, _BYTES)))
        if known is None:
            raise row.error("value", row.cells["value"], f"expected 1, 2 or 4 ({_BYTES})")
        precision = known

    def make(d_model: str, heads: str, **fields: Any) -> Transformer:
        given = heads, d_model
        whole = all(text.isascii() and text.isdigit() and len(text) < 20 for text in given)
        if not whole or not int(heads) or int(d_model) % int(heads):
            expected = "expected a whole number that divides d_model"
            raise InvalidValue("Transformer", [("heads", heads, expected)])
        width = int(d_model) // int(heads)
        values: dict[str, Any] = {"d_model": d_model, "heads": heads, "kv_heads": heads, **fields}
        return Transformer(**values, head_dim=width, precision=precision, kv_precision=precision)

    return part_of(make, _MODEL, parameters, name=folder.name)


def _workload(parameters: Mapping[str, Row]) -> Workload:
    phase = parameters.get(_PHASE)
    kind = "prefill" if phase is None else phase.cells["value"].lower()
    if phase is not None and kind not in ("prefill", "decode"):
        raise phase.error("value", phase.cells["value"], f"expected prefill or decode ({_PHASE})")
    return part_of(Workload, _WORKLOAD, parameters, phase=kind)


def _gpus(folder: Path, provider: str | None) -> tuple[list[GPU], str]:
    """Return the GPUs in the order of their ids, and what to say of types without a price."""
    rows, listed = read_pool(folder, _PricedPoolRow), _price_list(folder)
    if provider is not None and listed is None:
        expected = "expected a list of prices beside the case"
        raise rows[0][0].error("cloud_provider", provider, expected)
    offers = {} if listed is None else _prices(listed, provider or _PROVIDER)
    gpus: list[GPU] = []
    unpriced = []
    for row, one in rows:
        usd = one.price or offers.get((one.gpu_type, one.memory_gb))
        kind = _nearest_type(row, one.gpu_type, one.memory_gb)
        gpus += [place(row, {}, partial(GPU, kind, one.memory_gb, usd))] * one.count
        if usd is None:
            unpriced.append(f"{one.gpu_type} ({one.memory_gb:g} GB)")
    where = "the pool" if listed is None else f"{listed.name} for {provider or _PROVIDER}"
    return gpus, f"no price in {where}: {', '.join(unpriced)}" if unpriced else ""


def _nearest_type(row: Row, kind: str, memory: float) -> str:
    """Find the known type of this name, of several the one nearest in memory; "A100" means an A100-SXM-80."""
    facts = load_gpus()
    named = [t for t in facts if t == kind or t.startswith(f"{kind}-")]
    if not named:
        raise row.error("gpu_type", kind, f"is no known GPU; {nearest(kind, facts)}")
    return min(named, key=lambda t: abs(facts[t].memory_gb - memory))


def _network(folder: Path, gpus: list[GPU]) -> tuple[np.ndarray, str]:
    """Return the links in GB/s, and what to say if the folder has none for this pool."""
    path = folder / "network_bandwidth.csv"
    there = "is not there"
    if path.is_file():
        rows = read_rows(path, ())
        if len(rows) == len(rows[0].cells) - 1 == len(gpus):
            return read_bandwidth(folder, len(gpus)), ""
        there = f"has {len(rows)} rows for {len(gpus)} GPUs"
    if len(gpus) > _MOST_GENERATED:
        most = f"expected one that fits, as for all pools of more than {_MOST_GENERATED:,} GPUs"
        raise InvalidData(f"{path} {there}: {most}")
    types = np.array([gpu.type for gpu in gpus])
    generated = (
        f"{path.name} {there}, so links have {_WITHIN:g} GB/s within a type and {_ACROSS:g} across, "
        "as its author's scripts generate them (give cluster=… for others)"
    )
    return np.where(types[:, None] == types, _WITHIN, _ACROSS), generated


def _in_nodes(gpus: list[GPU], matrix: np.ndarray) -> list[GPU]:
    """GPUs that may cut a layer: runs of equal ones, each to each with the same bandwidth both ways."""
    both = np.minimum(matrix, matrix.T)
    starts = [0]
    for i in range(1, len(gpus)):
        run = range(starts[-1], i)
        speed = both[i, run[0]] if len(run) == 1 else both[run[0], run[1]]
        if gpus[i] != gpus[run[0]] or (both[i, list(run)] != speed).any():
            starts.append(i)
    made = list(gpus)
    for start, end in pairwise([*starts, len(gpus)]):
        if end - start > 1:
            speed = python_value(both[start, start + 1])
            node = replace(gpus[start], node=f"GPUs {start} to {end - 1}", node_gb_per_s=speed)
            made[start:end] = [node] * (end - start)
    return made


def _left_out(parameters: Mapping[str, Row]) -> str:
    given = [f"{n} = {parameters[n].cells['value']}" for n in NOT_MODELLED if n in parameters]
    if not given:
        return ""
    instead = "pl.trade_off shows throughput against $ per hour, objective='cost' the least $"
    return f"not modelled: {', '.join(given)} ({instead})"


def _doubts(parameters: Mapping[str, Row], model: Transformer) -> list[str]:
    said = []
    if _WEIGHT in parameters:
        stated = number_of(parameters, _WEIGHT)
        weight = f"the dimensions give {model.layer_weight_gb:.3g} GB"
        said.append(f"{_WEIGHT} = {stated} is not used: {weight}")
    least, most = (number_of(parameters, name) for name in (_LEAST, _WORKLOAD["batch_size"]))
    if float(least) != float(most):
        said.append(f"the batch is max_batch_size = {most}, of a range from {least}")
    return said


# Prices of rented GPUs: one row per instance

_FILE = "cloud_instances_specs.csv"
_WHOSE, _TYPE, _COUNT = "Cloud Provider", "GPU Model", "GPU Count"
_MEMORY, _PRICE = "GPU Memory per GPU", "Price per Hour USD"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def _price_list(folder: Path) -> Path | None:
    """Find the list beside a case, or in one of the two folders above it."""
    above = folder.resolve().parents[:2]
    return next((p / _FILE for p in (folder, *above) if (p / _FILE).is_file()), None)


def _prices(path: Path, provider: str) -> dict[tuple[str, float], float]:
    """Read the lowest $ per hour of one GPU, by the maker's name of its type and its GB.

    Rows without a price ("Contact for pricing") are passed over; of a range the middle counts. A
    price holds for the whole instance, unless it says "per GPU".

    Raises
    ------
    InvalidData
        The list cannot be read.
    UnknownName
        No row is of this provider.
    """
    rows = read_rows(path, (_WHOSE, _TYPE, _COUNT, _MEMORY, _PRICE))
    providers = list(dict.fromkeys(row.cells[_WHOSE] for row in rows))
    if provider not in providers:
        raise UnknownName(f"{path} has no provider {provider!r}; {nearest(provider, providers)}")
    found: dict[tuple[str, float], float] = {}
    for row in rows:
        memory, price = _numbers(row, _MEMORY), _usd_per_hour(row)
        if row.cells[_WHOSE] == provider and memory and price:
            key = row.cells[_TYPE].removeprefix("NVIDIA ").removeprefix("AMD "), memory[0]
            found[key] = min(price, found.get(key, price))
    return found


def _usd_per_hour(row: Row) -> float | None:
    given, count = _numbers(row, _PRICE)[:2], _numbers(row, _COUNT)
    if not given or not (whole := sum(given) / len(given)):
        return None
    if "per gpu" in row.cells[_PRICE].lower():
        return whole
    return whole / count[0] if count and count[0] else None


def _numbers(row: Row, column: str) -> list[float]:
    """Find the numbers in a cell such as "$140-160 (estimated)" or "80 GB HBM2e"."""
    return [float(n) for n in _NUMBER.findall(row.cells[column])]
