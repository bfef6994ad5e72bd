"""The 1F1B family: on every rank three queues of work, merged by two numbers.

Equal to the rules of `pipelab.schedules`, as arrays; LoopedBFS and forward-only orders are here
alone.

A rank takes its forwards in one order and its backwards in another. `lead` says how many
forwards it runs before its first backward; from then on one of each in turn. Where the
backward is split, `delay` says how many weight gradients it holds back. GPipe, 1F1B, their
interleaved kin and the hand-made zero-bubble schedules differ in these choices alone.
"""

from typing import NamedTuple

import numpy as np

from pipelab.engine.schedules.columns import B, F, I, W


class Queues(NamedTuple):
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


def _rounds(
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


def forward_only(ranks: int, microbatches: int, chunks: int) -> Queues:
    """Inference: every microbatch forward, nothing back."""
    return Queues(
        _rounds(microbatches, chunks, min(ranks, microbatches)),
        None,
        np.zeros(ranks, dtype=np.int64),
    )


def gpipe(ranks: int, microbatches: int, chunks: int) -> Queues:
    """All forwards, then all backwards in the same order."""
    order = _rounds(microbatches, 1, microbatches)
    return Queues(order, order, np.full(ranks, microbatches))


def one_f_one_b(ranks: int, microbatches: int, chunks: int) -> Queues:
    """One forward for every hop to the last rank, then one forward and one backward in turn."""
    order = _rounds(microbatches, 1, microbatches)
    return Queues(order, order, np.minimum(_hops(ranks), microbatches))


def breadth_first(ranks: int, microbatches: int, chunks: int) -> Queues:
    """Looped BFS: every microbatch through one chunk before the next chunk; backwards mirrored."""
    chunk, batch = _rounds(microbatches, chunks, microbatches)
    return Queues((chunk, batch), (chunk[::-1], batch[::-1]), np.full(ranks, microbatches * chunks))


def interleaved(ranks: int, microbatches: int, chunks: int) -> Queues:
    """Interleaved 1F1B: a round of microbatches per chunk, and two forwards ahead for every hop."""
    per_round = microbatches // max(1, microbatches // ranks)
    lead = np.minimum((chunks - 1) * per_round + 2 * _hops(ranks), microbatches * chunks)
    forward, backward = (
        _rounds(microbatches, chunks, per_round, reverse) for reverse in (False, True)
    )
    return Queues(forward, backward, lead)


def interleaved_zero_bubble(ranks: int, microbatches: int, chunks: int) -> Queues:
    """ZB-H1: one forward ahead for every hop; rank r holds r weight gradients back for the end."""
    per_round = microbatches // max(1, microbatches // ranks)
    lead = np.minimum((chunks - 1) * per_round + _hops(ranks), microbatches * chunks)
    forward, backward = (
        _rounds(microbatches, chunks, per_round, reverse) for reverse in (False, True)
    )
    return Queues(forward, backward, lead, np.arange(ranks))


def zbh2(ranks: int, microbatches: int, chunks: int) -> Queues:
    """ZB-H2: as ZB-H1 with twice the forwards ahead and twice the weight gradients held back."""
    order = _rounds(microbatches, 1, microbatches)
    return Queues(order, order, np.minimum(2 * _hops(ranks), microbatches), 2 * np.arange(ranks))
