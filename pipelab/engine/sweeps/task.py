"""From a point to a row: make the problem, solve it, note the answer, or why there is none."""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipelab.display import REFUSED, ending, outcome_of, proven_among
from pipelab.errors import InvalidValue, PipelabError
from pipelab.fields import given, is_real, python_value
from pipelab.solving import Result, method_of, solve

__all__ = ["COLUMNS", "STATUSES", "TEXTS", "Task", "failed"]

# What every row says after its point.
COLUMNS = (
    "status", "outcome", "proven_among", "throughput_tokens_per_s", "bound_tokens_per_s", "gpus_used", "usd_per_hour",
    "usd_per_million_tokens", "stages", "bottleneck", "placement", "seconds", "reason",
)  # fmt: skip
TEXTS = ("status", "outcome", "proven_among", "bottleneck", "placement", "reason")
_RATE = "throughput_tokens_per_s"
_LONGEST_REASON, _END = 10_000, 2_000
STATUSES = ("optimal", "feasible", "infeasible", "unknown", "failed")


@dataclass(frozen=True)
class Task:
    """What is done at every point.

    Attributes
    ----------
    make : function
        From a point's values to a Problem, or to a Problem and further options of the method.
    method : str or function
        A method of `solve`, or a function of a Problem and options that returns a Result.
    options : mapping
    """

    make: Callable
    method: str | Callable
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not callable(self.make):
            expected = "expected a function that turns a point's values into a Problem"
            raise InvalidValue("sweep", [("make", self.make, expected)])
        if callable(self.method):
            return
        for name in ("stop", "on_progress"):
            if name in self.options:
                expected = "is not for a sweep: its points run in other processes. Ctrl-C ends it, progress=True shows"
                raise InvalidValue("sweep", [(name, self.options[name], expected)])
        method_of(self.method, self.options)  # a wrong name is refused now, not once per point

    @property
    def name(self) -> str:
        """Of the method, for titles and files."""
        return (
            self.method
            if isinstance(self.method, str)
            else getattr(self.method, "__name__", repr(self.method))
        )

    def __call__(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """The row of a point. Whatever goes wrong but an interrupt is its reason."""
        began = time.perf_counter()
        try:
            row = _row(self._result(point))
        except (Exception, SystemExit) as error:
            row = failed(_reason(error))
        return {**point, **row, "seconds": round(time.perf_counter() - began, 6)}

    def _result(self, point: Mapping[str, Any]) -> Result:
        made = self.make(**point)
        problem, own = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
        options = {**self.options, **own}
        result = (
            self.method(problem, **options)
            if callable(self.method)
            else solve(problem, self.method, **options)
        )
        if not isinstance(result, Result):
            raise InvalidValue(
                "sweep", [("method", self.name, f"gave {type(result).__name__}, expected a Result")]
            )
        # solve ends calmly on Ctrl-C; here it is meant for the whole sweep
        if result.stopped_by == "interrupt":
            raise KeyboardInterrupt
        return result


def failed(reason: str) -> dict[str, Any]:
    """The columns of a point without an answer; a reason of many pages is shortened."""
    reason = " ".join(reason.split())
    if len(reason) > _LONGEST_REASON:
        left_out = f" … [{len(reason) - _LONGEST_REASON:,} characters left out] … "
        reason = reason[: _LONGEST_REASON - _END] + left_out + reason[-_END:]
    texts = dict.fromkeys(TEXTS, "") | {
        "status": "failed",
        "outcome": REFUSED.word,
        "reason": reason,
    }
    return dict.fromkeys(COLUMNS) | texts


def is_answer(name: str, value: Any) -> bool:
    """Whether a column of numbers may hold this: nothing, or a number that is finite and not negative.

    >>> is_answer("seconds", 0), is_answer("throughput_tokens_per_s", 0), is_answer("stages", None)
    (True, False, True)
    """
    if value is None:
        return True
    return is_real(value) and (value > 0 if name == _RATE else value >= 0)


def _row(result: Result) -> dict[str, Any]:
    from pipelab.engine.methods.trade_offs import price_per_hour

    row = failed("; ".join(text for text in (ending(result.stopped_by), result.reason) if text)) | {
        "status": result.status,
        "outcome": outcome_of(result).word,
        "proven_among": proven_among(result),
        **_numbers(throughput_tokens_per_s=result.throughput, bound_tokens_per_s=result.bound),
    }
    if result.placement is None:
        return row
    price = price_per_hour(result.problem, result)
    per_million = None if price is None else price / (3600 * given(result.throughput)) * 1e6
    return row | {
        **_numbers(usd_per_hour=price, usd_per_million_tokens=per_million),
        "gpus_used": len(result.placement.gpus),
        "stages": len(result.placement),
        "bottleneck": ", ".join(given(result.evaluation).bottlenecks[:2]),
        "placement": str(result.placement),
    }


def _numbers(**columns: Any) -> dict[str, Any]:
    """Python's own numbers, each fit for its column: a method of the reader's own may answer anything."""
    for name, value in columns.items():
        if not is_answer(name, value):
            expected = f"expected a finite number {'above 0' if name == _RATE else 'of at least 0'}"
            raise InvalidValue("sweep", [(name, value, expected)])
    return {name: python_value(value) for name, value in columns.items()}


def _reason(error: BaseException) -> str:
    """Class and message; for an error that pipelab did not raise on purpose, also where it came from."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, PipelabError):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} (in {last.name}, line {last.lineno})"
