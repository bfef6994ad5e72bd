"""A schedule: for each rank its actions in order. What order, not when; `simulate` adds the times."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pipelab.engine.schedules.action import IDLE, KINDS, TRANSFERS, Action, B, F
from pipelab.engine.schedules.limits import MOST_PASSES
from pipelab.engine.schedules.rows import arrays_of, first_holders, ranks_of_stages
from pipelab.errors import InvalidValue
from pipelab.fields import instance, whole_number

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["Schedule"]

_ARRAYS = ("kind", "stage", "microbatch", "first", "paired")


@dataclass(frozen=True, eq=False)
class Schedule:
    """What every rank does, in order; make one with `pl.schedule` or `Schedule.of`.

    Attributes
    ----------
    name : str
        For titles and messages; `closed_forms` looks formulas up by it.
    microbatches : int
        m, at most 5 million.
    stage_rank : tuple of int
        The rank that holds each stage.
    kind, stage, microbatch : arrays of int, shape (n,)
        All actions, rank after rank. `kind` holds the codes of
        `pipelab.engine.schedules.action.KINDS`.
    first : array of int, shape (ranks + 1,)
        Rank r's actions are those from first[r] to first[r + 1].
    paired : array of bool, shape (n,)
        True for a forward that runs at the same time as the backward listed next.

    Raises
    ------
    InvalidValue
        An attribute is of another kind or shape. Whether the schedule can be run is not asked here:
        see `validate`.

    Examples
    --------
    >>> import pipelab as pl
    >>> schedule = pl.schedule("1F1B", ranks=2, microbatches=2)
    >>> print(schedule)
    rank 0: 0F0 0F1 0B0 0B1
    rank 1: 1F0 1B0 1F1 1B1
    """

    name: str
    microbatches: int
    stage_rank: tuple[int, ...]
    kind: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    first: np.ndarray
    paired: np.ndarray

    def __post_init__(self) -> None:
        instance("Schedule", "name", self.name, str, "text")
        count = whole_number("Schedule", "microbatches", self.microbatches, most=MOST_PASSES)
        object.__setattr__(self, "microbatches", count)
        object.__setattr__(self, "stage_rank", ranks_of_stages(self.stage_rank))
        for name in _ARRAYS:
            instance(
                "Schedule",
                name,
                getattr(self, name),
                np.ndarray,
                "an array; make schedules with Schedule.of",
            )
            # What is compiled and checked once must not change afterwards.
            getattr(self, name).setflags(write=False)
        n, first = len(self.kind), self.first
        equal = all(getattr(self, name).shape == (n,) for name in _ARRAYS if name != "first")
        if (
            not equal
            or len(first) < 2
            or first[0] != 0
            or first[-1] != n
            or (np.diff(first) < 0).any()
        ):
            expected = f"expected 0 and the end of every rank's actions, of which there are {n}"
            raise InvalidValue("Schedule", [("first", first, expected)])

    @classmethod
    def of(
        cls,
        name: str,
        rows: Iterable[Iterable[Action | str]],
        *,
        microbatches: int | None = None,
        stage_rank: Sequence[int] | None = None,
    ) -> "Schedule":
        """A schedule from every rank's actions, as `Action`s or as text; whether it can be run, `validate` says.

        Parameters
        ----------
        name : str
            For titles and messages.
        rows : iterable of iterables of Action or str
            The actions of each rank, in order.
        microbatches : int, optional
            Largest microbatch named, plus one, where it is not given.
        stage_rank : sequence of int, optional
            The first rank that runs a stage holds it, where it is not given.

        Returns
        -------
        Schedule
            As the rows have it.

        Raises
        ------
        InvalidValue
            An action cannot be read, the rows name no stage at all, or a number is none.
        """
        arrays = arrays_of(rows)
        if stage_rank is None:
            stage_rank = first_holders(arrays)
        if microbatches is None:
            microbatches = max(int(arrays["microbatch"].max()) + 1, 1)
        # `__post_init__` makes it one
        return cls(name, microbatches, cast(tuple[int, ...], stage_rank), **arrays)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.first) - 1

    @property
    def stages(self) -> int:
        """Number of stages, over all ranks."""
        return len(self.stage_rank)

    @property
    def chunks(self) -> int:
        """Stages per rank; the most that any rank holds, where they are spread unevenly."""
        return int(self.held.max())

    @cached_property
    def held(self) -> np.ndarray:
        """How many stages every rank holds, (ranks,) array of ints; 0 for a rank with nothing to do."""
        return np.bincount(self.holder, minlength=self.ranks)

    @cached_property
    def chunk(self) -> np.ndarray:
        """Which of its rank's stages every stage is, from 0; (stages,) array of ints."""
        order = np.argsort(self.holder, kind="stable")
        before = np.cumsum(self.held) - self.held
        chunk = np.empty(self.stages, dtype=np.int64)
        chunk[order] = np.arange(self.stages) - before[self.holder[order]]
        return chunk

    @cached_property
    def rank(self) -> np.ndarray:
        """The rank of every action; (n,) array of ints."""
        return np.repeat(np.arange(self.ranks), np.diff(self.first))

    @cached_property
    def holder(self) -> np.ndarray:
        """`stage_rank` as an array of ints, shape (stages,)."""
        return np.array(self.stage_rank)

    @property
    def forward_only(self) -> bool:
        """True for inference: nothing runs backward."""
        return not np.any(
            (self.kind > F) & (self.kind != IDLE) & ~np.isin(self.kind, TRANSFERS[:2])
        )

    @property
    def splits_backward(self) -> bool:
        """True where some input and weight gradients are actions of their own."""
        return bool(np.any((self.kind > F) & (self.kind != B) & (self.kind < TRANSFERS[0])))

    @property
    def communicates(self) -> bool:
        """True where sends and receives are shown as actions."""
        return bool(np.isin(self.kind, TRANSFERS).any())

    def action(self, i: int) -> Action:
        """One entry of the arrays; a pair has two.

        Parameters
        ----------
        i : int
            From 0 to n - 1.

        Returns
        -------
        Action
            Without its partner, where it is half of a pair.
        """
        return Action(int(self.stage[i]), KINDS[self.kind[i]], int(self.microbatch[i]))

    def whole(self, i: int) -> Action:
        """One entry of the arrays, or the pair of which it is a half.

        Parameters
        ----------
        i : int
            From 0 to n - 1.

        Returns
        -------
        Action
            With two parts, where it is a pair.
        """
        low = i - 1 if i and self.paired[i - 1] else i
        return (
            Action.pair(self.action(low), self.action(low + 1))
            if self.paired[low]
            else self.action(i)
        )

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Every entry as text, each half of a pair by itself; n of them."""
        kinds, columns = (
            [KINDS[code] for code in self.kind.tolist()],
            (self.stage.tolist(), self.microbatch.tolist()),
        )
        return tuple(
            k if k == "IDLE" else f"{s}{k}{m}" for k, s, m in zip(kinds, *columns, strict=True)
        )

    @cached_property
    def actions(self) -> tuple[tuple[Action, ...], ...]:
        """Every rank's actions; a pair is one action with two parts."""
        names = [KINDS[code] for code in self.kind.tolist()]
        single = [
            Action(*a)
            for a in zip(self.stage.tolist(), names, self.microbatch.tolist(), strict=True)
        ]
        paired, rows = self.paired.tolist(), []
        for low, high in pairwise(self.first.tolist()):
            row, i = [], low
            while i < high:
                row.append(Action.pair(single[i], single[i + 1]) if paired[i] else single[i])
                i += 1 + paired[i]
            rows.append(tuple(row))
        return tuple(rows)

    def select(self, keep: np.ndarray) -> "Schedule":
        """The schedule with some of its entries.

        Parameters
        ----------
        keep : array of bool, shape (n,)
            False for what is left out.

        Returns
        -------
        Schedule
            Whether it can be run, `validate` says.
        """
        first = np.concatenate([[0], np.cumsum(keep)])[self.first]
        arrays = {
            name: getattr(self, name)[keep] for name in ("kind", "stage", "microbatch", "paired")
        }
        return replace(self, first=first, **arrays)

    def validate(self) -> "Schedule":
        """Return the schedule itself if it can be run.

        Returns
        -------
        Schedule
            Itself.

        Raises
        ------
        InvalidSchedule
            Names every missing, doubled or impossible action (the first thousand), or the edges of
            a deadlock.
        TooLarge
            It would take minutes to run; see `pipelab.engine.schedules.limits`.
        """
        from pipelab.engine.schedules.validation import validate

        return validate(self)

    def defects(self) -> tuple[str, ...]:
        """What `validate` would complain about.

        Returns
        -------
        tuple of str
            Empty for a schedule that can be run; the first thousand of a longer list.

        Raises
        ------
        TooLarge
            It would take minutes to run; see `pipelab.engine.schedules.limits`.
        """
        from pipelab.engine.schedules.validation import defects

        return defects(self)

    def with_communication(self) -> "Schedule":
        """The same schedule with a send after and a receive before every action that crosses ranks.

        Returns
        -------
        Schedule
            A pair has both receives before it and both sends after it.

        Raises
        ------
        InvalidSchedule
            It names stages or microbatches that do not exist, or stages on ranks that do not hold
            them.
        """
        from pipelab.engine.schedules.views import with_communication

        return with_communication(self)

    @cached_property
    def communicating(self) -> "Schedule":
        """`with_communication()`, made once."""
        return self.with_communication()

    def without_communication(self) -> "Schedule":
        """The same schedule without sends, receives and idle ticks.

        Returns
        -------
        Schedule
            What computes alone.
        """
        return self.select(~np.isin(self.kind, (*TRANSFERS, IDLE)))

    def with_idle(self) -> "Schedule":
        """The same schedule with an idle tick wherever a rank waits, every action taking one tick.

        Returns
        -------
        Schedule
            Messages take no tick and are left out.

        Raises
        ------
        InvalidSchedule
            It cannot be run.
        TooLarge
            It would take minutes to run; see `pipelab.engine.schedules.limits`.
        """
        from pipelab.engine.schedules.views import with_idle

        return with_idle(self)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The schedule as torch's CSV: a line per rank, a cell per action, idle ticks empty.

        Parameters
        ----------
        path : str or Path, optional
            Where to write it, too.

        Returns
        -------
        str
            The text of the file.

        Raises
        ------
        InvalidData
            Nothing can be written there.
        InvalidValue
            What is given is no path.
        """
        from pipelab.io.schedule_files import to_csv

        return to_csv(self, path)

    @classmethod
    def from_csv(cls, source: Any, **known: Any) -> "Schedule":
        """Read torch's CSV and validate it.

        Parameters
        ----------
        source : str or Path
            A file, or the text itself where it has more than one line.
        **known
            `name`, `microbatches` and `stage_rank`, which the file does not say; by default taken
            from its name and its actions.

        Returns
        -------
        Schedule
            Without idle ticks; what torch lists besides (parameters gathered, gradients reduced) is
            left out.

        Raises
        ------
        InvalidData
            The file is not there, or a cell is no action; names row and column.
        InvalidSchedule
            The file holds a schedule that cannot be run.
        InvalidValue
            What is given is neither text nor a path.
        TooLarge
            It would take minutes to run; see `pipelab.engine.schedules.limits`.
        """
        from pipelab.io.schedule_files import from_csv

        return from_csv(source, **known)

    def to_frame(self) -> "DataFrame":
        """The actions as a table, one row each, in order.

        Returns
        -------
        pandas.DataFrame
            Columns `rank`, `position`, `action`, `stage`, `kind` and `microbatch`; all numbers from
            0, -1 for none.
        """
        import pandas as pd

        position = np.arange(len(self.kind)) - self.first[self.rank]
        names = np.array(KINDS)[self.kind]
        columns = {
            "rank": self.rank,
            "position": position,
            "action": self.texts,
            "stage": self.stage,
        }
        return pd.DataFrame({**columns, "kind": names, "microbatch": self.microbatch})

    def __len__(self) -> int:
        return len(self.kind)

    def __eq__(self, other: object) -> bool:
        """Same actions on every rank, same stages on the same ranks; the name does not matter."""
        if not isinstance(other, Schedule):
            return NotImplemented
        if (self.stage_rank, self.microbatches) != (other.stage_rank, other.microbatches):
            return False
        names = ("first", "kind", "stage", "microbatch", "paired")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]  # how Python says that a class cannot be hashed

    def __str__(self) -> str:
        width = len(str(self.ranks - 1))
        return "\n".join(
            f"rank {r:>{width}}: " + " ".join(map(str, row)) for r, row in enumerate(self.actions)
        )

    def __repr__(self) -> str:
        return f"<Schedule {self.name}: {self.ranks} ranks, {self.microbatches} microbatches, {len(self)} actions>"

    def _repr_html_(self) -> str:
        from pipelab.engine.schedules.views import as_html

        return as_html(self)
