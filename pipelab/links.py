"""What the links between GPUs may be: a bandwidth and a latency for every pair that can be used."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipelab.errors import InvalidValue

__all__ = ["between_types", "check_bandwidth", "check_groups", "checked_latency", "of_type"]

_MOST_LATENCY_MS = 1e9  # eleven days


def of_type(values: Any, key: str, what: str) -> float:
    if not isinstance(values, Mapping):
        return values
    if key not in values:
        raise InvalidValue(
            "Cluster.from_counts", [(what, dict(values), f"nothing is given for {key!r}")]
        )
    return values[key]


def between_types(name: str, values: Any, sender: str, receiver: str, several: bool) -> float:
    """Bandwidth or latency between two types; a type with one GPU needs no entry for itself."""
    if not isinstance(values, Mapping):
        return values
    for pair in ((sender, receiver), (receiver, sender)):
        if pair in values:
            return values[pair]
    if sender == receiver and not several:
        return 0.0
    problem = (name, dict(values), f"nothing is given for {(sender, receiver)!r}")
    raise InvalidValue("Cluster.from_counts", [problem])


def check_groups(group: np.ndarray, gpus: int, shape: Sequence[int], own_rows: bool) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        problem = ("bandwidth_gb_per_s", f"shape {tuple(shape)}", "expected a square matrix")
        raise InvalidValue("Cluster", [problem])
    if own_rows and shape[0] != gpus:
        problem = (
            "bandwidth_gb_per_s",
            f"shape {tuple(shape)}",
            f"expected a row for each of the {gpus} GPUs",
        )
        raise InvalidValue("Cluster", [problem])
    if group.shape != (gpus,) or group.dtype.kind not in "iu":
        problem = (
            "group",
            f"shape {group.shape} of {group.dtype}",
            f"expected {gpus} whole numbers, one per GPU",
        )
        raise InvalidValue("Cluster", [problem])
    if group.min() < 0 or group.max() >= shape[0]:
        problem = (
            "group",
            f"{group.min()} … {group.max()}",
            f"expected rows of the bandwidth matrix, 0 … {shape[0] - 1}",
        )
        raise InvalidValue("Cluster", [problem])


def check_bandwidth(bandwidth: np.ndarray, diagonal_used: np.ndarray) -> None:
    """Every link that can be used is finite and positive; an unused diagonal may be anything."""
    fine = np.isfinite(bandwidth) & (bandwidth > 0)
    _check_links(
        "bandwidth_gb_per_s", bandwidth, fine, diagonal_used, "expected a finite number above 0"
    )


def checked_latency(
    latency: np.ndarray, shape: Sequence[int], diagonal_used: np.ndarray
) -> np.ndarray:
    """One for every entry of the bandwidth; 0 on an unused diagonal, so that equal clusters are equal."""
    if latency.ndim and latency.shape != tuple(shape):
        expected = (
            f"expected one number, or an array of shape {tuple(shape)} like bandwidth_gb_per_s"
        )
        raise InvalidValue("Cluster", [("latency_ms", f"shape {latency.shape}", expected)])
    latency = np.broadcast_to(latency, shape) + 0.0
    fine = np.isfinite(latency) & (latency >= 0) & (latency <= _MOST_LATENCY_MS)
    expected = f"expected a number from 0 to {_MOST_LATENCY_MS:g}"
    _check_links("latency_ms", latency, fine, diagonal_used, expected)
    np.fill_diagonal(latency, np.where(diagonal_used, np.diagonal(latency), 0.0))
    return latency


def _check_links(
    name: str, values: np.ndarray, fine: np.ndarray, diagonal_used: np.ndarray, expected: str
) -> None:
    used = ~np.eye(len(values), dtype=bool) | np.diag(diagonal_used)
    bad = np.argwhere(used & ~fine)
    if len(bad):
        i, j = bad[0]
        raise InvalidValue("Cluster", [(f"{name}[{i}, {j}]", float(values[i, j]), expected)])
