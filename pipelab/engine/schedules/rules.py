"""`schedule(name, ranks, microbatches, chunks)`: each name selects exactly one rule.

Equal to the rules of `pipelab.schedules`, as arrays; LoopedBFS, forward-only orders and DualPipeV
are here alone, ZB-V is `pipelab.schedules.zb_v` itself.

A rank of the 1F1B family takes its forwards in one order and its backwards in another. `lead` says
how many forwards it runs before its first backward; from then on one of each in turn. Where the
backward is split, `delay` says how many weight gradients it holds back. GPipe, 1F1B, their
interleaved kin and the hand-made zero-bubble schedules differ in these choices alone.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipelab.display import counted
from pipelab.engine.schedules.columns import B, Columns, F, I, W
from pipelab.errors import InvalidValue, TooLarge, UnknownName, nearest, shown
from pipelab.fields import whole_number
from pipelab.schedules import LARGEST_SIZE, Action, Schedule, zb_v


class _Merge(NamedTuple):
    """What distinguishes one schedule of the family; n = chunks · microbatches passes on every rank."""

    forward: tuple[np.ndarray, np.ndarray]  # chunk and microbatch of the k-th forward, each (n,)
    backward: tuple[np.ndarray, np.ndarray] | None  # of the k-th backward; None: forward only
    # (ranks,) forwards before the first backward, less one where a forward follows
    lead: np.ndarray
    delay: np.ndarray | None = None  # (ranks,) weight gradients held back; None: full backward

    def table(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Kind, stage and microbatch of every action, each (ranks, actions per rank).

        Forward k is in slot k, backward k in slot lead + k, weight gradient k in slot
        lead + delay + k; within a slot the order is F, B, W. The place of an action is the
        number of actions before it, which is counted here rather than sorted for.
        """
        ranks, n = len(self.lead), len(self.forward[0])
        k = np.arange(n)
        queues = [(F, *self.forward, np.zeros((ranks, 1), dtype=np.int64))]
        lead = self.lead[:, None]
        if self.backward is not None:
            queues.append((B if self.delay is None else I, *self.backward, lead))
        if self.backward is not None and self.delay is not None:
            queues.append((W, *self.backward, lead + self.delay[:, None]))
        shape = ranks, n * len(queues)
        kind, stage, microbatch = (
            np.empty(shape, np.int8),
            np.empty(shape, np.int32),
            np.empty(shape, np.int32),
        )
        row = np.arange(ranks)[:, None]
        for i, (code, chunk, batch, shift) in enumerate(queues):
            place = np.zeros((ranks, n), dtype=np.int64) + k
            for j, (_, _, _, other) in enumerate(queues):
                # of an earlier queue the same slot counts as before, of a later one it does not
                if j != i:
                    place += np.clip(k + shift - other + (j < i), 0, n)
            kind[row, place], stage[row, place], microbatch[row, place] = (
                code,
                chunk * ranks + row,
                batch,
            )
        return kind, stage, microbatch


def _in_rounds(
    microbatches: int, chunks: int, per_round: int, reverse: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Passes in groups: `per_round` microbatches through chunk 0, the same through chunk 1, …, then the next group."""
    k = np.arange(microbatches * chunks)
    group, within = np.divmod(k, per_round * chunks)
    chunk, offset = np.divmod(within, per_round)
    return (chunks - 1 - chunk if reverse else chunk), group * per_round + offset


def _hops(ranks: int) -> np.ndarray:
    """How far each rank is from the last one."""
    return np.arange(ranks)[::-1].copy()


def forward_only(ranks: int, microbatches: int, chunks: int) -> _Merge:
    """Inference: every microbatch forward, nothing back."""
    return _Merge(
        _in_rounds(microbatches, chunks, min(ranks, microbatches)),
        None,
        np.zeros(ranks, dtype=np.int64),
    )


def gpipe(ranks: int, microbatches: int, chunks: int) -> _Merge:
    """All forwards, then all backwards in the same order."""
    order = _in_rounds(microbatches, 1, microbatches)
    return _Merge(order, order, np.full(ranks, microbatches))


def one_f_one_b(ranks: int, microbatches: int, chunks: int) -> _Merge:
    """One forward for every hop to the last rank, then one forward and one backward in turn."""
    order = _in_rounds(microbatches, 1, microbatches)
    return _Merge(order, order, np.minimum(_hops(ranks), microbatches))


def breadth_first(ranks: int, microbatches: int, chunks: int) -> _Merge:
    """Looped BFS: every microbatch through one chunk before the next chunk; backwards mirrored."""
    chunk, batch = _in_rounds(microbatches, chunks, microbatches)
    return _Merge((chunk, batch), (chunk[::-1], batch[::-1]), np.full(ranks, microbatches * chunks))


def interleaved(ranks: int, microbatches: int, chunks: int) -> _Merge:
    """Interleaved 1F1B: a round of microbatches per chunk, and two forwards ahead for every hop."""
    per_round = microbatches // max(1, microbatches // ranks)
    lead = np.minimum((chunks - 1) * per_round + 2 * _hops(ranks), microbatches * chunks)
    forward, backward = (
        _in_rounds(microbatches, chunks, per_round, reverse) for reverse in (False, True)
    )
    return _Merge(forward, backward, lead)


def interleaved_zero_bubble(ranks: int, microbatches: int, chunks: int) -> _Merge:
    """ZB-H1: one forward ahead for every hop; rank r holds r weight gradients back for the end."""
    per_round = microbatches // max(1, microbatches // ranks)
    lead = np.minimum((chunks - 1) * per_round + _hops(ranks), microbatches * chunks)
    forward, backward = (
        _in_rounds(microbatches, chunks, per_round, reverse) for reverse in (False, True)
    )
    return _Merge(forward, backward, lead, np.arange(ranks))


def zbh2(ranks: int, microbatches: int, chunks: int) -> _Merge:
    """ZB-H2: as ZB-H1 with twice the forwards ahead and twice the weight gradients held back."""
    order = _in_rounds(microbatches, 1, microbatches)
    return _Merge(order, order, np.minimum(2 * _hops(ranks), microbatches), 2 * np.arange(ranks))


class _Rank:
    """Writes down the actions of one rank; every kind of work counts its own microbatches."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.stages = (rank, 2 * ranks - 1 - rank)  # down the ranks and back
        self.next: Counter[tuple[int, str]] = Counter()
        self.owed: deque = deque()  # weight gradients put off, oldest first
        self.actions: list[Action] = []

    def _take(self, chunk: int, kind: str) -> Action:
        # Input gradient and full backward are the same step of a microbatch and share their count.
        counter = chunk, "B" if kind == "I" else kind
        self.next[counter] += 1
        return Action(self.stages[chunk], kind, self.next[counter] - 1)

    def do(self, chunk: int, kinds: str) -> None:
        """Append one action for each character of `kinds`."""
        self.actions += [self._take(chunk, kind) for kind in kinds]

    def together(self, forward_chunk: int) -> None:
        """A forward of one chunk at the same time as a full backward of the other."""
        self.actions.append(
            Action.pair(self._take(forward_chunk, "F"), self._take(1 - forward_chunk, "B"))
        )

    def put_off(self, chunk: int) -> None:
        """An input gradient whose weight gradient comes later, by `pay`."""
        self.do(chunk, "I")
        self.owed.append(self.actions[-1])

    def pay(self) -> None:
        """The oldest weight gradient that was put off."""
        stage, _, microbatch, _ = self.owed.popleft()
        self.actions.append(Action(stage, "W", microbatch))


def dualpipev(ranks: int, microbatches: int) -> Schedule:
    """DualPipeV; needs at least 2p microbatches."""
    rows = [_one_rank(rank, ranks, microbatches) for rank in range(ranks)]
    return Schedule.of("DualPipeV", rows)


def _one_rank(rank: int, ranks: int, microbatches: int) -> list[Action]:
    hops = ranks - rank - 1
    r = _Rank(rank, ranks)
    r.do(0, "F" * (2 * hops))
    for _ in range(rank + 1):
        r.do(0, "F")
        r.do(1, "F")
    for _ in range(hops):
        r.do(1, "IWF")
    for i in range(microbatches - 2 * ranks + rank + 1):
        # apart, the last rank's first backward reaches its neighbour sooner
        if i == 0 and hops == 0:
            r.do(0, "F")
            r.do(1, "B")
        else:
            r.together(0)
        r.together(1)
    for _ in range(hops):
        r.do(1, "B")
        r.together(1)
    # From the middle of the cool-down on, the backward is split so that weight gradients fill the
    # gaps.
    for i in range(2 * (rank + 1)):
        chunk = 1 if i % 2 == 0 else 0
        if i < rank + 1:
            r.do(chunk, "B")
        else:
            r.put_off(chunk)
    for _ in range(hops):
        r.pay()
        r.put_off(0)
    for _ in range(rank + 1):
        r.pay()
    return r.actions


@dataclass(frozen=True)
class Rule:
    """How a named schedule is made and what it is."""

    make: Callable
    about: str
    v_shaped: bool = False  # two chunks per rank, stage s and 2p-1-s
    chunked: bool = False  # any number of chunks per rank
    even_rounds: bool = False  # the microbatches must fill whole rounds
    microbatches_per_rank: int = 0  # fewest microbatches, in units of the ranks


RULES = {
    "GPipe": Rule(gpipe, "all forwards, then all backwards"),
    "1F1B": Rule(one_f_one_b, "one forward and one backward in turn; saves memory, not time"),
    "Interleaved1F1B": Rule(
        interleaved, "1F1B over several chunks per rank", chunked=True, even_rounds=True
    ),
    "LoopedBFS": Rule(breadth_first, "GPipe over several chunks per rank", chunked=True),
    "InterleavedZeroBubble": Rule(
        interleaved_zero_bubble,
        "ZB-H1 over several chunks per rank",
        chunked=True,
        even_rounds=True,
    ),
    "ZBH1": Rule(interleaved_zero_bubble, "weight gradients fill the end, memory as 1F1B"),
    "ZBH2": Rule(
        zbh2,
        "no idle time within a rank where F = I = W and m ≥ 2p-1, up to twice the memory of 1F1B",
    ),
    "ZBV": Rule(
        zb_v,
        "no idle time within a rank where F = I = W and m ≥ 2p-1, memory as 1F1B's fullest rank",
        v_shaped=True,
    ),
    "DualPipeV": Rule(
        dualpipev,
        "forward and backward of two chunks at the same time",
        v_shaped=True,
        microbatches_per_rank=2,
    ),
    "Inference": Rule(forward_only, "forward only"),
}

# torch's and the papers' other names for the same schedules.
_ALIASES = {"ZBVZeroBubble": "ZBV", "ZB-H1": "ZBH1", "ZB1P": "ZBH1", "ZB-H2": "ZBH2", "ZB-V": "ZBV"}


def schedule(name: str, ranks: int, microbatches: int, chunks: int | None = None) -> Schedule:
    """Every rank's actions, in order.

    Parameters
    ----------
    name : str
        `"GPipe"`, `"1F1B"`, `"Interleaved1F1B"`, `"LoopedBFS"`, `"InterleavedZeroBubble"`,
        `"ZBH1"`, `"ZBH2"`, `"ZBV"`, `"DualPipeV"` or `"Inference"`.
    ranks, microbatches : int
        p and m, at least 1.
    chunks : int, optional
        Stages per rank; 2 for the interleaved ones where it is not given. Stage s is on rank s mod
        ranks, or, for `"ZBV"` and `"DualPipeV"`, on rank s on the way down and 2·ranks-1-s on the
        way back.

    Returns
    -------
    Schedule
        What each rank does in which order; `simulate` adds the times.

    Raises
    ------
    UnknownName
        There is no schedule of this name.
    InvalidValue
        A number is no positive whole number, or the schedule does not exist for these numbers.
    TooLarge
        More than 5 million forwards, or one million in a V.

    References
    ----------
    torch.distributed.pipelining: where it has a schedule, its action table is the same. GPipe: Y.
    Huang et al., 2019. Interleaved1F1B: D. Narayanan et al. (Megatron-LM), 2021. LoopedBFS: J.
    Lamy-Poirier, *Breadth-First Pipeline Parallelism*, 2023. Zero bubble: P. Qi et al., arXiv
    2401.10241. DualPipeV: DeepSeek-AI, *DeepSeek-V3 Technical Report*, its DualPipe as a V.

    Examples
    --------
    >>> import pipelab as pl
    >>> print(pl.schedule("ZBH1", ranks=2, microbatches=2))
    rank 0: 0F0 0F1 0I0 0W0 0I1 0W1
    rank 1: 1F0 1I0 1F1 1I1 1W0 1W1
    """
    known = name_of(name)
    rule = RULES[known]
    ranks, microbatches = (
        whole_number("schedule", field, value)
        for field, value in (("ranks", ranks), ("microbatches", microbatches))
    )
    chunks = _check_chunks(known, rule, chunks)
    _check_size(known, rule, ranks, microbatches, chunks)  # first: what follows may search
    _check_microbatches(known, rule, ranks, microbatches)
    if rule.v_shaped:
        return rule.make(ranks, microbatches)
    kind, stage, microbatch = rule.make(ranks, microbatches, chunks).table()
    first = np.arange(ranks + 1) * kind.shape[1]
    holder = tuple(range(ranks)) * chunks
    arrays = kind.ravel(), stage.ravel(), microbatch.ravel(), first
    return Columns(known, microbatches, holder, *arrays, np.zeros(kind.size, bool)).schedule


def name_of(name: str) -> str:
    """The name under which `RULES` has a schedule.

    Raises
    ------
    UnknownName
    """
    known = _ALIASES.get(name, name) if isinstance(name, str) else None
    if known not in RULES:
        raise UnknownName(f"schedule {shown(name)} is not known; {nearest(name, RULES)}")
    return known


def _check_size(name: str, rule: Rule, ranks: int, microbatches: int, chunks: int) -> None:
    # What is laid out as a V is written action by action, and for at least 2p - 1 microbatches.
    most = LARGEST_SIZE // 5 if rule.v_shaped else LARGEST_SIZE
    counted = max(microbatches, 2 * ranks - 1) if rule.v_shaped else microbatches
    passes = ranks * counted * chunks
    if passes > most:
        factors = (
            "ranks · microbatches · chunks"
            if counted == microbatches
            else "ranks · (2 · ranks - 1) · chunks"
        )
        expected = f"at most {most:,} are listed one by one; take fewer microbatches or ranks"
        raise TooLarge(f"{name}: {passes:,} forwards ({factors}); {expected}", {"forwards": passes})


def _check_chunks(name: str, rule: Rule, chunks: int | None) -> int:
    if chunks is not None:
        chunks = whole_number("schedule", "chunks", chunks)
    if rule.chunked:
        return 2 if chunks is None else chunks
    fixed = 2 if rule.v_shaped else 1
    if chunks not in (None, fixed):
        others = ", ".join(n for n, r in RULES.items() if r.chunked)
        expected = (
            f"{name} has {counted(fixed, 'chunk')} per rank; schedules with any number: {others}"
        )
        raise InvalidValue("schedule", [("chunks", chunks, expected)])
    return fixed


def _check_microbatches(name: str, rule: Rule, ranks: int, microbatches: int) -> None:
    fewest = rule.microbatches_per_rank * ranks
    if microbatches < fewest:
        expected = f"{name} on {ranks} ranks needs at least {fewest} microbatches"
        raise InvalidValue("schedule", [("microbatches", microbatches, expected)])
    rounds = max(1, microbatches // ranks)
    if rule.even_rounds and microbatches % rounds:
        below = next(n for n in range(microbatches, 0, -1) if n % max(1, n // ranks) == 0)
        above = next(
            n for n in range(microbatches, 3 * microbatches) if n % max(1, n // ranks) == 0
        )
        expected = (
            f"{name} on {ranks} ranks runs these in {rounds} rounds, which must be equally long; "
            f"the nearest numbers that fit are {below} and {above}"
        )
        raise InvalidValue("schedule", [("microbatches", microbatches, expected)])
