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

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipelab.engine.deadline import Deadline
from pipelab.engine.instance import best_shares
from pipelab.engine.schedules import RULES
from pipelab.engine.schedules import schedule as make_schedule
from pipelab.engine.schedules.columns import ScheduleArrays, columns_of
from pipelab.engine.tolerances import ONE_ANSWER
from pipelab.engine.training.stages import ABSENT_S, Merged, RankTimes, TrainingStages
from pipelab.errors import InvalidValue, TooLarge

TRAINED_BY = tuple(name for name in RULES if name != "Inference")
MOST_REAL_S = 1e90  # seconds: what takes longer does not exist
_PLACEMENTS_AT_ONCE = 256  # placements simulated
_STATES_AT_ONCE = 64


@lru_cache(maxsize=256)
def order_of(name: str, ranks: int, microbatches: int) -> ScheduleArrays:
    """Return the published rule of this name; raises as `pl.schedule` does."""
    return columns_of(make_schedule(name, ranks, microbatches))


@dataclass(frozen=True, eq=False)
class Parts:
    """What stages add to the bounds: arrays whose last dimensions are the stages'."""

    busy: np.ndarray  # (tracks, …) M·X + step
    lead: np.ndarray  # (tracks, …) Y
    forward: np.ndarray
    both: np.ndarray  # forward, and what is run before the gradient is sent on
    weight: np.ndarray  # of the rank's first part
    step: np.ndarray

    def take(self, *index: Any) -> "Parts":
        """Return the parts of these stages."""
        tracks = (slice(None), *index)
        return Parts(
            busy=self.busy[tracks],
            lead=self.lead[tracks],
            forward=self.forward[index],
            both=self.both[index],
            weight=self.weight[index],
            step=self.step[index],
        )


class RuleBounds:
    """A published rule on every number of ranks up to `most` on which it exists.

    Attributes
    ----------
    orders : mapping of int to Columns
        By the number of ranks.
    absent : str
        Why it does not exist on some number of ranks.
    too_large : TooLarge or None
        The refusal of those numbers of ranks on which it is too large.
    chunks : int
        Stages per rank.
    split : bool
        Whether input and weight gradients are actions of their own.
    hops : int array, shape (tracks,)
        Messages that every stage before adds.
    """

    def __init__(self, name: str, most: int, microbatches: int) -> None:
        self.name, self.microbatches = name, microbatches
        self.orders: dict[int, ScheduleArrays] = {}
        self.absent, self.too_large = "", None
        for ranks in range(1, most + 1):
            try:
                self.orders[ranks] = order_of(name, ranks, microbatches)
            except InvalidValue as error:
                self.absent = self.absent or str(error)
            except TooLarge as error:
                self.too_large = error
        self.chunks = 2 if RULES[name].chunked or RULES[name].v_shaped else 1
        for order in self.orders.values():
            self.split = order.splits_backward
            self.hops = np.array([1, 2] if self.split else [2])

    def times(self, stages: TrainingStages, ranks: int, rank: int) -> RankTimes:
        """Return seconds of every stage on this rank of so many."""
        order = self.orders[ranks]
        last = "home" if order.holder[0] == order.holder[-1] else "last"
        mine, names = np.flatnonzero(order.holder == rank), {0: "first", order.stages - 1: last}
        roles = [names.get(part, "inner") for part in mine.tolist()]
        return stages.times(roles, order.held_counts[rank])

    def window(self, ranks: int, rank: int) -> int:
        """Return the most microbatches between forward and backward of a rank."""
        return max(1, self.orders[ranks].peak_in_flight[rank])

    def parts(self, times: RankTimes) -> Parts:
        """Return what every stage adds to each track."""
        rows = np.minimum(times.seconds, ABSENT_S)
        forward, back, weight, step, first, its_back, its_weight = rows
        both = forward + back
        whole, home = both + weight, first + its_back
        busy, lead = [whole, both], [first, home]
        if not self.split:
            busy, lead = [whole], [home + its_weight]
        return Parts(
            busy=self.microbatches * np.stack(busy) + step,
            lead=np.stack(lead),
            forward=forward,
            both=both if self.split else whole,
            weight=its_weight,
            step=step,
        )

    def alone(self, parts: Parts, most: int, beyond: np.ndarray) -> np.ndarray:
        """Return what a stage itself bounds, from its first input on.

        Parameters
        ----------
        parts : Parts
            Of stages, shape (…).
        most : int
            Microbatches that its rank holds at most.
        beyond : float array, shape (…)
            From its forward's end to its gradient's arrival; 0 for the last stage.

        Returns
        -------
        float array, shape (tracks, …)
        """
        if self.chunks > 1:
            return parts.busy
        held = min(self.microbatches, most)
        rounds, rest = divmod(self.microbatches - 1, held)
        busy = parts.busy + np.maximum(0.0, beyond - (held - 1) * parts.forward)
        window = rest * parts.forward + (rounds + 1) * (parts.both + beyond)
        np.maximum(busy[-1], window + parts.step, out=busy[-1])
        return busy

    def run(
        self,
        most: tuple[int, int],
        forward: np.ndarray,
        both: np.ndarray,
        run: np.ndarray,
        through: np.ndarray,
    ) -> np.ndarray | float:
        """Return what ranks i to j bound, from the first input of rank i on; 0 where they bound nothing.

        Parameters
        ----------
        most : pair of int
            w of rank i and of rank j.
        forward, both : float arrays
            Of rank i: F, and F with what is run before the gradient is sent on.
        run, through : float arrays
            R_ij, and R_i: the same to the last rank.
        """
        last = self.microbatches - 1
        held, inner = (min(self.microbatches, number) for number in most)
        ahead = held - inner + 1
        if last < inner - 1 + ahead:
            return 0.0
        rounds, rest = divmod(last - (inner - 1), ahead)
        # Forward a + d of rank i, where a is the first that rounds lead to the last from.
        first = inner - 1 + rest
        steady = through + (first + ahead - held) * both
        return np.maximum(first * forward + run, steady) + (rounds - 1) * run + through


def of_ranks(order: ScheduleArrays, parts: np.ndarray) -> np.ndarray:
    """Return the sums of parts on every rank, shape (n, ranks, K), of an array of shape (n, parts, K)."""
    found = np.zeros((len(parts), order.ranks, parts.shape[2]))
    np.add.at(found.swapaxes(0, 1), order.holder, parts.swapaxes(0, 1))
    return found


def step_times(
    stages: TrainingStages, order: ScheduleArrays, compositions: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """Return the simulated seconds of a step of K placements; infinite if one does not fit."""
    found, at = np.full(len(sizes), np.inf), order.holder
    for low in range(0, len(sizes), _PLACEMENTS_AT_ONCE):
        some = slice(low, low + _PLACEMENTS_AT_ONCE)
        times = stages.seconds(order, compositions[some], sizes[some])
        fits = np.flatnonzero(np.isfinite(times).all(axis=(0, 1)))
        if len(fits):
            chosen, times = compositions[low + fits], times[..., fits]
            hop = stages.hop[chosen[:, at[:-1]], chosen[:, at[1:]]].T
            comm = np.where((at[:-1] == at[1:])[:, None], 0.0, hop)
            step = of_ranks(order, times[3:])[0].max(axis=0)
            found[low + fits] = makespans(order, times[:3], comm) + step
    return found


def makespans(order: ScheduleArrays, times: np.ndarray, comm: np.ndarray) -> np.ndarray:
    """Return the makespans of K placements in seconds, as `simulate` has them with queued transfers.

    Parameters
    ----------
    times : float array, shape (3, stages, K)
        Forward, input gradient and weight gradient of every stage of the schedule.
    comm : float array, shape (stages - 1, K)
        Of the message from each of them to the next.
    """
    return order.graph.makespan(order.times(times, comm))


class Suffixes:
    """The program's tables, level by level: level k has what the last k stages bound.

    Parameters
    ----------
    every : iterable of int
        Numbers of ranks. Where a stage takes longer on one number than on another, the tables count
        with the least, and those of one number of ranks alone bound more.
    limit : float
        Seconds: stages that take longer per microbatch are left out.
    useful : float
        Seconds: so are placements that take longer per step.

    Attributes
    ----------
    state : list of int arrays, shape (S_k, G)
        GPUs used.
    value : list of float arrays, shape (S_k, tracks, H, L + 1)
        By the first stage's receiver and its first layer.
    back : list of float arrays, shape (S_k, H, L + 1)
        Least time from the first stage's first input to its gradient.
    onto : list of int arrays, shape (S_k, D)
        The state of the level below when the first stage is taken away; -1 for none.
    exact : bool
        Whether the stage so many from the end takes the same on any number of ranks.
    """

    def __init__(
        self,
        stages: TrainingStages,
        rule: RuleBounds,
        every: Iterable[int],
        merged: Merged,
        deadline: Deadline,
        limit: float = np.inf,
        useful: float = np.inf,
    ) -> None:
        self.stages, self.rule, self.every, self.merged = stages, rule, tuple(every), merged
        # Of stages that do not fit the time is infinite: they are never within the limit.
        self.limit, self.useful = min(limit, ABSENT_S), useful
        self.deadline, self.layers = deadline, stages.layers
        on_any = {rule.times(stages, p, rank) for p in self.every for rank in range(p)}
        short, spans = RankTimes.least(on_any).whole <= self.limit, stages.spans
        self.most_layers = int(spans.layers[short.any(axis=0)].max(initial=1))
        self.band = spans.kind[:, : self.most_layers].copy()
        start, size = np.indices(self.band.shape)
        self.inside = start + size + 1 <= self.layers
        self.band[~self.inside] = 0
        self._parts: dict[Any, Parts] = {}
        self.exact = True
        # Layers that a GPU of each class can hold at most, of a stage's the share of one GPU.
        most = np.where(short, spans.layers, 0).max(axis=1)
        has = merged.composition[merged.of] > 0
        self.capacity = best_shares(most, stages.instance.size, has)
        self.state = [np.zeros((1, len(merged.count)), dtype=int)]
        self.value = [self._nothing(1, len(rule.hops))]
        self.back = [self._nothing(1)]
        self.onto = [np.full((1, len(merged.composition)), -1)]
        # Nothing comes after the last layer.
        self.value[0][..., -1] = self.back[0][..., -1] = 0.0
        for k in range(1, max(self.every) + 1):
            if not self._add_level(k):
                break

    def _nothing(self, *sizes: int) -> np.ndarray:
        return np.full((*sizes, self.merged.between.shape[1], self.layers + 1), ABSENT_S)

    def parts(self, ranks: int, rank: int) -> Parts:
        """Return those of the stages on this rank, by composition, first layer and number of layers."""
        times = self.rule.times(self.stages, ranks, rank)
        return self._banded(times, times)

    def _banded(self, key: Any, times: RankTimes) -> Parts:
        if key not in self._parts:
            within = RankTimes(np.where(times.whole <= self.limit, times.seconds, np.inf))
            found = self.rule.parts(within).take(slice(None), self.band)
            found.busy[..., ~self.inside] = ABSENT_S
            self._parts[key] = found
        return self._parts[key]

    def _level(self, k: int) -> tuple[Parts, int]:
        """Return the least that merged stages take k from the end, and the most their rank may hold."""
        ranks = [p for p in self.every if p >= k]
        every = frozenset(self.rule.times(self.stages, p, p - k) for p in ranks)
        self.exact &= len(every) == 1
        parts = self._banded(every, self.merged.least(RankTimes.least(every)))
        return parts, max(self.rule.window(p, p - k) for p in ranks)

    def _add_level(self, k: int) -> bool:
        """Return False where no more stages can be put before the last level's."""
        below, merged = self.state[-1], self.merged
        grown = below + merged.composition[:, None]
        valid = (grown <= merged.count).all(axis=2) & (self.back[-1].min(axis=(1, 2)) < MOST_REAL_S)
        if not valid.any():
            return False
        state, number = np.unique(grown[valid], axis=0, return_inverse=True)
        onto = np.full((len(state), len(merged.composition)), -1)
        taken, row = np.nonzero(valid)
        onto[number.ravel(), taken] = row
        value, back = self._nothing(len(state), len(self.rule.hops)), self._nothing(len(state))
        parts, most = self._level(k)
        held = state @ self.capacity
        rest = (merged.count * self.capacity).sum() - held
        before = np.arange(self.layers)
        for d in range(len(merged.composition)):
            rows = np.flatnonzero(onto[:, d] >= 0)
            for part in self.deadline.slices(len(rows), _STATES_AT_ONCE):
                some = rows[part]
                # Where these stages hold all that is left, and others can hold what comes before.
                possible = self.layers - before <= held[some, None] + ONE_ANSWER
                possible &= before <= rest[some, None] + ONE_ANSWER
                at, begin = np.nonzero(possible)
                mine = parts.take(np.full(len(at), d), begin)
                after, beyond = self.after(k, onto[some, d], merged.between[d], at, begin)
                alone = self.rule.alone(mine, most, beyond)
                found = np.maximum(alone, mine.lead + after)
                useless = found.max(axis=0) >= self.useful
                found = np.where(useless, ABSENT_S, found).min(axis=-1)
                through = np.where(useless, ABSENT_S, mine.both + beyond).min(axis=-1)
                to, h = some[at], merged.receiver[d]
                value[to, :, h, begin] = np.minimum(value[to, :, h, begin], found.T)
                back[to, h, begin] = np.minimum(back[to, h, begin], through)
        self.state.append(state)
        self.value.append(value)
        self.back.append(back)
        self.onto.append(onto)
        return True

    def whole(self, ranks: int) -> np.ndarray:
        """Return what all placements on so many ranks bound, by the GPUs they use."""
        if ranks >= len(self.value):
            return np.zeros(0)
        return self.value[ranks][..., 0].min(axis=2).max(axis=1)

    def after(
        self, k: int, rest: np.ndarray, hop: np.ndarray, row: np.ndarray, first: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return what comes after the first of k stages, for every number of layers that it may have.

        Parameters
        ----------
        rest : int array, shape (n,)
            States of level k - 1.
        hop : float array, shape (H,) or (n, H)
            Seconds to the next stage.
        row, first : int arrays, shape (m,)
            Rows of `rest`, and the stage's first layer.

        Returns
        -------
        float arrays, shape (tracks, m, …) and (m, …)
            The value of the rest; and, as in `RuleBounds.alone`, what is beyond.
        """
        hop = np.broadcast_to(hop if k > 1 else 0.0, (len(rest), self.merged.between.shape[1]))
        below, back = self.value[k - 1][rest], self.back[k - 1][rest]
        messages = self.rule.hops[:, None] * hop[:, None, :]
        value = (below + messages[..., None]).min(axis=2)
        beyond = (back + 2 * hop[..., None]).min(axis=1)
        value = self._slide(value)[row, :, first].transpose(1, 0, 2)
        return value, self._slide(beyond)[row, first]

    def _slide(self, values: np.ndarray) -> np.ndarray:
        """Return values by first layer after a stage, as seen from its own first layer and number of layers."""
        wide = np.full((*values.shape[:-1], self.layers + self.most_layers - 1), ABSENT_S)
        wide[..., : self.layers] = values[..., 1:]
        return np.lib.stride_tricks.sliding_window_view(wide, self.most_layers, axis=-1)
