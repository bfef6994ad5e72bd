"""From a point to a row: make the problem, solve it, note the answer, or why there is none."""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from annotated_types import Predicate

from pipelab.display import OUTCOMES, REFUSED, ending, outcome_of, proven_among
from pipelab.errors import InvalidValue, PipelabError
from pipelab.fields import Natural, NotNegative, Positive, checked, described, given
from pipelab.solving import Result, method_of, solve

_LONGEST_REASON, _END = 10_000, 2_000
A_RESULT = "expected a Result, as of solve: the rows have its columns"
STATUSES = ("optimal", "feasible", "infeasible", "unknown", "failed")
_WORDS = tuple(outcome.word for outcome in OUTCOMES)
_Status = Annotated[
    str, Predicate(STATUSES.__contains__), described(f"one of {', '.join(STATUSES)}")
]
_Outcome = Annotated[str, Predicate(_WORDS.__contains__), described(f"one of {', '.join(_WORDS)}")]


@checked
class Answer:
    """What every row says after its point; a method of the reader's own, or a file, may say anything."""

    status: _Status
    outcome: _Outcome
    proven_among: str = ""
    throughput_tokens_per_s: Positive | None = None
    bound_tokens_per_s: NotNegative | None = None
    gpus_used: Natural | None = None
    usd_per_hour: NotNegative | None = None
    usd_per_million_tokens: NotNegative | None = None
    stages: Natural | None = None
    bottleneck: str = ""
    placement: str = ""
    seconds: NotNegative | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.status in ("optimal", "feasible") and self.throughput_tokens_per_s is None:
            expected = f"expected a number where the status is {self.status}"
            raise InvalidValue("Answer", [("throughput_tokens_per_s", None, expected)])


COLUMNS = tuple(Answer.__dataclass_fields__)


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
        if callable(self.method):
            self._refuse_others(self.method)
            return
        for name in ("stop", "on_progress"):
            if name in self.options:
                expected = "is not for a sweep: its points run in other processes. Ctrl-C ends it, progress=True shows"
                raise InvalidValue("sweep", [(name, self.options[name], expected)])
        # a wrong name is refused now, not once per point
        self._refuse_others(method_of(self.method, self.options))

    def _refuse_others(self, function: Callable) -> None:
        """What says that it returns something other than a Result, such as a Deployment, is no method here."""
        gives = getattr(function, "__annotations__", {}).get("return")
        if isinstance(gives, type) and not issubclass(gives, Result):
            asked = self.options.get("objective")
            name, value = ("objective", asked) if asked else ("method", self.name)
            raise InvalidValue("sweep", [(name, value, f"gives {gives.__name__}, {A_RESULT}")])

    @property
    def name(self) -> str:
        """Of the method, for titles and files."""
        if isinstance(self.method, str):
            return self.method
        return getattr(self.method, "__name__", repr(self.method))

    def __call__(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """The row of a point. Whatever goes wrong but an interrupt is its reason."""
        began = time.perf_counter()
        try:
            answer = _answer(self._result(point))
        except (Exception, SystemExit) as error:
            answer = failed(_reason(error))
        seconds = round(time.perf_counter() - began, 6)
        return {**point, **vars(answer), "seconds": seconds}

    def _result(self, point: Mapping[str, Any]) -> Result:
        made = self.make(**point)
        problem, own = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
        options = {**self.options, **own}
        if callable(self.method):
            result = self.method(problem, **options)
        else:
            result = solve(problem, self.method, **options)
        if not isinstance(result, Result):
            raise InvalidValue(
                "sweep", [("method", self.name, f"gave {type(result).__name__}, {A_RESULT}")]
            )
        # solve ends calmly on Ctrl-C; here it is meant for the whole sweep
        if result.stopped_by == "interrupt":
            raise KeyboardInterrupt
        return result


def failed(reason: str) -> Answer:
    """The columns of a point without an answer; a reason of many pages is shortened."""
    reason = " ".join(reason.split())
    if len(reason) > _LONGEST_REASON:
        left_out = f" … [{len(reason) - _LONGEST_REASON:,} characters left out] … "
        reason = reason[: _LONGEST_REASON - _END] + left_out + reason[-_END:]
    return Answer("failed", REFUSED.word, reason=reason)


def _answer(result: Result) -> Answer:
    from pipelab.engine.methods.prices import price_per_hour, usd_per_million_tokens

    answer = Answer(
        result.status,
        outcome_of(result).word,
        proven_among(result),
        result.throughput,
        result.bound,
        reason="; ".join(text for text in (ending(result.stopped_by), result.reason) if text),
    )
    if result.placement is None:
        return answer
    price, per_million = price_per_hour(result.problem, result.placement), None
    if price is not None:
        per_million = usd_per_million_tokens(price, given(result.throughput))
    return replace(
        answer,
        gpus_used=len(result.placement.gpus),
        usd_per_hour=price,
        usd_per_million_tokens=per_million,
        stages=len(result.placement),
        bottleneck=", ".join(given(result.evaluation).bottlenecks[:2]),
        placement=str(result.placement),
    )


def _reason(error: BaseException) -> str:
    """Class and message; for an error that pipelab did not raise on purpose, also where it came from."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, PipelabError):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} (in {last.name}, line {last.lineno})"
