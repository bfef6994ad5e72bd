"""solve(problem): a placement, how good it is, and how far it may be from the best.

The front ends here: `METHODS` and `OBJECTIVES` name the engine's function behind each word, which
is imported when first used.
"""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipelab.answers import Answer
from pipelab.costs import link_unit
from pipelab.display import NO_FORMULAS, number, rate
from pipelab.errors import InvalidValue, UnknownName, nearest
from pipelab.evaluation import Evaluation, evaluate
from pipelab.fields import given
from pipelab.placement import Placement
from pipelab.problem import Problem

if TYPE_CHECKING:
    from pandas import DataFrame

    from pipelab.engine.objective import Objective

__all__ = ["METHODS", "OBJECTIVES", "Result", "method_of", "options_of", "placement_in", "solve"]


@dataclass(frozen=True, eq=False)
class Result(Answer):
    """What `solve` returns.

    Attributes
    ----------
    problem : Problem
        What was solved.
    method : str
        The method that answered: one of `solve`, or "latency" or "cost" for these objectives.
    status : str
        "optimal": proven, the bound equals the throughput (or the objective's value). "feasible": a
        placement without that proof. "infeasible": no placement exists, see `reason`. "unknown": no
        placement was found, and it is not proven that there is none.
    placement : Placement or None
        The answer; None where there is none.
    throughput : float or None
        What the placement attains as `evaluate` recomputes it, tokens/s; with `memory_for` its rate.
    bound : float or None
        No placement has more, tokens/s. None if the objective is another: see `objective`.
    seconds : float
        From the call to the answer.
    size : mapping of str to int
        What the method worked on: allocations, connections, variables, rows, …
    solver : str
        Name and version; empty where none was called.
    reason : str
        Why there is no placement, or why its proof is missing; of "exhaustive", how many placements
        were tried. Empty otherwise.
    stopped_by : str or None
        "time limit", "gap limit", "stop", "interrupt", … where it ended early.
    details : mapping
        What only this method has: build_seconds, nodes, progress, …
    objective : Objective or None
        What was minimised, if it was not throughput that was maximised; with its own bound.
    memory_for : int or None
        Microbatches in flight that memory was counted for, where the rate of a full pipeline was
        maximised (objective "rate") whatever number fills it.
    batches : tuple of int
        Batch sizes among which that of `problem` was chosen; empty if it was given.
    """

    problem: Problem
    method: str
    status: str
    placement: Placement | None
    throughput: float | None
    bound: float | None
    seconds: float
    size: Mapping[str, int] = field(default_factory=dict)
    solver: str = ""
    reason: str = ""
    stopped_by: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    objective: "Objective | None" = None
    memory_for: int | None = None
    batches: tuple[int, ...] = ()

    @property
    def in_flight(self) -> int | None:
        """Microbatches in flight with which the placement attains its throughput.

        None without a placement, for the objective "rate", and where links are counted in transfers/s.
        """
        return self.evaluation.in_flight if self.evaluation and self.memory_for is None else None

    @property
    def _goal(self) -> tuple[float | None, float | None, bool]:
        if self.objective is not None:
            return self.objective.value, self.objective.bound, True
        return self.throughput, self.bound, False

    @property
    def _title(self) -> str:
        return f"{self.problem.name}, {self.method}"

    @cached_property
    def evaluation(self) -> Evaluation | None:
        """Stages, links and bottleneck, recomputed from the raw data; None without a placement."""
        return evaluate(self.problem, self.placement) if self.placement else None

    @property
    def sentence(self) -> str:
        """The answer in one sentence, and a second one if links count transfers/s."""
        mistaken = link_unit(self.problem.costs) == "transfers" and len(self.problem.cluster) > 1
        return self._answer + (
            " Links count transfers/s here, as in the write-up." if mistaken else ""
        )

    @property
    def _answer(self) -> str:
        goal = self.objective
        if self.status in ("infeasible", "unknown"):
            bound = f"; none can exceed {rate(self.bound)}" if self.bound is not None else ""
            if goal is not None and goal.bound:
                bound = f"; none{goal.among} has less than {number(goal.bound)} {goal.unit}"
            return self._none_found("placement", bound)
        head, best, among = f"{rate(given(self.throughput))}{self._in_flight}", "optimal", ""
        far = "; the best", "faster"
        if goal is not None:
            head, best, among = (
                f"{number(given(goal.value))} {goal.unit} at {head}",
                "least",
                goal.among,
            )
            far = "; the least", "lower"
        if self.status == "optimal":
            text = f"{head}, proven {best}{self._among}{among} in {self.seconds:.3g} s."
        else:
            up_to = self._up_to(*far) if self._goal[1] else ""
            text = f"{head}, not proven {best}{self._among}{among}{self._why}{up_to}."
        return text + self._remark

    @property
    def _among(self) -> str:
        """Of which batches a proof speaks; empty where of the problem's own."""
        return f" among batches of {', '.join(map(str, self.batches))}" if self.batches else ""

    @property
    def _in_flight(self) -> str:
        """With how many in flight; and whether memory keeps the placement from its rate."""
        if self.memory_for is not None:
            several = "microbatches" if self.memory_for > 1 else "microbatch"
            return f" as the rate of a full pipeline with memory for {self.memory_for} {several} in flight"
        batch = f" with a batch of {self.problem.workload.batch_size}" if self.batches else ""
        if self.in_flight is None:
            return batch
        found = given(self.evaluation)
        text = f"{batch} and" if batch else " with"
        text += f" {self.in_flight} in flight"
        if found.attainable < found.rate * (1 - 1e-6):
            share = found.attainable / found.rate
            text += f" ({share:.1%} of its rate, which {found.in_flight_needed} would reach)"
        return text

    def to_dict(self) -> dict:
        """Plain data for JSON, numbers unrounded.

        Returns
        -------
        dict
            The attributes, with units in the names where these have any; the placement as
            `Placement.to_dict` has it.
        """
        return {
            "problem": self.problem.name,
            "method": self.method,
            "status": self.status,
            "throughput_tokens_per_s": self.throughput,
            "in_flight": self.in_flight,
            "bound_tokens_per_s": self.bound,
            "gap": self.gap,
            "stopped_by": self.stopped_by,
            "reason": self.reason,
            "seconds": self.seconds,
            "link_units": link_unit(self.problem.costs),
            "solver": self.solver,
            "size": dict(self.size),
            "placement": self.placement.to_dict() if self.placement else None,
            "bottlenecks": list(self.evaluation.bottlenecks) if self.evaluation else [],
        } | ({"objective": self.objective.to_dict()} if self.objective else {})

    def to_frame(self) -> "DataFrame":
        """The answer as a table of one row.

        Returns
        -------
        pandas.DataFrame
            `problem`, `method`, `status`, `throughput_tokens_per_s`, `in_flight`,
            `bound_tokens_per_s`, `gap`, `seconds`, the objective if it is another, and `size`.
        """
        import pandas as pd

        row = {
            "problem": self.problem.name,
            "method": self.method,
            "status": self.status,
            "throughput_tokens_per_s": self.throughput,
            "in_flight": self.in_flight,
            "bound_tokens_per_s": self.bound,
            "gap": self.gap,
            "seconds": round(self.seconds, 3),
        }
        goal = self.objective.to_dict() if self.objective else {}
        return pd.DataFrame([row | goal | dict(self.size)])

    @property
    def doubt(self) -> str:
        """Why the rate may be far off, where nothing measured is like it; else empty."""
        return "" if self._expected is None else self._expected.doubt

    @property
    def _expected(self) -> Any:
        ask = getattr(self.problem.costs, "expected_rate", None)
        return ask(self.problem, self.evaluation) if ask and self.evaluation else None

    def __str__(self) -> str:
        head = f"{self.problem.name}, {self.method}: {self.sentence}"
        return "\n".join(filter(None, (head, self.doubt, str(self.placement or ""))))

    def _repr_html_(self) -> str:
        expected = self._expected
        html = "" if expected is None else f"<p class='{NO_FORMULAS}'>{expected.html}</p>"
        return self._shown(html + (self.evaluation._repr_html_() if self.evaluation else ""))


def placement_in(given: Any, what: str) -> Placement:
    """The placement that a reader gave, or that is in the result a reader gave.

    Raises
    ------
    InvalidValue
        It is neither, or a result without a placement, whose reason is repeated.
    """
    if hasattr(given, "sentence") and hasattr(given, "placement"):  # a result of any objective
        if given.placement is None:
            raise InvalidValue(
                what,
                [("placement", given.status, f"expected a result that has one. {given.sentence}")],
            )
        return given.placement
    if not isinstance(given, Placement):
        expected = "expected a Placement, such as Placement.of([(4, (0, 1))]), or a Result"
        if hasattr(given, "pipelines"):
            expected += "; of a deployment one of its pipelines: x.pipelines[0].placement"
        raise InvalidValue(what, [("placement", given, expected)])
    return given


# The function behind each method, imported when first used.
METHODS = {
    "auto": "pipelab.engine.methods.auto:solve_auto",
    "even": "pipelab.engine.methods.rules:solve_even",
    "proportional": "pipelab.engine.methods.rules:solve_proportional",
    "by_flops": "pipelab.engine.methods.rules:solve_by_flops",
    "bandwidth_aware": "pipelab.engine.methods.rules:solve_bandwidth_aware",
    "exhaustive": "pipelab.engine.methods.exhaustive:solve_exhaustive",
    "single_gpu": "pipelab.engine.methods.single_gpu:solve_single_gpu",
    "type_count": "pipelab.course.type_count:solve_type_count",
    "joint": "pipelab.engine.methods.joint:solve_joint",
    "aggregated": "pipelab.engine.methods.aggregated:solve_aggregated",
}
# The aggregated search can prove other things than the greatest throughput.
OBJECTIVES = {
    "throughput": "",
    "rate": "",
    "latency": "pipelab.engine.methods.latency:solve_for_latency",
    "cost": "pipelab.engine.methods.cost:solve_for_cost",
    "step_time": "pipelab.engine.methods.step_time:solve_for_step_time",
}


def solve(
    problem: Problem,
    method: str = "auto",
    objective: str = "throughput",
    *,
    batches: Sequence[int] | None = None,
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
    objective : {"throughput", "rate", "latency", "cost", "step_time"}
        What is proven best. "throughput": the attainable rate (`Evaluation.attainable`), over all
        placements and all numbers in flight that memory holds, or for the workload's number; the
        methods besides "auto" and "aggregated" maximise the rate and report what it attains.
        "rate": that of a full pipeline, with memory for `Workload.in_flight` microbatches or 1.
        "latency": the shortest time of one microbatch through all stages and links. "cost": the
        lowest $ per million tokens. Both take `at_least`, a floor in tokens/s, attainable.
        "step_time": the shortest time of a training step under `schedule`. The last three are
        proven by a search of their own, whatever the method.
    batches : sequence of int, optional
        Batch sizes among which the best is chosen; by default the problem's own.
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
        `problem` is not a Problem, or an option's value does not fit.

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
    interrupts = import_module("pipelab.engine.interrupts")
    with interrupts.noted_interrupts(passed_on=False):  # also while the method is imported
        function = method_of(method, {**options, "objective": objective})
        ask = partial(_answer, method, objective, function)
        if batches is not None:
            best_batch = import_module("pipelab.engine.methods.batches").best_batch
            return best_batch(problem, batches, ask, options)
        if options.get("time_limit") is not None:  # what importing the method took counts
            options["time_limit"] = max(0.0, options["time_limit"] - (time.perf_counter() - began))
        return ask(problem, options)


def _answer(
    method: str,
    objective: str,
    function: Callable[..., Any],
    problem: Problem,
    options: Mapping[str, Any],
    known: float = 0.0,
) -> Any:
    """One problem's answer; of placements that attain no more than `known` tokens/s nothing has to be proven."""
    if objective != "step_time":
        import_module("pipelab.engine.options").refuse_training(problem, "solve")
    if OBJECTIVES[objective]:
        return function(problem, **options)
    if objective == "rate":
        number = problem.workload.in_memory
        found = function(problem.with_in_flight(number), **options)
        return replace(found, problem=problem, memory_for=number)
    attained = import_module("pipelab.engine.methods.attained")
    return attained.solve_for_attainable(problem, method, function, options, known)


def method_of(method: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """The function behind a method, once it is known to take these options.

    The option "objective" chooses the function, and is not among those that it takes.

    Raises
    ------
    UnknownName, InvalidValue
    """
    if not isinstance(method, str) or method not in METHODS:
        raise UnknownName(f"there is no method {method!r}; {nearest(method, METHODS)}")
    options = dict(options)
    objective = options.pop("objective", "throughput")
    if not isinstance(objective, str) or objective not in OBJECTIVES:
        raise UnknownName(f"there is no objective {objective!r}; {nearest(objective, OBJECTIVES)}")
    if OBJECTIVES[objective] and method not in ("auto", "aggregated"):
        expected = f"expected 'auto' or 'aggregated', which prove objective={objective!r}"
        raise InvalidValue("solve", [("method", method, expected)])
    module, name = (OBJECTIVES[objective] or METHODS[method]).split(":")
    function = getattr(import_module(module), name)
    known = options_of(function)
    for option in options:
        if option not in known:
            who = f"objective {objective!r}" if OBJECTIVES[objective] else f"method {method!r}"
            remedy = (
                nearest(option, known) if OBJECTIVES[objective] else _who_has(option, method, known)
            )
            raise UnknownName(f"{who} has no option {option!r}; {remedy}")
    import_module("pipelab.engine.options").check_options(options)
    return function


def options_of(function: Callable) -> list[str]:
    """The names of the options that a method's function takes."""
    return [p for p in inspect.signature(function).parameters if p != "problem"]


def _who_has(option: str, method: str, known: list[str]) -> str:
    """If "auto" does not know an option: the methods that do."""
    others = [
        name for name in METHODS if method == "auto" and option in options_of(method_of(name, {}))
    ]
    return f"name a method that has it: {', '.join(others)}" if others else nearest(option, known)
