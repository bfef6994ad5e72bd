"""What a sweep asks about: points, each a mapping of names to plain values."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from pipelab.errors import InvalidValue, TooLarge, nearest
from pipelab.fields import given, real_number

__all__ = ["cell", "grid", "mixes", "plain", "plain_points", "value_of"]

_MOST_POINTS = 1_000_000


def grid(*parts: Iterable[Mapping], **axes: Iterable) -> list[dict]:
    """Every combination of the values of all axes; the last axis changes fastest.

    Parameters
    ----------
    *parts : lists of points
        Such as `mixes(…)`: each of their points is combined with everything else.
    **axes : iterables
        The values of each name.

    Returns
    -------
    list of dict
        Names and values of every point.

    Raises
    ------
    TooLarge
        More than a million points.
    InvalidValue
        A part holds no points, an axis no several values, or a name stands in two parts.

    Examples
    --------
    >>> grid(batch=(8, 16), layers=(32,))
    [{'batch': 8, 'layers': 32}, {'batch': 16, 'layers': 32}]
    >>> len(grid(mixes({"H100": 2, "L4": 4}), batch=(8, 16)))
    28
    """
    for i, part in enumerate(parts):
        if isinstance(part, str | bytes | Mapping) or not isinstance(part, Iterable):
            raise InvalidValue(
                "grid", [(f"part {i + 1}", part, "expected points, such as those of mixes(…)")]
            )
    lists = [list(part) for part in parts]
    for i, part in enumerate(lists):
        for point in part:
            if not isinstance(point, Mapping):
                raise InvalidValue(
                    "grid", [(f"part {i + 1}", point, "expected points, such as those of mixes(…)")]
                )
    for name, values in axes.items():
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            raise InvalidValue(
                "grid", [(name, values, f"expected several values, such as ({values!r},)")]
            )
        lists.append([{name: value} for value in values])
    number: int = math.prod(len(part) for part in lists)
    _refuse_too_many("grid", number)
    names = [name for part in lists for name in (part[0] if part else ())]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidValue("grid", [("name", twice[0], "stands in two parts, expected once")])
    return [
        {k: v for point in chosen for k, v in point.items()} for chosen in itertools.product(*lists)
    ]


def mixes(
    most: Mapping[str, int | Iterable[int]],
    *,
    gpus: int | None = None,
    usd_per_hour: Mapping[str, float] | None = None,
    budget: float | None = None,
) -> list[dict[str, int]]:
    """Every mix of GPUs with at least one of them: one point per mix, one name per type.

    Parameters
    ----------
    most : mapping of type to int, or to several numbers
        4 stands for 0, 1, 2, 3 and 4 of them; (0, 8) for none or a node of eight.
    gpus : int, optional
        At most so many in total.
    usd_per_hour : mapping of type to float, optional
        What a GPU of each type costs, in $ per hour.
    budget : float, optional
        All GPUs of a mix cost at most so much, in $ per hour; needs `usd_per_hour`.

    Returns
    -------
    list of dict of str to int
        Number of GPUs by type.

    Raises
    ------
    TooLarge
        More than a million points.
    InvalidValue
        An argument does not fit, or a price is missing.

    Examples
    --------
    >>> mixes({"H100": 1, "L4": (0, 4)})
    [{'H100': 0, 'L4': 4}, {'H100': 1, 'L4': 0}, {'H100': 1, 'L4': 4}]
    >>> mixes({"H100": 1, "L4": (0, 4)}, usd_per_hour={"H100": 3.0, "L4": 0.8}, budget=3.0)
    [{'H100': 1, 'L4': 0}]
    """
    if not isinstance(most, Mapping) or not most:
        raise InvalidValue(
            "mixes", [("most", most, "expected numbers by type, such as {'H100': 4, 'L4': 8}")]
        )
    numbers = {name: _numbers(name, n) for name, n in most.items()}
    price = dict.fromkeys(most, 0.0)
    if not (usd_per_hour is None or isinstance(usd_per_hour, Mapping)):
        raise InvalidValue(
            "mixes",
            [("usd_per_hour", usd_per_hour, "expected prices by type, such as {'H100': 3.0}")],
        )
    if budget is not None:
        _check_amount("budget", budget)
        for name in most:
            if name not in (usd_per_hour or {}):
                expected = f"nothing is given for {name!r}; a budget needs a price for every type"
                raise InvalidValue("mixes", [("usd_per_hour", usd_per_hour, expected)])
            price[name] = float(_check_amount(f"usd_per_hour[{name!r}]", given(usd_per_hour)[name]))
    if gpus is not None:
        _check_amount("gpus", gpus)
    if gpus is None and budget is None:
        _refuse_too_many("mixes", math.prod(map(len, numbers.values())))
    found = _mixes(
        numbers,
        price,
        math.inf if gpus is None else gpus,
        math.inf if budget is None else budget + 1e-9,
    )
    points = list(
        itertools.islice((point for point in found if any(point.values())), _MOST_POINTS + 1)
    )
    _refuse_too_many("mixes", len(points))
    return points


def _mixes(
    numbers: Mapping[str, Sequence[int]], price: Mapping[str, float], gpus: float, budget: float
) -> Iterator[dict]:
    """Type by type, leaving out what the types before have used up."""
    if not numbers:
        yield {}
        return
    (name, choices), *others = numbers.items()
    for n in choices:
        if n <= gpus and n * price[name] <= budget:
            for rest in _mixes(dict(others), price, gpus - n, budget - n * price[name]):
                yield {name: n, **rest}


def _numbers(name: str, most: Any) -> list[int]:
    whole = int(most) if isinstance(most, Integral) and not isinstance(most, bool) else None
    if whole is not None and whole > _MOST_POINTS:
        _refuse_too_many("mixes", whole)
    choices = most if whole is None else range(whole + 1)
    choices = (
        list(choices)
        if isinstance(choices, Iterable) and not isinstance(choices, str | bytes)
        else [None]
    )
    if not choices or any(
        isinstance(n, bool) or not isinstance(n, Integral) or n < 0 for n in choices
    ):
        expected = "expected a whole number of at least 0, or several of them"
        raise InvalidValue("mixes", [(f"most[{name!r}]", most, expected)])
    return [int(n) for n in choices]


def _check_amount(name: str, value: Any) -> float:
    expected = "expected a finite number, at least 0"
    if real_number("mixes", name, value, expected) < 0:
        raise InvalidValue("mixes", [(name, value, expected)])
    return value


def _refuse_too_many(what: str, number: int) -> None:
    if number > _MOST_POINTS:
        message = (
            f"{what}: more than {_MOST_POINTS:,} points; choose some of them, or coarser steps"
        )
        raise TooLarge(message, {"points": number})


def plain_points(
    points: Iterable[Mapping], taken: Sequence[str]
) -> tuple[tuple[str, ...], list[dict]]:
    """Names and points of a sweep, all with the same names and of plain values.

    Parameters
    ----------
    taken : names that a sweep's own columns have
    """
    if isinstance(points, Mapping | str) or not isinstance(points, Iterable):
        expected = "expected a list of points, such as grid(batch=(8, 16))"
        raise InvalidValue("sweep", [("points", points, expected)])
    found: list[dict] = []
    for i, point in enumerate(points):
        if (
            not isinstance(point, Mapping)
            or not point
            or not all(isinstance(name, str) for name in point)
        ):
            raise InvalidValue(
                "sweep",
                [(f"points[{i}]", point, "expected names and values, such as {'batch': 8}")],
            )
        if found and point.keys() != found[0].keys():
            expected = f"expected the names of the first point: {', '.join(found[0])}"
            raise InvalidValue("sweep", [(f"points[{i}]", dict(point), expected)])
        names = found[0] if found else point
        found.append({name: plain(point[name], f"points[{i}][{name!r}]") for name in names})
    if not found:
        raise InvalidValue(
            "sweep",
            [("points", [], "expected at least one; an iterator that was used up is empty")],
        )
    clash = [name for name in found[0] if name in taken]
    if clash:
        expected = f"is a column of the answer; call it something else. {nearest(clash[0], taken)}"
        raise InvalidValue("sweep", [("name", clash[0], expected)])
    return tuple(found[0]), found


def plain(value: Any, where: str) -> Any:
    """The value as JSON knows it; numpy's numbers become Python's."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise InvalidValue("sweep", [(where, value, "expected a finite number")])
    if isinstance(value, list | tuple):
        return [plain(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {k: plain(v, f"{where}[{k!r}]") for k, v in value.items()}
    expected = "expected text, a number, True, False, None, or lists and dicts of these; make() builds everything else"
    raise InvalidValue("sweep", [(where, type(value).__name__, expected)])


def cell(value: Any) -> str:
    """A plain value as the text of a table's cell, on one line; `value_of` gives it back.

    >>> cell(8), cell("fp8"), cell("8"), cell(None), cell({"H100": 2})
    ('8', 'fp8', '"8"', 'null', '{"H100": 2}')
    """
    if (
        isinstance(value, str)
        and value.isprintable()
        and isinstance(value_of(value), str)
        and value_of(value) == value
    ):
        return value
    return json.dumps(value)


def value_of(text: str) -> Any:
    """What a cell stands for: JSON if it is that, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or brackets in brackets without end
        return text
