"""The problem stated for OR-tools' CP-SAT: when every action starts, in whole units of time.

Microbatches are interchangeable, since an action takes the same time for each. So the k-th forward,
input gradient and weight gradient of every rank may be microbatch k's: given the starts of any
schedule, let the k-th smallest of each kind and rank be k's. Every action then still follows what it
works on (the k-th smallest of later starts is later than the k-th smallest of earlier ones), and no
rank does more at a time or holds more than before.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from pipelab.engine.best_schedules.question import MEMORY_SLACK, Question
from pipelab.engine.deadline import Deadline
from pipelab.errors import NotApplicable

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Action = tuple[int, str, int]  # rank, kind, microbatch


def solver_library() -> Any:
    """OR-tools' CP-SAT.

    Raises
    ------
    NotApplicable
        OR-tools is not installed, or clashes with another library; says what to install.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        # ortools 9.15 and highspy 1.15 both bring a libhighs.so.1; the second to load finds the first.
        clash = "undefined symbol" in str(error) or "libhighs" in str(error)
        expected = 'expected OR-tools; pip install "pipelab[schedules]"'
        if clash:
            expected = (
                'OR-tools 9.15 clashes with highspy 1.15 or newer; pip install "highspy<1.15"'
            )
        raise NotApplicable("best_schedule", [("ortools", str(error), expected)]) from error
    return cp_model


@dataclass(frozen=True)
class Answer:
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

    starts: dict[Action, int] | None
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
        self.start: dict[Action, Any] = {}
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
        """When an action ends."""
        return self.start[rank, kind, microbatch] + self.length[rank, kind]

    def _rank(self, rank: int) -> None:
        """One action at a time, microbatches in order, and never more held than allowed."""
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
        """A microbatch is held whole from F to the end of I (or B), and in part to the end of W.

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

    def _first(self, one: Action, other: Action) -> Any:
        """Whether one of two actions of a rank ends before the other begins; else it is the other way round."""
        first = self.model.new_bool_var(f"{one} first, then {other}")
        self._follows(other, one, first)
        self._follows(one, other, ~first)
        return first

    def _follows(self, later: Action, earlier: Action, condition: Any = None) -> None:
        made = self.model.add(self.start[later] >= self.end(*earlier))
        if condition is not None:
            made.only_enforce_if(condition)

    def _messages(self) -> None:
        """Forwards come from the rank before, gradients from the rank after."""
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

    def hint(self, starts: Mapping[Action, int]) -> None:
        """Begin the search at this schedule."""
        for action, value in starts.items():
            self.model.add_hint(self.start[action], value)

    def solve(self, deadline: Deadline, workers: int, found: Callable[[int, int], None]) -> Answer:
        """Search until there is a proof, or an end is requested.

        Parameters
        ----------
        deadline : Deadline
            Looked at every 20 ms.
        workers : int
            Threads of CP-SAT.
        found : function of two ints
            Called with the best and the bound, in units, whenever there is a better schedule.
        """
        library = self.library
        solver = library.CpSolver()
        solver.parameters.num_workers = workers
        # Python's own handler notes Ctrl-C; the thread below asks it.
        solver.parameters.catch_sigint_signal = False
        if deadline.limited:
            solver.parameters.max_time_in_seconds = max(0.01, deadline.left)

        class Found(library.CpSolverSolutionCallback):  # type: ignore[name-defined]  # imported when first used
            def on_solution_callback(self) -> None:
                found(round(self.objective_value), round(self.best_objective_bound))

        status: list[Any] = []
        failure: list[BaseException] = []

        def work() -> None:
            try:
                status.append(solver.solve(self.model, Found()))
            except BaseException as error:  # carried over to the thread that waits
                failure.append(error)

        thread = threading.Thread(target=work, name="pipelab-cp-sat", daemon=True)
        thread.start()
        asked_to_end = None
        while thread.is_alive():
            thread.join(0.02)
            asked_to_end = asked_to_end or deadline.reason
            if asked_to_end:
                solver.stop_search()
        if failure:
            raise failure[0]
        return self._answer(solver, status[0], asked_to_end)

    def _answer(self, solver: Any, status: Any, asked_to_end: str | None) -> Answer:
        library = self.library
        bound = max(self.least, round(solver.best_objective_bound))
        if status in (library.OPTIMAL, library.FEASIBLE):
            starts = {action: solver.value(begin) for action, begin in self.start.items()}
            proven = status == library.OPTIMAL
            return Answer(starts, bound, None if proven else asked_to_end or "time limit")
        if status == library.UNKNOWN:
            return Answer(None, self.least, asked_to_end or "time limit")
        if status == library.INFEASIBLE:
            return Answer(None, self.most + 1, None)
        raise RuntimeError(
            f"CP-SAT calls a program {solver.status_name(status)}; a mistake in pipelab"
        )
