"""What no step of a placement can beat, whatever the moment at which its actions run.

With F, I, W of a stage (forward, input and weight gradient of a microbatch; B = I + W), c the
message to the next stage, M microbatches and lead_i = Σ_{j<i} (F_j + c_j):

    work     rank i begins after lead_i, runs M·(F + B)_i, and waits for its first gradient, during which
             it can run no more forwards than its schedule lets it hold (w):
             max(0, 2c_i + R_{i+1} - (w - 1)·F_i), with R_i the time from there to the end and back
    way home where gradients are sent after I and W, the last one still has to travel
             Σ_{j<i} (B_j + c_j); where the backward is split, after M·(F + I)_i:
             Σ_{j<i} (I_j + c_j) and then W_1, as rank i's own W may hide behind it
    window   forward k + w of a rank waits for backward k, which is R_i later
    link     M messages go one at a time
    run      on ranks i to j: forward k of rank j comes before its backward k - w_j + 1, so that forward
             k + d of rank i, d = w_i - w_j + 1, begins R_ij later than forward k, the time through
             these ranks and back: (F + B) of all of them and 2c of all links between them. So d
             microbatches take R_ij at least: where neighbours are equally busy, messages count

Each of these is a "track": what counts M times (X), and what every stage before adds (Y, and the
number of messages). With several stages per rank the first of each counts for its lead and its way
home, and the last two are not used.

A dynamic program from the last stage to the first (`Suffixes`) finds, from these, the least that the
last k stages of any placement bound, by the GPUs they use and the layer they begin at.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.schedules import RULES
from pipelab.engine.schedules import schedule as make_schedule
from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.engine.training.stages import BIG, Groups, Stages, Times
from pipelab.errors import InvalidValue, TooLarge
from pipelab.schedules import Schedule

TRAINED_BY = tuple(name for name in RULES if name != "Inference")
REAL = 1e90  # seconds: what is longer than this cannot be
_AT_ONCE = 256  # placements simulated
_STATES_AT_ONCE = 64
_MOST_NUMBERS = 60_000_000  # of tables for one number of ranks each: half a gigabyte


class Order:
    """One schedule on so many ranks.

    Attributes
    ----------
    schedule : Schedule
    chunks : int
        Stages per rank.
    split : bool
        Whether input and weight gradients are actions of their own.
    held : tuple of int arrays
        Per rank, as `held_counts` has them.
    window : tuple of int
        Per rank, most microbatches between forward and backward (of whole ranks).
    """

    def __init__(self, schedule: Schedule) -> None:
        columns = columns_of(schedule)
        self.columns, self.schedule, self.chunks = columns, schedule, columns.chunks
        self.split = columns.splits_backward
        self.held = columns.held_counts
        self.window = tuple(int(held[:, 0].max()) for held in self.held)

    def makespans(self, times: np.ndarray, comm: np.ndarray) -> np.ndarray:
        """Return the makespans of K placements in seconds, as `simulate` has them with queued transfers.

        Parameters
        ----------
        times : float array, shape (3, ranks, K)
            Forward, input gradient and weight gradient of whole ranks.
        comm : float array, shape (stages - 1, K)
            Of the message from each stage of the schedule to the next.
        """
        columns = self.columns
        each = times[:, columns.holder] / columns.held[columns.holder][:, None]
        return columns.graph.makespan(columns.times(each, comm))


@lru_cache(maxsize=256)
def order_of(name: str, ranks: int, microbatches: int) -> Order:
    """The published rule of this name; raises as `pl.schedule` does."""
    return Order(make_schedule(name, ranks, microbatches))


def orders_of(
    name: str, most: int, microbatches: int
) -> tuple[dict[int, Order], str, TooLarge | None]:
    """The rule on every number of ranks up to `most` on which it exists.

    And why not, where it does on none; and the refusal of those numbers of ranks on which it is too
    large.
    """
    found, why, larger = {}, "", None
    for ranks in range(1, most + 1):
        try:
            found[ranks] = order_of(name, ranks, microbatches)
        except InvalidValue as error:
            why = why or str(error)
        except TooLarge as error:
            larger = error
    return found, why, larger


@dataclass(frozen=True)
class Shape:
    """What a bound needs to know of a schedule."""

    split: bool
    chunks: int
    microbatches: int

    @classmethod
    def of(cls, order: Order) -> "Shape":
        """Of the schedule, on any number of ranks."""
        return cls(order.split, order.chunks, order.schedule.microbatches)

    @property
    def hops(self) -> tuple[int, ...]:
        """Messages that every stage before adds, for each track."""
        return (1, 2) if self.split else (2,)

    @property
    def windows(self) -> bool:
        """Whether what a rank holds bounds its rate."""
        return self.chunks == 1

    def window(self, most: int) -> tuple[int, int, int]:
        """Microbatches held; how often all of them are; how many are left."""
        held = min(self.microbatches, most)
        return held, *divmod(self.microbatches - 1, held)

    def parts(self, times: Times) -> "Parts":
        """The tracks of every stage."""
        forward, back, weight, step = (
            np.minimum(each, BIG) for each in (times.forward, times.back, times.weight, times.step)
        )
        both = forward + back
        whole = both + weight
        if self.split:
            busy, leads = [whole, both], [forward / self.chunks, both / self.chunks]
        else:
            busy, leads = [whole], [whole / self.chunks]
        busy = [self.microbatches * each + step for each in busy]
        return Parts(
            np.stack(busy),
            np.stack(leads),
            forward,
            both if self.split else whole,
            weight / self.chunks,
            step,
        )


@dataclass(frozen=True, eq=False)
class Parts:
    """Of many stages: arrays whose last dimensions are the stages'."""

    busy: np.ndarray  # (tracks, …) M·X + step
    lead: np.ndarray  # (tracks, …) Y
    forward: np.ndarray
    both: np.ndarray  # forward, and what is run before the gradient is sent on
    weight: np.ndarray  # of one chunk
    step: np.ndarray

    def take(self, *index: Any) -> "Parts":
        """These stages."""
        single = (self.forward[index], self.both[index], self.weight[index], self.step[index])
        return Parts(self.busy[(slice(None), *index)], self.lead[(slice(None), *index)], *single)


def own_terms(
    shape: Shape, parts: Parts, most: int, beyond: np.ndarray | None, link: np.ndarray | None
) -> np.ndarray:
    """What a stage itself bounds, from its first input on.

    Parameters
    ----------
    parts : Parts
        Of stages, shape (…).
    most : int
        Microbatches that its rank holds at most.
    beyond : float array, shape (…), or None
        From its forward's end to its gradient's arrival; None for the last stage.
    link : float array, shape (…), or None
        M messages to the next stage, and from the last one's arrival on the same.

    Returns
    -------
    float array, shape (tracks, …)
    """
    busy = parts.busy
    if not shape.windows:
        return busy
    held, rounds, rest = shape.window(most)
    further = parts.both if beyond is None else parts.both + beyond
    if beyond is not None:
        busy = busy + np.maximum(0.0, beyond - (held - 1) * parts.forward)
    else:
        busy = busy.copy()
    last = rest * parts.forward + (rounds + 1) * further
    if link is not None:
        np.maximum(last, parts.both + link, out=last)
    np.maximum(busy[-1], last + parts.step, out=busy[-1])
    return busy


def run_bound(
    shape: Shape,
    most: tuple[int, int],
    forward: np.ndarray,
    both: np.ndarray,
    run: np.ndarray,
    through: np.ndarray,
) -> np.ndarray:
    """What ranks i to j bound, from the first input of rank i on; 0 where they bound nothing.

    Parameters
    ----------
    most : pair of int
        w of rank i and of rank j.
    forward, both : float arrays
        Of rank i: F, and F with what is run before the gradient is sent on.
    run, through : float arrays
        R_ij, and R_i: the same to the last rank.
    """
    last = shape.microbatches - 1
    held, inner = (min(shape.microbatches, each) for each in most)
    ahead = held - inner + 1
    if last < inner - 1 + ahead:
        return np.zeros(np.broadcast_shapes(run.shape, through.shape))
    rounds, rest = divmod(last - (inner - 1), ahead)
    # Forward a + d of rank i, where a is the first that rounds lead to the last from.
    first = inner - 1 + rest
    steady = through + (first + ahead - held) * both
    return np.maximum(first * forward + run, steady) + (rounds - 1) * run + through


def placement_bounds(
    order: Order, times: np.ndarray, step: np.ndarray, comm: np.ndarray
) -> np.ndarray:
    """Of K placements on the ranks of a schedule.

    Parameters
    ----------
    times : float array, shape (3, ranks, K)
        Forward, input and weight gradient, in seconds.
    step : float array, shape (ranks, K)
        Of the optimizer.
    comm : float array, shape (ranks - 1, K)
        From each rank to the next.

    Returns
    -------
    float array, shape (K,)
        The optimizer's longest step included.
    """
    shape, ranks = Shape.of(order), times.shape[1]
    parts = shape.parts(Times(times[0], times[1], times[2], np.zeros_like(step)))
    value = np.zeros((len(shape.hops), times.shape[2]))
    runs = shape.windows and bool(comm.any())
    passed = parts.both.copy()  # to a rank and back to the first, for what lies between them
    passed[1:] += 2 * comm
    passed = passed.cumsum(axis=0)
    beyond = link = None
    for i in reversed(range(ranks)):
        mine = parts.take(np.array(i))
        own = own_terms(shape, mine, order.window[i], beyond, link)
        for j in range(i, ranks if runs else i):
            found = run_bound(
                shape,
                (order.window[i], order.window[j]),
                mine.forward,
                mine.both,
                passed[j] - passed[i] + mine.both,
                passed[-1] - passed[i] + mine.both,
            )
            np.maximum(own[-1], found + mine.step, out=own[-1])
        if i < ranks - 1:
            messages = np.array(shape.hops)[:, None] * comm[i]
            value = np.maximum(own, mine.lead + messages + value)
        else:
            value = own
        if i:
            through = mine.both + (0.0 if beyond is None else beyond)
            beyond = 2 * comm[i - 1] + through
            link = (shape.microbatches + 1) * comm[i - 1] + through
    if shape.split:
        value[-1] += parts.weight[0]
    return value.max(axis=0) + step.max(axis=0)


@dataclass(frozen=True, eq=False)
class Batch:
    """K placements on p ranks.

    Attributes
    ----------
    compositions : int array, shape (K, p)
        Of every stage, as `Stages` numbers them.
    cuts : int array, shape (K, p + 1)
        First layers of the stages, and the number of layers.
    """

    compositions: np.ndarray
    cuts: np.ndarray

    def __len__(self) -> int:
        return len(self.compositions)

    @property
    def ranks(self) -> int:
        """p."""
        return self.compositions.shape[1]

    def take(self, which: np.ndarray) -> "Batch":
        """These placements."""
        return Batch(self.compositions[which], self.cuts[which])

    def times(self, stages: Stages, order: Order) -> tuple[np.ndarray, np.ndarray]:
        """Forward, input and weight gradient, (3, p, K), and the optimizer's step, (p, K).

        Infinite where a stage does not fit in memory.
        """
        kind = stages.runs.kind[self.cuts[:, :-1], np.diff(self.cuts, axis=1) - 1]
        found = np.empty((4, self.ranks, len(self)))
        for rank, held in enumerate(order.held):
            t = stages.times(held, order.chunks)
            at = self.compositions[:, rank], kind[:, rank]
            for i, each in enumerate((t.forward, t.back, t.weight, t.step)):
                found[i, rank] = each[at]
        return found[:3], found[3]

    def links(self, stages: Stages, at: np.ndarray) -> np.ndarray:
        """Messages between the ranks of neighbouring stages, (stages - 1, K); 0 within a rank."""
        one, other = self.compositions[:, at[:-1]], self.compositions[:, at[1:]]
        return np.where(at[:-1] == at[1:], 0.0, stages.hop[one, other]).T

    def bounds(self, stages: Stages, order: Order) -> np.ndarray:
        """See `bounds.placement_bounds`; infinite where a stage does not fit."""
        times, step = self.times(stages, order)
        fits = np.isfinite(times).all(axis=(0, 1))
        found = np.full(len(self), np.inf)
        comm = self.take(fits).links(stages, np.arange(self.ranks))
        found[fits] = placement_bounds(order, times[..., fits], step[:, fits], comm)
        return found

    def step_times(self, stages: Stages, order: Order) -> np.ndarray:
        """Seconds of a step, simulated; infinite where a stage does not fit."""
        found = np.full(len(self), np.inf)
        for low in range(0, len(self), _AT_ONCE):
            some = slice(low, low + _AT_ONCE)
            part = Batch(self.compositions[some], self.cuts[some])
            times, step = part.times(stages, order)
            fits = np.isfinite(times).all(axis=(0, 1)) & np.isfinite(step).all(axis=0)
            comm = part.take(fits).links(stages, order.columns.holder)
            if fits.any():
                ends = order.makespans(times[..., fits], comm)
                found[some][fits] = ends + step[:, fits].max(axis=0)
        return found


class Suffixes:
    """The program's tables, level by level: level k has what k stages bound.

    Parameters
    ----------
    orders : mapping of int to Order
        By the number of ranks.
    limit : float
        Seconds: stages that take longer per microbatch are left out.
    useful : float
        Seconds: so are placements that take longer per step.

    Attributes
    ----------
    state : list of int arrays, shape (S_k, G)
        GPUs used.
    value : list of float arrays, shape (S_k, tracks, H, L + 1)
        By the first stage's kind of receiver and its first layer.
    back : list of float arrays, shape (S_k, H, L + 1)
        Least time from the first stage's first input to its gradient.
    onto : list of int arrays, shape (S_k, D)
        The state of the level below when the first stage is taken away; -1 for none.
    exact_for_all : bool
        Whether the stage so many from the end takes the same on any number of ranks. Else the
        tables count with the least, and those of one number of ranks alone bound more.
    """

    def __init__(
        self,
        stages: Stages,
        orders: dict[int, Order],
        groups: Groups,
        limit: float,
        deadline: Deadline,
        useful: float = np.inf,
    ) -> None:
        self.stages, self.orders, self.groups = stages, orders, groups
        # Of stages that do not fit the time is infinite: they are never within the limit.
        self.limit = min(limit, BIG)
        self.useful = useful
        self.shape = Shape.of(next(iter(orders.values())))
        self.deadline, self.layers = deadline, stages.layers
        least = self._least_times()
        runs = stages.runs
        fits = (least.whole <= self.limit).any(axis=0)
        self.most_layers = int(runs.layers[fits].max(initial=1))
        self.band = runs.kind[:, : self.most_layers].copy()
        start, size = np.indices(self.band.shape)
        self.inside = start + size + 1 <= self.layers
        self.band[~self.inside] = 0
        self._bands: dict[Times, Parts] = {}
        self._relaxed: dict[frozenset[Times], Times] = {}
        self.exact_for_all = True
        self.capacity = self._capacity(least)
        first = np.zeros((1, len(groups.count)), dtype=int)
        self.state = [first]
        self.value = [self._nothing(1, len(self.shape.hops))]
        self.back = [self._nothing(1)]
        self.onto = [np.full((1, len(groups.composition)), -1)]
        for k in range(1, max(orders) + 1):
            if not self._add_level(k):
                break

    def _nothing(self, *sizes: int) -> np.ndarray:
        return np.full((*sizes, self.groups.between.shape[1], self.layers + 1), BIG)

    def _least_times(self) -> Times:
        return Times.least(
            {
                self.stages.times(held, order.chunks)
                for order in self.orders.values()
                for held in order.held
            }
        )

    def _capacity(self, least: Times) -> np.ndarray:
        """Layers that a GPU of each group can hold at most, of a stage's the share of one GPU."""
        groups, short = self.groups, least.whole <= self.limit
        layers = np.where(short, self.stages.runs.layers, 0).max(axis=1)
        share = np.zeros(len(groups.composition))
        np.maximum.at(share, groups.of, layers / self.stages.composition.sum(axis=1))
        return np.where(groups.composition > 0, share[:, None], 0.0).max(axis=0)

    def exact(self, ranks: int, rank: int) -> Times:
        """Of the stages that fit on this rank, and keep to the limit."""
        order = self.orders[ranks]
        return self.stages.times(order.held[rank], order.chunks)

    def parts(self, times: Times) -> Parts:
        """The same by first layer and number of layers; kept."""
        if times not in self._bands:
            short = times.whole <= self.limit
            within = Times(*(np.where(short, each, np.inf) for each in times.all))
            found = self.shape.parts(within).take(slice(None), self.band)
            found.busy[..., ~self.inside] = BIG
            self._bands[times] = found
        return self._bands[times]

    def _relaxed_times(self, k: int) -> tuple[Times, int]:
        """The least that a group's stages take k stages from the end, and the most its rank may hold."""
        orders = {ranks: order for ranks, order in self.orders.items() if ranks >= k}
        every = frozenset(self.exact(ranks, ranks - k) for ranks in orders)
        self.exact_for_all &= len(every) == 1
        if every not in self._relaxed:
            least = Times.least(every)
            self._relaxed[every] = Times(*map(self.groups.least, least.all))
        most = max(order.window[ranks - k] for ranks, order in orders.items())
        return self._relaxed[every], max(1, most)

    def _add_level(self, k: int) -> bool:
        """False where no more stages can be put before the last level's."""
        below, groups = self.state[-1], self.groups
        grown = [below + c for c in groups.composition]
        valid = [(g <= groups.count).all(axis=1) for g in grown]
        if k > 1:
            finite = self.back[-1].min(axis=(1, 2)) < REAL
            valid = [v & finite for v in valid]
        if not any(v.any() for v in valid):
            return False
        every = np.concatenate([g[v] for g, v in zip(grown, valid, strict=True)])
        state = np.unique(every, axis=0)
        index = {row.tobytes(): i for i, row in enumerate(state)}
        onto = np.full((len(state), len(groups.composition)), -1)
        for d, (g, v) in enumerate(zip(grown, valid, strict=True)):
            for row in np.flatnonzero(v).tolist():
                onto[index[g[row].tobytes()], d] = row
        value, back = self._nothing(len(state), len(self.shape.hops)), self._nothing(len(state))
        times, most = self._relaxed_times(k)
        parts = self.parts(times)
        held = state @ self.capacity
        rest = (groups.count * self.capacity).sum() - held
        for d in range(len(groups.composition)):
            rows = np.flatnonzero(onto[:, d] >= 0)
            for low in range(0, len(rows), _STATES_AT_ONCE):
                self.deadline.check()
                some = rows[low : low + _STATES_AT_ONCE]
                # Where these stages hold all that is left, and others can hold what comes before.
                before = np.arange(self.layers)
                possible = (self.layers - before <= held[some, None] + ONE_ANSWER) & (
                    before <= rest[some, None] + ONE_ANSWER
                )
                at, begin = np.nonzero(possible)
                mine = parts.take(np.full(len(at), d), begin)
                after = self.after(k, onto[some, d], groups.between[d]).take(at, begin)
                found, through = extended(self.shape, mine, most, after)
                useless = found.max(axis=0) >= self.useful
                found = np.where(useless, BIG, found).min(axis=-1)
                through = np.where(useless, BIG, through).min(axis=-1)
                to, h = some[at], groups.receiver[d]
                value[to, :, h, begin] = np.minimum(value[to, :, h, begin], found.T)
                back[to, h, begin] = np.minimum(back[to, h, begin], through)
        self.state.append(state)
        self.value.append(value)
        self.back.append(back)
        self.onto.append(onto)
        return True

    def whole(self, ranks: int) -> np.ndarray:
        """What all placements on so many ranks bound, by the GPUs they use."""
        if ranks >= len(self.value):
            return np.zeros(0)
        return self.value[ranks][..., 0].min(axis=2).max(axis=1)

    def after(self, k: int, rest: np.ndarray, hop: np.ndarray) -> "After":
        """What comes after the first of k stages, for every run of layers that it may have.

        Parameters
        ----------
        rest : int array, shape (n,)
            States of level k - 1.
        hop : float array, shape (H,) or (n, H)
            Seconds to the next stage.
        """
        shape, n, last = self.shape, len(rest), self.layers
        if k == 1:
            ends = np.full((n, last + 1), BIG)
            ends[:, last] = 0.0
            value = np.broadcast_to(ends[:, None], (n, len(shape.hops), last + 1))
            return After(self._slide(value), self._slide(ends), None)
        hop = np.broadcast_to(hop, (n, hop.shape[-1]))
        below, back = self.value[k - 1][rest], self.back[k - 1][rest]
        messages = np.array(shape.hops)[None, :, None] * hop[:, None, :]
        value = (below + messages[..., None]).min(axis=2)
        beyond = (back + 2 * hop[..., None]).min(axis=1)
        link = (back + (shape.microbatches + 1) * hop[..., None]).min(axis=1)
        return After(self._slide(value), self._slide(beyond), self._slide(link))

    def _slide(self, values: np.ndarray) -> np.ndarray:
        """Values by first layer after a stage, as seen from its own first layer and number of layers."""
        wide = np.full((*values.shape[:-1], self.layers + self.most_layers), BIG)
        wide[..., : self.layers] = values[..., 1:]
        return np.lib.stride_tricks.sliding_window_view(wide, self.most_layers, axis=-1)[
            ..., : self.layers, :
        ]


def tables_of(
    orders: dict[int, Order], made: Callable[[dict[int, Order]], Suffixes]
) -> Iterator[dict[int, Suffixes]]:
    """Tables by the number of ranks: first the same for all, then for each its own where it bounds more.

    `made` makes the table of some of the orders.
    """
    shared = made(orders)
    tables = dict.fromkeys(orders, shared)
    yield tables
    if shared.exact_for_all:
        return
    least = {ranks: float(shared.whole(ranks).min(initial=np.inf)) for ranks in orders}
    room = _MOST_NUMBERS
    for ranks in sorted(orders, key=lambda ranks: least[ranks]):
        if room > 0 and least[ranks] < min(REAL, shared.useful):
            own = made({ranks: orders[ranks]})
            tables = {**tables, ranks: own}
            room -= sum(each.size for each in own.value)
    yield tables


@dataclass(frozen=True, eq=False)
class After:
    """What follows a stage, by its number of layers: by states and first layers, or for some of them."""

    value: np.ndarray  # (n, tracks, …)
    beyond: np.ndarray  # (n, …) from the forward's end to the gradient's arrival
    link: np.ndarray | None  # (n, …) M messages and the way on; None after the last stage

    def take(self, row: np.ndarray, first: np.ndarray) -> "After":
        """For stages of these states that begin at these layers."""
        link = None if self.link is None else self.link[row, first]
        return After(self.value[row, :, first], self.beyond[row, first], link)


def extended(shape: Shape, parts: Parts, most: int, after: After) -> tuple[np.ndarray, np.ndarray]:
    """What stages and all after them bound, and the time from their first input to its gradient.

    Returns
    -------
    float arrays, shapes (tracks, n, …) and (n, …)
    """
    beyond = None if after.link is None else after.beyond
    own = own_terms(shape, parts, most, beyond, after.link)
    value = np.maximum(own, parts.lead + after.value.transpose(1, 0, 2))
    return value, parts.both + after.beyond
