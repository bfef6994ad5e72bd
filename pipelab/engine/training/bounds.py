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
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelab.engine.training.orders import Order
from pipelab.engine.training.stages import Times

BIG = 1e100  # seconds of what there is not: beyond all others, and no infinity in sums and differences
REAL = 1e90


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
            np.stack(busy), np.stack(leads), forward, both if self.split else whole, weight / self.chunks, step
        )  # fmt: skip


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
                shape, (order.window[i], order.window[j]), mine.forward, mine.both,
                passed[j] - passed[i] + mine.both, passed[-1] - passed[i] + mine.both,
            )  # fmt: skip
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
