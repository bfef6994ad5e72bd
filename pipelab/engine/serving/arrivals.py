"""Who comes when, and with how many tokens: drawn, or from a file of times and lengths."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Le

from pipelab.display import listed
from pipelab.errors import InvalidValue, nearest
from pipelab.fields import MOST_COUNTED, Count, Positive, checked_value, is_list
from pipelab.files.csv_rows import Row, number, read_rows
from pipelab.serving import Request

# What columns are called in public traces, in small letters: ours; Azure's (AzureLLMInferenceTrace_*.csv); those of
# BurstGPT, which vLLM's benchmark reads.
_NAMES = {
    "seconds": ("seconds", "timestamp"),
    "prompt": ("prompt", "contexttokens", "request tokens"),
    "answer": ("answer", "generatedtokens", "response tokens"),
}
_MOST_SECONDS = 1e12
_Tokens = Annotated[Positive, Le(MOST_COUNTED)]
_MOST_DRAWN = 4096  # at a time


class Lengths(NamedTuple):
    """A distribution of whole numbers of tokens, at least 1: its name and its parameters, in words."""

    kind: str
    numbers: tuple[float, ...]

    def draw(self, chance: np.random.Generator, number: int) -> np.ndarray:
        """Draw so many lengths."""
        tokens = _KINDS[self.kind][1](chance, number, *self.numbers)
        return np.clip(np.rint(tokens), 1, MOST_COUNTED).astype(int)

    def __str__(self) -> str:
        between = " to " if self.kind == "uniform" else ", deviation × "
        numbers = between.join(f"{number:,.4g}" for number in self.numbers)
        return numbers if self.kind == "fixed" else f"{numbers} ({self.kind})"


def _lognormal(chance: np.random.Generator, number: int, mean: float, variation: float) -> Any:
    spread = np.log1p(variation**2)
    return chance.lognormal(np.log(mean) - spread / 2, np.sqrt(spread), number)


_KINDS: dict[str, tuple[int, Callable[..., Any]]] = {  # how many parameters, and what draws
    "fixed": (1, lambda chance, number, mean: np.full(number, mean)),
    "uniform": (2, lambda chance, number, low, high: chance.uniform(low - 0.5, high + 0.5, number)),
    "exponential": (1, lambda chance, number, mean: chance.exponential(mean, number)),
    "lognormal": (2, _lognormal),
}


def lengths(name: str, given: Any) -> Lengths:
    """Read a number, or a distribution such as ("uniform", 1024, 3072).

    Parameters
    ----------
    name : str
        Of the option.
    given : int, or tuple
        ("uniform", least, most), ("exponential", mean), ("lognormal", mean, standard deviation over mean).

    Raises
    ------
    InvalidValue
        It is neither.
    """
    if not is_list(given):
        return Lengths("fixed", (checked_value("serve", name, given, Count),))
    kind, *numbers = given or [None]
    if kind not in tuple(_KINDS):
        raise InvalidValue("serve", [(name, kind, nearest(kind, _KINDS))])
    if len(numbers) != _KINDS[kind][0]:
        expected = f"expected {_KINDS[kind][0]} numbers behind {kind!r}"
        raise InvalidValue("serve", [(name, given, expected)])
    values = tuple(checked_value("serve", name, n, _Tokens) for n in numbers)
    if kind == "uniform" and values[0] > values[1]:
        raise InvalidValue("serve", [(name, given, "expected the least before the most")])
    return Lengths(kind, values)


def drawn(
    rate: float | None, clients: int, prompt: Lengths, answer: Lengths, seed: int
) -> Iterator[Request]:
    """Draw requests without end: Poisson arrivals of a rate, or clients that are in the middle of their answers."""
    for client, request in enumerate(_drawn(rate, prompt, answer, seed)):
        begun = (client + 0.5) / clients if client < clients else 0.0
        yield request._replace(written=int(begun * request.answer)) if begun else request


def _drawn(rate: float | None, prompt: Lengths, answer: Lengths, seed: int) -> Iterator[Request]:
    chance, at = np.random.default_rng(seed), 0.0
    while True:
        gaps = chance.exponential(1 / rate, _MOST_DRAWN) if rate else np.zeros(_MOST_DRAWN)
        seconds = at + np.cumsum(gaps)
        tokens = (given.draw(chance, _MOST_DRAWN) for given in (prompt, answer))
        yield from map(Request, *(column.tolist() for column in (seconds, *tokens)))
        at = float(seconds[-1])


def from_file(path: Path) -> list[Request]:
    """Read requests from a CSV file with a column of times, of tokens of prompts and of tokens of answers.

    Parameters
    ----------
    path : Path
        Columns are called "seconds", "prompt", "answer", or as in Azure's and BurstGPT's traces. Times are seconds,
        or a date with a time of day.

    Returns
    -------
    list of Request
        The first comes at 0.

    Raises
    ------
    InvalidData
        Naming file, row and column: a value is not valid, or a time goes back.
    """
    rows = read_rows(path, [])
    known = {column.lower(): column for column in rows[0].cells}
    columns = {}
    for field, names in _NAMES.items():
        column = next((known[name] for name in names if name in known), None)
        if column is None:
            expected = f"expected a column of this name, or {listed(names[1:])}"
            raise rows[0].error(field, "", expected)
        columns[field] = column
    requests: list[Request] = []
    first = None
    for row in rows:
        column = columns["seconds"]
        text = row.cells[column]
        at = _time_of_day(row, column) if ":" in text else float(number(row, column))
        first = at if first is None else first
        if not abs(at) < _MOST_SECONDS:
            raise row.error(column, text, "expected a finite number of seconds")
        if requests and at - first < requests[-1].seconds:
            expected = "expected no time before that of the row above"
            raise row.error(column, text, expected)
        tokens = [_tokens(row, columns[field]) for field in ("prompt", "answer")]
        requests.append(Request(at - first, *tokens))
    return requests


def _time_of_day(row: Row, column: str) -> float:
    """Read a date with a time of day, as seconds; digits beyond microseconds are left out."""
    try:
        at = datetime.fromisoformat(row.cells[column])
        return at.replace(tzinfo=at.tzinfo or UTC).timestamp()  # nowhere clocks change
    except ValueError:
        expected = "expected seconds, or a date and a time such as 2023-11-16 18:15:46.68"
        raise row.error(column, row.cells[column], expected) from None


def _tokens(row: Row, column: str) -> int:
    tokens = float(number(row, column))
    if not (tokens.is_integer() and 1 <= tokens <= MOST_COUNTED):
        raise row.error(column, row.cells[column], "expected a whole number of at least 1")
    return int(tokens)
