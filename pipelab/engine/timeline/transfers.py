"""What goes from rank to rank, and when: between two actions, or between a send and its receive."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipelab.engine.schedules.dependencies import makers

if TYPE_CHECKING:
    from pipelab.engine.timeline.timeline import Timeline


class Messages(NamedTuple):
    """Every message between two ranks, each an array of shape (messages,).

    Attributes
    ----------
    maker, taker : int arrays
        Entries of the schedule: the action whose result is sent and the one that uses it, or, where
        messages are actions themselves, the send and the receive.
    leaves, arrives : float arrays
        From the maker's end to the taker's start; sends and receives are the message itself, so
        that it leaves as the send starts and arrives as the receive ends.
    """

    maker: np.ndarray
    taker: np.ndarray
    leaves: np.ndarray
    arrives: np.ndarray


def messages(timeline: "Timeline") -> Messages:
    """All messages of a timeline, in the order of their takers."""
    columns = timeline.columns
    needs = makers(columns)
    taker = np.flatnonzero((needs >= 0) & (columns.rank[needs] != columns.rank))
    maker = needs[taker]
    if columns.communicates:
        return Messages(maker, taker, timeline.start[maker], timeline.end[taker])
    return Messages(maker, taker, timeline.end[maker], timeline.start[taker])
