"""What a split is, what it is given, and how slow its slowest stage is."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pipelab.errors import InvalidValue
from pipelab.fields import is_real, python_value, whole_number

__all__ = [
    "ROUNDING",
    "Split",
    "amounts",
    "bottleneck",
    "check_sizes",
    "positive",
    "ranges",
    "speeds_of",
]

Split = tuple[range, ...]
ROUNDING = 1 + 1e-9  # sums of the same numbers in another order may differ in their last bits


def bottleneck(
    split: Split, costs: Sequence[float], speeds: Sequence[float] | None = None
) -> float:
    """The largest stage cost: the sum of a stage's layer costs over the stage's speed.

    Parameters
    ----------
    split : sequence of range
        Layers of each stage, numbered from 0.
    costs : sequence of float, length M
        Of every layer.
    speeds : sequence of float, one per stage, optional
        1 by default.

    Returns
    -------
    float
        In the unit of the costs over that of the speeds.

    Raises
    ------
    InvalidValue
        There are not as many speeds as stages, a speed is not above 0, or a layer has no cost.
    """
    speeds = speeds_of(speeds, len(split)).tolist()
    needed = max(part.stop for part in split)
    if len(costs) < needed:
        raise InvalidValue(
            "bottleneck", [("costs", f"{len(costs)} values", f"expected at least {needed}")]
        )
    slowest = max(
        sum(costs[layer] for layer in part) / speed
        for part, speed in zip(split, speeds, strict=True)
    )
    return python_value(slowest)


def ranges(sizes: Sequence[int]) -> Split:
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(int).tolist()
    return tuple(range(a, b) for a, b in pairwise(ends))


def check_sizes(layers: int, stages: int) -> None:
    whole_number("split", "layers", layers)
    whole_number("split", "stages", stages)
    if stages > layers:
        raise InvalidValue(
            "split",
            [("stages", stages, f"expected at most {layers}, so that every stage has a layer")],
        )


def amounts(name: str, values: Sequence[float], length: int | None = None) -> list[float]:
    """Numbers that are finite and at least 0."""
    bad: list[tuple[str, object, str]]
    bad = [(f"{name}[{i}]", v, "expected a finite number, at least 0") for i, v in enumerate(values)
           if not (is_real(v) and v >= 0)]  # fmt: skip
    if length is not None and len(values) != length:
        bad = [(name, f"{len(values)} values", f"expected {length}")]
    if bad:
        raise InvalidValue("split", bad[:1])
    return [float(v) for v in values]


def positive(name: str, values: Sequence[float], length: int | None = None) -> list[float]:
    values = amounts(name, values, length)
    bad = [(f"{name}[{i}]", v, "expected more than 0") for i, v in enumerate(values) if v == 0]
    if bad:
        raise InvalidValue("split", bad[:1])
    return values


def speeds_of(speeds: Sequence[float] | None, stages: int) -> np.ndarray:
    return np.ones(stages) if speeds is None else np.array(positive("speeds", speeds, stages))
