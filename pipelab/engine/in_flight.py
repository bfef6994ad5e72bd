"""Pairs of a placement and a number in flight: what memory holds, and what it then yields.

A placement with n microbatches in flight yields min(r, n·w / L) tokens/s, where r is the rate of its
slowest stage or link, w the tokens of a microbatch and L the time of a traversal; and all n need memory
on every stage. That is its attainable rate at n. Ranges of n are ruled out or halved:

1. What fits with m in flight fits with fewer, and is as fast there. So no pair with m ≥ a has more than
   U(a), the greatest rate with memory for a.
2. A pair with a ≤ m ≤ b that yields t or more has r ≥ t and L ≤ m·w / t ≤ b·w / t, with memory for a. So
   if no such placement exists (`cheapest_walk.Walk`, with a limit on time), no pair of the range yields t; and
   whatever the least GPUs, dollars or seconds of such placements are, no pair of the range has less.
3. For a = b both conditions together are exact.

So it is with the filling "synchronous". With "one" and "dynamic" m is 1. With "by_stages" m is at most the number of
stages and a given number more: 2 asks for as many stages as a needs. With "micro_batches" m parts that follow one
another yield m·w / (L + (m - 1)·w / r), which is less: 2 is exact for m = 1, and for more once r is divided into parts
(`_least_by_rate`).

In 1 and 2 placements of other n are spoken of. A stage that has several execution modes (`Roofline`:
batch shared or layers cut) may run otherwise with less memory to spare. So there every stage counts with
the greatest rate of its modes, in no more time than that rate's interval (`instance.with_memory_for`): both are no
worse with fewer in flight, and no better than what any mode really has.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pipelab.engine.cheapest_walk import WalkResult
from pipelab.engine.deadline import Deadline, Ended, made_in_time
from pipelab.engine.instance import Instance, instance_of, listed, with_memory_for
from pipelab.engine.rate_search import BY_TOLERANCE, SETS, RateSearch, least, possible, used, walks
from pipelab.engine.reach import AtRate
from pipelab.engine.tolerances import ATTAINED, ONE_ANSWER
from pipelab.errors import InvalidPlacement, TooLarge
from pipelab.evaluation import MOST_IN_FLIGHT, Evaluation, evaluate
from pipelab.placement import Placement
from pipelab.problem import Problem

_JUST_ABOVE = 1 + 3 * ONE_ANSWER  # times a rate: what is not the same
MORE_BY = 1 + ATTAINED / 2  # times a rate: what is more
_ROUNDS_BY_HAND = 6  # of solving for what the last answer needs, before ranges are halved


class Range(NamedTuple):
    """Numbers in flight from `first` to `last`, which may be infinite."""

    first: int
    last: float

    @property
    def single(self) -> bool:
        """Whether it is one number."""
        return self.first == self.last

    def halves(self, near: int) -> tuple["Range", "Range"]:
        """Two ranges; one without end is cut at `near` or in steps twice as long."""
        if self.last < math.inf:
            middle = (self.first + int(self.last)) // 2
        else:
            middle = max(2 * self.first - 1, near)
        return Range(self.first, middle), Range(middle + 1, self.last)


def compiled(numbers: Range, made: Callable[[int, bool], Instance]) -> Instance:
    """The instance of a range, relaxed only where its numbers differ in times.

    Parameters
    ----------
    numbers : Range
    made : function of int and bool
        Makes the instance with memory for a number, exact or relaxed for this and all larger ones.
    """
    first = made(numbers.first, True)
    if numbers.single:
        return first
    relaxed = made(numbers.first, False)
    if relaxed.same_times(first):
        return relaxed
    last = made(int(min(numbers.last, MOST_IN_FLIGHT)), True)
    return first if first.same_times(last) else relaxed


class Round(NamedTuple):
    """One subproblem: no pair of these numbers in flight yields more than `bound`; `best` was known by then."""

    first: int
    last: float
    solved_for: str  # "rate", "time" or "both"
    bound: float  # tokens/s
    best: float  # tokens/s; 0 without a placement


class LeastUse(NamedTuple):
    """The least use of something among what attains a floor.

    Attributes
    ----------
    placement : Placement or None
    bound : float
        No placement that attains the floor uses less; infinite if there is none.
    stopped_by : str or None
    number : int or None
        In flight, where a stage runs in another execution mode with the number that yields most.
    """

    placement: Placement | None
    bound: float
    stopped_by: str | None = None
    number: int | None = None
    reason: str = ""  # why the search could not be finished


class Budget(NamedTuple):
    """What a placement may use at most, in GPUs or in $ per hour."""

    what: str  # "gpus" or "price"
    most: float


def numbers_of(problem: Problem, full: bool = False) -> Range:
    """Return the numbers in flight that a problem leaves open; `full`: those that memory is counted for."""
    load, filling = problem.workload, problem.costs.filling
    last: float = load.in_memory
    first = load.in_memory
    if not full and filling == "by_stages":
        most = problem.model.layers + problem.costs.filling_number
        first, last = 1, min(most, load.in_flight or most)
    elif not full and filling in ("one", "dynamic"):
        first, last = 1, 1
    elif not full and filling == "synchronous" and load.in_flight is None:
        first, last = 1, math.inf
    return Range(first, last)


def within(usd_per_hour: float | None) -> Budget | None:
    """Return what a placement may cost in $ per hour as a budget; None where it may cost anything."""
    return None if usd_per_hour is None else Budget("price", usd_per_hour)


@dataclass
class InFlightSearch:
    """The search among pairs of a placement and a number in flight, of one problem.

    Attributes
    ----------
    problem : Problem
        With a number in flight of its own, or None where it is to be chosen.
    budget : Budget or None
    best : Placement or None
        The one that attains most so far, `evaluation` its evaluation.
    to_beat : float
        Tokens/s that something else attains: what attains less is not looked for.
    full : bool
        The rate of a full pipeline counts in place of the attainable one, whatever number it needs in flight: a
        relaxation, with memory for `Workload.in_memory`. Always so where links count transfers, which have no time.
    """

    problem: Problem
    deadline: Deadline
    budget: Budget | None = None
    full: bool = False
    best: Placement | None = None
    evaluation: Evaluation | None = None
    to_beat: float = 0.0
    rounds: list[Round] = field(default_factory=list)
    on_best: Callable[[], None] = lambda: None
    _instances: dict[tuple[int, bool], Instance] = field(default_factory=dict)
    _most: dict[int, tuple[float, int]] = field(default_factory=dict)
    _listed: dict[Instance, Instance] = field(default_factory=dict)
    _left_open: str | None = None  # what ended a program but for the deadline

    def __post_init__(self) -> None:
        self.full |= self.problem.costs.link_units == "transfers"

    def under(self, budget: Budget) -> "InFlightSearch":
        """Search within a budget, with the instances that were compiled here."""
        return InFlightSearch(
            self.problem, self.deadline, budget, self.full, _instances=self._instances
        )

    def full_pipelines(self) -> "InFlightSearch":
        """The relaxation in which every pipeline is full, with memory for one microbatch (or the workload's number)."""
        problem = self.problem.with_in_flight(numbers_of(self.problem).first)
        return InFlightSearch(problem, self.deadline, self.budget, True, _instances=self._instances)

    def yields(self, placement: Placement) -> float:
        """Tokens/s of a placement."""
        return self.counted(evaluate(self.problem, placement))

    def counted(self, found: Evaluation) -> float:
        """What counts of an evaluation, in tokens/s."""
        return found.rate if self.full else found.attainable

    @cached_property
    def numbers(self) -> Range:
        """All numbers in flight."""
        return numbers_of(self.problem, self.full)

    @property
    def attained(self) -> float:
        """Tokens/s of the best so far, or to beat; 0 without either."""
        if self.evaluation is None:
            return self.to_beat
        return max(self.to_beat, self.counted(self.evaluation))

    @property
    def in_flight(self) -> int:
        """Of the best so far."""
        return 1 if self.evaluation is None else self.evaluation.in_flight or 1

    def instance(self, numbers: Range) -> Instance:
        """The arrays of a range.

        Raises
        ------
        Ended, TooLarge
        """
        made = compiled(numbers, self._made)
        if made not in self._listed:
            self._listed[made] = made_in_time(lambda until: listed(made, until), self.deadline)
        return self._listed[made]

    def _made(self, number: int, exact: bool) -> Instance:
        if (number, exact) not in self._instances:
            problem = with_memory_for(self.problem, number, or_more=not exact)
            like = next(iter(self._instances.values()), None)
            made = made_in_time(lambda until: instance_of(problem, until, like), self.deadline)
            self._instances[number, exact] = made
        return self._instances[number, exact]

    def most_rate(self, first: int) -> float:
        """U(first): the greatest rate with memory for so many; its placement is tried."""
        if first not in self._most:
            numbers = Range(first, max(first, self.numbers.last))
            search = RateSearch(self.instance(numbers), self.deadline.apart(), self._most_used)
            search.find_best_rate()
            bound, needed = search.bound or 0.0, first
            if search.best is not None:
                needed = self.keep(search.best) or first
            self._most[first] = bound, needed
            self.rounds.append(
                Round(
                    first=first, last=math.inf, solved_for="rate", bound=bound, best=self.attained
                )
            )
        return self._most[first][0]

    @property
    def ceiling(self) -> float:
        """A rate above which the GPUs cannot hold all layers, links aside; 0 where they never can."""
        instance = self.instance(self.numbers)
        highest = instance.highest()
        return float(instance.thresholds[highest]) if highest >= 0 else 0.0

    def knows(self, bound: float) -> None:
        """Take a proven bound on the rate with memory for the first number; what it needs in flight is tried next."""
        needed = 1 if self.evaluation is None else self.evaluation.in_flight_needed
        self._most[self.numbers.first] = bound, needed

    def narrowed(self, numbers: Range, floor: float) -> Range | None:
        """A range without the small numbers that cannot yield `floor`; None if none of them can.

        With n in flight a traversal may take n·w / floor. If the shortest, as if GPUs were unlimited, takes longer,
        more are needed; and with memory for these it may take longer still.
        """
        if not floor or self.full:
            return numbers
        first = numbers.first
        while first <= numbers.last:
            shortest = self.shortest(Range(first, numbers.last), floor)
            needed = floor * shortest / self._tokens * (1 - ATTAINED)
            if needed <= first:
                return Range(first, numbers.last)
            if needed > numbers.last or needed == math.inf:
                return None
            first = math.ceil(needed)
        return None

    @property
    def _tokens(self) -> float:
        """Tokens that a pipeline yields in a traversal at most, for each microbatch in flight."""
        return self.problem.workload.tokens * self.problem.parts

    @property
    def _most_used(self) -> dict[str, float]:
        return {} if self.budget is None else {self.budget.what: self.budget.most}

    def _reach(self, numbers: Range, floor: float, timed: bool) -> AtRate:
        instance = self.instance(numbers)
        return AtRate(
            instance=instance, rate=floor * (1 - ONE_ANSWER), timed=timed, deadline=self.deadline
        )

    def shortest(self, numbers: Range, floor: float) -> float:
        """No traversal of what may yield `floor` takes less, in seconds, as if GPUs were unlimited."""
        reach = self._reach(numbers, floor, timed=True)
        return min((w.shortest for w in filter(possible, walks(reach, {}, {}))), default=math.inf)

    def shortest_and_longest(self, floor: float) -> tuple[float, float]:
        """Bound a traversal with any number in flight from below; and find the longest time of any stage or hop."""
        reach = self._reach(self.numbers, floor, timed=True)
        found = list(filter(possible, walks(reach, {}, {})))
        times = [table[np.isfinite(table)] for walk in found for table in walk.times]
        shortest = min((walk.shortest for walk in found), default=math.inf)
        return shortest, float(max((t.max(initial=0.0) for t in times), default=0.0))

    def least_at(
        self, numbers: Range, floor: float, what: str, most: float = math.inf, at_least: float = 0.0
    ) -> WalkResult:
        """The program of rule 2: the least of something among what may yield `floor` with these numbers in flight.

        `most`: what uses more is of no interest; `at_least`: nothing uses less.

        Raises
        ------
        Ended, TooLarge
        """
        if self._parts_follow and numbers.last * self.problem.parts > 1 and floor:
            return self._least_by_rate(numbers, floor, what, most, at_least)
        return self._least_at(numbers, floor, what, most, at_least, floor)

    @property
    def _parts_follow(self) -> bool:
        """Whether a batch is cut into parts, and waits for the last part of the one before."""
        return self.problem.costs.filling == "micro_batches" and not self.full

    def _least_by_rate(
        self, numbers: Range, floor: float, what: str, most: float, at_least: float
    ) -> WalkResult:
        """`least_at` where the slowest stage or link lengthens the time of a batch.

        What yields `floor` at a rate r takes m·w / floor - (m - 1)·w / r at most. In a range of r its highest counts,
        and the range is cut at the rate of whatever is found that yields less. Below the cut the time is shorter by a
        solver's tolerance, so that the same is not found again.
        """
        tokens, last = self.problem.workload.tokens, numbers.last * self.problem.parts
        at_once = self.problem.costs.filling_number or math.inf
        highest = self.most_rate(numbers.first)
        parts: list[tuple[float, float, float, float]] = [(at_least, floor, highest, 1.0)]
        best = WalkResult(placement=None, bound=math.inf)
        while parts and parts[0][0] < best.bound:
            bound, low, high, share = heapq.heappop(parts)
            longest = share * last * tokens / floor
            longest = min(
                longest - (last - 1) * tokens / high, longest / (1 + (last - 1) / at_once)
            )
            if low > high * _JUST_ABOVE or longest <= 0:
                continue
            pace = numbers.last * tokens / longest
            found = self._least_at(numbers, low, what, most, bound, pace)
            if found.bound == math.inf:
                continue
            if found.placement is None or found.stopped_by is not None:
                return found._replace(bound=min(found.bound, bound))
            evaluated = evaluate(self.problem, found.placement)
            if evaluated.attainable >= floor * (1 - ATTAINED / 4):
                best = min(best, found, key=lambda result: result.bound)
                continue
            cut = evaluated.rate * _JUST_ABOVE
            heapq.heappush(parts, (found.bound, low, min(cut, high), share * (1 - ATTAINED)))
            heapq.heappush(parts, (found.bound, cut, high, share))
        return best

    def _least_at(
        self, numbers: Range, floor: float, what: str, most: float, at_least: float, pace: float
    ) -> WalkResult:
        """The program: stages and links reach `floor`, and a traversal takes no longer than `pace` allows."""
        limits = self._most_used
        if floor and numbers.last < math.inf and not self.full:
            longest = numbers.last * self.problem.workload.tokens / pace
            limits["seconds"] = longest * (1 + ONE_ANSWER)
        if self.problem.costs.filling == "by_stages" and not self.full:
            limits["fewest stages"] = self.problem.costs.filling_number - numbers.first
        if most < math.inf:
            # a price that is the same but for its last bits is no reason to ask again
            room = 1 + ONE_ANSWER if what == "price" else 1.0
            limits[what] = min(most * room, limits.get(what, math.inf))
        reach = self._reach(numbers, floor, "seconds" in limits or what == "seconds")
        found = least(reach, {what: 1.0}, limits, at_least)
        self.deadline.counts()
        return found

    def keep(self, placement: Placement) -> int | None:
        """Take a placement if it attains more than the best; how many it needs in flight for its rate.

        None where that does not count, or where it does not fit the problem as it is.
        """
        try:
            found = evaluate(self.problem, placement)
        except InvalidPlacement:
            return None
        yields = self.counted(found)
        better = yields > self.attained * (1 + ONE_ANSWER)
        fewer = yields >= self.attained and (found.in_flight or 1) < self.in_flight
        if better or fewer or self.best is None:
            self.best, self.evaluation = placement, found
            self.on_best()
        return None if self.full else found.in_flight_needed

    def uses(self, placement: Placement, what: str) -> float:
        """How many GPUs, $ per hour or seconds a placement takes."""
        return used(self.problem, what, placement)

    def greatest(self, gap: float = 0.0) -> tuple[float, str | None]:
        """Find the pair that attains most: `best`. Returns a bound on all, and what ended the search early."""
        left: list[float] = []  # bounds of ranges that stayed open
        here = math.inf
        stopped: str | None = None
        open_ranges: list[tuple[float, Range]] = [(-math.inf, self.numbers)]
        close = max(MORE_BY, 1 + gap)
        within = False
        try:
            whole = self.narrowed(self.numbers, self.to_beat * MORE_BY)
            if whole is None:
                return self.attained, None
            # First as one would by hand: solve for as many as the last answer needs.
            number = whole.first
            for _ in range(_ROUNDS_BY_HAND if not self.numbers.single else 1):
                most = self.most_rate(number)
                if number == whole.first:
                    open_ranges = [(-most, whole)]
                needed = self._most[number][1]
                if self.numbers.single or needed in self._most or most <= self.attained * MORE_BY:
                    break
                number = needed
            while open_ranges:
                negative, numbers = heapq.heappop(open_ranges)
                here = -negative
                if here <= self.attained * close:
                    within = here > self.attained * MORE_BY
                    left.append(here)
                    break
                self.deadline.check()
                bound = self._looked_at(numbers, here)
                if bound <= self.attained * MORE_BY:
                    continue
                if numbers.single:
                    left.append(self._settled(numbers, bound))
                elif numbers.first > MOST_IN_FLIGHT:
                    left.append(bound)
                    stopped = f"limit of {MOST_IN_FLIGHT:,} in flight"
                else:
                    for half in numbers.halves(self.in_flight):
                        heapq.heappush(open_ranges, (-bound, half))
        except (Ended, TooLarge) as end:  # what was looked at last stays open
            stopped = end.reason if isinstance(end, Ended) else SETS
            left.append(min(here, self._most.get(self.numbers.first, (math.inf, 1))[0]))
        most = max([self.attained, *left, *(-negative for negative, _ in open_ranges)])
        if stopped is None and most > self.attained * MORE_BY:
            stopped = "gap limit" if within else self._left_open or BY_TOLERANCE
        return most, stopped

    def _looked_at(self, numbers: Range, bound: float) -> float:
        """A bound on the pairs of a range, by rules 1 and 2."""
        if self.narrowed(numbers, self.attained * MORE_BY) is None:
            return self.attained * MORE_BY
        bound = min(bound, self.most_rate(numbers.first))
        if bound <= self.attained * MORE_BY or numbers.last == math.inf:
            return bound
        return self._by_time(numbers, self.attained * MORE_BY, bound)

    def _by_time(self, numbers: Range, floor: float, bound: float) -> float:
        """A bound by the least time of a traversal among what may yield `floor` or more."""
        found = self.least_at(numbers, floor, "seconds")
        if found.placement is not None:
            self.keep(found.placement)
        if found.bound > 0:
            most = numbers.last * self._tokens / found.bound
            bound = float(min(bound, max(floor, most)))
        solved_for = "both" if numbers.single else "time"
        self.rounds.append(
            Round(**numbers._asdict(), solved_for=solved_for, bound=bound, best=self.attained)
        )
        if found.stopped_by is not None:
            self.deadline.check()
            self._left_open = found.stopped_by
        return bound

    def _settled(self, number: Range, bound: float) -> float:
        """One number in flight: look for the bound itself, then for ever more than the best, until there is none."""
        floor = bound * (1 - ONE_ANSWER)
        while bound > self.attained * MORE_BY:
            self.deadline.check()
            before = self.attained, bound
            bound = self._by_time(number, floor, bound)
            more = self.attained * MORE_BY
            if floor <= more * (1 + ONE_ANSWER) and (self.attained, bound) == before:
                break  # no better by the solver's tolerance
            floor = more
        return bound

    def attains(
        self, placement: Placement, floor: float, what: str, numbers: Range
    ) -> tuple[float, int | None]:
        """What a placement uses that attains the floor, and with which number in flight (`LeastUse`).

        Infinite if it does not. In seconds fewer in flight than yield most may take less, where a
        stage has several execution modes.
        """
        uses, number = math.inf, None
        if self.yields(placement) >= floor * (1 - ATTAINED):
            uses = self.uses(placement, what)
        if what == "seconds":
            longest = evaluate(self.problem, placement).seconds_per_pass
            tokens = self.problem.workload.tokens
            for fewer in {numbers.first, max(numbers.first, math.ceil(floor * longest / tokens))}:
                try:
                    found = evaluate(self.problem.with_in_flight(fewer), placement)
                except InvalidPlacement:
                    continue
                reached = found.attainable >= floor * (1 - ATTAINED)
                if reached and found.seconds_per_pass < uses * (1 - ONE_ANSWER):
                    uses, number = found.seconds_per_pass, fewer
        return uses, number

    def least(
        self, what: str, floor: float, most: float = math.inf, at_least: float = 0.0
    ) -> LeastUse:
        """The placement that attains `floor` and uses least GPUs, price or seconds.

        Parameters
        ----------
        what : {"gpus", "price", "seconds"}
        floor : float
            Tokens/s.
        most : float
            Nothing that uses more is of interest.
        at_least : float
            Nothing uses less.

        Returns
        -------
        LeastUse
        """
        best: Placement | None = None
        number: int | None = None
        value, left = most, math.inf
        open_ranges: list[tuple[float, Range]] = [(at_least, self.numbers)]
        try:
            while open_ranges:
                bound, popped = heapq.heappop(open_ranges)
                if bound >= value * (1 - ATTAINED / 2):
                    break
                self.deadline.check()
                numbers = self.narrowed(popped, floor)
                if numbers is None:
                    continue
                found = self.least_at(numbers, floor, what, value, bound)
                bound = max(bound, found.bound)
                if found.placement is not None:
                    self.keep(found.placement)
                    uses, needed = self.attains(found.placement, floor, what, numbers)
                    if uses < value:
                        best, value, number = found.placement, uses, needed
                if what == "seconds":
                    known = None if best is None else value
                    self.deadline.tell(incumbent=known, bound=bound, placement=best)
                if found.stopped_by is not None:
                    raise Ended(found.stopped_by)
                if bound == math.inf or bound >= value * (1 - ATTAINED / 2):
                    continue
                if numbers.single or numbers.first > MOST_IN_FLIGHT:
                    left = min(left, bound)
                else:
                    for half in numbers.halves(self.in_flight):
                        heapq.heappush(open_ranges, (bound, half))
        except Ended as end:
            rest = [bound for bound, _ in open_ranges]
            return LeastUse(
                placement=best,
                bound=min([value, left, bound, *rest]),
                stopped_by=end.reason,
                number=number,
            )
        if best is None and left == math.inf:
            return LeastUse(None, math.inf)
        return LeastUse(placement=best, bound=min(value, left), number=number)
