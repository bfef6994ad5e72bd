"""`schedule(name, ranks, microbatches, chunks)`: one name, one rule, no silent other schedule."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipelab.display import counted
from pipelab.engine.schedules import queues, vshape
from pipelab.engine.schedules.columns import Columns
from pipelab.errors import InvalidValue, TooLarge, UnknownName, nearest, shown
from pipelab.fields import whole_number
from pipelab.schedules import LARGEST_SIZE, Schedule, zb_v


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
    "GPipe": Rule(queues.gpipe, "all forwards, then all backwards"),
    "1F1B": Rule(
        queues.one_f_one_b, "one forward and one backward in turn; saves memory, not time"
    ),
    "Interleaved1F1B": Rule(
        queues.interleaved, "1F1B over several chunks per rank", chunked=True, even_rounds=True
    ),
    "LoopedBFS": Rule(queues.breadth_first, "GPipe over several chunks per rank", chunked=True),
    "InterleavedZeroBubble": Rule(
        queues.interleaved_zero_bubble,
        "ZB-H1 over several chunks per rank",
        chunked=True,
        even_rounds=True,
    ),
    "ZBH1": Rule(queues.interleaved_zero_bubble, "weight gradients fill the end, memory as 1F1B"),
    "ZBH2": Rule(
        queues.zbh2,
        "no idle time within a rank where F = I = W and m ≥ 2p-1, up to twice the memory of 1F1B",
    ),
    "ZBV": Rule(
        zb_v,
        "no idle time within a rank where F = I = W and m ≥ 2p-1, memory as 1F1B's fullest rank",
        v_shaped=True,
    ),
    "DualPipeV": Rule(
        vshape.dualpipev,
        "forward and backward of two chunks at the same time",
        v_shaped=True,
        microbatches_per_rank=2,
    ),
    "Inference": Rule(queues.forward_only, "forward only"),
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
