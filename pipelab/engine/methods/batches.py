"""The best of several batch sizes: one question, in which what one attains is what the next has to beat."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipelab.engine.answers import Result
from pipelab.engine.deadline import Deadline, apart
from pipelab.engine.objective_and_bound import status_and_least
from pipelab.engine.tolerances import ATTAINED
from pipelab.errors import InvalidValue
from pipelab.fields import given, is_list, whole_number
from pipelab.problem import Problem


def best_batch(
    problem: Problem,
    batches: Sequence[int],
    solve: Callable[..., Result],
    options: Mapping[str, Any],
) -> Result:
    """Solve with each batch size and keep the best answer.

    The sizes nearest to the problem's own and then to the best so far come first.

    Parameters
    ----------
    problem : Problem
    batches : sequence of int
    solve : function of a problem, options and the tokens/s to beat
    options : mapping
        Of `pipelab.solve`; a time limit is for all batches together.

    Returns
    -------
    Result
        `problem` has the batch that was chosen, `batches` all of them. "optimal" is proven among these.

    Raises
    ------
    InvalidValue
        `batches` is not a list of whole numbers above 0.
    """
    given = list(batches) if is_list(batches) else []
    if not given:
        expected = "expected batch sizes, such as [4, 8, 16]"
        raise InvalidValue("solve", [("batches", batches, expected)])
    sizes = tuple(dict.fromkeys(whole_number("solve", "batches", size) for size in given))
    deadline, left = Deadline(options.get("time_limit")), sorted(sizes)

    def following(results: Sequence[Result]) -> tuple[Problem, Mapping[str, Any]]:
        best = _best(results).problem.workload if results else problem.workload
        size = left.pop(_nearest(left, best.batch_size))
        return replace(problem, workload=replace(problem.workload, batch_size=size)), options

    results = solved_in_turn(len(sizes), following, solve, deadline)
    answer = best_answer(results, len(results) < len(sizes))
    return replace(answer, seconds=deadline.spent, batches=sizes)


def solved_in_turn(
    number: int,
    following: Callable[[Sequence[Result]], tuple[Problem, Mapping[str, Any]]],
    solve: Callable[..., Result],
    deadline: Deadline,
    to_beat: float = 0.0,
) -> list[Result]:
    """Solve problems one after the other, each for what the ones before it do not attain, until time is over.

    Those that are likely to be the best come first, and have most of the time: half of what is left, the last all.

    Parameters
    ----------
    number : int
        Of problems.
    following : function of the answers so far
        The next problem and its options.
    solve : function of a problem, options and the tokens/s to beat
    to_beat : float
        Tokens/s that something else attains.
    """
    results: list[Result] = []
    while len(results) < number:
        problem, options = following(results)
        if "stop" in options:
            options = {**options, "stop": apart(options["stop"])}
        if deadline.limited:
            last = len(results) + 1 == number
            options = {**options, "time_limit": deadline.share(1 if last else 2)}
        results.append(solve(problem, dict(options), to_beat))
        to_beat = max(to_beat, results[-1].throughput or 0.0)
        if results[-1].stopped_by in ("stop", "interrupt") or deadline.reason:
            break
    return results


def best_answer(results: Sequence[Result], left_out: bool) -> Result:
    """Return the best of several answers to one question, with the bound of all; `left_out`: some are missing."""
    answer = _best(results)
    others = [result for result in results if result.status != "infeasible"]
    if left_out and answer.placement is None:
        reason, ended = answer.reason or "the rest was not tried in time", answer.stopped_by
        return replace(answer, status="unknown", reason=reason, stopped_by=ended or "time limit")
    if answer.placement is None or not others:
        return answer
    stopped = next((r.stopped_by for r in others if r.stopped_by is not None), None)
    if answer.objective is not None:
        bounds = [given(result.objective).bound for result in others]
        bound = None if None in bounds or left_out else min(map(given, bounds))
        status, bound = status_and_least(given(answer.objective.value), bound)
        goal = replace(answer.objective, bound=bound)
        return replace(answer, status=status, objective=goal, stopped_by=stopped)
    bounds = [result.bound for result in others]
    most = None if None in bounds or left_out else max(map(given, bounds))
    rate = given(answer.throughput)
    if most is not None and most <= rate * (1 + ATTAINED):
        return replace(answer, status="optimal", bound=rate, stopped_by=None, reason="")
    return replace(answer, status="feasible", bound=most, stopped_by=stopped)


def _nearest(sizes: Sequence[int], size: int) -> int:
    """Return the place of the number whose ratio to `size` is nearest to 1; of two the greater."""
    ratios = [max(other / size, size / other) for other in sizes]
    return len(sizes) - 1 - ratios[::-1].index(min(ratios))


def _best(results: Sequence[Result]) -> Result:
    """Return the greatest throughput, or the least value of the objective."""
    placed = [result for result in results if result.placement is not None]
    if not placed:
        open_ = [result for result in results if result.status != "infeasible"]
        return min(open_ or results, key=lambda result: result.problem.workload.batch_size)
    if placed[0].objective is not None:
        return min(placed, key=lambda result: given(given(result.objective).value))
    return max(placed, key=lambda result: given(result.throughput))
