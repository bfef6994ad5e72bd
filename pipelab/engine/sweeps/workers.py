"""Turn points into rows on all cores: make each problem, solve it, note the answer or why there is none.

joblib runs the points, with whatever backend and number of jobs is configured.
"""

import time
import traceback
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, get_args

from annotated_types import Predicate

from pipelab.display import OUTCOMES, REFUSED, ending, outcome_of, proven_among
from pipelab.engine.answers import Result
from pipelab.engine.prices import price_per_hour, usd_per_million_tokens
from pipelab.engine.solving import method_of, solve
from pipelab.errors import InvalidValue, PipelabError
from pipelab.fields import Natural, NotNegative, Positive, checked, described, given

Status = Literal["optimal", "feasible", "infeasible", "unknown", "failed"]
STATUSES: tuple[Status, ...] = get_args(Status)
_WORDS = [outcome.word for outcome in OUTCOMES]
_Outcome = Annotated[str, Predicate(_WORDS.__contains__), described(f"one of {', '.join(_WORDS)}")]


@checked
class SweepRow:
    """The columns of a row after its point, checked: they may come from a user's own method, or a file."""

    status: Status
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
            raise InvalidValue("SweepRow", [("throughput_tokens_per_s", None, expected)])


COLUMNS = tuple(SweepRow.__dataclass_fields__)


@dataclass(frozen=True)
class Task:
    """What is computed for every point.

    Attributes
    ----------
    make : function
        Turns a point's values into a Problem, or into a Problem and further options of the method.
    method : str or function
        A method of `solve`, or a function of a Problem and options that returns a Result.
    options : mapping
    """

    make: Callable
    method: str | Callable
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not callable(self.method):
            method_of(self.method, self.options)  # a wrong name is refused now, not once per point

    @property
    def name(self) -> str:
        """Name of the method, for titles and files."""
        if isinstance(self.method, str):
            return self.method
        return getattr(self.method, "__name__", repr(self.method))

    def __call__(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of a point; any error except an interrupt is its reason."""
        began = time.perf_counter()
        try:
            row = row_of(self._result(point))
        except (Exception, SystemExit) as error:
            row = failed(_reason(error))
        return {**point, **vars(row), "seconds": round(time.perf_counter() - began, 6)}

    def _result(self, point: Mapping[str, Any]) -> Result:
        made = self.make(**point)
        problem, more = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
        options = {**self.options, **more}
        method = self.method if callable(self.method) else partial(solve, method=self.method)
        result = method(problem, **options)
        if not isinstance(result, Result):
            expected = f"gave {type(result).__name__}, expected a Result, as of solve"
            raise InvalidValue("sweep", [("method", self.name, expected)])
        # solve ends calmly on Ctrl-C; here it is meant for the whole sweep
        if result.stopped_by == "interrupt":
            raise KeyboardInterrupt
        return result


def failed(reason: str) -> SweepRow:
    """Return the columns of a point without an answer."""
    return SweepRow(status="failed", outcome=REFUSED.word, reason=" ".join(reason.split()))


def row_of(result: Result) -> SweepRow:
    """Take what `Result.to_dict` says by the same names, and add what a table shows of a placement."""
    said, placement = result.to_dict(), result.placement
    row = {name: said[name] for name in COLUMNS if name in said}
    row |= {"outcome": outcome_of(result).word, "proven_among": proven_among(result)}
    row["reason"] = "; ".join(filter(None, (ending(result.stopped_by), result.reason)))
    row["placement"] = "" if placement is None else str(placement)
    if placement is not None:
        price = price_per_hour(result.problem, placement)
        if price is not None:
            row["usd_per_hour"] = price
            row["usd_per_million_tokens"] = usd_per_million_tokens(price, given(result.throughput))
        row |= {"gpus_used": len(placement.gpus), "stages": len(placement)}
        row["bottleneck"] = ", ".join(said["bottlenecks"][:2])
    return SweepRow(**row)


def _reason(error: BaseException) -> str:
    """Return class and message; for an error that pipelab did not raise on purpose, also its place."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, PipelabError):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} (in {last.name}, line {last.lineno})"


Jobs = Annotated[
    Annotated[int, Predicate(bool)] | None,  # what joblib knows as a number of jobs
    described("a whole number from 1 on, -1 for all cores, or None"),
]


def answers(
    task: Task, points: Mapping[Any, dict], jobs: int | None
) -> Generator[tuple[Hashable, dict[str, Any]]]:
    """Yield the row of every point as (key, row), in the order in which they are computed.

    If a worker process dies, the points that were running run again one by one, to find the one that
    kills its worker. It becomes a failed row. (On a
    Dask cluster joblib does not learn of a worker's death: Dask tries again elsewhere, and after the
    third death joblib waits without end.)
    """
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    waiting = dict(points)
    while waiting:
        begun: list[Hashable] = []
        try:
            with closing(_parallel(task, waiting, jobs, begun)) as rows:
                for key, row in rows:
                    del waiting[key]
                    yield key, row
        except TerminatedWorkerError:
            for key in [key for key in begun if key in waiting]:
                point = waiting.pop(key)
                try:
                    ((_, row),) = _parallel(task, {key: point}, jobs, [])
                except TerminatedWorkerError as error:
                    name = type(error).__name__
                    why = f"the process that worked on it died ({name}); out of memory?"
                    row = {**point, **vars(failed(why))}
                yield key, row


def _parallel(
    task: Task, points: Mapping[Any, dict], jobs: int | None, begun: list
) -> Generator[tuple[Hashable, dict[str, Any]]]:
    """Yield the rows as they are computed; `begun` takes the keys of those that workers were given.

    Raises
    ------
    TerminatedWorkerError
        A worker process ended without an answer.
    PipelabError
        The task cannot be copied to the workers, or a row from them.
    """
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError
    from joblib.parallel import get_active_backend

    def calls() -> Iterator:
        for key, point in list(points.items()):
            begun.append(key)
            yield delayed(_keyed)(task, key, point)

    # Unless the caller, or joblib.parallel_config, says a number: all that the backend has.
    # joblib's own default would be one. The backend itself is never named here, so that the caller
    # can choose it.
    _, configured = get_active_backend()
    if jobs is None and configured is None:
        jobs = -1
    try:
        rows = Parallel(n_jobs=jobs, return_as="generator_unordered")(calls())
        try:
            for answer in rows:  # noqa: UP028 - "yield from" would close them, see below
                yield answer
        except BaseException:
            # Where whoever reads the rows was interrupted: closing makes joblib warn of work that was
            # not used.
            with suppress(KeyboardInterrupt):
                rows.throw(KeyboardInterrupt)
            raise
    except TerminatedWorkerError:
        raise
    except Exception as error:
        # A task turns its own errors into rows: this one arose on the way to the workers or back.
        name = getattr(task.make, "__name__", repr(task.make))
        raise PipelabError(
            f"sweep: the workers cannot run {name!r} ({type(error).__name__}: {error}). What {name!r} refers to must "
            "be fit to be copied to other processes; jobs=1 stays in this one"
        ) from error


def _keyed(task: Task, key: Hashable, point: dict) -> tuple[Hashable, dict]:
    """Return the key and the row of a point; a function, since Dask waits for ever for an object that is called."""
    return key, task(point)
