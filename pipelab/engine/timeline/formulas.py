"""What is known of a schedule without simulating it: formulas that say when they hold, and lower bounds.

p ranks, m microbatches, v chunks per rank. F (forward), I (gradient of the input), W (gradient of
the weights) and B = I + W are what one microbatch takes on one *rank*, all its chunks together; the
papers on zero bubbles write B for I. A formula outside its claim has no value here: the simulator
has.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

import numpy as np

from pipelab.engine.schedules.columns import a_schedule, columns_of
from pipelab.engine.schedules.named_schedules import schedule as make_schedule
from pipelab.engine.timeline.costs import OF_ACTIONS, StageCosts
from pipelab.engine.timeline.timeline import TRANSFER_MODES
from pipelab.errors import InvalidValue, PipelabError, refuse_unknown
from pipelab.fields import Flag, checked_value, instance, is_list, whole_number
from pipelab.files.bundled_folders import data_dir
from pipelab.files.csv_rows import read_rows
from pipelab.schedules import LARGEST_SIZE, Schedule


class ClosedForm(NamedTuple):
    """A formula with its numbers put in; where it does not claim to hold, `value` is None and `holds_when` says why."""

    schedule: str
    quantity: str  # the Timeline's attribute that it predicts
    formula: str
    holds_when: str
    value: float | tuple[int, ...] | None
    source: str


class _Symbols(NamedTuple):
    """The symbols of the formulas for one schedule and its costs; F, I and W where stages are equal."""

    p: int
    m: int
    v: int
    F: float
    I: float  # noqa: E741 - the field's symbol
    W: float
    overlap: float
    table: dict[str, np.ndarray]  # as `StageCosts.tables` has it

    @property
    def FB(self) -> float:
        """Forward and full backward: what one microbatch takes."""
        return self.F + self.I + self.W

    @property
    def equal(self) -> bool:
        """Whether all stages cost the same and communication takes no time."""
        times = (self.table[name] for name in OF_ACTIONS)
        return all((each == each[0]).all() for each in times) and not self.table["comm"].any()


# The paper's table names no condition on W; the ones below are where the formulas meet the
# simulator.
_HOLDS: dict[str, Callable[[_Symbols], bool]] = {
    "equal stages, no communication time": lambda c: c.equal,
    "W ≤ F and W ≤ I": lambda c: min(c.F, c.I) >= c.W,
    "F = I = W": lambda c: c.F == c.I == c.W,
    "overlap = 1": lambda c: c.overlap == 1,
    "m ≥ p": lambda c: c.m >= c.p,
    "m ≤ p": lambda c: c.m <= c.p,
    "m ≥ 2p-1": lambda c: c.m >= 2 * c.p - 1,
    "m divisible by p": lambda c: c.m % c.p == 0,
}


def _flow_shops(c: _Symbols) -> float:
    forward, back = c.table["forward"], c.table["backward_input"] + c.table["backward_weight"]
    slowest = forward.max() + back.max()
    return float(forward.sum() + back.sum() + (c.m - 1) * slowest + 2 * c.table["comm"].sum())


# By the formula: its value for a case; of what a rank holds, for a case and the rank.
_VALUES: dict[str, Callable[..., float]] = {
    "ΣF + (m-1)·max F + ΣB + (m-1)·max B + 2Σc": _flow_shops,
    "(m+p-1)(F+B)": lambda c: (c.m + c.p - 1) * c.FB,
    "m(F+B) + (p-1)(F+B)/v": lambda c: c.m * c.FB + (c.p - 1) * c.FB / c.v,
    "m(F+B) + (p-1)(F+I-W)": lambda c: c.m * c.FB + (c.p - 1) * (c.F + c.I - c.W),
    "(m+p-1)(F+I) + W": lambda c: (c.m + c.p - 1) * (c.F + c.I) + c.W,
    "m(F+B) + (p-1)(F&B + B - 3W)/2, F&B = F+B": (
        lambda c: c.m * c.FB + (c.p - 1) * (c.FB + c.I - 2 * c.W) / 2
    ),
    "m(F+B) + (p-1)(F+I-2W)": lambda c: c.m * c.FB + (c.p - 1) * (c.F + c.I - 2 * c.W),
    "m(F+B)": lambda c: c.m * c.FB,
    "m": lambda c, r: c.m,
    "min(m, p-r) on rank r": lambda c, r: c.p - r,
    "min(m, 2(p-r)-1) on rank r": lambda c, r: 2 * (c.p - r) - 1,
    "min(mv, (v-1)p + 2(p-1-r) + 1) chunks on rank r": (
        lambda c, r: (c.v - 1) * c.p + 2 * (c.p - 1 - r) + 1
    ),
    "mv chunks": lambda c, r: c.m * c.v,
    "2p chunks, half a microbatch each": lambda c, r: 2 * c.p,
    "2p+1 chunks, half a microbatch each": lambda c, r: 2 * c.p + 1,
}
_FORMS = [row.cells for row in read_rows(data_dir() / "closed_forms.csv", ["quantity"])]


def closed_forms(
    schedule: Schedule, costs: StageCosts, *, transfers: str = "buffered"
) -> tuple[ClosedForm, ...]:
    """Return every formula for a schedule of this name, its value for these costs, and when it holds.

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
    columns = columns_of(a_schedule("closed_forms", schedule))
    instance("closed_forms", "costs", costs, StageCosts, "StageCosts(forward, backward_input, ...)")
    refuse_unknown("transfer mode", transfers, TRANSFER_MODES)
    p, m, v = schedule.ranks, schedule.microbatches, schedule.chunks
    table = costs.tables(schedule)
    of_rank = (v * float(table[name][0]) for name in OF_ACTIONS)
    times = dict(zip("FIW", of_rank, strict=True))
    case = _Symbols(p=p, m=m, v=v, **times, overlap=costs.overlap, table=table)
    # InterleavedZeroBubble with one chunk is ZB-H1 under torch's name.
    name = schedule.name
    name = "ZBH1" if (name, v) == ("InterleavedZeroBubble", 1) else name
    made = _made(schedule.name, p, m, v)
    as_made = made is not None and columns_of(made).schedule == columns.computing().schedule
    answers = []
    for form in _FORMS:
        if name not in form["schedules"].split():
            continue
        quantity, value_of = form["quantity"], _VALUES[form["formula"]]
        when = list(filter(None, form["conditions"].split("; ")))
        holds = as_made and all(_HOLDS[condition](case) for condition in when)
        value = cast(float | tuple[int, ...] | None, None)
        if not as_made:
            when.insert(0, f"pl.schedule's own order of {name}, which this is not")
        if quantity != "peak_in_flight":
            when.append("buffered transfers")
            holds = holds and (transfers == "buffered" or p == 1)
            value = value_of(case) if holds else None
        elif holds:
            value = tuple(int(min(value_of(case, rank), m * v)) for rank in range(p))
        of_form = {field: form[field] for field in ("quantity", "formula", "source")}
        words = ", ".join(when) or "always"
        answers.append(ClosedForm(schedule=name, holds_when=words, value=value, **of_form))
    return tuple(answers)


@lru_cache(maxsize=8)
def _made(name: str, ranks: int, microbatches: int, chunks: int) -> Schedule | None:
    """Return what `pl.schedule` makes of these numbers; None if it makes nothing."""
    try:
        return make_schedule(name, ranks, microbatches, chunks)
    except PipelabError:
        return None


def lower_bound(
    costs: StageCosts,
    microbatches: int,
    ranks: int,
    *,
    max_in_flight: int | Sequence[int] | None = None,
    split_backward: bool = True,
) -> float:
    """Return a makespan that no order of one stage per rank can beat, however messages are handed over.

    Parameters
    ----------
    costs : StageCosts
        Of one stage per rank; `comm` of the links between them.
    microbatches, ranks : int
        At most 5 million ranks.
    max_in_flight : int or sequence of int, one per rank, optional
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
    >>> pl.lower_bound(pl.StageCosts(1, 1, 1), 8, 4, max_in_flight=4)  # ZB-H1 takes 27 and is therefore best
    27.0
    """
    ranks = whole_number("lower_bound", "ranks", ranks, most=LARGEST_SIZE)
    microbatches = whole_number("lower_bound", "microbatches", microbatches)
    instance("lower_bound", "costs", costs, StageCosts, "StageCosts(forward, backward_input, ...)")
    split_backward = checked_value("lower_bound", "split_backward", split_backward, Flag)
    held = held_at_most("lower_bound", max_in_flight, ranks, microbatches)
    whole = bounds(costs, microbatches, held, split_backward)
    return float(max((whole.arrives + whole.busy).max(), whole.drained[0]))


class Bounds(NamedTuple):
    """What no order of actions is shorter than, each an array of shape (ranks,).

    Attributes
    ----------
    arrives : float array
        When the first input is there.
    busy : float array
        From then on: the rank's work, and its wait for the first gradient.
    drained : float array
        From the rank's start: until the last gradient of all behind it is home, and its own W is done.
    """

    arrives: np.ndarray
    busy: np.ndarray
    drained: np.ndarray


def bounds(costs: StageCosts, microbatches: int, held: np.ndarray, split_backward: bool) -> Bounds:
    """Bound an order of these costs, one stage per rank, each of which holds at most the given number."""
    ranks = len(held)
    table = costs.arrays(ranks, "training")
    forward, backward, weight = (costs.overlap * table[name] for name in OF_ACTIONS)
    if not split_backward:
        backward, weight = backward + weight, np.zeros(ranks)
    comm, passes = np.append(table["comm"], 0.0), microbatches * (forward + backward)
    home = forward + backward + 2 * comm
    # until rank s's own first backward
    first_gradient = home[::-1].cumsum()[::-1] - backward
    busy = passes + microbatches * weight + np.maximum(0.0, first_gradient - held * forward)
    before = np.cumsum(home) - home
    drained = np.maximum.accumulate((before + passes)[::-1])[::-1] - before + weight
    return Bounds(arrives=np.cumsum(forward + comm) - (forward + comm), busy=busy, drained=drained)


def held_at_most(
    what: str, most: int | Sequence[int] | None, ranks: int, microbatches: int
) -> np.ndarray:
    """Return how many microbatches each rank may hold, no more than there are; (ranks,) array of floats.

    Raises
    ------
    InvalidValue
        In the name of `what`: its `max_in_flight` is neither a whole number of at least 1 nor one per rank.
    """
    field = "max_in_flight"
    if not is_list(most):
        limit = microbatches if most is None else whole_number(what, field, most)
        return np.full(ranks, float(min(limit, microbatches)))
    limits = list(cast(Sequence[int], most))
    if len(limits) != ranks:
        expected = f"expected one number, or {ranks} for {ranks} ranks; got {len(limits)}"
        raise InvalidValue(what, [(field, most, expected)])
    named = ((f"{field}[{rank}]", number) for rank, number in enumerate(limits))
    checked = [whole_number(what, name, number) for name, number in named]
    return np.minimum(np.array(checked, dtype=float), microbatches)
