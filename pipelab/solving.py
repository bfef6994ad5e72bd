"""solve(problem, method): one door to every method, one kind of answer."""

import inspect
import math
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from numbers import Real
from typing import TYPE_CHECKING, Any

from pipelab.errors import InvalidValue, UnknownName, nearest
from pipelab.fields import given
from pipelab.problem import Problem
from pipelab.result import Result

if TYPE_CHECKING:
    from pipelab.engine.solvers.solver_run import Progress

__all__ = ["METHODS", "Solving", "method_of", "solve", "solve_in_background"]

# Where each method lives; it is imported when it is first asked for.
METHODS = {
    "auto": "pipelab.engine.methods.auto:solve_auto",
    "even": "pipelab.engine.methods.rules:solve_even",
    "proportional": "pipelab.engine.methods.rules:solve_proportional",
    "by_flops": "pipelab.engine.methods.rules:solve_by_flops",
    "bandwidth_aware": "pipelab.engine.methods.rules:solve_bandwidth_aware",
    "exhaustive": "pipelab.engine.methods.exhaustive:solve_exhaustive",
    "single_gpu": "pipelab.engine.methods.single_gpu:solve_single_gpu",
    "type_count": "pipelab.engine.methods.type_count:solve_type_count",
    "joint": "pipelab.engine.methods.joint:solve_joint",
    "aggregated": "pipelab.engine.methods.aggregated:solve_aggregated",
}


def solve(problem: Problem, method: str = "auto", **options: Any) -> Result:
    """Find a placement.

    Parameters
    ----------
    problem : Problem
        What is to be placed on what.
    method : str
        "auto": "aggregated", or "joint" in its tight form where that is refused. "even",
        "proportional", "by_flops", "bandwidth_aware": rules of thumb, one GPU per stage.
        "exhaustive": every placement. "single_gpu": the original MILP. "type_count": the
        heuristic that failed. "joint": the write-up's joint ILP, solved with SCIP.
        "aggregated": the same optimum from counts over classes of interchangeable GPUs.
    **options
        Those below, as far as the method takes them, and what only it knows; see its own docstring.

    Returns
    -------
    Result
        Its `method` names who answered. An infeasible problem is an answer with a reason, not an
        error.

    Other Parameters
    ----------------
    time_limit : float, optional
        Seconds. The best placement found by then is kept, with a proven bound.
    gap : float, optional
        Stop once the best is known to be at most this much faster, as a share.
    stop : threading.Event, optional
        Set it to end the search; the best placement is kept. Ctrl-C and the kernel's
        interrupt do the same.
    on_progress : function of Progress, optional
        Called from the solver's thread on every new incumbent or bound.

    Raises
    ------
    TooLarge
        The model would not fit in memory; the message has its exact size.
    NotApplicable
        The method has no answer for this kind of problem.
    UnknownName
        No such method or option.
    InvalidValue
        What is given is no problem, or an option's value does not fit.

    Examples
    --------
    >>> import pipelab as pl
    >>> result = pl.solve(pl.load_case("tiny", max_gpus_per_stage=2))
    >>> result.status, round(result.throughput, 3), result.placement.stages[0].gpus, result.method
    ('optimal', 301.784, (0, 1), 'aggregated')
    """
    if not isinstance(problem, Problem):
        raise InvalidValue(
            "solve", [("problem", problem, "expected a Problem, such as load_case('tiny')")]
        )
    began = time.perf_counter()
    function = method_of(method, options)
    if options.get("time_limit") is not None:  # what importing the method took counts
        options["time_limit"] = max(0.0, options["time_limit"] - (time.perf_counter() - began))
    return function(problem, **options)


def method_of(method: str, options: Mapping[str, Any]) -> Callable[..., Result]:
    """The function behind a method's name, once it is known to take these options.

    Raises
    ------
    UnknownName, InvalidValue
    """
    if not isinstance(method, str) or method not in METHODS:
        raise UnknownName(f"there is no method {method!r}; {nearest(method, METHODS)}")
    module, name = METHODS[method].split(":")
    function = getattr(import_module(module), name)
    known = _options(function)
    for option in options:
        if option not in known:
            raise UnknownName(
                f"method {method!r} has no option {option!r}; {_who_has(option, method, known)}"
            )
    _check_amounts(options)
    return function


def _options(function: Callable) -> list[str]:
    return [p for p in inspect.signature(function).parameters if p != "problem"]


def _who_has(option: str, method: str, known: list[str]) -> str:
    """Of an option unknown to "auto": the methods that have it, since a reader may have named none."""
    others = [
        name for name in METHODS if method == "auto" and option in _options(method_of(name, {}))
    ]
    return f"name a method that has it: {', '.join(others)}" if others else nearest(option, known)


def _check_amounts(options: Mapping[str, Any]) -> None:
    """Times, shares and sizes are numbers of at least 0, or None; an infinite gap would call every bound a proof."""
    for name in ("time_limit", "gap", "memory_limit_gb", "limit"):
        value = options.get(name)
        number = isinstance(value, Real) and not isinstance(value, bool)
        if value is not None and not (number and value >= 0):
            raise InvalidValue("solve", [(name, value, "expected a number, at least 0")])
        if name == "gap" and value == math.inf:
            raise InvalidValue("solve", [(name, value, "expected a finite number, at least 0")])


class Solving:
    """A solve that runs in the background while the kernel stays free; made by `solve_in_background`.

    Parameters
    ----------
    problem : Problem
        What is solved.
    method : str
        As for `solve`.
    options : dict
        As for `solve`, without `stop`.

    Attributes
    ----------
    problem : Problem
        As given.
    progress : list of Progress
        Grows while it runs; the last entry is the newest.
    """

    def __init__(self, problem: Problem, method: str, options: dict) -> None:
        self.problem = problem
        self.progress: list = []
        self._stop = threading.Event()
        self._result: Result | None = None
        self._failure: BaseException | None = None
        options = {
            **options,
            "stop": self._stop,
            "on_progress": self._note(options.get("on_progress")),
        }
        # an interrupted Thread.join would take the thread for finished
        self._done = threading.Event()
        threading.Thread(
            target=self._work, args=(method, options), daemon=True, name="pipelab"
        ).start()

    def __repr__(self) -> str:
        last = self.progress[-1] if self.progress else None
        found = f"best {last.incumbent}, bound {last.bound}" if last else "nothing yet"
        return f"<{'solving' if self.running else 'finished'} {self.problem.name}: {found}>"

    @property
    def running(self) -> bool:
        """Whether it is still at work."""
        return not self._done.is_set()

    def stop(self) -> None:
        """Ask it to end; the best placement so far is kept. Returns at once; the end takes a second at most."""
        self._stop.set()

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the answer; an error of the solve is raised here.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; by default as long as it takes.

        Returns
        -------
        Result
            What `solve` returns.

        Raises
        ------
        TimeoutError
            It is still running after `timeout` seconds. It goes on running.
        PipelabError
            What `solve` raises.
        """
        deadline = math.inf if timeout is None else time.perf_counter() + timeout
        # In small steps: a wait without end cannot be interrupted everywhere.
        while not self._done.wait(max(0.0, min(0.1, deadline - time.perf_counter()))):
            if time.perf_counter() < deadline:
                continue
            raise TimeoutError(
                f"still solving {self.problem.name} after {timeout} s; call stop() to end it"
            )
        if self._failure is not None:
            raise self._failure
        return given(self._result)

    def _note(self, also: Callable | None) -> Callable:
        def note(moment: "Progress") -> None:
            self.progress.append(moment)
            if also is not None:
                also(moment)

        return note

    def _work(self, method: str, options: dict) -> None:
        try:
            self._result = solve(self.problem, method, **options)
        except BaseException as error:  # raised again by result(), in the caller's thread
            self._failure = error
        finally:
            self._done.set()


def solve_in_background(problem: Problem, method: str = "auto", **options: Any) -> Solving:
    """Start `solve` in a thread and return at once.

    Parameters
    ----------
    problem : Problem
        What is to be placed on what.
    method : str
        As for `solve`.
    **options
        As for `solve`, but `stop`.

    Returns
    -------
    Solving
        Its `progress` grows, `stop()` ends it, and `result()` waits for the answer or raises what
        `solve` would.

    Raises
    ------
    UnknownName
        `stop` is among the options.
    """
    if "stop" in options:
        raise UnknownName("solve_in_background makes its own stop; call .stop() on what it returns")
    return Solving(problem, method, options)
