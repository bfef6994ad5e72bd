"""A schedule by name on any number of ranks: what it holds, and many of its placements simulated at once."""

from functools import lru_cache

import numpy as np

from pipelab.engine.schedules import RULES
from pipelab.engine.schedules import schedule as make_schedule
from pipelab.engine.schedules.columns import columns_of
from pipelab.errors import InvalidValue, TooLarge
from pipelab.schedules import Schedule

TRAINED_BY = tuple(name for name in RULES if name != "Inference")


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
        took, queues = columns.times(each), columns.queues
        row = np.concatenate([columns.work.row, len(took) + queues.link])
        return queues.graph.makespan(np.concatenate([took, comm]), row)


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
