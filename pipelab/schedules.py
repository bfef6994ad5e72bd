"""Pipeline schedules: what every rank does, in which order. When it does so, `simulator` says.

A model is cut into stages and every rank holds one or more of them. Each microbatch goes forward
(F) through all stages and then backward (B) through all of them. A backward may be split into the
gradient of the stage's input (I), which the stage before waits for, and that of its weights (W),
which nobody waits for. F, B, I or W of one stage and one microbatch is a *pass*. A schedule lists
what each rank does as *actions*: a pass, a pair of passes at the same time, or nothing.
In each *turn* of the rules below, a rank does a forward, a backward, or one of each.

The rules are definitions to read: `pl.schedule` runs `engine/schedules/named_schedules.py` instead (for ZB-V
`zb_v` itself), and `tests/equal/test_definitions_schedules.py` holds both equal.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple, cast

from pipelab.display import coloured_rows
from pipelab.errors import InvalidValue, shown
from pipelab.fields import Frozen, instance, is_list, whole_number

__all__ = [
    "KINDS", "LARGEST_SIZE", "Action", "Schedule",
    "gpipe", "interleaved", "one_f_one_b", "one_rank", "zb_h1", "zb_h2", "zb_v",
]  # fmt: skip

KINDS = ("F", "I", "B", "W", "IDLE")
LARGEST_SIZE = 5_000_000  # most microbatches; stages and ranks are numbered below it, too
Passes = Sequence[tuple[int, int]]  # stage and microbatch of each

_NUMBERS = range(-1, LARGEST_SIZE)
_ROWS = "a row of actions for each rank"
_SINGLE = re.compile(r"([0-9]{1,12})([FIBW])([0-9]{1,12})")
_PAIR = re.compile(r"\( *([0-9]+F[0-9]+) *; *([0-9]+B[0-9]+) *\)OVERLAP_F_B")


class Action(NamedTuple):
    """One thing that a rank does; in torch's notation `2F0` is stage 2, forward, microbatch 0.

    Parameters
    ----------
    stage : int
        Counted from 0; -1 where the action belongs to no single stage (a pair, an idle tick).
    kind : str
        `"F"` forward, `"B"` full backward, `"I"` input gradient, `"W"` weight gradient, `"IDLE"`,
        or `"OVERLAP_F_B"` for a pair.
    microbatch : int
        Counted from 0; -1 where there is none.
    parts : tuple of Action
        Forward and backward of a pair that runs at the same time; empty otherwise.

    Examples
    --------
    >>> str(Action(2, "F", 0)), Action.parse("1W3").microbatch
    ('2F0', 3)
    >>> Action.parse("(3F0;4B1)OVERLAP_F_B").parts[1]
    Action(stage=4, kind='B', microbatch=1, parts=())
    """

    stage: int
    kind: str
    microbatch: int
    parts: tuple = ()

    @classmethod
    def pair(cls, forward: "Action", backward: "Action") -> "Action":
        """A forward and a full backward that one rank runs at the same time.

        Parameters
        ----------
        forward, backward : Action
            Of kind "F" and of kind "B".

        Returns
        -------
        Action
            Of kind "OVERLAP_F_B", with both as its `parts`.
        """
        return cls(-1, "OVERLAP_F_B", -1, (forward, backward))

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Read an action; an empty cell is an idle tick.

        Parameters
        ----------
        text : str
            As torch writes it: `2F0`, `1W3`, `(3F0;4B1)OVERLAP_F_B`.

        Returns
        -------
        Action
            Of the kind that is written there.

        Raises
        ------
        InvalidValue
            The text is no action in torch's notation.
        """
        text = (text if isinstance(text, str) else shown(text)).strip()
        if text in ("", "IDLE"):
            return cls(-1, "IDLE", -1)
        if match := _PAIR.fullmatch(text):
            return cls.pair(*(cls.parse(part) for part in match.groups()))
        if match := _SINGLE.fullmatch(text):
            return cls(int(match[1]), match[2], int(match[3]))
        expected = "stage, kind and microbatch, such as 2F0, 1W3 or (3F0;4B1)OVERLAP_F_B"
        kinds = f"numbers of at most 12 digits; kinds: {', '.join(KINDS[:-1])}"
        raise InvalidValue("Action", [("action", text, f"expected {expected}; {kinds}")])

    def __str__(self) -> str:
        if self.parts:
            return "({};{})OVERLAP_F_B".format(*self.parts)
        return "IDLE" if self.kind == "IDLE" else f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True)
class Schedule(Frozen):
    """What every rank does, in order; make one with `pl.schedule` or `Schedule.of`.

    Equal are schedules with the same microbatches, stage_rank and actions. The name does not matter.

    Attributes
    ----------
    name : str
        For titles and messages; `closed_forms` looks formulas up by it.
    microbatches : int
        m, at most 5 million.
    stage_rank : tuple of int
        The rank that holds each stage.
    actions : sequence of sequences of Action
        The actions of each rank, in order; a pair is one action with two parts.

    Raises
    ------
    InvalidValue
        An attribute is of another type. `pl.simulate` says whether the schedule can be run.

    Examples
    --------
    >>> import pipelab as pl
    >>> print(pl.schedule("1F1B", ranks=2, microbatches=2))
    rank 0: 0F0 0F1 0B0 0B1
    rank 1: 1F0 1B0 1F1 1B1
    """

    name: str = field(compare=False)
    microbatches: int
    stage_rank: tuple[int, ...]
    actions: Sequence[Sequence[Action]]

    def __post_init__(self) -> None:
        instance("Schedule", "name", self.name, str, "text")
        number = whole_number("Schedule", "microbatches", self.microbatches, most=LARGEST_SIZE)
        object.__setattr__(self, "microbatches", number)
        object.__setattr__(self, "stage_rank", _ranks_of_stages(self.stage_rank))
        instance("Schedule", "actions", self.actions, Sequence, _ROWS)
        # Others are rows of columns, whose actions are made when they are looked at.
        if isinstance(self.actions, tuple | MutableSequence):
            rows = tuple(_row(rank, row) for rank, row in enumerate(self.actions))
            object.__setattr__(self, "actions", rows)

    @classmethod
    def of(
        cls,
        name: str,
        rows: Iterable[Iterable[Action | str]],
        *,
        microbatches: int | None = None,
        stage_rank: Sequence[int] | None = None,
    ) -> "Schedule":
        """A schedule from the actions of every rank, each an `Action` or text.

        Parameters
        ----------
        name : str
            For titles and messages.
        rows : iterable of iterables of Action or str
            The actions of each rank, in order.
        microbatches : int, optional
            By default the largest microbatch named, plus one.
        stage_rank : sequence of int, optional
            By default the first rank that runs a stage holds it.

        Returns
        -------
        Schedule
            As the rows have it; whether it can be run is not asked.

        Raises
        ------
        InvalidValue
            An action cannot be read, the rows name no stage at all, or a number is none.
        """
        if not is_list(rows):
            raise InvalidValue("Schedule", [("rows", rows, f"expected {_ROWS}")])
        read = tuple(_row(rank, row) for rank, row in enumerate(rows))
        named = [
            (part.stage, part.microbatch, rank)
            for rank, row in enumerate(read)
            for action in row
            for part in action.parts or (action,)
            if part.stage >= 0
        ]
        if not named:
            raise InvalidValue("Schedule", [("rows", "no action", f"expected {_ROWS}")])
        if microbatches is None:
            microbatches = max(1, 1 + max(microbatch for _, microbatch, _ in named))
        if stage_rank is None:
            first = {stage: rank for stage, _, rank in reversed(named)}
            # A stage that no rank runs is a defect; any rank may be blamed for it.
            stage_rank = [first.get(stage, 0) for stage in range(max(first) + 1)]
        return cls(name, microbatches, cast(tuple[int, ...], stage_rank), read)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """Number of stages, over all ranks."""
        return len(self.stage_rank)

    @property
    def chunks(self) -> int:
        """Stages per rank; the most that any rank holds, where they are spread unevenly."""
        return max(Counter(self.stage_rank).values())

    def __len__(self) -> int:
        return sum(map(len, self.actions))

    def __str__(self) -> str:
        width = len(str(self.ranks - 1))
        rows = (" ".join(map(str, row)) for row in self.actions)
        return "\n".join(f"rank {rank:>{width}}: {row}" for rank, row in enumerate(rows))

    def __repr__(self) -> str:
        size = f"{self.ranks} ranks, {self.microbatches} microbatches, {len(self)} actions"
        return f"<Schedule {self.name}: {size}>"

    def _repr_html_(self) -> str:
        return coloured_rows(repr(self).strip("<>"), self.actions)


def one_rank(
    forwards: Passes, backwards: Passes, lead: int, delay: int | None = None
) -> list[Action]:
    """One rank of the 1F1B family: in each turn a forward and a backward, these `lead` turns late.

    Parameters
    ----------
    forwards, backwards : sequences of (stage, microbatch)
        In the order in which the rank takes them.
    lead : int
        The number of turns with nothing but a forward.
    delay : int, optional
        Splits the backward, and runs each weight gradient so many turns after its input gradient.

    Returns
    -------
    list of Action
        All passes, forward and backward.
    """
    queues = [("F", forwards, 0), ("B", backwards, lead)]
    if delay is not None:
        queues = [("F", forwards, 0), ("I", backwards, lead), ("W", backwards, lead + delay)]
    return [
        Action(queue[turn - late][0], kind, queue[turn - late][1])
        for turn in range(len(forwards) + lead + (delay or 0))
        for kind, queue, late in queues
        if 0 <= turn - late < len(queue)
    ]


def _family(
    name: str, ranks: int, microbatches: int, numbers: Callable[[int], tuple[int, int | None]]
) -> Schedule:
    """One stage per rank, microbatches in order; `numbers` are each rank's lead and delay."""
    rows = []
    for rank in range(ranks):
        passes = [(rank, i) for i in range(microbatches)]
        lead, delay = numbers(rank)
        rows.append(one_rank(passes, passes, min(lead, microbatches), delay))
    return Schedule.of(name, rows)


def gpipe(ranks: int, microbatches: int) -> Schedule:
    """GPipe: all forwards, then all backwards; every rank holds all microbatches at once.

    Y. Huang et al., 2019. As below, p `ranks` and m `microbatches`, both at least 1.
    """
    return _family("GPipe", ranks, microbatches, lambda rank: (microbatches, None))


def one_f_one_b(ranks: int, microbatches: int) -> Schedule:
    """1F1B: on rank r first p-1-r forwards, then a forward and a backward in each turn.

    D. Narayanan et al. (PipeDream-Flush), 2021. Rank r holds min(m, p-r) microbatches at a time.
    """
    return _family("1F1B", ranks, microbatches, lambda rank: (ranks - 1 - rank, None))


def zb_h1(ranks: int, microbatches: int) -> Schedule:
    """ZB-H1: 1F1B, backward split; rank r keeps r weight gradients for the gaps of the cool-down.

    P. Qi et al., *Zero Bubble Pipeline Parallelism*, arXiv 2401.10241.
    """
    return _family("ZBH1", ranks, microbatches, lambda rank: (ranks - 1 - rank, rank))


def zb_h2(ranks: int, microbatches: int) -> Schedule:
    """ZB-H2: twice the lead and twice the delay of ZB-H1.

    P. Qi et al., arXiv 2401.10241. From m ≥ 2p-1 on, with F = I = W and free messages, no rank
    idles between its own first and last action; the makespan is still ZB-H1's. The fullest rank
    then holds 2p-1 microbatches, that of 1F1B p.
    """
    return _family("ZBH2", ranks, microbatches, lambda rank: (2 * (ranks - 1 - rank), 2 * rank))


def interleaved(ranks: int, microbatches: int, chunks: int) -> Schedule:
    """Interleaved 1F1B: rank r holds stages r, p+r, 2p+r, …, each 1/`chunks` of the rank's work.

    D. Narayanan et al. (Megatron-LM), 2021. Of max(1, ⌊m/p⌋) rounds of microbatches, each goes
    through all chunks before the next enters; `InvalidValue` unless all are equally long.
    """
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        expected = f"expected {rounds} rounds of equal length, on {ranks} ranks"
        raise InvalidValue("interleaved", [("microbatches", microbatches, expected)])
    size, rows = microbatches // rounds, []
    order = [
        (chunk, batch)
        for first in range(0, microbatches, size)
        for chunk in range(chunks)
        for batch in range(first, first + size)
    ]
    for rank in range(ranks):
        forwards = [(chunk * ranks + rank, batch) for chunk, batch in order]
        backwards = [((chunks - 1 - chunk) * ranks + rank, batch) for chunk, batch in order]
        lead = (chunks - 1) * size + 2 * (ranks - 1 - rank)
        rows.append(one_rank(forwards, backwards, min(lead, len(order))))
    return Schedule.of("Interleaved1F1B", rows)


def zb_v(ranks: int, microbatches: int) -> Schedule:
    """ZB-V: two chunks per rank as a V, rank r with the stages r and 2p-1-r.

    P. Qi et al., arXiv 2401.10241, section 6. No rank idles where none of ZB-H2 does, and none
    holds more than 1F1B's fullest. Made for m ≥ 2p-1; of fewer, the surplus is struck out.
    """
    rows, total = [], max(microbatches, 2 * ranks - 1)
    for rank in range(ranks):
        hops = ranks - rank  # stages from rank's first to the bottom of the V, both included
        # Capital letters belong to the stage on the way down, small ones to that on the way back.
        order = "F" * (2 * hops - 1) + "fF" * rank + "fiw" * hops
        order += "FIWfiw" * (total - hops - ranks + 1) + "IWfiw" * (hops - 1)
        order += "Ii" * rank + "IW" * hops + "w" * rank + "W" * rank
        stages = dict.fromkeys("FIW", rank) | dict.fromkeys("fiw", 2 * ranks - 1 - rank)
        number = {letter: count() for letter in stages}
        actions = [Action(stages[one], one.upper(), next(number[one])) for one in order]
        rows.append([action for action in actions if action.microbatch < microbatches])
    return Schedule.of("ZBV", rows)


def _row(rank: int, row: Any) -> tuple[Action, ...]:
    if not is_list(row):
        expected = "expected a list of actions, such as ['0F0', '0B0']"
        raise InvalidValue("Schedule", [(f"rows[{rank}]", row, expected)])
    return tuple(_action(cell, rank, position) for position, cell in enumerate(row))


def _action(cell: Any, rank: int, position: int) -> Action:
    """A cell as an action whose kind is known and whose numbers are ints."""
    action = cell if isinstance(cell, Action) else Action.parse("" if cell is None else cell)
    if type(action.parts) is not tuple or action.parts:
        halves = action.parts if type(action.parts) is tuple else ()
        # With one half missing, the next action would be taken for it.
        if [isinstance(half, Action) and not half.parts for half in halves] != [True, True]:
            expected = "expected a forward and a full backward, as in Action.pair"
            raise InvalidValue("Action", [("parts", action.parts, expected)])
        return Action.pair(*(_action(half, rank, position) for half in halves))
    stage, kind, microbatch, _ = action
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidValue("Action", [("kind", kind, f"expected one of {', '.join(KINDS)}")])
    if type(stage) is type(microbatch) is int and stage in _NUMBERS and microbatch in _NUMBERS:
        return action
    place = f"Action (rank {rank}, position {position})"
    stage = whole_number(place, "stage", stage, -1, LARGEST_SIZE - 1)
    microbatch = whole_number(place, "microbatch", microbatch, -1, LARGEST_SIZE - 1)
    return Action(stage, kind, microbatch)


def _ranks_of_stages(stage_rank: Any) -> tuple[int, ...]:
    if not is_list(stage_rank) or not (ranks := tuple(stage_rank)):
        expected = "expected the rank that holds each stage, such as [0, 1]"
        raise InvalidValue("Schedule", [("stage_rank", stage_rank, expected)])
    named = ((f"stage_rank[{stage}]", rank) for stage, rank in enumerate(ranks))
    return tuple(whole_number("Schedule", name, n, 0, LARGEST_SIZE - 1) for name, n in named)
