"""Watching a solver at work: incumbent, bound and placement as they come, and a button that stops it."""

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from pipelab.display import REFUSED, counted, ended, proven_among, rate
from pipelab.engine.answers import Result
from pipelab.engine.background import solve_in_background
from pipelab.engine.solvers.solver_run import Progress
from pipelab.errors import InvalidValue
from pipelab.evaluation import evaluate
from pipelab.fields import given, instance
from pipelab.figures.placements import limited_by, placement_parts
from pipelab.figures.progress import progress_parts
from pipelab.figures.theme import plain
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.widgets.background import follow, running_loop
from pipelab.widgets.chart import LiveChart
from pipelab.widgets.explorer_parts import Explorer, Words, shared

_METHODS = ("auto", "joint", "aggregated", "single_gpu")
_REDRAWN_EVERY_S = 0.25  # more often, and redrawing would slow the solver down


class WatchedSolve(Explorer):
    """What `pl.watch_solve` returns; shows itself at the end of a cell.

    Attributes
    ----------
    solving : Solving
        The solve in its thread; `.result()` waits for its answer.
    """

    def __init__(self, problem: Problem, method: str, options: dict) -> None:
        self.problem, self._limit = problem, options.get("time_limit")
        self._name = f"{plain(problem.name)}, {method}"
        self._began, self._lead = time.perf_counter(), math.inf
        self._drawn: tuple[Placement | None, str] = (None, "")
        self._ended = False
        self.stop_button = widgets.Button(
            description="Stop and keep the best", icon="stop", layout={"width": "210px"}
        )
        self.stop_button.on_click(lambda _: self.stop())
        look = {"style": {"description_width": "initial"}}
        self.used = widgets.FloatProgress(max=self._limit or 1, description="time used", **look)
        self.status = Words()
        self.solving = solve_in_background(problem, method, **options)
        self.progress = LiveChart(progress_parts((), 0.0, f"{self._name}: at work", self._gap()))
        self.chart = LiveChart(placement_parts(problem, None, "No placement yet"))
        self.refresh()
        head = widgets.HBox([self.stop_button, self.used])
        charts = [self.status, self.progress, self.chart]
        super().__init__([head, *charts, shared()])
        # in a notebook its loop keeps the picture fresh; elsewhere `refresh` does
        if (loop := running_loop()) is not None:
            follow(loop.create_task(self._follow()))

    def stop(self) -> None:
        """Ask the solver to end; the best placement so far is kept."""
        self.solving.stop()
        self.stop_button.disabled = True
        if not self._ended:
            self.status.say("Stopping; the best placement so far is kept …")

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the answer; see `Solving.result`."""
        return self.solving.result(timeout)

    async def _follow(self) -> None:
        while not self._ended:
            await asyncio.sleep(_REDRAWN_EVERY_S)
            self.refresh()

    def refresh(self) -> None:
        """Draw what is known now; called four times a second while a notebook's kernel is free."""
        # read first: if it has ended, everything read below is complete
        running = self.solving.running
        moments, elapsed = tuple(self.solving.progress), time.perf_counter() - self._began
        if not running:
            self._end(moments)
            return
        if moments:  # the solver's clock starts when its model is built
            self._lead = min(self._lead, max(0.0, elapsed - moments[-1].seconds))
        seconds = max(0.0, elapsed - self._lead)
        self.used.value = min(elapsed, self.used.max) if self._limit else 1.0
        title, gap = f"{self._name}: at work", self._gap(moments)
        self.progress.put(progress_parts(moments, seconds, title, gap))
        news = "the model is being built and presolved …"
        if moments:
            last = moments[-1]
            best = "no placement yet" if last.incumbent is None else f"best {rate(last.incumbent)}"
            bound = "no bound yet" if last.bound is None else f"bound {rate(last.bound)}"
            news = f"{best}, {bound}, {last.nodes:,} nodes when that was found."
            if last.placement is not None:
                self._draw(last.placement, given(last.incumbent), "best so far")
        if not self.stop_button.disabled:
            self.status.say(f"… {elapsed:.1f} s: {news}")

    def _end(self, moments: "Sequence[Progress]") -> None:
        """Draw the last picture, with what the solver proved."""
        self._ended = self.stop_button.disabled = True
        try:
            result = self.solving.result()
        except Exception as error:  # too large, or not applicable: the reason belongs here
            self.status.explain(error)
            refused = f"{self._name}: {REFUSED}"
            self.progress.put(progress_parts((), 0.0, refused, "see the reason above"))
            self.chart.put(placement_parts(None, None, "There was nothing to solve"))
            return
        moments = result.details.get("progress") or moments
        end = moments[-1].seconds if moments else 0.0
        title = f"{plain(self.problem.name)}, {result.method}: {ended(result)}"
        self.progress.put(progress_parts(moments, end, title, self._gap(moments)))
        self.used.value = min(result.seconds, self.used.max) if self._limit else 1.0
        self.used.description = f"ended after {result.seconds:.3g} s"
        self.status.say(result.sentence)
        if result.placement is None:
            why = plain(result.reason)
            self.chart.put(placement_parts(self.problem, None, "No placement", why))
            return
        among = proven_among(result)
        proof = f"proven for {among}" if among else "the best that was found"
        proof = "proven optimal" if result.status == "optimal" else proof
        self._draw(result.placement, given(result.throughput), proof)

    def _gap(self, moments: "Sequence[Progress]" = ()) -> str:
        """Write the gap with its numbers put in."""
        last = moments[-1] if moments else None
        if last is None or last.bound is None or not math.isfinite(last.bound):
            return "gap: not known before the first bound"
        if not last.incumbent:
            return f"gap: infinite, since there is no placement yet; bound {last.bound:,.6g}"
        gap = (last.bound - last.incumbent) / last.incumbent
        numbers = f"({last.bound:,.6g} − {last.incumbent:,.6g}) / {last.incumbent:,.6g}"
        return f"gap = (bound − best) / best = {numbers} = {gap:.2%}"

    def _draw(self, placement: Placement, throughput: float, proof: str) -> None:
        if self._drawn != (placement, proof):
            self._drawn = (placement, proof)
            slow = limited_by(evaluate(self.problem, placement).bottlenecks)
            title = f"{rate(throughput)} in {counted(len(placement), 'stage')}, {proof}"
            self.chart.put(placement_parts(self.problem, placement, title, slow))


def watch_solve(
    problem: Problem, method: str = "auto", *, time_limit: float | None = 60, **options: Any
) -> WatchedSolve:
    """Solve in the background and watch: incumbent, bound, gap and placement, with a button to stop.

    The kernel stays free: other cells run and other widgets answer meanwhile.

    Parameters
    ----------
    problem : Problem
        What is to be placed on what.
    method : str
        One that reports its progress: "auto", "joint", "aggregated" or "single_gpu" (whose
        placement comes at the end).
    time_limit : float or None
        Seconds; the best placement by then is kept.
    **options
        As for `pl.solve`.

    Returns
    -------
    WatchedSolve
        A widget; `result()` waits for the answer, `refresh()` draws it outside a notebook.

    Raises
    ------
    InvalidValue
        `problem` is not a `Problem`, or the method does not report its progress.
    UnknownName
        `stop` is among the options; the button does that.

    Examples
    --------
    >>> import pipelab as pl
    >>> watched = pl.watch_solve(pl.load_case("tiny", max_gpus_per_stage=2))
    >>> round(watched.result().throughput, 3)
    301.784
    >>> watched.refresh()
    >>> watched.chart.layout.title.text.split("<br>")[0]
    '301.8 tokens/s in 1 stage, proven optimal'
    """
    expected = "a Problem, such as load_case('tiny')"
    instance("watch_solve", "problem", problem, Problem, expected)
    if method not in _METHODS:
        expected = f"expected one that reports its progress: {', '.join(_METHODS)}"
        raise InvalidValue("watch_solve", [("method", method, expected)])
    return WatchedSolve(problem, method, {**options, "time_limit": time_limit})
