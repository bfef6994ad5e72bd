"""`schedule(name, ranks, microbatches, chunks)`: each name selects exactly one rule.

Equal to the rules of `pipelab.schedules`, as arrays; LoopedBFS, forward-only orders and DualPipeV
are here alone, ZB-V is `pipelab.schedules.zb_v` itself.

1F1B and its relatives differ in two numbers. A rank runs so many forwards before its first backward,
in proportion to the ranks behind it (`ahead`), and from then on a forward and a backward in each turn.
Where the backward is split, it holds so many weight gradients back, in proportion to the ranks before
it (`held_back`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np

from pipelab.display import counted
from pipelab.engine.schedules.columns import B, F, I, ScheduleArrays, W
from pipelab.errors import InvalidValue, TooLarge, UnknownName, nearest, shown
from pipelab.fields import whole_number
from pipelab.schedules import LARGEST_SIZE, Schedule, zb_v


def dualpipev(ranks: int, microbatches: int) -> Schedule:
    """Make DualPipeV; needs at least 2p microbatches."""
    rows = [_dualpipev_letters(rank, ranks, microbatches) for rank in range(ranks)]
    paired = _codes("".join(rows).replace("P", "10").replace("p", "10")) == ord("1")
    rows = [row.replace("P", "Fb").replace("p", "fB") for row in rows]
    letter, rank = _codes("".join(rows)), np.repeat(np.arange(ranks), list(map(len, rows)))
    stage = np.where(letter < ord("a"), rank, 2 * ranks - 1 - rank)
    kind, microbatch = np.empty(len(letter), np.int8), np.empty_like(stage)
    for code, letters in enumerate(("Ff", "Ii", "Bb", "w")):
        kind[np.isin(letter, _codes(letters))] = code
    # Input gradient and full backward are the same step of a microbatch and are counted together.
    for letters in ("F", "f", "BI", "bi"):
        mine = np.isin(letter, _codes(letters))
        microbatch[mine] = np.arange(mine.sum()) % microbatches
    stage[kind == W], microbatch[kind == W] = stage[kind == I], microbatch[kind == I]
    first = np.searchsorted(rank, np.arange(ranks + 1))
    holder = (*range(ranks), *reversed(range(ranks)))
    return ScheduleArrays(
        name="DualPipeV",
        microbatches=microbatches,
        stage_rank=holder,
        kind=kind,
        stage=stage,
        microbatch=microbatch,
        first=first,
        paired=paired,
    ).schedule


def _codes(letters: str) -> np.ndarray:
    return np.frombuffer(letters.encode(), np.uint8)


def _dualpipev_letters(rank: int, ranks: int, microbatches: int) -> str:
    """Return what a rank does; capitals are of its stage on the way down, small letters of that on the way back.

    P is a forward of the first at the same time as a full backward of the second, p the reverse, and
    w the oldest weight gradient that is put off, of either stage.
    """
    hops, ends = ranks - rank - 1, "bB" * (rank + 1)
    row = "F" * (2 * hops) + "Ff" * (rank + 1) + "iwf" * hops
    row += "Pp" * (microbatches - 2 * ranks + rank + 1) + "bp" * hops
    if hops == 0:  # apart, the last rank's first backward reaches its neighbour sooner
        row = row.replace("P", "Fb", 1)
    # From the middle of the end on, backwards are split, so that weight gradients fill the gaps.
    row += ends[: rank + 1] + ends[rank + 1 :].replace("B", "I").replace("b", "i")
    return row + "wI" * hops + "w" * (rank + 1)


@dataclass(frozen=True)
class ScheduleRule:
    """How a named schedule is made."""

    ahead: int | None = None  # forwards before the first backward, for each rank behind; None: all
    held_back: int | None = None  # weight gradients, for each rank before; None: full backwards
    forward_only: bool = False
    chunked: bool = False  # any number of chunks per rank
    breadth_first: bool = False  # every microbatch through a chunk before the next; back mirrored
    v_shaped: Callable[[int, int], Schedule] | None = None  # two chunks, stages s and 2p-1-s
    microbatches_per_rank: int = 0  # fewest microbatches, in units of the ranks

    def table(
        self, ranks: int, microbatches: int, chunks: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return kind, stage and microbatch of every action, each (ranks, actions per rank).

        Forward k is in turn k, backward k as many turns later as forwards run ahead, weight gradient
        k later by those held back; within a turn the order is F, B, W.
        """
        n, turn, rank = chunks * microbatches, np.arange(chunks * microbatches), np.arange(ranks)
        rank = rank[:, None]
        size = microbatches if self.breadth_first else microbatches // max(1, microbatches // ranks)
        chunk, batch = turn // size % chunks, turn // (size * chunks) * size + turn % size
        queues = [(F, chunk, batch, turn + 0 * rank)]
        if not self.forward_only:
            ahead = n if self.ahead is None else (chunks - 1) * size + self.ahead * rank[::-1]
            back = chunks - 1 - chunk, batch[::-1] if self.breadth_first else batch
            late = turn + np.minimum(ahead, n) + 0 * rank
            queues.append((B if self.held_back is None else I, *back, late))
            if self.held_back is not None:
                queues.append((W, *back, late + self.held_back * rank))
        place = [len(queues) * turns + i for i, (*_, turns) in enumerate(queues)]
        order = np.argsort(np.concatenate(place, axis=1), axis=1, kind="stable")
        columns = [[np.broadcast_to(values, n) for values in queue[:3]] for queue in queues]
        kinds, chunk, batch = np.concatenate(columns, axis=1)[:, order]
        return kinds.astype(np.int8), chunk * ranks + rank, batch


RULES = {
    # all forwards, then all backwards
    "GPipe": ScheduleRule(),
    # one forward and one backward in turn; saves memory, not time
    "1F1B": ScheduleRule(ahead=1),
    # 1F1B over several chunks per rank
    "Interleaved1F1B": ScheduleRule(ahead=2, chunked=True),
    # GPipe over several chunks per rank
    "LoopedBFS": ScheduleRule(chunked=True, breadth_first=True),
    # ZB-H1 over several chunks per rank
    "InterleavedZeroBubble": ScheduleRule(ahead=1, held_back=1, chunked=True),
    # weight gradients fill the end, memory as 1F1B
    "ZBH1": ScheduleRule(ahead=1, held_back=1),
    # no idle time within a rank where F = I = W and m ≥ 2p-1, up to twice the memory of 1F1B
    "ZBH2": ScheduleRule(ahead=2, held_back=2),
    # no idle time within a rank where F = I = W and m ≥ 2p-1, memory as 1F1B's fullest rank
    "ZBV": ScheduleRule(v_shaped=zb_v),
    # forward and backward of two chunks at the same time
    "DualPipeV": ScheduleRule(v_shaped=dualpipev, microbatches_per_rank=2),
    "Inference": ScheduleRule(forward_only=True),
}

# torch's and the papers' other names for the same schedules.
_ALIASES = {"ZBVZeroBubble": "ZBV", "ZB-H1": "ZBH1", "ZB1P": "ZBH1", "ZB-H2": "ZBH2", "ZB-V": "ZBV"}


def schedule(name: str, ranks: int, microbatches: int, chunks: int | None = None) -> Schedule:
    """Make a named schedule: every rank's actions, in order.

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
        A number is not a positive whole number, or the schedule does not exist for these numbers.
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
    ranks = whole_number("schedule", "ranks", ranks)
    microbatches = whole_number("schedule", "microbatches", microbatches)
    chunks = _check_chunks(known, rule, chunks)
    _check_size(known, rule, ranks, microbatches, chunks)  # first: what follows may search
    _check_microbatches(known, rule, ranks, microbatches)
    if rule.v_shaped:
        return rule.v_shaped(ranks, microbatches)
    kind, stage, microbatch = rule.table(ranks, microbatches, chunks)
    return ScheduleArrays(
        name=known,
        microbatches=microbatches,
        stage_rank=tuple(range(ranks)) * chunks,
        kind=kind.ravel(),
        stage=stage.ravel(),
        microbatch=microbatch.ravel(),
        first=np.arange(ranks + 1) * kind.shape[1],
        paired=np.zeros(kind.size, bool),
    ).schedule


def name_of(name: str) -> str:
    """Return the name under which `RULES` has a schedule.

    Raises
    ------
    UnknownName
    """
    known = _ALIASES.get(name, name) if isinstance(name, str) else None
    if known not in RULES:
        raise UnknownName(f"schedule {shown(name)} is not known; {nearest(name, RULES)}")
    return known


def _check_size(name: str, rule: ScheduleRule, ranks: int, microbatches: int, chunks: int) -> None:
    most, rows, factors = LARGEST_SIZE, microbatches, "microbatches · chunks"
    if rule.v_shaped:  # written action by action, and for at least 2p - 1 microbatches
        most //= 5
        if microbatches < 2 * ranks - 1:
            rows, factors = 2 * ranks - 1, "(2 · ranks - 1) · chunks"
    passes = ranks * rows * chunks
    if passes > most:
        expected = f"at most {most:,} are listed one by one; take fewer microbatches or ranks"
        words = f"{name}: {passes:,} forwards (ranks · {factors}); {expected}"
        raise TooLarge(words)


def _check_chunks(name: str, rule: ScheduleRule, chunks: int | None) -> int:
    if chunks is not None:
        chunks = whole_number("schedule", "chunks", chunks)
    if rule.chunked:
        return 2 if chunks is None else chunks
    fixed = 2 if rule.v_shaped else 1
    if chunks not in (None, fixed):
        others = ", ".join(n for n, r in RULES.items() if r.chunked)
        has = f"{name} has {counted(fixed, 'chunk')} per rank"
        expected = f"{has}; schedules with any number: {others}"
        raise InvalidValue("schedule", [("chunks", chunks, expected)])
    return fixed


def _check_microbatches(name: str, rule: ScheduleRule, ranks: int, microbatches: int) -> None:
    def fits(number: int) -> bool:
        # microbatches go through the chunks in rounds, which must be equally long
        rounds = number // ranks if rule.chunked and not rule.breadth_first else 0
        return number % max(1, rounds) == 0

    fewest = rule.microbatches_per_rank * ranks
    if microbatches < fewest:
        expected = f"{name} on {ranks} ranks needs at least {fewest} microbatches"
        raise InvalidValue("schedule", [("microbatches", microbatches, expected)])
    if not fits(microbatches):
        below = next(filter(fits, count(microbatches, -1)))
        above = next(filter(fits, count(microbatches)))
        rounds = f"{microbatches // ranks} rounds, which must be equally long"
        fitting = f"the nearest numbers that fit are {below} and {above}"
        expected = f"{name} on {ranks} ranks runs these in {rounds}; {fitting}"
        raise InvalidValue("schedule", [("microbatches", microbatches, expected)])
