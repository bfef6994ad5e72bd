"""What `best_schedule` is asked: p ranks with one stage each, m microbatches, and what each rank may hold.

Its arguments checked, what a schedule takes by its measure, and what none takes less than by formula.

CP-SAT counts in whole numbers. Decimal numbers of few digits become whole exactly. Others are
rounded down, in units so fine that a sum of all is short by less than a billionth: a bound that holds
for shorter actions and less memory holds for the true ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import floor, lcm
from typing import cast

import numpy as np

from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.formulas import lower_bound
from pipelab.engine.timeline.timeline import Timeline
from pipelab.errors import InvalidValue, TooLarge
from pipelab.fields import amounts, is_list, python_value, real_number, true_or_false, whole_number
from pipelab.schedules import Action, Schedule

LARGEST = 200_000  # actions; a program of so many takes gigabytes
MEMORY_SLACK = 1e-9  # a limit that is missed by the last bits of a sum is kept
# Sums of a million actions stay below 2^53, where floats are whole numbers still.
FINEST = 10**12
_WHAT = "best_schedule"


@dataclass(frozen=True)
class Question:
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

    @cached_property
    def table(self) -> dict[str, np.ndarray]:
        """Costs per rank and link, as arrays."""
        return self.costs.arrays(self.ranks, "training")

    @property
    def kinds(self) -> tuple[str, ...]:
        """What a rank does with each microbatch, in this order."""
        return ("F", "I", "W") if self.split_backward else ("F", "B")

    @property
    def actions(self) -> int:
        """Of all ranks."""
        return self.ranks * self.microbatches * len(self.kinds)

    @cached_property
    def length(self) -> dict[str, np.ndarray]:
        """How long an action of each kind takes on each rank."""
        forward, back, weight = (
            self.table[n] for n in ("forward", "backward_input", "backward_weight")
        )
        return {"F": forward, "I": back, "W": weight, "B": back + weight}

    @cached_property
    def takes(self) -> dict[str, np.ndarray]:
        """What an action of each kind adds to the memory held, per rank; negative where it frees."""
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
        """The same with times in whole units."""
        each = (*(self.length[kind] for kind in "FIW"), self.table["comm"])
        forward, back, weight, comm = (
            tuple(float(in_units(time, unit)) for time in times.tolist()) for times in each
        )
        costs = replace(
            self.costs, forward=forward, backward_input=back, backward_weight=weight, comm=comm
        )
        return replace(self, costs=costs)

    @cached_property
    def held(self) -> np.ndarray:
        """Most microbatches that each rank can hold within both limits; (ranks,) array of ints."""
        held = np.array(self.in_flight)
        for rank, most in enumerate(self.memory or ()):
            if (each := -self.takes["B"][rank]) > 0:
                held[rank] = min(held[rank], max(1, floor(most * (1 + MEMORY_SLACK) / each)))
        return held

    def least(self, objective: str) -> float:
        """What no schedule within the limits is shorter than, by formula."""
        if objective == "span":
            return span_bound(self, self.held)
        return lower_bound(
            self.ranks,
            self.microbatches,
            replace(self.costs, overlap=1.0),
            in_flight=self.held.tolist(),
            split_backward=self.split_backward,
        )

    def schedule(self, name: str, rows: Sequence[Sequence[tuple[str, int]]]) -> Schedule:
        """The schedule with these kinds and microbatches on each rank, in order."""
        actions = [[Action(rank, *action) for action in row] for rank, row in enumerate(rows)]
        return Schedule.of(
            name, actions, microbatches=self.microbatches, stage_rank=range(self.ranks)
        )

    def keeps(self, timeline: Timeline) -> bool:
        """Whether a schedule stays within the limits. A rank's own order decides that."""
        if any(n > most for n, most in zip(timeline.peak_in_flight, self.in_flight, strict=True)):
            return False
        if self.memory is None:
            return True
        return all(
            held <= most * (1 + MEMORY_SLACK)
            for held, most in zip(self.peak_memory(timeline.schedule), self.memory, strict=True)
        )

    def peak_memory(self, schedule: Schedule) -> Iterator[float]:
        """The most that each rank holds. Sums of microbatches, so that nothing is lost in rounding."""
        columns = columns_of(schedule)
        whole, kept = -self.takes["B"], -self.takes["W"]
        for rank, row in enumerate(columns.schedule.actions):
            full = rest = 0
            peak = 0.0
            for _, kind, _, _ in row:
                full += (kind == "F") - (kind in ("I", "B"))
                rest += (kind == "I") - (kind == "W")
                # An input gradient holds the whole until it ends: its step down comes after.
                peak = max(peak, full * whole[rank] + rest * kept[rank])
            yield float(peak)


def question_of(
    costs: StageCosts,
    microbatches: int,
    ranks: int | None,
    max_in_flight: int | Sequence[int] | None,
    memory: float | Sequence[float] | None,
    split_backward: bool,
) -> Question:
    """The arguments of `best_schedule`, checked.

    Raises
    ------
    InvalidValue, TooLarge
        As `best_schedule` says.
    """
    microbatches = whole_number(_WHAT, "microbatches", microbatches)
    split_backward = true_or_false(_WHAT, "split_backward", split_backward)
    ranks = _ranks(costs, ranks)
    if ranks * microbatches * (3 if split_backward else 2) > LARGEST:
        actions = ranks * microbatches * (3 if split_backward else 2)
        raise TooLarge(
            f"{_WHAT}: {ranks} ranks and {microbatches} microbatches make {actions:,} actions, more "
            f"than {LARGEST:,}; `lower_bound` bounds the makespan of any number",
            {"actions": actions},
        )
    if memory is not None and split_backward and costs.weight_activation is None:
        expected = (
            "a memory limit on a split backward needs what a weight gradient still holds of a "
            "microbatch's activations, such as StageCosts(…, weight_activation=32 / 34)"
        )
        raise InvalidValue(_WHAT, [("costs.weight_activation", None, expected)])
    held = microbatches if max_in_flight is None else python_value(max_in_flight)
    each: list = list(held) if isinstance(held, Sequence) else [held] * ranks
    if len(each) != ranks:
        expected = f"expected one number, or {ranks} for {ranks} ranks; got {len(each)}"
        raise InvalidValue(_WHAT, [("max_in_flight", held, expected)])
    in_flight = tuple(
        min(microbatches, whole_number(_WHAT, f"max_in_flight[{rank}]", number))
        for rank, number in enumerate(each)
    )
    limits = None if memory is None else _limits(memory, ranks)
    question = Question(costs, ranks, microbatches, in_flight, limits, split_backward)
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
        expected = (
            "expected a number: the costs are the same for all ranks, so they do not say how many"
        )
        raise InvalidValue(_WHAT, [("ranks", ranks, expected)])
    ranks = whole_number(_WHAT, "ranks", next(iter(listed.values())) if ranks is None else ranks)
    costs.arrays(ranks, "training")  # refuses lists of other lengths
    return ranks


def _limits(memory: float | Sequence[float], ranks: int) -> tuple[float, ...]:
    if is_list(memory):
        return tuple(amounts(_WHAT, "memory", cast(Sequence[float], memory), ranks))
    most = real_number(_WHAT, "memory", memory, "expected a number, or one per rank")
    return tuple(amounts(_WHAT, "memory", [most] * ranks, ranks))


def misfit(question: Question) -> str:
    """Why not even one microbatch fits; empty where one does."""
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
    """What is minimised: the makespan, or the time of one of many steps."""
    return timeline.makespan if objective == "makespan" else step_time(timeline)


def step_time(timeline: Timeline) -> float:
    """The time between a rank's end of one step and of the next, in the long run.

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
    ranks, columns, table = (
        timeline.schedule.ranks,
        timeline.columns,
        timeline.costs.tables(timeline.schedule),
    )
    # One rank is free at 0 and all others were free long before that, for each rank in turn.
    free = np.where(np.eye(ranks, dtype=bool), 0.0, -np.inf)
    names = ("forward", "backward_input", "backward_weight")
    took = columns.times(np.array([table[name] for name in names]), timeline.costs.overlap)
    every = np.repeat(took[:, None], ranks, axis=1)
    delay = np.repeat(np.append(table["comm"], 0.0)[:, None], ranks, axis=1)
    ends = columns.graph.finish(every, columns.work.row, delay, columns.delayed_by, free)
    ways = np.full((ranks, ranks), -np.inf)
    np.maximum.at(ways, timeline.node_rank, ends)
    longest = np.full((ranks + 1, ranks), -np.inf)
    longest[0] = 0.0  # from any rank
    for k in range(ranks):
        longest[k + 1] = (ways + longest[k]).max(axis=1)
    steps = ranks - np.arange(ranks)[:, None]
    with np.errstate(invalid="ignore"):
        means = (longest[ranks] - longest[:ranks]) / steps
    return float(np.nanmin(means, axis=0).max())


def span_bound(question: Question, held: np.ndarray) -> float:
    """What no step takes less than, by formula.

    Rank r works m·(F + I + W), and waits after its first forward for the first gradient, in which
    time it runs no more forwards than it may hold. After it all ranks behind it work m·(F + I)
    between the first message to them and the last gradient from them; it then has one W left.

    Parameters
    ----------
    question : Question
        Costs of p ranks and m microbatches.
    held : array of int, shape (p,)
        Most microbatches each rank may hold.
    """
    m, comm = question.microbatches, np.append(question.table["comm"], 0.0)
    forward, back = question.length["F"], question.length[question.kinds[1]]
    weight = question.length["W"] if question.split_backward else np.zeros(question.ranks)
    there, home = forward + comm, back + comm
    best = 0.0
    for rank in range(question.ranks):
        first_gradient = (there + home)[rank:].sum() - back[rank]
        waits = max(0.0, first_gradient - held[rank] * forward[rank])
        busy = m * (forward + back + weight)[rank] + waits
        between = np.cumsum((there + home)[rank:]) - (there + home)[rank:]
        drained = (between + m * (forward + back)[rank:]).max() + weight[rank]
        best = max(best, float(busy), float(drained))
    return best


def exactly(number: float) -> Fraction:
    """The number as it is printed: 0.1 is a tenth, though no float is.

    Examples
    --------
    >>> exactly(0.1)
    Fraction(1, 10)
    """
    return Fraction(repr(float(number)))


def unit_of(numbers: Iterable[float], most: float, parts: int = 1) -> Fraction:
    """How many units make 1: whole for all numbers if sums up to `most` allow it, else as fine as they do.

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
    limit = Fraction(FINEST) / Fraction(max(most, 1e-300))
    return Fraction(whole * parts) if whole * parts <= limit else limit


def in_units(number: float, unit: Fraction) -> int:
    """The number in whole units, rounded down.

    Examples
    --------
    >>> in_units(0.7, Fraction(10)), in_units(2 / 3, Fraction(10))
    (7, 6)
    """
    return floor(exactly(number) * unit)
