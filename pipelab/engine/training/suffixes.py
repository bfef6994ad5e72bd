"""The least that the last k stages of any placement bound, by the GPUs they use and the layer they begin at.

A dynamic program from the last stage to the first over `bounds`, for classes of GPUs that may have
been merged (`groups`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.engine.training.bounds import BIG, REAL, Parts, Shape, own_terms
from pipelab.engine.training.groups import Groups
from pipelab.engine.training.orders import Order
from pipelab.engine.training.stages import Stages, Times

_AT_ONCE = 64  # states
_MOST_NUMBERS = 60_000_000  # of tables for one number of ranks each: half a gigabyte


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
        self._bands: dict[int, tuple[Times, Parts]] = {}
        self._relaxed: dict[int, Times] = {}
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
        every = {
            id(t): t
            for order in self.orders.values()
            for t in (self.stages.times(held, order.chunks) for held in order.held)
        }
        return Times(*(np.minimum.reduce([getattr(t, n) for t in every.values()]) for n in _NAMES))

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
        kept = self._bands.get(id(times))
        if kept is None:
            found = self.shape.parts(self._within(times))
            found = found.take(slice(None), self.band)
            found.busy[..., ~self.inside] = BIG
            kept = self._bands[id(times)] = times, found
        return kept[1]

    def _within(self, times: Times) -> Times:
        short = times.whole <= self.limit
        return Times(*(np.where(short, getattr(times, n), np.inf) for n in _NAMES))

    def _relaxed_times(self, k: int) -> tuple[Times, int]:
        """The least that a group's stages take k stages from the end, and the most its rank may hold."""
        found, most = {}, 1
        for ranks, order in self.orders.items():
            if ranks >= k:
                times = self.exact(ranks, ranks - k)
                found[id(times)] = times
                most = max(most, order.window[ranks - k])
        self.exact_for_all &= len(found) == 1
        key = hash(tuple(sorted(found)))
        if key not in self._relaxed:
            self._relaxed[key] = Times(
                *(
                    self.groups.least(np.minimum.reduce([getattr(t, n) for t in found.values()]))
                    for n in _NAMES
                )
            )
        return self._relaxed[key], most

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
            for low in range(0, len(rows), _AT_ONCE):
                self.deadline.check()
                some = rows[low : low + _AT_ONCE]
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


_NAMES = ("forward", "back", "weight", "step")


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
