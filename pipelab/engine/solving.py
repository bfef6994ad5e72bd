"""solve(problem): a placement, how good it is, and how far it may be from the best.

`METHODS` and `OBJECTIVES` hold the function behind each word.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, overload

from pipelab.engine.answers import Result
from pipelab.engine.arguments import check_options, refuse_training
from pipelab.engine.deadline import stop_of
from pipelab.engine.methods.aggregated import solve_aggregated
from pipelab.engine.methods.attainable_rate import solve_for_attainable
from pipelab.engine.methods.auto import solve_auto
from pipelab.engine.methods.batches import best_batch
from pipelab.engine.methods.exhaustive import solve_exhaustive
from pipelab.engine.methods.joint import solve_joint
from pipelab.engine.methods.latency_and_cost import solve_for_least
from pipelab.engine.methods.least_regret import solve_for_least_regret
from pipelab.engine.methods.rules_of_thumb import RULES, solve_by_rule
from pipelab.engine.methods.single_gpu import solve_single_gpu
from pipelab.engine.methods.step_time import solve_for_step_time
from pipelab.engine.runs_on import best_start
from pipelab.engine.training import TrainingResult
from pipelab.errors import InvalidValue, UnknownName, nearest, refuse_unknown
from pipelab.interrupts import noted_interrupts
from pipelab.problem import Problem
from pipelab.reproductions import reproduction

# None: a reproduction, imported when it is asked for.
METHODS: dict[str, Callable[..., Result] | None] = {
    "auto": solve_auto,
    **{name: partial(solve_by_rule, name) for name in RULES},
    "exhaustive": solve_exhaustive,
    "single_gpu": solve_single_gpu,
    "type_count": None,
    "joint": solve_joint,
    "aggregated": solve_aggregated,
}
# None: the method answers. The others have a search of their own.
OBJECTIVES: dict[str, Callable[..., Any] | None] = {
    "throughput": None,
    "rate": None,
    "latency": partial(solve_for_least, "latency"),
    "cost": partial(solve_for_least, "cost"),
    "step_time": solve_for_step_time,
    "regret": None,
}

_OF_EVERY_METHOD = ("objective", "batches", "runs_on", "within")  # options that `solve` sees to


@overload
def solve(
    problem: Problem,
    method: str = ...,
    *,
    objective: Literal["step_time"],
    runs_on: str | None = ...,
    **options: Any,
) -> TrainingResult: ...


@overload
def solve(
    problem: Problem,
    method: str = ...,
    objective: str = ...,
    *,
    batches: Sequence[int] | None = ...,
    runs_on: str | None = ...,
    within: float | Mapping[str, float] | str | None = ...,
    **options: Any,
) -> Result: ...


def solve(
    problem: Problem,
    method: str = "auto",
    objective: str = "throughput",
    *,
    batches: Sequence[int] | None = None,
    runs_on: str | None = None,
    within: float | Mapping[str, float] | str | None = None,
    **options: Any,
) -> Any:
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
    objective : {"throughput", "rate", "latency", "cost", "step_time", "regret"}
        What is proven best. "throughput": the attainable rate (`Evaluation.attainable`), over all
        placements and all numbers in flight that memory holds, or for the workload's number; the
        methods besides "auto" and "aggregated" maximise the rate and report what it attains.
        "rate": that of a full pipeline, with memory for `Workload.in_flight` microbatches or 1.
        "latency": the shortest time of one microbatch through all stages and links. "cost": the
        lowest $ per million tokens. Both take `at_least`, a floor in tokens/s, attainable.
        "step_time": the shortest time of a training step under `schedule`. The last three are
        proven by a search of their own, whatever the method. "regret": "throughput" with `within`.
    batches : sequence of int, optional
        Batch sizes among which the best is chosen; by default the problem's own.
    runs_on : str, optional
        An engine of `settings`: the best of the plans that it can start, proven by "auto" or "aggregated". The result
        is of the problem in which GPUs of a stage cut its layers; its `cost_of_rules()` says what that engine's
        rules cost.
    within : float, mapping of GPU type to float, or "band", optional
        How far off the predicted speed of each type may be, as a share; "band", the default of "regret": as far as
        the ratio of two plans' rates was by published times (`pipelab.hardware.relative_bands`). Then the placement is
        sought that loses least of what is best for the true speeds, whichever these are
        (`docs/within_the_error.md`): a `RobustResult`, by "auto" or "aggregated". Proven for all speeds within
        where the objective is "rate", the filling "synchronous" and each stage as fast as one of its types; elsewhere
        among the corners of the bands, with a bound.
    **options
        Those below that the method takes, and its own; see its docstring.

    Returns
    -------
    Result
        `method` names the method that answered. An infeasible problem is an answer with a
        reason, not an error. With "step_time" a `TrainingResult`.

    Other Parameters
    ----------------
    time_limit : float, optional
        Seconds. The best placement found by then is kept, with a proven bound.
    budget : float, optional
        The most that the GPUs may cost together, in $ per hour: the best placement of those
        (`Result.under_limit`), by "auto", "aggregated", or for latency or cost. Every GPU needs a price.
    gap : float, optional
        Stop once the best is known to be at most this much faster, as a share.
    stop : threading.Event or function of Progress, optional
        Set it to end the search, or return True; the best placement is kept. Ctrl-C and the kernel's
        interrupt do the same. A function is asked after every node, solve or round, so that it ends the search at
        the same point on every machine: `lambda progress: progress.nodes >= 200`. `incumbent` and `bound` are
        None as long as there is none.
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
        `problem` is not a Problem, or an option's value does not fit.

    Examples
    --------
    >>> import pipelab as pl
    >>> result = pl.solve(pl.load_case("tiny", max_gpus_per_stage=2))
    >>> result.status, round(result.throughput, 3), result.placement.stages[0].gpus, result.method
    ('optimal', 301.784, (0, 1), 'aggregated')
    """
    if not isinstance(problem, Problem):
        expected = "expected a Problem, such as load_case('tiny')"
        raise InvalidValue("solve", [("problem", problem, expected)])
    if isinstance(objective, str) and objective == "regret":
        objective, within = "throughput", "band" if within is None else within
    with noted_interrupts(passed_on=False):  # also before and after the method
        function = method_of(method, {**options, "objective": objective})
        if options.get("budget") is not None:
            options["budget"] = float(options["budget"])
        ask: Callable[..., Any] = partial(_dispatch, method, objective, function)
        if within is not None:
            proven = method in ("auto", "aggregated") and objective in ("throughput", "rate")
            if not proven or batches is not None or runs_on is not None:
                expected = (
                    "expected it for 'throughput' or 'rate' by 'auto', without batches and runs_on"
                )
                raise InvalidValue("solve", [("within", within, expected)])

            def one(objective: str, problem: Problem, options: Mapping[str, Any]) -> Result:
                return _dispatch(method, objective, function, problem, options)

            ask = partial(solve_for_least_regret, within=within, objective=objective, ask=one)
        if runs_on is not None:
            if method not in ("auto", "aggregated"):
                expected = "expected 'auto' or 'aggregated', which prove what is best on an engine"
                raise InvalidValue("solve", [("method", method, expected)])
            ask = partial(best_start, runs_on, ask)
        asked = dict(options)
        if "stop" in asked:
            asked["stop"] = stop_of(asked["stop"])
        answer = (
            ask(problem, asked) if batches is None else best_batch(problem, batches, ask, asked)
        )
        if runs_on is not None:
            kept = {k: v for k, v in options.items() if k not in ("stop", "on_progress")}
            free = partial(solve, problem, method, objective, batches=batches, **kept)
            answer = replace(answer, any_engine=free)
        return answer


def _dispatch(
    method: str,
    objective: str,
    function: Callable[..., Any],
    problem: Problem,
    options: Mapping[str, Any],
    known: float = 0.0,
) -> Any:
    """Answer one problem; of placements that attain no more than `known` tokens/s nothing has to be proven."""
    if objective != "step_time":
        refuse_training(problem, "solve")
    if OBJECTIVES[objective]:
        answer = function(problem, **options)
    elif objective == "rate":
        number = problem.workload.in_memory
        answer = function(problem.with_in_flight(number), **options)
        answer = replace(answer, problem=problem, memory_for=number)
    else:
        answer = solve_for_attainable(problem, method, function, options, known)
    budget = options.get("budget")
    if budget is None:
        return answer
    limit = {"under_limit": f"at most {budget:,.7g} $ per hour"}
    return replace(answer, details={**answer.details, **limit})


def method_of(method: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function behind a method, once it is known to take these options.

    The option "objective" chooses the function, and is not among those that it takes.

    Raises
    ------
    UnknownName, InvalidValue
    """
    refuse_unknown("method", method, METHODS)
    objective = options.get("objective", "throughput")
    options = {name: value for name, value in options.items() if name not in _OF_EVERY_METHOD}
    refuse_unknown("objective", objective, OBJECTIVES)
    searched = OBJECTIVES[objective]
    if searched and method not in ("auto", "aggregated"):
        expected = f"expected 'auto' or 'aggregated', which prove objective={objective!r}"
        raise InvalidValue("solve", [("method", method, expected)])
    function = searched or function_of(method)
    known = options_of(function)
    for option in options:
        if option not in known:
            who = f"objective {objective!r}" if searched else f"method {method!r}"
            raise UnknownName(f"{who} has no option {option!r}; {nearest(option, known)}")
    check_options(options)
    return function


def function_of(method: str) -> Callable[..., Result]:
    """Return the function of a method by its name."""
    return METHODS[method] or reproduction(f"method={method!r}")


def options_of(function: Callable) -> list[str]:
    """Return the names of the options that a method's function takes."""
    return [p for p in inspect.signature(function).parameters if p != "problem"]
