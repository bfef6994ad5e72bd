"""From a point to a row: make the problem, solve it, note the answer, or why there is none."""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipelab.checked import given
from pipelab.errors import InvalidValue, PipelabError
from pipelab.result import Result
from pipelab.solve import method_of, solve
from pipelab.solver_run import ending

__all__ = ["COLUMNS", "STATUSES", "TEXTS", "Task", "failed"]

# What every row says after its point.
COLUMNS = (
    "status", "throughput_tokens_per_s", "bound_tokens_per_s", "gpus_used", "usd_per_hour", "usd_per_million_tokens",
    "stages", "bottleneck", "placement", "seconds", "reason",
)  # fmt: skip
TEXTS = ("status", "bottleneck", "placement", "reason")
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
        return self.method if isinstance(self.method, str) else getattr(self.method, "__name__", repr(self.method))

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
        result = self.method(problem, **options) if callable(self.method) else solve(problem, self.method, **options)
        if not isinstance(result, Result):
            raise InvalidValue("sweep", [("method", self.name, f"gave {type(result).__name__}, expected a Result")])
        if result.stopped_by == "interrupt":  # solve ends calmly on Ctrl-C; here it is meant for the whole sweep
            raise KeyboardInterrupt
        return result


def failed(reason: str) -> dict[str, Any]:
    """The columns of a point without an answer."""
    return dict.fromkeys(COLUMNS) | dict.fromkeys(TEXTS, "") | {"status": "failed", "reason": " ".join(reason.split())}


def _row(result: Result) -> dict[str, Any]:
    from pipelab.methods.trade_off import price_per_hour

    row = failed("; ".join(text for text in (ending(result.stopped_by), result.reason) if text)) | {
        "status": result.status,
        "throughput_tokens_per_s": result.throughput,
        "bound_tokens_per_s": result.bound,
    }
    if result.placement is None:
        return row
    price = price_per_hour(result.problem, result)
    return row | {
        "gpus_used": len(result.placement.gpus),
        "usd_per_hour": price,
        "usd_per_million_tokens": None if price is None else price / (3600 * given(result.throughput)) * 1e6,
        "stages": len(result.placement),
        "bottleneck": ", ".join(given(result.evaluation).bottlenecks[:2]),
        "placement": str(result.placement),
    }


def _reason(error: BaseException) -> str:
    """Class and message; for an error that pipelab did not raise on purpose, also where it came from."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, PipelabError):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} (in {last.name}, line {last.lineno})"
