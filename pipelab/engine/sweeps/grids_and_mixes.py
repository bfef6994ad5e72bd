"""The points that a sweep solves, each a mapping of names to plain values."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from numbers import Integral
from typing import Annotated, Any

from annotated_types import MinLen

from pipelab.engine.prices import pays
from pipelab.errors import InvalidValue, TooLarge
from pipelab.fields import NotNegative, checked_arguments, described, is_list, python_value

_MOST_POINTS = 1_000_000
_Amount = Annotated[NotNegative, described("a finite number, at least 0")]
_Most = Annotated[
    Mapping[str, Any], MinLen(1), described("numbers by type, such as {'H100': 4, 'L4': 8}")
]
_Prices = Annotated[
    Mapping[str, _Amount | None] | None, described("prices by type, such as {'H100': 3.0}")
]


def grid(*parts: Iterable[Mapping], **axes: Iterable) -> list[dict]:
    """Return every combination of the values of all axes; the last axis changes fastest.

    Parameters
    ----------
    *parts : lists of points
        For example `mixes(…)`: each of their points is combined with everything else.
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
        A part is not a list of points, an axis is a single value, or a name is in two parts.

    Examples
    --------
    >>> grid(batch=(8, 16), layers=(32,))
    [{'batch': 8, 'layers': 32}, {'batch': 16, 'layers': 32}]
    >>> len(grid(mixes({"H100": 2, "L4": 4}), batch=(8, 16)))
    28
    """
    lists, expected = [], "expected points, such as those of mixes(…)"
    for i, part in enumerate(parts):
        lists.append(listed("grid", f"part {i + 1}", part, expected))
        for point in lists[-1]:
            if not isinstance(point, Mapping):
                raise InvalidValue("grid", [(f"part {i + 1}", point, expected)])
    for name, values in axes.items():
        several = listed("grid", name, values, f"expected several values, such as ({values!r},)")
        lists.append([{name: value} for value in several])
    number: int = math.prod(len(part) for part in lists)
    _refuse_too_many("grid", number)
    names = [name for part in lists for name in (part[0] if part else ())]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidValue("grid", [("name", twice[0], "is in two parts, expected once")])
    return [
        {k: v for point in chosen for k, v in point.items()} for chosen in itertools.product(*lists)
    ]


@checked_arguments
def mixes(
    most: _Most, *, usd_per_hour: _Prices = None, budget: _Amount | None = None
) -> list[dict[str, int]]:
    """Return every mix of GPUs with at least one GPU: one point per mix, one name per type.

    Parameters
    ----------
    most : mapping of type to int, or to several numbers
        4 means 0, 1, 2, 3 or 4 GPUs; (0, 8) means none or a node of eight.
    usd_per_hour : mapping of type to float, optional
        Price of a GPU of each type, in $ per hour.
    budget : float, optional
        Largest price of all GPUs of a mix, in $ per hour; needs `usd_per_hour`.

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
    numbers = {name: _numbers(name, n) for name, n in most.items()}
    price = {name: (usd_per_hour or {}).get(name) for name in most}
    if budget is not None and None in price.values():
        unpriced = next(name for name in most if price[name] is None)
        expected = f"nothing is given for {unpriced!r}; a budget needs a price for every type"
        raise InvalidValue("mixes", [("usd_per_hour", usd_per_hour, expected)])
    if budget is None:
        _refuse_too_many("mixes", math.prod(map(len, numbers.values())))

    def within(names: Sequence[str], paid: Counter[float]) -> Iterator[dict[str, int]]:
        """Yield the mixes of these types that the budget allows."""
        if not names:
            yield {}
            return
        name, *others = names
        for n in numbers[name]:
            bill = paid + Counter({price[name] or 0.0: n})
            if budget is None or pays(budget, bill):
                yield from ({name: n, **rest} for rest in within(others, bill))

    with_a_gpu = (point for point in within(list(numbers), Counter()) if any(point.values()))
    points = list(itertools.islice(with_a_gpu, _MOST_POINTS + 1))
    _refuse_too_many("mixes", len(points))
    return points


def _numbers(name: str, most: Any) -> list[int]:
    whole = isinstance(most, Integral) and not isinstance(most, bool)
    if whole:
        _refuse_too_many("mixes", most)
    expected = "expected a whole number of at least 0, or several of them"
    choices = list(range(most + 1)) if whole else listed("mixes", f"most[{name!r}]", most, expected)
    if not choices or any(
        isinstance(n, bool) or not isinstance(n, Integral) or n < 0 for n in choices
    ):
        raise InvalidValue("mixes", [(f"most[{name!r}]", most, expected)])
    return [int(n) for n in choices]


def listed(what: str, field: str, values: Any, expected: str) -> list:
    """Return several values as a list; text and mappings are one value each."""
    if not (is_list(values) or isinstance(values, Set)):
        raise InvalidValue(what, [(field, values, expected)])
    return list(values)


def _refuse_too_many(what: str, number: int) -> None:
    if number > _MOST_POINTS:
        message = f"{what}: more than {_MOST_POINTS:,} points; choose some, or coarser steps"
        raise TooLarge(message)


def plain_points(
    points: Iterable[Mapping], taken: Sequence[str]
) -> tuple[tuple[str, ...], list[dict]]:
    """Return names and points of a sweep, all with the same names and of plain values.

    Parameters
    ----------
    taken : sequence of str
        Names of a sweep's own columns.
    """
    found: list[dict] = []
    expected = "expected a list of points, such as grid(batch=(8, 16))"
    for i, point in enumerate(listed("sweep", "points", points, expected)):
        if not (isinstance(point, Mapping) and point and all(isinstance(n, str) for n in point)):
            expected = "expected names and values, such as {'batch': 8}"
            raise InvalidValue("sweep", [(f"points[{i}]", point, expected)])
        if found and point.keys() != found[0].keys():
            expected = f"expected the names of the first point: {', '.join(found[0])}"
            raise InvalidValue("sweep", [(f"points[{i}]", dict(point), expected)])
        names = found[0] if found else point
        found.append({name: plain(point[name], f"points[{i}][{name!r}]") for name in names})
    if not found:
        expected = "expected at least one; an iterator that was used up is empty"
        raise InvalidValue("sweep", [("points", [], expected)])
    clash = [name for name in found[0] if name in taken]
    if clash:
        expected = f"is a column of the answer, as are {', '.join(taken)}; call it something else"
        raise InvalidValue("sweep", [("name", clash[0], expected)])
    return tuple(found[0]), found


def plain(value: Any, where: str) -> Any:
    """Return the value as JSON knows it; NumPy's numbers become Python's."""
    value = python_value(value)
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
    """Return a plain value as the text of a table's cell, on one line; `value_of` reads it back.

    >>> cell(8), cell("fp8"), cell("8"), cell(None), cell({"H100": 2})
    ('8', 'fp8', '"8"', 'null', '{"H100": 2}')
    """
    if isinstance(value, str) and value.isprintable() and value_of(value) == value:
        return value
    return json.dumps(value)


def value_of(text: str) -> Any:
    """Return the value of a cell: JSON if it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # not JSON, or nested too deeply
        return text
