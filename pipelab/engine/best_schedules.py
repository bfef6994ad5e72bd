"""The best order of a pipeline's actions, proven: no schedule of these costs is shorter.

`Question` holds what is asked of p ranks with one stage each: costs, m microbatches, and what each rank
may hold. `Program` states it for OR-tools' CP-SAT: when every action starts, in whole units of time.
`best_schedule` begins with the best published rule within the limits and asks first whether the bound
by formula is reached, which it most often is: that is decided much sooner than a schedule is shortened
step by step, as every action has to lie between what comes before it and what must follow. Where it is
refuted, or not decided in time, CP-SAT minimises.

Microbatches are interchangeable, since an action takes the same time for each. So the k-th forward,
input gradient and weight gradient of every rank may be microbatch k's: given the starts of any
schedule, let the k-th smallest of each kind and rank be k's. Every action then still follows what it
works on (the k-th smallest of later starts is later than the k-th smallest of earlier ones), and no
rank does more at a time or holds more than before.

CP-SAT counts in whole numbers. Decimal numbers of few digits become whole exactly. Others are
rounded down, in units so fine that a sum of all is short by less than a billionth: a bound that holds
for shorter actions and less memory holds for the true ones.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from fractions import Fraction
from html import escape
from importlib.metadata import version
from math import ceil, floor, inf, lcm
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np

from pipelab import fields
from pipelab.display import NO_FORMULAS, DataFrame, data_frame, number, table
from pipelab.engine.answers import ProvenAnswer
from pipelab.engine.arguments import check_options
from pipelab.engine.deadline import Deadline, Stop, deadline_of
from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.schedules.named_schedules import schedule as make_schedule
from pipelab.engine.solvers.solver_run import Progress
from pipelab.engine.timeline.costs import OF_ACTIONS, StageCosts
from pipelab.engine.timeline.formulas import bounds, held_at_most
from pipelab.engine.timeline.timeline import Timeline, simulate
from pipelab.engine.tolerances import PROVEN_WITHIN
from pipelab.errors import InvalidSchedule, InvalidValue, NotApplicable, TooLarge
from pipelab.schedules import KINDS, Action, Schedule, one_rank

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

ActionKey = tuple[int, str, int]  # rank, kind and microbatch of an action

MOST_ACTIONS = 200_000  # a program of more takes gigabytes
MEMORY_SLACK = 1e-9  # a limit that is missed by the last bits of a sum is kept
# Sums of a million actions stay below 2^53, where floats are whole numbers still.
_MOST_TIME_UNITS = 10**12
_WHAT = "best_schedule"
_MEMORY = Annotated[fields.Number, fields.described("a number, or one per rank")]
# One stage per rank. Where the backward is split, a full one is run as its halves.
_RULES = ("GPipe", "1F1B", "ZBH1", "ZBH2")
_FORMULA_BOUND_SECONDS = 30.0  # for the bound by formula, and at most a third of the time left


@dataclass(frozen=True)
class Question(fields.Frozen):
    """Costs and limits, one number per rank.

    Attributes
    ----------
    costs : StageCosts
        Of one stage per rank.
    ranks, microbatches : int
        p and m.
    in_flight : tuple of int
        Most microbatches each rank holds from forward to input gradient (or full backward).
    memory : tuple of float or None
        Most each rank holds of what `costs.activation` counts; None without such a limit.
    split_backward : bool
        Whether input and weight gradients are actions of their own.
    """

    costs: StageCosts
    ranks: int
    microbatches: int
    in_flight: tuple[int, ...]
    memory: tuple[float, ...] | None
    split_backward: bool

    @fields.derived
    def table(self) -> dict[str, np.ndarray]:
        """Return costs per rank and link, as arrays."""
        return self.costs.arrays(self.ranks, "training")

    @property
    def kinds(self) -> tuple[str, ...]:
        """What a rank does with each microbatch, in this order."""
        return ("F", "I", "W") if self.split_backward else ("F", "B")

    @fields.derived
    def length(self) -> dict[str, np.ndarray]:
        """Return how long an action of each kind takes on each rank."""
        forward, back, weight = (self.table[name] for name in OF_ACTIONS)
        return {"F": forward, "I": back, "W": weight, "B": back + weight}

    @fields.derived
    def takes(self) -> dict[str, np.ndarray]:
        """Return what an action of each kind adds to the memory held, per rank; negative where it frees."""
        whole = self.table["activation"]
        kept = self.table.get("weight_activation", np.zeros(self.ranks))
        return {"F": whole, "I": kept - whole, "W": -kept, "B": -whole}

    @property
    def work(self) -> float:
        """What the busiest rank has to do, in the unit of the costs."""
        per_microbatch = sum(self.length[kind] for kind in self.kinds)
        return float(self.microbatches * np.max(per_microbatch))

    @property
    def times(self) -> list[float]:
        """How long everything takes: actions and messages."""
        lengths = (time for kind in self.kinds for time in self.length[kind].tolist())
        return [*lengths, *self.table["comm"].tolist()]

    def in_units(self, unit: Fraction) -> "Question":
        """Return the question with times in whole units."""
        per_rank = (*(self.length[kind] for kind in "FIW"), self.table["comm"])
        forward, back, weight, comm = (
            tuple(float(in_units(time, unit)) for time in times.tolist()) for times in per_rank
        )
        costs = replace(
            self.costs, forward=forward, backward_input=back, backward_weight=weight, comm=comm
        )
        return replace(self, costs=costs)

    @fields.derived
    def held(self) -> np.ndarray:
        """Return the most microbatches that each rank can hold within both limits; (ranks,) array of ints."""
        held = np.array(self.in_flight)
        for rank, most in enumerate(self.memory or ()):
            if (bytes_kept := -self.takes["B"][rank]) > 0:
                held[rank] = min(held[rank], max(1, floor(most * (1 + MEMORY_SLACK) / bytes_kept)))
        return held

    def least(self, objective: str) -> float:
        """Return what no schedule within the limits is shorter than, by formula.

        Of a span: rank r is busy, and after its first forward all ranks behind it work m·(F + I) between
        the first message to them and the last gradient from them; it then has one W left.
        """
        alone = replace(self.costs, overlap=1.0)
        formula = bounds(alone, self.microbatches, self.held, self.split_backward)
        if objective == "span":
            return float(max(formula.busy.max(), formula.drained.max()))
        return float(max((formula.arrives + formula.busy).max(), formula.drained[0]))

    def schedule(self, name: str, rows: Sequence[Sequence[tuple[str, int]]]) -> Schedule:
        """Return the schedule with these kinds and microbatches on each rank, in order."""
        actions = [[Action(rank, *action) for action in row] for rank, row in enumerate(rows)]
        return Schedule.of(
            name, actions, microbatches=self.microbatches, stage_rank=range(self.ranks)
        )

    def keeps(self, schedule: Schedule) -> bool:
        """Return whether a schedule stays within the limits. A rank's own order decides that."""
        limits = self.in_flight, self.memory or [np.inf] * self.ranks
        takes = zip(-self.takes["B"], -self.takes["W"], strict=True)
        counts = columns_of(schedule).held_counts
        return all(
            held[:, 0].max(initial=0) <= most
            and (held @ taken).max(initial=0.0) <= room * (1 + MEMORY_SLACK)
            for held, taken, most, room in zip(counts, takes, *limits, strict=True)
        )


def question_of(
    costs: StageCosts,
    microbatches: int,
    ranks: int | None,
    max_in_flight: int | Sequence[int] | None,
    memory: float | Sequence[float] | None,
    split_backward: bool,
) -> Question:
    """Return the arguments of `best_schedule`, checked.

    Raises
    ------
    InvalidValue, TooLarge
        As `best_schedule` says.
    """
    microbatches = fields.whole_number(_WHAT, "microbatches", microbatches)
    split_backward = fields.checked_value(_WHAT, "split_backward", split_backward, fields.Flag)
    ranks = _ranks(costs, ranks)
    actions = ranks * microbatches * (3 if split_backward else 2)
    if actions > MOST_ACTIONS:
        raise TooLarge(
            f"{_WHAT}: {ranks} ranks and {microbatches} microbatches make {actions:,} actions, more "
            f"than {MOST_ACTIONS:,}; `lower_bound` bounds the makespan of any number"
        )
    if memory is not None and split_backward and costs.weight_activation is None:
        expected = (
            "a memory limit on a split backward needs what a weight gradient still holds of a "
            "microbatch's activations, such as StageCosts(…, weight_activation=32 / 34)"
        )
        raise InvalidValue(_WHAT, [("costs.weight_activation", None, expected)])
    held = held_at_most(_WHAT, max_in_flight, ranks, microbatches)
    in_flight = tuple(held.astype(int).tolist())
    limits = None if memory is None else _limits(memory, ranks)
    question = Question(
        costs=costs,
        ranks=ranks,
        microbatches=microbatches,
        in_flight=in_flight,
        memory=limits,
        split_backward=split_backward,
    )
    whole, kept = -question.takes["B"], -question.takes["W"]
    if split_backward and (kept > whole).any():
        expected = "expected at most `activation`, of which it is a part"
        raise InvalidValue(_WHAT, [("costs.weight_activation", costs.weight_activation, expected)])
    return question


def _ranks(costs: StageCosts, ranks: int | None) -> int:
    listed = {
        name: len(value) + (name == "comm")
        for name in ("forward", "backward_input", "backward_weight", "comm", "activation")
        if isinstance(value := getattr(costs, name), tuple)
    }
    if ranks is None and not listed:
        expected = "expected a number: costs that are the same for all ranks do not say how many"
        raise InvalidValue(_WHAT, [("ranks", ranks, expected)])
    ranks = fields.whole_number(
        _WHAT, "ranks", next(iter(listed.values())) if ranks is None else ranks
    )
    costs.arrays(ranks, "training")  # refuses lists of other lengths
    return ranks


def _limits(memory: float | Sequence[float], ranks: int) -> tuple[float, ...]:
    most = cast(Sequence[float], memory)
    if not fields.is_list(memory):
        most = [fields.checked_value(_WHAT, "memory", memory, _MEMORY)] * ranks
    return tuple(fields.amounts(_WHAT, "memory", most, ranks))


def misfit(question: Question) -> str:
    """Say why not even one microbatch fits; empty where one does."""
    if question.memory is None:
        return ""
    need = -question.takes["B"]
    for rank, most in enumerate(question.memory):
        if need[rank] > most * (1 + MEMORY_SLACK):
            return (
                f"rank {rank} needs {need[rank]:.6g} for the activations of one microbatch and may hold "
                f"{most:.6g}, {need[rank] - most:.6g} too little; recompute activations, or cut the "
                "model into more stages"
            )
    return ""


def value_of(timeline: Timeline, objective: str) -> float:
    """Return what is minimised: the makespan, or the time of one of many steps."""
    return timeline.makespan if objective == "makespan" else step_time(timeline)


def step_time(timeline: Timeline) -> float:
    """Return the time between a rank's end of one step and of the next, in the long run.

    Where many steps follow one another without a barrier, each rank begins its next step as soon as
    it has ended this one. After some steps all ranks have fallen into a rhythm, and every step takes
    the same time: at least as long as the busiest rank works, at most the longest span of a rank in
    a single step.

    Let A[r, s] be the longest way from rank s becoming free to rank r ending its step. Ends of
    steps follow one another as x(n + 1)[r] = max over s of A[r, s] + x(n)[s]. The time of a step is
    this map's eigenvalue, the largest mean of a cycle in A, which Karp's algorithm computes.

    Parameters
    ----------
    timeline : Timeline
        Of one step, with buffered transfers.

    Returns
    -------
    float
        In the unit of the costs.

    Examples
    --------
    >>> import pipelab as pl
    >>> timeline = pl.simulate(pl.schedule("ZBH2", 4, 8), pl.StageCosts(1, 1, 1))
    >>> timeline.makespan, step_time(timeline)
    (27.0, 24.0)
    """
    ranks, took = timeline.schedule.ranks, timeline.costs.times(timeline.schedule)
    # One rank is free at 0 and all others were free long before that, for each rank in turn.
    free = np.where(np.eye(ranks, dtype=bool), 0.0, -np.inf)
    ends = timeline.graph.finish(np.repeat(took[:, None], ranks, axis=1), free=free)
    ways = np.full((ranks, ranks), -np.inf)
    np.maximum.at(ways, timeline.node_rank, ends[: len(timeline.node_rank)])
    longest = np.full((ranks + 1, ranks), -np.inf)
    longest[0] = 0.0  # from any rank
    for k in range(ranks):
        longest[k + 1] = (ways + longest[k]).max(axis=1)
    steps = ranks - np.arange(ranks)[:, None]
    with np.errstate(invalid="ignore"):
        means = (longest[ranks] - longest[:ranks]) / steps
    return float(np.nanmin(means, axis=0).max())


def exactly(number: float) -> Fraction:
    """Return the number as it is printed: 0.1 is a tenth, though no float is.

    Examples
    --------
    >>> exactly(0.1)
    Fraction(1, 10)
    """
    return Fraction(repr(float(number)))


def unit_of(numbers: Iterable[float], most: float, parts: int = 1) -> Fraction:
    """Return how many units make 1: whole for all numbers if sums up to `most` allow it, else as fine as they do.

    Parameters
    ----------
    numbers : iterable of float
        At least 0.
    most : float
        What sums of them do not exceed.
    parts : int
        Every number is this many times a whole number of units.

    Returns
    -------
    Fraction
        Above 0.

    Examples
    --------
    >>> unit_of([1, 0.5, 0.2], most=100)
    Fraction(10, 1)
    >>> float(unit_of([1 / 3], most=100)) == 1e12 / 100
    True
    """
    whole = lcm(*(exactly(number).denominator for number in numbers))
    limit = Fraction(_MOST_TIME_UNITS) / Fraction(max(most, 1e-300))
    return Fraction(whole * parts) if whole * parts <= limit else limit


def in_units(number: float, unit: Fraction) -> int:
    """Return the number in whole units, rounded down.

    Examples
    --------
    >>> in_units(0.7, Fraction(10)), in_units(2 / 3, Fraction(10))
    (7, 6)
    """
    return floor(exactly(number) * unit)


def solver_library() -> Any:
    """Import OR-tools' CP-SAT.

    Raises
    ------
    NotApplicable
        OR-tools is not installed, or clashes with highspy; says what to install.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        # ortools 9.15 and highspy 1.15 both bring a libhighs.so.1; the second to load finds the first.
        expected = 'expected OR-tools, with highspy<1.15; pip install "pipelab[schedules]"'
        raise NotApplicable("best_schedule", [("ortools", str(error), expected)]) from error
    return cp_model


@dataclass(frozen=True)
class CpSatResult:
    """What CP-SAT came back with.

    Attributes
    ----------
    starts : dict of (rank, kind, microbatch) to int, or None
        In units; None where nothing was found.
    bound : int
        Nothing is shorter, in units; above `most` where nothing is as short as that.
    stopped_by : str or None
        "time limit", "stop" or "interrupt".
    """

    starts: dict[ActionKey, int] | None
    bound: int
    stopped_by: str | None


class Program:
    """Starts as variables, and what must hold between them.

    Parameters
    ----------
    question : Question
        With times in whole units.
    span : bool
        Whether the longest span of a rank counts, rather than the makespan.
    least, most : int
        The objective is known to be no less, and needs to be no more, in units.
    """

    def __init__(self, question: Question, span: bool, least: int, most: int) -> None:
        self.library = solver_library()
        self.question = question
        self.model: cp_model.CpModel = self.library.CpModel()
        self.start: dict[ActionKey, Any] = {}
        self.length = {
            (rank, kind): int(question.length[kind][rank])
            for rank in range(question.ranks)
            for kind in question.kinds
        }
        # Of a span: rank 0 starts first, at 0, and its last input gradient ends by `most`. By then all
        # others have ended theirs, and so have started. Only weight gradients come later.
        self.latest = {kind: 2 * most if span and kind == "W" else most for kind in question.kinds}
        for rank in range(question.ranks):
            self._rank(rank)
        self._messages()
        self._objective(span, least, most)

    def end(self, rank: int, kind: str, microbatch: int) -> Any:
        """Return when an action ends."""
        return self.start[rank, kind, microbatch] + self.length[rank, kind]

    def _rank(self, rank: int) -> None:
        """Let a rank run one action at a time, microbatches in order, and hold no more than allowed."""
        question, model = self.question, self.model
        m, kinds = question.microbatches, question.kinds
        intervals = []
        for kind in kinds:
            length = self.length[rank, kind]
            for k in range(m):
                name = f"{rank}{kind}{k}"
                begin = model.new_int_var(0, self.latest[kind] - length, name)
                self.start[rank, kind, k] = begin
                intervals.append(model.new_fixed_size_interval_var(begin, length, name))
                if k:
                    model.add(begin >= self.end(rank, kind, k - 1))
        model.add_no_overlap(intervals)
        for k in range(m):
            if question.split_backward:
                model.add(self.start[rank, "W", k] >= self.end(rank, "I", k))
            freed = k - question.in_flight[rank]
            if freed >= 0:
                model.add(self.start[rank, "F", k] >= self.end(rank, kinds[1], freed))
        if question.memory is not None:
            self._memory(rank, question.memory[rank])

    def _memory(self, rank: int, most: float) -> None:
        """Limit the memory: a microbatch is held whole from F to the end of I (or B), and in part to the end of W.

        So what a rank holds is known by counting what it has done. It grows when an F starts: by
        then so many I and W must have ended that the rest fits. The fewer I have, the more W must.
        """
        question = self.question
        whole, kept = (float(-question.takes[kind][rank]) for kind in ("B", "W"))
        for k in range(question.microbatches):
            forward, asked = (rank, "F", k), 0
            for back in reversed(range(k + 1)):
                room = most * (1 + MEMORY_SLACK) - (k + 1 - back) * whole
                gradient = rank, question.kinds[1], back
                if room < 0:
                    self._follows(forward, gradient)
                    break
                weights = ceil(back - room / kept) if question.split_backward and kept else 0
                if weights > asked:
                    asked = weights
                    self._follows(
                        forward, (rank, "W", weights - 1), ~self._first(gradient, forward)
                    )

    def _first(self, one: ActionKey, other: ActionKey) -> Any:
        """Return whether one of two actions of a rank ends before the other begins; else it is the other way round."""
        first = self.model.new_bool_var(f"{one} first, then {other}")
        self._follows(other, one, first)
        self._follows(one, other, ~first)
        return first

    def _follows(self, later: ActionKey, earlier: ActionKey, condition: Any = None) -> None:
        made = self.model.add(self.start[later] >= self.end(*earlier))
        if condition is not None:
            made.only_enforce_if(condition)

    def _messages(self) -> None:
        """Let forwards wait for the rank before, and gradients for the rank after."""
        question, model = self.question, self.model
        back, last = question.kinds[1], question.ranks - 1
        comm = question.table["comm"]
        for k in range(question.microbatches):
            for rank in range(last):
                delay = int(comm[rank])
                model.add(self.start[rank + 1, "F", k] >= self.end(rank, "F", k) + delay)
                model.add(self.start[rank, back, k] >= self.end(rank + 1, back, k) + delay)
            model.add(self.start[last, back, k] >= self.end(last, "F", k))

    def _objective(self, span: bool, least: int, most: int) -> None:
        question, model = self.question, self.model
        self.least, self.most = least, most
        self.goal = model.new_int_var(least, most, "goal")
        if span:
            model.add(self.start[0, "F", 0] == 0)
        for rank in range(question.ranks):
            began = self.start[rank, "F", 0] if span else 0
            for kind in question.kinds[1:]:
                model.add(self.goal >= self.end(rank, kind, question.microbatches - 1) - began)
        model.minimize(self.goal)

    def hint(self, starts: Mapping[ActionKey, int]) -> None:
        """Begin the search at this schedule."""
        for action, value in starts.items():
            self.model.add_hint(self.start[action], value)

    def solve(
        self, deadline: Deadline, workers: int, tell: Callable[[int, int, int], None]
    ) -> CpSatResult:
        """Search until there is a proof, or an end is requested.

        Parameters
        ----------
        deadline : Deadline
            Looked at every 20 ms.
        workers : int
            Threads of CP-SAT.
        found : function of three ints
            Called with the best and the bound, in units, and the branches, whenever there is a better schedule.
        """
        library = self.library
        solver = library.CpSolver()
        solver.parameters.num_workers = workers
        # Python's own handler notes Ctrl-C; the thread below asks it.
        solver.parameters.catch_sigint_signal = False
        if deadline.limited:
            solver.parameters.max_time_in_seconds = max(0.01, deadline.left)
        if deadline.work < inf:
            solver.parameters.max_deterministic_time = deadline.work

        class Better(library.CpSolverSolutionCallback):  # type: ignore[name-defined]  # imported when first used
            def on_solution_callback(self) -> None:
                known = round(self.objective_value), round(self.best_objective_bound)
                tell(*known, self.num_branches)
                if deadline.called_off == "stop":
                    self.stop_search()

        asked_to_end = None
        with ThreadPoolExecutor(1, "pipelab-cp-sat") as threads:
            work = threads.submit(solver.solve, self.model, Better())
            while not wait([work], 0.02).done:
                asked_to_end = asked_to_end or deadline.reason
                if asked_to_end:
                    solver.stop_search()
        # The callback may have ended the search between two looks.
        return self._found(solver, work.result(), asked_to_end or deadline.called_off)

    def _found(self, solver: Any, status: Any, asked_to_end: str | None) -> CpSatResult:
        library = self.library
        proven = status in (library.OPTIMAL, library.INFEASIBLE)
        ended_by = None if proven else asked_to_end or "time limit"
        if status in (library.OPTIMAL, library.FEASIBLE):
            starts = {action: solver.value(begin) for action, begin in self.start.items()}
            bound = max(self.least, round(solver.best_objective_bound))
            return CpSatResult(starts=starts, bound=bound, stopped_by=ended_by)
        if status in (library.UNKNOWN, library.INFEASIBLE):
            bound = self.most + 1 if proven else self.least
            return CpSatResult(starts=None, bound=bound, stopped_by=ended_by)
        raise RuntimeError(f"CP-SAT calls a program {solver.status_name(status)}: a mistake here")


@dataclass(frozen=True, eq=False, kw_only=True)
class BestSchedule(ProvenAnswer):
    """A schedule, how long it takes, and the proof that none of these costs and limits is shorter.

    Attributes
    ----------
    question : Question
        Costs, ranks, microbatches and limits.
    objective : {"makespan", "span"}
        What was minimised.
    status : str
        "optimal": proven, the bound is reached. "feasible": a schedule without that proof.
        "infeasible": not even one microbatch fits, see `reason`.
    timeline : Timeline or None
        The schedule, simulated with buffered transfers; None where there is none.
    value : float or None
        Its makespan, or the time of each of many steps, in the unit of the costs. A rank may start
        later than in `timeline` without delaying others, so that this is no longer than
        `timeline.span`.
    bound : float or None
        No schedule within the limits is shorter, in the unit of the costs.
    first : dict of str to float
        What each schedule took that the search could begin with, by name.
    seconds : float
        From the call to the answer.
    reason : str
        Why there is no schedule.
    stopped_by : str or None
        "time limit", "stop" or "interrupt" where it ended early.
    solver : str
        What searched; empty where the first schedule reached a bound known by formula.
    size, details : mapping
        Empty: `question` has all that was asked.

    Examples
    --------
    >>> import pipelab as pl
    >>> best = pl.best_schedule(pl.StageCosts(1, 1, 1), ranks=4, microbatches=8, max_in_flight=4)
    >>> print(best.sentence.split(":")[0])
    27 for 8 microbatches on 4 ranks, proven
    >>> best.among
    'one stage per rank and at most 4 microbatches in flight'
    """

    question: Question
    objective: str
    timeline: Timeline | None = None
    first: Mapping[str, float] = field(default_factory=dict)
    value: float | None = None

    @property
    def schedule(self) -> Schedule | None:
        """What every rank does, in order; `pl.save` writes it as a table that torch runs."""
        return None if self.timeline is None else self.timeline.schedule

    @property
    def makespan(self) -> float | None:
        """From the first start to the last end."""
        return None if self.timeline is None else self.timeline.makespan

    @property
    def _goal(self) -> tuple[float | None, float | None, bool]:
        return self.value, self.bound, True

    @fields.derived
    def among(self) -> str:
        """Return what the proof is about, in words."""
        words = ["one stage per rank"]
        asked = self.question
        if min(asked.in_flight) < asked.microbatches:
            most = sorted(set(asked.in_flight))
            number = f"{most[0]}" if len(most) == 1 else f"{most[0]} to {most[-1]}"
            words.append(f"at most {number} microbatches in flight")
        if asked.memory is not None:
            words.append("within the memory given")
        if not asked.split_backward:
            words.append("full backwards")
        return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"

    @property
    def sentence(self) -> str:
        """The answer in words."""
        asked = self.question
        if self.status == "infeasible":
            return self._none_found("schedule")
        unit = f" {asked.costs.unit}" if asked.costs.unit else ""
        what = "" if self.objective == "makespan" else " a step"
        value = f"{number(fields.given(self.value))}{unit}{what}"
        head = f"{value} for {asked.microbatches} microbatches on {asked.ranks} ranks"
        if self.status == "optimal":
            return f"{head}, proven: no schedule with {self.among} is shorter."
        far = self._up_to(f": one with {self.among}", "shorter")
        return f"{head}, not proven best{self._why}{far}."

    def to_frame(self) -> DataFrame:
        """Return this schedule and those it began with as a table, the shortest first.

        Returns
        -------
        pandas.DataFrame
            One row per schedule: `schedule`, `value` in the unit of the costs, and `above_bound`, a
            share.
        """
        rows = dict(self.first)
        if self.schedule is not None and self.value is not None:
            rows[self.schedule.name] = self.value
        frame = data_frame({"schedule": list(rows), "value": list(rows.values())})
        known = self.bound and self.bound < inf
        frame["above_bound"] = frame["value"] / self.bound - 1 if known else None
        return frame.sort_values("value", kind="stable", ignore_index=True)

    def __repr__(self) -> str:
        return f"<BestSchedule: {self.sentence}>"

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        shares = frame["above_bound"]
        frame["above_bound"] = ["" if share is None else f"{share:.1%}" for share in shares]
        return f"<p class='{NO_FORMULAS}'>{escape(self.sentence)}</p>" + table(frame)


def best_schedule(
    costs: StageCosts,
    microbatches: int,
    ranks: int | None = None,
    *,
    max_in_flight: int | Sequence[int] | None = None,
    memory: float | Sequence[float] | None = None,
    split_backward: bool = True,
    objective: str = "makespan",
    time_limit: float | None = 60,
    stop: Stop = None,
    on_progress: Callable[[Progress], None] | None = None,
    workers: int | None = None,
) -> BestSchedule:
    """Find the shortest schedule with one stage per rank, and the proof that none is shorter.

    Every order of forwards, input gradients and weight gradients is considered, and every moment to
    start them. It begins with the best published rule (GPipe, 1F1B, ZB-H1, ZB-H2) within the limits,
    is never worse than that, and ends at once where this reaches `lower_bound`. Otherwise OR-tools'
    CP-SAT searches: `pip install "pipelab[schedules]"`.

    Parameters
    ----------
    costs : StageCosts
        Of one stage per rank, with messages that are buffered.
    microbatches : int
        m.
    ranks : int, optional
        p; not needed where `costs` has a list of numbers.
    max_in_flight : int or one per rank, optional
        Most microbatches that a rank holds between forward and input gradient (or full backward).
    memory : number or one per rank, optional
        Most that a rank holds of what `costs.activation` and `costs.weight_activation` count, in
        their unit.
    split_backward : bool
        False: input and weight gradient are one action, as in GPipe and 1F1B.
    objective : {"makespan", "span"}
        "makespan": from 0 to the last end. "span": what each of many steps takes that follow one
        another without a barrier, where ranks start no sooner than they need to: the longest time
        from a rank's first action to its last.
    time_limit : float or None
        Seconds.
    stop : threading.Event or function of Progress, optional
        Set it from anywhere to end with what there is, or return True. A function is asked whenever there is a
        shorter schedule; with one worker and no time limit it ends the search at the same point on every machine.
    on_progress : function of Progress, optional
        Called from a thread whenever there is a shorter schedule: `incumbent` and `bound` are in the unit of the
        costs, `nodes` are CP-SAT's branches.
    workers : int, optional
        Threads; by default as many as there are cores, at most 8, or one where `stop` is a function.

    Returns
    -------
    BestSchedule
        Status, schedule, timeline and bound. "infeasible" where not even one microbatch fits in
        memory.

    Raises
    ------
    InvalidValue
        An argument does not fit; `ranks` is missing or contradicts the costs; a weight gradient is
        said to hold more than the whole microbatch.
    NotApplicable
        OR-tools is not installed, or clashes with highspy.
    TooLarge
        More than 200,000 actions.

    Notes
    -----
    CP-SAT counts in whole numbers. Costs of a few decimals are exact; others are rounded down, so
    that the bound holds for the true costs, and the schedule found is simulated with these. That
    leaves a gap of about 10⁻⁹, which counts as proven. Held against every order of small pipelines
    in the tests.

    Examples
    --------
    >>> import pipelab as pl
    >>> costs = pl.StageCosts(forward=[1, 2, 1], backward_input=[1, 2, 2], backward_weight=1)
    >>> best = pl.best_schedule(costs, microbatches=6, max_in_flight=3)
    >>> best.status, best.makespan, best.first["ZBH1"]
    ('optimal', 31.0, 32.0)
    """
    fields.instance(_WHAT, "costs", costs, StageCosts, "StageCosts(forward, backward_input, ...)")
    options = {"time_limit": time_limit, "stop": stop, "on_progress": on_progress}
    check_options(options, "best_schedule")
    if not isinstance(objective, str) or objective not in ("makespan", "span"):
        raise InvalidValue(_WHAT, [("objective", objective, 'expected "makespan" or "span"')])
    if workers is not None:
        workers = fields.whole_number(_WHAT, "workers", workers, most=1000)
    question = question_of(costs, microbatches, ranks, max_in_flight, memory, split_backward)
    with deadline_of(time_limit, stop) as deadline:
        if missing := misfit(question):
            return BestSchedule(
                question=question,
                objective=objective,
                status="infeasible",
                seconds=deadline.spent,
                reason=missing,
            )
        search = _ScheduleSearch(question, objective, deadline, on_progress)
        search.run(workers or (1 if deadline.asks else min(8, os.cpu_count() or 1)))
        return search.answer()


def _first(question: Question, deadline: Deadline) -> Iterator[Schedule]:
    """Return the published rules that keep to the limits; where none does, 1F1B with less in flight."""
    keeps_to_limits = False
    for name in _RULES:
        made = None if keeps_to_limits and deadline.reason else _by_rule(question, name)
        if made is not None and question.keeps(made):
            keeps_to_limits = True
            yield made
    if not keeps_to_limits:
        # With more ahead than the rank before, each of the two would wait for the other.
        ahead = np.minimum.accumulate(question.held) - 1
        rows = []
        for rank in range(question.ranks):
            passes = [(rank, k) for k in range(question.microbatches)]
            lead = min(int(ahead[rank]), question.ranks - 1 - rank)
            row = one_rank(passes, passes, lead, 0 if question.split_backward else None)
            rows.append([(action.kind, action.microbatch) for action in row])
        yield question.schedule("1F1B within the limits", rows)


def _by_rule(question: Question, name: str) -> Schedule | None:
    rule = make_schedule(name, question.ranks, question.microbatches)
    kinds = {action.kind for row in rule.actions for action in row}
    if "W" in kinds:
        return rule if question.split_backward else None
    if not question.split_backward:
        return rule
    run_as = {"F": "F", "B": "IW"}
    halves = [
        [(kind, action.microbatch) for action in row for kind in run_as[action.kind]]
        for row in rule.actions
    ]
    return question.schedule(f"{name}, backward split", halves)


class _ScheduleSearch:
    """The shortest schedule so far, and what none is shorter than."""

    def __init__(
        self,
        question: Question,
        objective: str,
        deadline: Deadline,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.question, self.objective = question, objective
        self.deadline, self.on_progress = deadline, on_progress
        starts = [simulate(made, question.costs) for made in _first(question, deadline)]
        self.first = {start.schedule.name: value_of(start, objective) for start in starts}
        self.best = min(starts, key=lambda start: self.first[start.schedule.name])
        self.value = self.first[self.best.schedule.name]
        self.bound = min(question.least(objective), self.value)
        self.stopped_by: str | None = None
        self.solver = ""
        self.branches = 0

    @property
    def proven(self) -> bool:
        """Whether the bound is reached."""
        return self.bound >= self.value * (1 - PROVEN_WITHIN)

    def answer(self) -> BestSchedule:
        """Return what is known."""
        return BestSchedule(
            question=self.question,
            objective=self.objective,
            status="optimal" if self.proven else "feasible",
            timeline=self.best,
            bound=min(self.bound, self.value),
            first=self.first,
            seconds=self.deadline.spent,
            value=self.value,
            stopped_by=None if self.proven else self.stopped_by,
            solver=self.solver,
        )

    def run(self, workers: int) -> None:
        """Shorten `best` until nothing is shorter, or time has run out."""
        self.stopped_by = self.deadline.reason
        if self.proven or self.stopped_by:
            return
        self.solver = f"OR-tools CP-SAT {version('ortools')}"
        question, span = self.question, self.objective == "span"
        # The time of a step is a mean over at most as many steps as there are ranks.
        parts = lcm(*range(1, question.ranks + 1)) if span else 1
        unit = unit_of(question.times, self.best.makespan + question.work, parts)
        whole = question.in_units(unit)
        start = simulate(self.best.schedule, whole.costs)
        high = ceil(value_of(start, self.objective))
        low = min(high, int(whole.least(self.objective)))
        step = self.deadline.within(min(_FORMULA_BOUND_SECONDS, self.deadline.left / 3))
        result = Program(whole, span, low, low).solve(step, workers, lambda *_: None)
        reached = self._take(whole, result)
        low, self.stopped_by = max(low, result.bound), self.deadline.reason
        if not reached and low < high and not self.stopped_by:
            program = Program(whole, span, low, high)
            if not span:
                columns, begins = start.columns, start.start.tolist()
                kinds = [KINDS[code] for code in columns.kind.tolist()]
                ranks, microbatches = columns.rank.tolist(), columns.microbatch.tolist()
                actions = zip(ranks, kinds, microbatches, strict=True)
                # Every rule takes the microbatches in order.
                program.hint(dict(zip(actions, map(int, begins), strict=True)))
            result = program.solve(self.deadline, workers, lambda *known: self._tell(unit, *known))
            if result.bound > high:
                claim = "CP-SAT calls a program with a solution infeasible"
                raise RuntimeError(f"{claim}: a mistake here")
            self._take(whole, result)
            low, self.stopped_by = max(low, result.bound), result.stopped_by
        # Rounding down makes actions shorter: the bound holds for the true costs, too. The time of a
        # step may lie between two units, if these are no parts of the costs.
        exact = all((exactly(time) * unit / parts).denominator == 1 for time in question.times)
        self.bound = max(self.bound, float((low - (span and not exact)) / unit))
        self._tell(unit, self.value * unit, self.bound * unit, 0)

    def _take(self, whole: Question, result: CpSatResult) -> bool:
        """Keep a schedule if it is shorter than the best; False if it is not, or there is none."""
        if result.starts is None:
            return False
        try:
            timeline = simulate(in_order(whole, result.starts), self.question.costs)
        except InvalidSchedule:
            # actions of no length at one moment, put in an order that cannot run
            return False
        value = value_of(timeline, self.objective)
        if value >= self.value or not self.question.keeps(timeline.schedule):
            return False
        self.best, self.value = timeline, value
        return True

    def _tell(self, unit: Fraction, value: float, bound: float, branches: int) -> None:
        self.branches = max(self.branches, branches)
        self.deadline.tell(
            self.on_progress,
            incumbent=float(value / unit),
            bound=float(bound / unit),
            nodes=self.branches,
        )


def in_order(question: Question, starts: dict[ActionKey, int]) -> Schedule:
    """Return each rank's actions by their start. Of those of no length, what frees memory goes first."""
    rows = []
    for rank in range(question.ranks):
        mine = [
            (begin, begin + int(question.length[kind][rank]), "WIBF".index(kind), k, kind)
            for (at, kind, k), begin in starts.items()
            if at == rank
        ]
        rows.append(_runnable([(kind, k) for *_, k, kind in sorted(mine)], question.kinds))
    return question.schedule("best", rows)


def _runnable(row: list[tuple[str, int]], kinds: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return the order, changed so that no action comes before what it works on."""
    done = dict.fromkeys(kinds, 0)
    waiting, ordered = list(row), []
    while waiting:
        ready = (
            action
            for action in waiting
            if (place := kinds.index(action[0])) == 0 or done[kinds[place - 1]] > action[1]
        )
        action = next(ready)
        waiting.remove(action)
        done[action[0]] += 1
        ordered.append(action)
    return ordered
