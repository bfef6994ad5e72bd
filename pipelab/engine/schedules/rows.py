"""Rows of actions as the arrays of a schedule; a row, cell or number that makes no sense is refused by its place."""

from bisect import bisect
from itertools import pairwise
from typing import Any

import numpy as np

from pipelab.engine.schedules.action import IDLE, KINDS, Action
from pipelab.engine.schedules.limits import MOST_PASSES
from pipelab.errors import InvalidValue
from pipelab.fields import is_list, whole_number

__all__ = ["arrays_of", "first_holders", "ranks_of_stages"]

_CODE = {name: code for code, name in enumerate(KINDS)}


def arrays_of(rows: Any) -> dict[str, np.ndarray]:
    """`kind`, `stage`, `microbatch`, `first` and `paired` of a schedule.

    Raises
    ------
    InvalidValue
        There is no row of actions for each rank, or an action cannot be read.
    """
    kind, stage, microbatch, paired, first = [], [], [], [], [0]
    for rank, row in enumerate(_each("rows", rows, "a row of actions for each rank")):
        for cell in _each(f"rows[{rank}]", row, "a list of actions, such as ['0F0', '0B0']"):
            action = (
                cell if isinstance(cell, Action) else Action.parse("" if cell is None else cell)
            )
            single = type(action.parts) is tuple and not action.parts
            for i, part in enumerate((action,) if single else _both(action)):
                try:
                    kind.append(_CODE[part.kind])
                except (KeyError, TypeError):
                    expected = f"expected one of {', '.join(KINDS)}"
                    raise InvalidValue("Action", [("kind", part.kind, expected)]) from None
                stage.append(part.stage)
                microbatch.append(part.microbatch)
                paired.append(not single and i == 0)
        first.append(len(kind))
    numbers = {
        "stage": _numbers("stage", stage, first),
        "microbatch": _numbers("microbatch", microbatch, first),
    }
    if not len(kind) or numbers["stage"].max() < 0:
        raise InvalidValue(
            "Schedule", [("rows", "no action", "expected a row of actions for each rank")]
        )
    return {
        "kind": np.array(kind, np.int8),
        **numbers,
        "first": np.array(first),
        "paired": np.array(paired, bool),
    }


def _each(field: str, values: Any, expected: str) -> Any:
    if not is_list(values):
        raise InvalidValue("Schedule", [(field, values, f"expected {expected}")])
    return values


def _both(action: Action) -> tuple[Action, Action]:
    """The parts of a pair: with one part missing, the next action would be taken for it."""
    parts = action.parts
    if not (
        isinstance(parts, tuple)
        and len(parts) == 2
        and all(isinstance(p, Action) and not p.parts for p in parts)
    ):
        raise InvalidValue(
            "Action",
            [("parts", parts, "expected a forward and a full backward, as in Action.pair")],
        )
    return parts


def _numbers(field: str, values: list, first: list[int]) -> np.ndarray:
    """Stages or microbatches as an array; -1 where an action has none."""
    usual = (
        set(map(type, values)) <= {int}
        and values
        and min(values) >= -1
        and max(values) < MOST_PASSES
    )
    if not usual:
        for i, value in enumerate(values):
            rank = bisect(first, i) - 1
            place = f"Action (rank {rank}, position {i - first[rank]})"
            values[i] = whole_number(place, field, value, least=-1, most=MOST_PASSES - 1)
    return np.array(values, np.int32)


def first_holders(arrays: dict[str, np.ndarray]) -> list[int]:
    """For each stage the first rank that runs it; 0 for a stage that nobody runs (validation will say so)."""
    holder = [-1] * (int(arrays["stage"].max()) + 1)
    kind, stage, first = (arrays[name].tolist() for name in ("kind", "stage", "first"))
    for rank, (low, high) in enumerate(pairwise(first)):
        for i in range(low, high):
            if kind[i] != IDLE and holder[stage[i]] < 0:
                holder[stage[i]] = rank
    return [max(rank, 0) for rank in holder]


def ranks_of_stages(stage_rank: Any) -> tuple[int, ...]:
    """`stage_rank` as a tuple of ints.

    Raises
    ------
    InvalidValue
        It is not a list of ranks, or there is none in it.
    """
    expected = "expected the rank that holds each stage, such as [0, 1]"
    if not is_list(stage_rank):
        raise InvalidValue("Schedule", [("stage_rank", stage_rank, expected)])
    ranks = tuple(stage_rank)
    if not ranks:
        raise InvalidValue("Schedule", [("stage_rank", stage_rank, expected)])
    if set(map(type, ranks)) == {int} and min(ranks) >= 0 and max(ranks) < MOST_PASSES:
        return ranks
    checked = enumerate(ranks)
    return tuple(
        whole_number("Schedule", f"stage_rank[{i}]", r, least=0, most=MOST_PASSES - 1)
        for i, r in checked
    )
