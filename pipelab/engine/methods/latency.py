"""Lowest time of one pass above a floor of throughput: one program for a sum of stages and hops."""

import math
from dataclasses import dataclass, field, replace

from pipelab.engine.deadline import Deadline, Ended, deadline_of, made_in_time
from pipelab.engine.formulations.aggregated.rates import StageRates, stage_rates
from pipelab.engine.formulations.latency.path import Path
from pipelab.engine.formulations.latency.sequence import Sequence
from pipelab.engine.formulations.latency.times import PassTimes, bound_of_more, pass_times
from pipelab.engine.formulations.nodes.fewer import fewer_nodes
from pipelab.engine.formulations.nodes.rates import NodeRates
from pipelab.engine.methods.aggregated import first_search, rates_in_time, stand_in
from pipelab.engine.methods.first_placements import best_of, incumbents
from pipelab.engine.methods.least_rate import floor_index, unfinished, why_out_of_reach
from pipelab.engine.methods.search import Search
from pipelab.engine.methods.subproblems import Subproblems
from pipelab.engine.objective import Objective, status_and_least
from pipelab.engine.solvers import choice
from pipelab.engine.tolerances import PROVEN_WITHIN, REACHED, SOLVER
from pipelab.errors import InvalidValue, PipelabError, TooLarge
from pipelab.evaluation import evaluate
from pipelab.fields import checked_arguments, given
from pipelab.placement import Placement
from pipelab.problem import Problem
from pipelab.solving import Result

# Solvers compare objectives within about 1e-6; counted in units of which the answer has this many,
# that is 1e-10 of it.
_UNITS = 10_000.0
BY_TOLERANCE = "the solver's tolerance"  # what ended it if the last subproblem stayed open
_LAST_SECONDS = 5.0  # for the last subproblem: on rare clusters it is far harder than all others
_SPREAD = 1_000.0  # times the bound: what takes longer waits


@checked_arguments
def solve_for_latency(
    problem: choice.AskedProblem,
    at_least: choice.Floor = 0.0,
    *,
    time_limit: choice.TimeLimit = None,
    stop: choice.Stop = None,
) -> Result:
    """The placement with the lowest time per pass among those that reach a rate in tokens/s.

    One pass takes a microbatch through all stages and links, one after another. In decode that is
    the time per output token of every stream, in prefill the time to the first token. No sequence
    is shared in a pass (`pipelab.costs`), so more GPUs that each hold a stage's layers whole
    than there are sequences save no time. Each stage runs in the mode its cost model chooses
    everywhere: with `Roofline` the one of the greatest rate, whose pass need not be the shortest;
    `Roofline(prefer="time")` takes the shortest pass.

    Parameters
    ----------
    problem : Problem
        With `link_units="tokens"`, unless there is only one GPU.
    at_least : float
        Floor of throughput in tokens/s, kept by every stage and link.
    time_limit : float, optional
        Seconds. Ended early, the answer is the best placement so far, with a proven lower
        bound.
    stop : threading.Event, optional
        Set it to end the search, with the same effect.

    Returns
    -------
    Result
        `objective` has the value and its bound, also as `details["seconds_per_pass"]` and
        `details["bound_seconds"]`. Where no placement reaches the floor, the status is "infeasible"
        and `reason` has the greatest throughput there is.

    Raises
    ------
    InvalidValue
        Links counted in transfers/s, a floor or limit that is not a number, or not a problem.
    TooLarge
        Too many compositions of a stage from too many classes of GPU.

    Notes
    -----
    Proven to one part in 10^9. A first placement comes from the subproblem whether the floor can be
    reached; a first bound from the fastest stages and hops, as if there were GPUs without number.
    Only stages that fit within both enter the program (`formulations.latency`). Stages and
    hops more than a thousand times as long as the bound wait: they enter if there is no placement
    without them, so that no solver compares milliseconds with years. Solvers compare within a
    tolerance, so a last program checks whether any placement is faster by more than the claimed tolerance.

    Examples
    --------
    >>> import pipelab as pl
    >>> tiny = pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens")
    >>> result = solve_for_latency(tiny)
    >>> result.status, round(result.objective.value, 4), result.placement.gpus
    ('optimal', 108.581, (0, 1))
    """
    refuse_transfers(problem, "solve")
    with deadline_of(time_limit, stop) as deadline:
        first = first_search(problem, deadline)
        found = incumbents(problem)
        if first is not None and first.best is not None:
            found[first.best] = evaluate(problem, first.best)
        best = best_of(found, at_least, lambda _, evaluation: evaluation.seconds_per_pass)
        try:
            rates = rates_in_time(problem, deadline)
        except Ended as end:
            best = best or stand_in(problem, at_least)
            return unfinished(
                problem, "latency", deadline, end, _found(problem, best, at_least), best
            )
        return latency_of_rates(rates, at_least, deadline, best=best)


def latency_of_rates(
    rates: StageRates,
    at_least: float,
    deadline: Deadline,
    explain: bool = True,
    best: Placement | None = None,
    exact: bool = True,
) -> Result:
    """The same where the rates are known; without `explain`, an infeasible floor has no reason.

    `best`: a placement that reaches the floor, if one is known. Without `exact` the last subproblem,
    which can be hard, is left out: the bound is then lower by what a solver's tolerance may hide.
    """
    search = _LatencySearch(rates, at_least, deadline, exact)
    if best is not None:
        search.keep(best)
    try:
        proven = _proven_on_fewer_nodes(search)
    except (Ended, TooLarge):
        proven = False  # all nodes at once may still be quicker, and say what ended it
    try:
        if not proven:
            search.run()
    except TooLarge as error:
        if search.best is None:
            raise
        search.stopped, search.reason = "list limit", str(error)
    return _result(search, explain)


def _proven_on_fewer_nodes(search: "_LatencySearch") -> bool:
    """Where nodes repeat: the lowest latency on two of each, on four, …, until it is proven for all of them.

    What it is on fewer nodes is no bound for all, but what it would be with GPUs without number is.
    """
    problem, number = search.rates.problem, 2
    while isinstance(search.rates, NodeRates):
        search.deadline.check()
        fewer = fewer_nodes(problem, number)
        if fewer is None:
            return False
        small, ids = fewer
        times = pass_times(small, search.at_least * (1 - REACHED), search.deadline)
        bound = bound_of_more(times, problem, search.at_least * (1 - REACHED), search.deadline)
        search.bound = max(bound, search.bound or 0.0)
        known = _LatencySearch(
            stage_rates(small, search.deadline), search.at_least, search.deadline
        )
        known.run()
        if known.best is not None:
            search.keep(
                Placement(
                    tuple(
                        replace(s, gpus=tuple(ids[list(s.gpus)].tolist()))
                        for s in known.best.stages
                    )
                )
            )
            if search._proven():
                return True
        number *= 2
    return False


def refuse_transfers(problem: Problem, what: str) -> None:
    """Raise `InvalidValue` where links are counted in transfers/s: those say nothing about tokens."""
    if problem.link_units != "tokens" and len(problem.cluster) > 1:
        expected = "expected 'tokens', so that links have a time: dataclasses.replace(problem, link_units='tokens')"
        raise InvalidValue(what, [("problem.link_units", problem.link_units, expected)])


@dataclass
class _LatencySearch:
    """The state of one search for the placement of lowest latency.

    Attributes
    ----------
    seconds, bound : float or None
        Of the best placement so far; no placement has less (None: none was computed yet).
    impossible : bool
        No placement reaches the floor.
    claimed : bool
        The bound meets the best placement by a solver's word only.
    """

    rates: StageRates
    at_least: float
    deadline: Deadline
    exact: bool = True
    best: Placement | None = None
    seconds: float | None = None
    bound: float | None = None
    impossible: bool = False
    claimed: bool = False
    stopped: str | None = None
    reason: str = ""
    size: dict = field(default_factory=dict)
    nodes: int = 0

    def run(self) -> None:
        """Ask whether the floor can be reached; then for less and less time, until nothing is faster."""
        try:
            if not self._reach_the_floor():
                self.impossible = True
                return
            floor = self.at_least * (1 - REACHED)
            times = made_in_time(
                lambda until: pass_times(self.rates.problem, floor, until), self.deadline
            )
            self.bound = made_in_time(
                lambda until: replace(times, deadline=until).bound, self.deadline
            )
            times = replace(times, deadline=self.deadline)
            while not (self.impossible or self._proven() or self.stopped):
                self.deadline.check()
                known = self.seconds, self.bound
                self._improve(times)
                if (self.seconds, self.bound) == known:
                    return  # no better by this solver's tolerance
            excluded = None  # the time below which something was looked for last
            while (
                self.exact
                and self.claimed
                and not self.stopped
                and self._proven()
                and self.seconds != excluded
            ):
                excluded = self.seconds
                self._exclude(times)
        except Ended as end:
            self.stopped = end.reason

    def _reach_the_floor(self) -> bool:
        """False where no placement reaches the floor; a placement that does is kept."""
        search = Search(Subproblems(self.rates, self.deadline))
        index = floor_index(self.rates, self.at_least)
        if index > search.subproblems.highest() or search.reach(index) is False:
            return False
        self.nodes += search.subproblems.nodes
        if search.low >= index:
            self.keep(given(search.best))
        return True

    def _improve(self, times: PassTimes) -> None:
        """One round: the least time without what is far longer than the bound."""
        known = math.inf if self.seconds is None else self.seconds * (1 + PROVEN_WITHIN)
        cap = min(known, given(self.bound) * _SPREAD)
        some, beyond = times.up_to(cap)
        # the least of what was left out, if it can be of use
        beyond = beyond if beyond <= known else math.inf
        least = math.inf if some.bound > known else self._least(self._form(some, known))
        if min(least, beyond) == math.inf:
            self.impossible = self.best is None
            least = given(self.seconds) if self.best is not None else math.inf
        if least > -math.inf:
            self.bound = max(given(self.bound), min(least, beyond))
            self.claimed = True

    def _form(self, times: PassTimes, most: float, quicker: bool = False) -> Sequence | Path:
        unit = min(most, max(times.bound, given(self.bound)) * _SPREAD) / _UNITS
        return (Sequence if self.rates.problem.model.uniform else Path)(
            times, most, unit, quicker=quicker
        )

    def _least(self, form: Sequence | Path | None) -> float:
        """The least time that a form's program has, circuits forbidden one after the other; what it finds is kept.

        Infinite where it has no placement, minus infinity where that was not settled.
        """
        least = -math.inf
        while form is not None:
            self.deadline.check()
            program = form.program
            self.size = program.size | {
                "compositions": len(form.times.composition),
                "groups": len(form.times.hop),
            }
            run = choice.run_program(program, deadline=self.deadline)
            self.nodes += run.nodes
            if run.status == "infeasible":
                return math.inf
            if run.bound is not None and not form.quicker:
                # in units: an answer of far fewer units is not proven by that
                least = max(least, (-run.bound - 2 * SOLVER) * form.unit)
            self.stopped = run.stopped_by
            if run.x is None:
                return least
            placement = form.placement_of(run.x)
            whole = placement is not None
            if isinstance(form, Sequence) and not whole:
                placement = form.joined(run.x)
            if placement is not None:
                self.keep(placement)
            if whole or self.stopped is not None or (self._proven() and not form.quicker):
                return least
            stricter = form.stricter(run.x) if isinstance(form, Sequence) else None
            if stricter is None:
                raise PipelabError("a solver returned stages that make no pipeline")
            form = stricter
        return least

    def _exclude(self, times: PassTimes) -> None:
        """Whether any placement is quicker than the best by more than what is claimed; if none is, that is proven.

        A feasibility problem: no solver stops at it because a bound is near enough.
        """
        less = given(self.seconds) * (1 - PROVEN_WITHIN)
        some, _ = times.up_to(less)
        whole, self.deadline = self.deadline, self.deadline.within(_LAST_SECONDS)
        try:
            self.claimed = (
                some.bound <= less and self._least(self._form(some, less, quicker=True)) < math.inf
            )
        except Ended:
            whole.check()
        finally:
            self.deadline = whole
        if self.stopped == "time limit" and whole.reason is None:
            # of this subproblem alone: what is known holds within the solver's tolerance
            self.stopped = None
        self.bound = min(given(self.bound), given(self.seconds))

    def keep(self, placement: Placement) -> None:
        """Take a placement that reaches the floor, if it is the best."""
        evaluation = evaluate(self.rates.problem, placement)
        if evaluation.rate < self.at_least * (1 - REACHED) ** 2:
            raise PipelabError(
                f"a solver returned {evaluation.rate} tokens/s where {self.at_least} are demanded"
            )
        if self.seconds is None or evaluation.seconds_per_pass < self.seconds:
            self.best, self.seconds = placement, evaluation.seconds_per_pass

    def _proven(self) -> bool:
        return status_and_least(self.seconds, self.bound)[0] == "optimal"


def _found(problem: Problem, best: Placement | None, at_least: float) -> Objective:
    """Of a placement about which nothing is proven."""
    return _objective(evaluate(problem, best).seconds_per_pass if best else None, None, at_least)


def _objective(seconds: float | None, bound: float | None, at_least: float) -> Objective:
    return Objective("seconds_per_pass", "seconds per pass", seconds, bound, at_least)


def _result(search: _LatencySearch, explain: bool) -> Result:
    problem = search.rates.problem
    status, bound = status_and_least(search.seconds, search.bound)
    if search.claimed and search.seconds is not None:  # by a solver's tolerance only
        status, bound = "feasible", min(given(search.bound), search.seconds) * (1 - SOLVER)
    stopped, reason = search.stopped, search.reason
    if status in ("feasible", "unknown") and stopped is None:
        stopped = BY_TOLERANCE if search.claimed or not search.deadline.limited else "time limit"
    if search.impossible:
        status, bound, stopped = "infeasible", None, None
    if search.impossible and explain:
        reason = why_out_of_reach(search.rates, search.at_least, search.deadline)
    details = {"seconds_per_pass": search.seconds, "bound_seconds": bound, "nodes": search.nodes}
    throughput = evaluate(problem, search.best).rate if search.best else None
    return Result(
        problem, "latency", status, search.best, throughput, None, search.deadline.spent,
        {"classes": len(search.rates.classes)} | search.size, choice.solver_version(),
        search.deadline.remark(reason), stopped if status != "optimal" else None, details,
        _objective(search.seconds, bound, search.at_least),
    )  # fmt: skip
