"""What is known of a schedule without simulating it: formulas that say when they hold, and lower bounds.

p ranks, m microbatches, v chunks per rank. F (forward), I (gradient of the input), W (gradient of
the weights) and B = I + W are what one microbatch takes on one *rank*, all its chunks together; the
papers on zero bubbles write B for I. A formula outside its claim has no value here: the simulator
has.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.schedules.rules import schedule as make_schedule
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.timeline import check_transfers
from pipelab.errors import InvalidValue, PipelabError
from pipelab.fields import instance, is_list, true_or_false, whole_number
from pipelab.schedules import LARGEST_SIZE, Schedule


class ClosedForm(NamedTuple):
    """A formula with its numbers put in; where it does not claim to hold, `value` is None and `holds_when` says why."""

    schedule: str
    quantity: str  # the Timeline's attribute that it predicts
    formula: str
    holds_when: str
    value: float | tuple[int, ...] | None
    source: str


class _Case(NamedTuple):
    """The symbols of the formulas for one schedule and its costs."""

    p: int
    m: int
    v: int
    F: np.ndarray  # per stage
    I: np.ndarray  # noqa: E741 - the field's symbol
    W: np.ndarray
    comm: np.ndarray  # per link, 0 within a rank
    overlap: float

    @property
    def equal(self) -> bool:
        """All stages cost the same."""
        return all(len(set(x.tolist())) == 1 for x in (self.F, self.I, self.W))

    @property
    def silent(self) -> bool:
        """Communication takes no time."""
        return not self.comm.any()

    @property
    def one(self) -> tuple[float, float, float]:
        """F, I and W of one microbatch on one rank, where all stages are equal."""
        forward, back, weight = (float(x[0]) * self.v for x in (self.F, self.I, self.W))
        return forward, back, weight


class _Form(NamedTuple):
    schedules: tuple[str, ...]
    quantity: str
    formula: str
    holds_when: str
    holds: Callable[[_Case], bool]
    value: Callable[[_Case], float | tuple[int, ...]]
    source: str


def _gpipe(c: _Case) -> float:
    back = c.I + c.W
    sums, slowest = c.F.sum() + back.sum(), c.F.max() + back.max()
    return float(sums + (c.m - 1) * slowest + 2 * c.comm.sum())


def _makespan(bubble: Callable[[_Case], float]) -> Callable[[_Case], float]:
    """m(F+B), the work of one rank, and a bubble."""
    return lambda c: c.m * sum(c.one) + bubble(c)


def _filling(c: _Case) -> bool:
    """A weight gradient is no longer than either gap that it is meant to fill."""
    forward, backward, weight = c.one
    return c.equal and c.silent and weight <= min(forward, backward)


def _bubble(f: float, i: float, w: float) -> Callable[[_Case], float]:
    """(p-1)(f·F + i·I + w·W)."""
    return lambda c: (c.p - 1) * (f * c.one[0] + i * c.one[1] + w * c.one[2])


def _per_rank(rule: Callable[[_Case, int], int]) -> Callable[[_Case], tuple[int, ...]]:
    return lambda c: tuple(int(min(rule(c, r), c.m * c.v)) for r in range(c.p))


_EQUAL = "equal stages, no communication time"
_SMALL_W = f"{_EQUAL}, W ≤ F and W ≤ I"
_MEGATRON, _TABLE2 = "Megatron-LM", "Zero Bubble, table 2"

# The paper's table names no condition on W; the ones below are where the formulas meet the
# simulator.
_FORMS = (
    _Form(
        ("GPipe",),
        "makespan",
        "ΣF + (m-1)·max F + ΣB + (m-1)·max B + 2Σc",
        "always",
        lambda c: True,
        _gpipe,
        "two flow shops, one after the other",
    ),
    _Form(
        ("1F1B",),
        "makespan",
        "(m+p-1)(F+B)",
        _EQUAL,
        lambda c: c.equal and c.silent,
        _makespan(_bubble(1, 1, 1)),
        f"{_TABLE2} and appendix H",
    ),
    _Form(
        ("Interleaved1F1B",),
        "makespan",
        "m(F+B) + (p-1)(F+B)/v",
        f"{_EQUAL}, m divisible by p",
        lambda c: c.equal and c.silent and c.m % c.p == 0,
        _makespan(lambda c: (c.p - 1) * sum(c.one) / c.v),
        _MEGATRON,
    ),
    _Form(
        ("LoopedBFS",),
        "makespan",
        "m(F+B) + (p-1)(F+B)/v",
        f"{_EQUAL}, m ≥ p",
        lambda c: c.equal and c.silent and c.m >= c.p,
        _makespan(lambda c: (c.p - 1) * sum(c.one) / c.v),
        "Breadth-first pipeline parallelism",
    ),
    _Form(
        ("ZBH1",),
        "makespan",
        "m(F+B) + (p-1)(F+I-W)",
        f"{_SMALL_W}, m ≥ p",
        lambda c: _filling(c) and c.m >= c.p,
        _makespan(_bubble(1, 1, -1)),
        _TABLE2,
    ),
    _Form(
        ("ZBH1",),
        "makespan",
        "(m+p-1)(F+I) + W",
        f"{_SMALL_W}, m ≤ p",
        lambda c: _filling(c) and c.m <= c.p,
        lambda c: (c.m + c.p - 1) * (c.one[0] + c.one[1]) + c.one[2],
        "Zero Bubble, appendix H",
    ),
    _Form(
        ("ZBH2",),
        "span",
        "m(F+B) + (p-1)(F+I-2W)",
        f"{_SMALL_W}, m ≥ 2p-1",
        lambda c: _filling(c) and c.m >= 2 * c.p - 1,
        _makespan(_bubble(1, 1, -2)),
        _TABLE2,
    ),
    _Form(
        ("ZBV",),
        "span",
        "m(F+B)",
        f"{_EQUAL}, F = I = W, m ≥ 2p-1",
        lambda c: c.equal and c.silent and len(set(c.one)) == 1 and c.m >= 2 * c.p - 1,
        _makespan(lambda c: 0.0),
        "Zero Bubble, section 6",
    ),
    _Form(
        ("DualPipeV",),
        "makespan",
        "m(F+B) + (p-1)(F&B + B - 3W)/2, F&B = F+B",
        f"{_EQUAL}, F = I = W, overlap = 1",
        lambda c: c.equal and c.silent and len(set(c.one)) == 1 and c.overlap == 1,
        _makespan(lambda c: (c.p - 1) * (sum(c.one) + c.one[1] - 2 * c.one[2]) / 2),
        "DeepSeek-V3, table 2, as a V",
    ),
    _Form(
        ("GPipe",),
        "peak_in_flight",
        "m",
        "always",
        lambda c: True,
        _per_rank(lambda c, r: c.m),
        "Megatron-LM",
    ),
    _Form(
        ("1F1B", "ZBH1"),
        "peak_in_flight",
        "min(m, p-r) on rank r",
        "always",
        lambda c: True,
        _per_rank(lambda c, r: c.p - r),
        f"counted in the order; the largest, p, is that of {_TABLE2}",
    ),
    _Form(
        ("ZBH2",),
        "peak_in_flight",
        "min(m, 2(p-r)-1) on rank r",
        "always",
        lambda c: True,
        _per_rank(lambda c, r: 2 * (c.p - r) - 1),
        f"counted in the order; the largest, 2p-1, is that of {_TABLE2}",
    ),
    _Form(
        ("Interleaved1F1B",),
        "peak_in_flight",
        "min(mv, (v-1)p + 2(p-1-r) + 1) chunks on rank r",
        "m divisible by p",
        lambda c: c.m % c.p == 0,
        _per_rank(lambda c, r: (c.v - 1) * c.p + 2 * (c.p - 1 - r) + 1),
        _MEGATRON,
    ),
    _Form(
        ("LoopedBFS",),
        "peak_in_flight",
        "mv chunks",
        "always",
        lambda c: True,
        _per_rank(lambda c, r: c.m * c.v),
        "Breadth-first pipeline parallelism",
    ),
    _Form(
        ("ZBV",),
        "peak_in_flight",
        "2p chunks, half a microbatch each",
        "m ≥ 2p-1",
        lambda c: c.m >= 2 * c.p - 1,
        _per_rank(lambda c, r: 2 * c.p),
        "Zero Bubble, section 6",
    ),
    _Form(
        ("DualPipeV",),
        "peak_in_flight",
        "2p+1 chunks, half a microbatch each",
        "always",
        lambda c: True,
        _per_rank(lambda c, r: 2 * c.p + 1),
        "counted in torch's order",
    ),
)


def closed_forms(
    schedule: Schedule, costs: StageCosts, *, transfers: str = "buffered"
) -> tuple[ClosedForm, ...]:
    """Every formula for a schedule of this name, its value for these costs, and when it holds.

    Parameters
    ----------
    schedule : Schedule
        Formulas are about the order that `pl.schedule` makes under this name; of another order that
        only bears the name they claim nothing.
    costs : StageCosts
        Of its stages and links; values are in their unit.
    transfers : {"buffered", "queued"}
        As for `pl.simulate`. Times are claimed for buffered transfers, or where one rank sends
        nothing; what a rank holds follows from the order alone.

    Returns
    -------
    tuple of ClosedForm
        Of each formula: `schedule`, `quantity` (an attribute of `Timeline`), `formula`,
        `holds_when`, `value` (None where it does not claim to hold) and `source`.

    Raises
    ------
    InvalidValue
        The schedule is not a schedule, the costs are not costs, or they do not fit each other.
    UnknownName
        `transfers` is unknown.

    References
    ----------
    Each form names its own; the papers in full: D. Narayanan et al. (Megatron-LM), 2021; P. Qi et
    al., *Zero Bubble Pipeline Parallelism*, arXiv 2401.10241; J. Lamy-Poirier, *Breadth-First
    Pipeline Parallelism*, 2023; DeepSeek-AI, *DeepSeek-V3 Technical Report*.

    Examples
    --------
    >>> import pipelab as pl
    >>> schedule, costs = pl.schedule("1F1B", 4, 8), pl.StageCosts(1, 1, 1)
    >>> [(form.quantity, form.value) for form in pl.closed_forms(schedule, costs)]
    [('makespan', 33.0), ('peak_in_flight', (4, 3, 2, 1))]
    """
    instance(
        "closed_forms", "schedule", schedule, Schedule, "a Schedule; make one with pl.schedule(...)"
    )
    instance("closed_forms", "costs", costs, StageCosts, "StageCosts(forward, backward_input, ...)")
    check_transfers(transfers)
    table = costs.tables(schedule)
    names = ("forward", "backward_input", "backward_weight", "comm")
    forward, back, weight, comm = (table[name] for name in names)
    case = _Case(
        schedule.ranks,
        schedule.microbatches,
        schedule.chunks,
        forward,
        back,
        weight,
        comm,
        costs.overlap,
    )
    # InterleavedZeroBubble with one chunk is ZB-H1 under torch's name.
    name = (
        "ZBH1"
        if schedule.name == "InterleavedZeroBubble" and schedule.chunks == 1
        else schedule.name
    )
    forms = [form for form in _FORMS if name in form.schedules]
    made = bool(forms) and _as_made(schedule)
    found = []
    for form in forms:
        timed = form.quantity != "peak_in_flight"
        conditions = [form.holds_when] * (form.holds_when != "always") + [
            "buffered transfers"
        ] * timed
        if not made:
            conditions.insert(0, f"pl.schedule's own order of {name}, which this is not")
        holds = (
            made
            and form.holds(case)
            and (not timed or transfers == "buffered" or schedule.ranks == 1)
        )
        when, value = ", ".join(conditions) or "always", form.value(case) if holds else None
        found.append(ClosedForm(name, form.quantity, form.formula, when, value, form.source))
    return tuple(found)


def _as_made(schedule: Schedule) -> bool:
    """Whether this is what `pl.schedule` makes under its name, idle ticks aside."""
    made = _made(schedule.name, schedule.ranks, schedule.microbatches, schedule.chunks)
    if made is None:
        return False
    return columns_of(made).schedule == columns_of(schedule).computing().schedule


@lru_cache(maxsize=8)
def _made(name: str, ranks: int, microbatches: int, chunks: int) -> Schedule | None:
    """What `pl.schedule` makes of these numbers; None if it makes nothing."""
    try:
        return make_schedule(name, ranks, microbatches, chunks)
    except PipelabError:
        return None


def lower_bound(
    ranks: int,
    microbatches: int,
    costs: StageCosts,
    *,
    in_flight: int | Sequence[int] | None = None,
    split_backward: bool = True,
) -> float:
    """A makespan that no order of one stage per rank can beat, however messages are handed over.

    Parameters
    ----------
    ranks, microbatches : int
        At most 5 million ranks.
    costs : StageCosts
        Of one stage per rank; `comm` of the links between them.
    in_flight : int or sequence of int, one per rank, optional
        Most microbatches a rank may hold between forward and backward; without it, all of them.
    split_backward : bool
        False where the gradient is sent on only after I and W, as in GPipe and 1F1B: a higher bound
        for these, with B = I + W: max over s of Σ_{k<s}(F+B)_k + m·(F+B)_s and more.

    Returns
    -------
    float
        In the unit of the costs.

    Raises
    ------
    InvalidValue
        A number is not valid, the costs do not fit the ranks, or a rank may hold nothing.

    Notes
    -----
    Rank s cannot start before its first input arrives, must do all its work, and must wait for the
    first gradient: F_s + Σ_{k>s}(F_k + I_k) + 2Σ_{k≥s} c_k after its first forward starts, in which
    it can run no more forwards than it may hold. Nor can the last gradient reach rank 0 before rank
    s has run all its F and I. The largest of these, over the ranks, is the bound. Where overlapped
    pairs take less than their parts (`overlap` below 1), all work is counted as if it were done in
    pairs.

    Examples
    --------
    >>> import pipelab as pl
    >>> pl.lower_bound(4, 8, pl.StageCosts(1, 1, 1), in_flight=4)  # ZB-H1 takes 27 and is therefore best
    27.0
    """
    ranks = whole_number("lower_bound", "ranks", ranks, most=LARGEST_SIZE)
    microbatches = whole_number("lower_bound", "microbatches", microbatches)
    instance("lower_bound", "costs", costs, StageCosts, "StageCosts(forward, backward_input, ...)")
    split_backward = true_or_false("lower_bound", "split_backward", split_backward)
    held = _held(in_flight, ranks, microbatches)
    table = costs.arrays(ranks, "training")
    shortened = min(1.0, costs.overlap)
    forward, backward, weight = (
        shortened * table[n] for n in ("forward", "backward_input", "backward_weight")
    )
    if not split_backward:
        backward, weight = backward + weight, np.zeros(ranks)
    comm = np.append(table["comm"], 0.0)
    arrives = np.cumsum(forward + comm) - (forward + comm)
    returns = np.cumsum(backward + comm) - (backward + comm)
    # until rank s's own first backward
    below = (forward + backward + 2 * comm)[::-1].cumsum()[::-1] - backward
    waits = np.maximum(0.0, below - held * forward)
    steady = arrives + microbatches * (forward + backward + weight) + waits
    drained = arrives + microbatches * (forward + backward) + returns + weight[0]
    return float(max(steady.max(), drained.max()))


def _held(in_flight: Any, ranks: int, microbatches: int) -> np.ndarray:
    """How many microbatches each rank may hold, no more than there are."""
    if in_flight is None:
        return np.full(ranks, float(microbatches))
    if not is_list(in_flight):
        in_flight = whole_number("lower_bound", "in_flight", in_flight)
        return np.full(ranks, float(min(in_flight, microbatches)))
    most = list(in_flight)
    if len(most) != ranks:
        expected = f"expected one number, or {ranks} for {ranks} ranks; got {len(most)}"
        raise InvalidValue("lower_bound", [("in_flight", in_flight, expected)])
    checked = [
        whole_number("lower_bound", f"in_flight[{rank}]", number)
        for rank, number in enumerate(most)
    ]
    return np.minimum(np.array(checked, dtype=float), microbatches)
