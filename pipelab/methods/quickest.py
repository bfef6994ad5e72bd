"""Lowest time of one pass above a floor of throughput: one program for a sum of stages and hops."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pipelab.checked import given
from pipelab.errors import InvalidValue, PipelabError
from pipelab.evaluate import evaluate
from pipelab.formulations.aggregated.rates import StageRates, stage_rates
from pipelab.formulations.quickest.path import Path
from pipelab.formulations.quickest.sequence import Sequence
from pipelab.formulations.quickest.times import PassTimes, pass_times
from pipelab.interrupts import noted_interrupts
from pipelab.methods.floor import REACHED, floor_index, why_out_of_reach
from pipelab.methods.search import Search
from pipelab.methods.solvers import check_asked, run_program, solver_version
from pipelab.objective import Objective, status_and_least
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.result import Result

__all__ = ["quickest", "quickest_of", "refuse_transfers"]

# Solvers compare objectives within about 1e-6; counted in units of which the answer has this many, that is 1e-10 of it.
_UNITS = 10_000.0


def quickest(
    problem: Problem,
    at_least: float = 0.0,
    *,
    solver: str = "scip",
    time_limit: float | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """The placement with the lowest time per pass among those of at least so many tokens/s.

    One pass takes a microbatch through all stages and links, one after another. In decode that is
    the time per output token of every stream, in prefill the time to the first token. No sequence is shared
    in a pass (`pipelab.turns`), so more GPUs that each hold a stage's layers whole than there are sequences
    save no time. Each stage is run the way its cost model runs it everywhere: with `Roofline` the one of the
    greatest rate, whose pass need not be the shortest; `Roofline(prefer="time")` takes the shortest pass.

    Parameters
    ----------
    problem : Problem
        With `link_units="tokens"`, unless there is only one GPU.
    at_least : float
        Floor of throughput in tokens/s, kept by every stage and link.
    solver : {"scip", "highs"}
        Who solves the program; HiGHS cannot be stopped while it runs, but keeps a time limit.
    time_limit : float, optional
        Seconds. Ended early, the answer is the quickest placement so far, with a proven lower bound.
    stop : threading.Event, optional
        Set it to end the search, to the same effect.

    Returns
    -------
    Result
        `objective` has the value and its bound, also as `details["seconds_per_pass"]` and
        `details["bound_seconds"]`. Where no placement reaches the floor, the status is "infeasible" and
        `reason` has the greatest throughput there is.

    Raises
    ------
    InvalidValue
        Links counted in transfers/s, a floor or limit that is no number, or no problem.
    TooLarge
        Too many ways to compose a stage from too many classes of GPU.
    UnknownName
        There is no such solver.

    Notes
    -----
    Proven to one part in 10^9. A first placement comes from the question whether the floor can be
    reached; a first bound from the quickest stages and hops, as if there were GPUs without number.
    Only stages that both leave room for enter the program (`formulations.quickest`).

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens")
    >>> result = pl.quickest(tiny)
    >>> result.status, round(result.objective.value, 4), result.placement.gpus
    ('optimal', 108.581, (0, 1))
    """
    check_asked("quickest", problem, solver, time_limit, at_least, stop)
    refuse_transfers(problem, "quickest")
    began = time.perf_counter()
    return quickest_of(stage_rates(problem), at_least, solver, began, time_limit, stop)


def quickest_of(
    rates: StageRates,
    at_least: float,
    solver: str,
    began: float,
    time_limit: float | None,
    stop: threading.Event | None,
    explain: bool = True,
) -> Result:
    """The same where the rates are known; without `explain`, an infeasible floor has no reason."""
    hunt = _Hunt(rates, at_least, solver, began, time_limit, stop or threading.Event())
    with noted_interrupts(passed_on=False) as hunt.interrupted:
        hunt.run()
    return _result(hunt, explain)


def refuse_transfers(problem: Problem, what: str) -> None:
    """Raise `InvalidValue` where links are counted in transfers/s: those say nothing about tokens."""
    if problem.link_units != "tokens" and len(problem.cluster) > 1:
        expected = "expected 'tokens', so that links have a time: dataclasses.replace(problem, link_units='tokens')"
        raise InvalidValue(what, [("problem.link_units", problem.link_units, expected)])


@dataclass
class _Hunt:
    """The state of one search for the quickest placement.

    Attributes
    ----------
    seconds, bound : float or None
        Of the best placement so far; no placement has less (None: none was computed yet).
    impossible : bool
        No placement reaches the floor.
    """

    rates: StageRates
    at_least: float
    solver: str
    began: float
    time_limit: float | None
    stop: threading.Event
    best: Placement | None = None
    seconds: float | None = None
    bound: float | None = None
    impossible: bool = False
    stopped: str | None = None
    size: dict = field(default_factory=dict)
    nodes: int = 0
    interrupted: Callable[[], bool] = lambda: False

    def run(self) -> None:
        """Ask whether the floor can be reached; then solve the program, circuits forbidden one after the other."""
        if not self._reach_the_floor():
            self.impossible = True
            return
        times = pass_times(self.rates.problem, self.at_least * REACHED)
        self.bound = times.bound
        if self._proven():
            return
        form: Sequence | Path | None = self._form(times)
        while form is not None and not self._ended():
            form = self._solve(form)

    def _ended(self) -> bool:
        """Whether time is up or it was stopped: building and loading a large program takes seconds too."""
        if self.stop.is_set():
            self.stopped = "stop"
        elif self.interrupted():
            self.stopped = "interrupt"
        elif self._seconds_left() == 0:
            self.stopped = "time limit"
        return self.stopped is not None

    def _seconds_left(self) -> float | None:
        if self.time_limit is None:
            return None
        return max(0.0, self.time_limit - (time.perf_counter() - self.began))

    def _reach_the_floor(self) -> bool:
        """False where no placement reaches the floor; a placement that does is kept."""
        search = Search(
            self.rates, self.solver, self.began, self.time_limit, stop=self.stop, interrupted=self.interrupted
        )
        index = floor_index(self.rates, self.at_least)
        if index > search.highest() or search.reach(index) is False:
            return False
        self.nodes += search.nodes
        if search.low >= index:
            self._keep(given(search.best))
        return True

    def _form(self, times: PassTimes) -> Sequence | Path:
        most = float("inf") if self.seconds is None else self.seconds * (1 + 1e-9)
        unit = given(self.seconds or self.bound) / _UNITS
        return (Sequence if self.rates.problem.model.uniform else Path)(times, most, unit)

    def _solve(self, form: Sequence | Path) -> Sequence | Path | None:
        """Solve one program; what to solve next, or None at the end."""
        program = form.program
        self.size = program.size | {"compositions": len(form.times.composition), "groups": len(form.times.hop)}
        if self._ended():
            return None
        run = run_program(self.solver, program, time_limit=self._seconds_left(), stop=self.stop)
        self.nodes += run.nodes
        if run.status == "infeasible":
            if self.best is not None:
                raise PipelabError("a solver found no placement where one was known")
            self.impossible = True
            return None
        if run.bound is not None:
            self.bound = max(given(self.bound), -run.bound * form.unit)
        self.stopped = run.stopped_by
        if run.x is None:
            return None
        placement = form.placement_of(run.x)
        whole = placement is not None
        if isinstance(form, Sequence) and not whole:
            placement = form.joined(run.x)
        if placement is not None:
            self._keep(placement)
        if whole or self.stopped is not None or self._proven():
            return None
        stricter = form.stricter(run.x) if isinstance(form, Sequence) else None
        if stricter is None:
            raise PipelabError("a solver returned stages that make no pipeline")
        return stricter if self.seconds is None else replace(stricter, most=self.seconds * (1 + 1e-9))

    def _keep(self, placement: Placement) -> None:
        judged = evaluate(self.rates.problem, placement)
        if judged.throughput < self.at_least * REACHED * REACHED:
            raise PipelabError(f"a solver returned {judged.throughput} tokens/s where {self.at_least} are asked for")
        if self.seconds is None or judged.seconds_per_pass < self.seconds:
            self.best, self.seconds = placement, judged.seconds_per_pass

    def _proven(self) -> bool:
        return status_and_least(self.seconds, self.bound)[0] == "optimal"


def _result(hunt: _Hunt, explain: bool) -> Result:
    problem = hunt.rates.problem
    status, bound = status_and_least(hunt.seconds, hunt.bound)
    stopped, reason = hunt.stopped, ""
    if status in ("feasible", "unknown") and stopped is None:
        stopped = "time limit" if hunt.time_limit is not None else "the solver's tolerance"
    if hunt.impossible:
        status, bound, stopped = "infeasible", None, None
    if hunt.impossible and explain:
        reason = why_out_of_reach(hunt.rates, hunt.at_least, hunt.solver, hunt.time_limit, hunt.stop, hunt.began)
    objective = Objective("seconds_per_pass", "seconds per pass", hunt.seconds, bound, hunt.at_least)
    details = {"seconds_per_pass": hunt.seconds, "bound_seconds": bound, "nodes": hunt.nodes}
    throughput = evaluate(problem, hunt.best).throughput if hunt.best else None
    return Result(
        problem, "quickest", status, hunt.best, throughput, None, time.perf_counter() - hunt.began,
        {"classes": len(hunt.rates.classes)} | hunt.size, solver_version(hunt.solver), reason,
        stopped if status != "optimal" else None, details, objective,
    )  # fmt: skip
