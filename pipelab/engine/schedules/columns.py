"""A schedule as columns of numbers, which is what everything quick counts with.

Equal to `pipelab.schedules.Schedule`, action by action: `columns_of` makes the columns of a
schedule once, and `Columns.schedule` is the schedule of columns, whose actions are made when
somebody asks for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelab.schedules import KINDS, Action, Schedule

if TYPE_CHECKING:
    from pandas import DataFrame

# The codes of KINDS.
F, I, B, W, SEND_F, RECV_F, SEND_B, RECV_B, IDLE = range(9)  # noqa: E741 (torch's symbol for the input gradient)
TRANSFERS = (SEND_F, RECV_F, SEND_B, RECV_B)


@dataclass(frozen=True, eq=False)
class Columns:
    """All actions of a schedule, rank after rank; of a pair both halves, one after the other.

    Attributes
    ----------
    name, microbatches, stage_rank
        As the schedule has them.
    kind, stage, microbatch : arrays of int, shape (n,)
        `kind` holds codes.
    first : array of int, shape (ranks + 1,)
        Rank r's actions are those from first[r] to first[r + 1].
    paired : array of bool, shape (n,)
        True for a forward that runs at the same time as the backward listed next.
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
        for name in ("kind", "stage", "microbatch", "first", "paired"):
            # What is compiled and checked once must not change afterwards.
            getattr(self, name).setflags(write=False)

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def schedule(self) -> Schedule:
        """A schedule with these columns. Not kept here: two objects that hold each other are freed late."""
        return Schedule(self.name, self.microbatches, self.stage_rank, _Rows(self))

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
        """The most stages that any rank holds."""
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

    @cached_property
    def second(self) -> np.ndarray:
        """True for the backward of a pair; (n,) array of bools."""
        return np.concatenate([[False], self.paired[:-1]])

    @property
    def forward_only(self) -> bool:
        """True for inference: nothing runs backward."""
        return not np.any(
            (self.kind > F) & (self.kind != IDLE) & ~np.isin(self.kind, TRANSFERS[:2])
        )

    @property
    def splits_backward(self) -> bool:
        """True where some input and weight gradients are actions of their own."""
        return bool(np.isin(self.kind, (I, W)).any())

    @property
    def communicates(self) -> bool:
        """True where sends and receives are shown as actions."""
        return bool(np.isin(self.kind, TRANSFERS).any())

    def action(self, i: int) -> Action:
        """Entry i, without its partner, where it is half of a pair."""
        return Action(int(self.stage[i]), KINDS[self.kind[i]], int(self.microbatch[i]))

    def whole(self, i: int) -> Action:
        """Entry i, or the pair of which it is a half."""
        low = i - int(self.second[i])
        if self.paired[low]:
            return Action.pair(self.action(low), self.action(low + 1))
        return self.action(i)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Every entry as text, each half of a pair by itself; n of them."""
        kinds = [KINDS[code] for code in self.kind.tolist()]
        numbers = self.stage.tolist(), self.microbatch.tolist()
        return tuple(
            k if k == "IDLE" else f"{s}{k}{m}" for k, s, m in zip(kinds, *numbers, strict=True)
        )

    @cached_property
    def actions(self) -> tuple[tuple[Action, ...], ...]:
        """Every rank's actions; a pair is one action with two parts."""
        kinds = [KINDS[code] for code in self.kind.tolist()]
        numbers = self.stage.tolist(), kinds, self.microbatch.tolist()
        single = list(map(Action, *numbers))
        for i in np.flatnonzero(self.paired).tolist():
            single[i] = Action.pair(single[i], single[i + 1])
        whole, begins = ~self.second, np.cumsum(~self.second)
        kept = [action for action, here in zip(single, whole.tolist(), strict=True) if here]
        first = np.concatenate([[0], begins])[self.first].tolist()
        return tuple(tuple(kept[low:high]) for low, high in pairwise(first))

    def to_frame(self) -> "DataFrame":
        """The entries as a table: rank, position, action, stage, kind and microbatch, -1 for none."""
        import pandas as pd

        return pd.DataFrame(
            {
                "rank": self.rank,
                "position": np.arange(len(self)) - self.first[self.rank],
                "action": self.texts,
                "stage": self.stage,
                "kind": np.array(KINDS)[self.kind],
                "microbatch": self.microbatch,
            }
        )

    def select(self, keep: np.ndarray) -> "Columns":
        """Some of the entries; `keep` is True for them, shape (n,)."""
        first = np.concatenate([[0], np.cumsum(keep)])[self.first]
        arrays = {
            name: getattr(self, name)[keep] for name in ("kind", "stage", "microbatch", "paired")
        }
        return replace(self, first=first, **arrays)

    def computing(self) -> "Columns":
        """Without sends, receives and idle ticks."""
        return self.select(~np.isin(self.kind, (*TRANSFERS, IDLE)))


class _Rows(Sequence):
    """The rows of columns: `Schedule.actions`, made when they are looked at."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return self.columns.ranks

    def __getitem__(self, rank: Any) -> Any:
        return self.columns.actions[rank]

    def __repr__(self) -> str:
        return repr(self.columns.actions)

    def __hash__(self) -> int:
        return hash(self.columns.actions)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Rows):
            return self.columns.actions == other
        names = ("first", "kind", "stage", "microbatch", "paired")
        return all(
            np.array_equal(getattr(self.columns, name), getattr(other.columns, name))
            for name in names
        )


def columns_of(schedule: Schedule) -> Columns:
    """The columns of a schedule, made once: schedules do not change."""
    if isinstance(schedule.actions, _Rows):
        return schedule.actions.columns
    kept = schedule.__dict__.get("_columns")
    if kept is None:
        kept = schedule.__dict__["_columns"] = _made(schedule)
    return kept


def _made(schedule: Schedule) -> Columns:
    parts = [[a.parts or (a,) for a in row] for row in schedule.actions]
    single = [part for row in parts for each in row for part in each]
    code = {kind: i for i, kind in enumerate(KINDS)}
    paired = [
        half for row in parts for each in row for half in ((True, False) if len(each) > 1 else (False,))
    ]  # fmt: skip
    lengths = [sum(map(len, row)) for row in parts]
    return Columns(
        schedule.name,
        schedule.microbatches,
        schedule.stage_rank,
        np.array([code[part.kind] for part in single], np.int8),
        np.array([part.stage for part in single], np.int32),
        np.array([part.microbatch for part in single], np.int32),
        np.array([0, *np.cumsum(lengths)], np.int64),
        np.array(paired, bool),
    )
