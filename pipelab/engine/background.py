"""A solve in a thread of its own, so that a notebook's kernel stays free."""

import math
import threading
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from pipelab.engine.answers import Result
from pipelab.engine.solving import method_of, options_of, solve
from pipelab.errors import UnknownName
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pipelab.engine.solvers.solver_run import Progress


class Solving:
    """A solve that runs in the background while the kernel stays free; made by `solve_in_background`.

    Parameters
    ----------
    problem : Problem
        The problem to solve.
    method : str
        As for `solve`.
    options : dict
        As for `solve`, without `stop`.

    Attributes
    ----------
    problem : Problem
        As given.
    progress : list of Progress
        Grows while the solve runs; the last entry is the newest.
    """

    def __init__(self, problem: Problem, method: str, options: dict) -> None:
        self.problem = problem
        self.progress: list = []
        self._stop = threading.Event()
        self._future: Future[Result] = Future()
        self._also = options.get("on_progress")
        threading.Thread(
            target=self._work, args=(method, options), daemon=True, name="pipelab"
        ).start()

    def __repr__(self) -> str:
        last = self.progress[-1] if self.progress else None
        known = f"best {last.incumbent}, bound {last.bound}" if last else "nothing yet"
        return f"<{'solving' if self.running else 'finished'} {self.problem.name}: {known}>"

    @property
    def running(self) -> bool:
        """Whether it is still running."""
        return not self._future.done()

    def stop(self) -> None:
        """Ask it to end; the best placement so far is kept. Returns at once; the solve ends within a second."""
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
        while not wait([self._future], max(0.0, min(0.1, deadline - time.perf_counter()))).done:
            if time.perf_counter() >= deadline:
                name = self.problem.name
                raise TimeoutError(f"still solving {name} after {timeout} s; call stop() to end it")
        return self._future.result()

    def _note(self, moment: "Progress") -> None:
        self.progress.append(moment)
        if self._also is not None:
            self._also(moment)

    def _work(self, method: str, options: dict) -> None:
        try:
            # Not every method can be stopped or has news.
            known = options_of(method_of(method, options))
            forced = {"stop": self._stop, "on_progress": self._note}
            forced = {name: value for name, value in forced.items() if name in known}
            self._future.set_result(solve(self.problem, method, **(options | forced)))
        except BaseException as error:  # raised again by result(), in the caller's thread
            self._future.set_exception(error)


def solve_in_background(problem: Problem, method: str = "auto", **options: Any) -> Solving:
    """Start `solve` in a thread and return at once.

    Parameters
    ----------
    problem : Problem
        The problem to solve.
    method : str
        As for `solve`.
    **options
        As for `solve`, except `stop`.

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
