"""Watching a solver at work: incumbent, bound and placement as they come, and a button that stops it."""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from pipelab.display import REFUSED, counted, ended, proven_among
from pipelab.engine.background import solve_in_background
from pipelab.errors import InvalidValue
from pipelab.evaluation import evaluate
from pipelab.fields import given
from pipelab.figures.placements import limited_by, placement_parts
from pipelab.figures.progress import progress_parts
from pipelab.figures.theme import plain, rate
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result
from pipelab.widgets.background import pending
from pipelab.widgets.chart import LiveChart
from pipelab.widgets.parts import Words, reload_note, shared

if TYPE_CHECKING:
    from pipelab.engine.solvers.solver_run import Progress

_METHODS = ("auto", "joint", "aggregated", "single_gpu")
_EVERY_S = 0.25  # more often, and redrawing would slow the solver down


class WatchedSolve(widgets.VBox):
    """What `pl.watch_solve` returns; shows itself at the end of a cell.

    Attributes
    ----------
    solving : Solving
        The solve in its thread; `.result()` waits for its answer.
    """

    def __init__(self, problem: Problem, method: str, options: dict) -> None:
        self.problem, self.method, self.limit = problem, method, options.get("time_limit")
        self._began, self._lead = time.perf_counter(), None
        self._drawn: tuple[Placement | None, str] = (None, "")
        self._ended = False
        self.stop_button = widgets.Button(
            description="Stop and keep the best", icon="stop", layout={"width": "210px"}
        )
        self.stop_button.on_click(lambda _: self.stop())
        self.used = widgets.FloatProgress(
            value=0,
            max=self.limit or 1,
            description="time used",
            style={"description_width": "initial"},
        )
        self.status = Words()
        self.solving = solve_in_background(problem, method, **options)
        self.progress = LiveChart(progress_parts((), 0.0, *self._title()))
        self.chart = LiveChart(placement_parts(problem, None, "No placement yet"))
        self.refresh()
        parts = [
            widgets.HBox([self.stop_button, self.used]),
            self.status,
            self.progress,
            self.chart,
        ]
        super().__init__([*parts, reload_note(), shared()])
        try:  # in a notebook its loop keeps the picture fresh; elsewhere `refresh` does
            self._task: asyncio.Task | None = asyncio.get_running_loop().create_task(self._follow())
            pending.add(self._task)
            self._task.add_done_callback(pending.discard)
        except RuntimeError:
            self._task = None

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
            await asyncio.sleep(_EVERY_S)
            self.refresh()

    def refresh(self) -> None:
        """Draw what is known now; called four times a second while a notebook's kernel is free."""
        # read first: if it has ended, everything read below is complete
        running = self.solving.running
        moments, elapsed = tuple(self.solving.progress), time.perf_counter() - self._began
        if moments:  # the solver's clock starts when its model is built
            ahead = max(0.0, elapsed - moments[-1].seconds)
            self._lead = ahead if self._lead is None else min(self._lead, ahead)
        if not running:
            self._end(moments)
            return
        seconds = elapsed - (elapsed if self._lead is None else self._lead)
        self.used.value = min(elapsed, self.used.max) if self.limit else 1.0
        self.progress.put(progress_parts(moments, seconds, *self._title(moments)))
        self._draw_placement(moments)
        if not self.stop_button.disabled:
            self.status.say(self._news(moments, elapsed))

    def _end(self, moments: "Sequence[Progress]") -> None:
        """The last picture, with what the solver proved."""
        self._ended = True
        self.stop_button.disabled = True
        try:
            result = self.solving.result()
        except (
            Exception
        ) as error:  # too large, or not applicable: the reason belongs here, not into a log
            self.status.explain(error)
            self.progress.put(
                progress_parts((), 0.0, f"{self._name}: {REFUSED}", "see the reason above")
            )
            self.chart.put(
                placement_parts(None, None, "There was nothing to solve", "see the reason above")
            )
            return
        moments = result.details.get("progress") or moments
        end = moments[-1].seconds if moments else 0.0
        title = f"{plain(self.problem.name)}, {result.method}: {ended(result)}"
        self.progress.put(progress_parts(moments, end, title, self._gap(moments)))
        self.used.value = min(result.seconds, self.used.max) if self.limit else 1.0
        self.used.description = f"ended after {result.seconds:.3g} s"
        self.status.say(result.sentence)
        if result.placement is not None:
            among = proven_among(result)
            proof = f"proven for {among}" if among else "the best that was found"
            proof = "proven optimal" if result.status == "optimal" else proof
            self._draw(result.placement, given(result.throughput), proof)
        else:
            self.chart.put(
                placement_parts(self.problem, None, "No placement", plain(result.reason[:110]))
            )

    def _title(self, moments: "Sequence[Progress]" = ()) -> tuple[str, str]:
        return f"{self._name}: at work", self._gap(moments)

    @property
    def _name(self) -> str:
        return f"{plain(self.problem.name)}, {self.method}"

    def _gap(self, moments: "Sequence[Progress]") -> str:
        """The gap with its numbers put in."""
        last = moments[-1] if moments else None
        if last is None or last.bound is None:
            return "gap: not known before the first bound"
        if last.incumbent is None:
            return f"gap: infinite, since there is no placement yet; bound {last.bound:,.6g}"
        gap = (last.bound - last.incumbent) / last.incumbent
        numbers = f"({last.bound:,.6g} − {last.incumbent:,.6g}) / {last.incumbent:,.6g}"
        return f"gap = (bound − best) / best = {numbers} = {gap:.2%}"

    def _news(self, moments: "Sequence[Progress]", elapsed: float) -> str:
        if not moments:
            return f"… {elapsed:.1f} s: the model is being built and presolved …"
        last = moments[-1]
        best = (
            f"best {last.incumbent:,.6g} tokens/s"
            if last.incumbent is not None
            else "no placement yet"
        )
        bound = f"bound {last.bound:,.6g}" if last.bound is not None else "no bound yet"
        return f"… {elapsed:.1f} s: {best}, {bound}, {last.nodes:,} nodes when that was found."

    def _draw_placement(self, moments: "Sequence[Progress]") -> None:
        last = moments[-1] if moments else None
        if last is not None and last.placement is not None and last.placement is not self._drawn[0]:
            self._draw(last.placement, given(last.incumbent), "best so far")

    def _draw(self, placement: Placement, throughput: float, proof: str) -> None:
        if self._drawn == (placement, proof):
            return
        self._drawn = (placement, proof)
        slow = evaluate(self.problem, placement).bottlenecks
        title = f"{rate(throughput)} in {counted(len(placement), 'stage')}, {proof}"
        self.chart.put(placement_parts(self.problem, placement, title, limited_by(slow)))


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
    if not isinstance(problem, Problem):
        raise InvalidValue(
            "watch_solve", [("problem", problem, "expected a Problem, such as load_case('tiny')")]
        )
    if method not in _METHODS:
        expected = f"expected one that reports its progress: {', '.join(_METHODS)}"
        raise InvalidValue("watch_solve", [("method", method, expected)])
    return WatchedSolve(problem, method, {**options, "time_limit": time_limit})
