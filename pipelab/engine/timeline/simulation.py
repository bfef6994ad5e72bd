"""`simulate(schedule, costs)`: when every action starts and ends.

With buffered transfers equal to the definition, `pipelab.simulator.action_times`.

buffered  the sender goes on at once; the message arrives `comm` later
queued    the same, but messages from one rank to another go one at a time
"""

from collections.abc import Sequence

import numpy as np

from pipelab.engine.schedules.columns import Graph, columns_of
from pipelab.engine.schedules.rules import schedule as make_schedule
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.timeline import Timeline
from pipelab.errors import UnknownName, nearest, shown
from pipelab.fields import instance, true_or_false, whole_number
from pipelab.schedules import Schedule

TRANSFER_MODES = ("buffered", "queued")


def simulate(
    schedule: Schedule,
    costs: StageCosts,
    *,
    transfers: str = "buffered",
    synchronous_optimizer: bool = True,
) -> Timeline:
    """Times of every action: each starts as soon as its rank is free and its data is there.

    Parameters
    ----------
    schedule : Schedule
        Checked first, and compiled once: the same schedule with other costs takes a fraction of the
        time.
    costs : StageCosts
        Of the schedule's stages and links; of whole ranks, `costs.cut_for(schedule)` makes them.
    transfers : {"buffered", "queued"}
        `"buffered"`: a rank sends and goes on at once, and messages never wait for one another.
        `"queued"`: the same, but what one rank sends another goes one message at a time.
    synchronous_optimizer : bool
        Whether every rank's optimizer step waits for the last rank (for a global gradient norm,
        say).

    Returns
    -------
    Timeline
        Start and end of every action, in the unit of the costs, and the measures taken from them.

    Raises
    ------
    InvalidSchedule
        The schedule cannot be run; names the action, or the edges of the deadlock.
    InvalidValue
        The costs do not fit the schedule, or an argument is not valid.
    UnknownName
        `transfers` is unknown.
    TooLarge
        More than a million rounds of actions, or 40 million cells of rounds times ranks.

    Examples
    --------
    >>> import pipelab as pl
    >>> schedule = pl.schedule("1F1B", ranks=4, microbatches=8)
    >>> timeline = pl.simulate(schedule, pl.StageCosts(forward=1, backward_input=1, backward_weight=1))
    >>> timeline.makespan, round(timeline.bubble_fraction, 4), timeline.peak_in_flight
    (33.0, 0.2727, (4, 3, 2, 1))
    """
    instance(
        "simulate", "schedule", schedule, Schedule, "a Schedule; make one with pl.schedule(...)"
    )
    instance("simulate", "costs", costs, StageCosts, "StageCosts(forward, backward_input, ...)")
    synchronous_optimizer = true_or_false(
        "simulate", "synchronous_optimizer", synchronous_optimizer
    )
    check_transfers(transfers)
    columns, table = columns_of(schedule), costs.tables(schedule)
    graph = columns.graph
    names = ("forward", "backward_input", "backward_weight")
    took = columns.times(np.array([table[name] for name in names]), costs.overlap)
    comm = table["comm"]
    if transfers == "queued":
        queues = columns.queues
        row = np.concatenate([columns.work.row, len(took) + queues.link])
        ends = queues.graph.finish(np.concatenate([took, comm]), row)
        known = np.append(ends, 0.0)
        arrivals = tuple(known[waits[: len(graph)]] for waits in queues.graph.waits)
    else:
        delay = np.append(comm, 0.0)  # the last one is "no link"
        ends, arrivals = _finished(graph, took, columns.work.row, delay, columns.delayed_by)
    return _timed(
        schedule, costs, graph, ends[: len(graph)], arrivals, transfers, synchronous_optimizer
    )


def _finished(
    graph: Graph,
    took: np.ndarray,
    row: np.ndarray,
    delay: np.ndarray,
    link: Sequence[np.ndarray | None],
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """When every node ends, and when what it waits for is there, as `Graph.finish` takes it."""
    ends = graph.finish(took, row, delay if delay.any() else None, link)
    known = np.append(ends, 0.0)
    return ends, tuple(
        known[waits] + (0.0 if over is None else delay[over])
        for waits, over in zip(graph.waits, link, strict=True)
    )


def _timed(
    schedule: Schedule,
    costs: StageCosts,
    graph: Graph,
    ends: np.ndarray,
    arrivals: tuple[np.ndarray, ...],
    transfers: str = "buffered",
    synchronous_optimizer: bool = True,
) -> Timeline:
    # Nodes start when the last of what they wait for is there; end - duration would differ in the
    # last bit.
    start = np.maximum(0.0, np.maximum.reduce(arrivals))
    return Timeline(schedule, costs, transfers, synchronous_optimizer, start, ends, graph, arrivals)


def simulate_in_flight(
    costs: StageCosts, microbatches: int, in_flight: int, leaving: float = 0.0
) -> Timeline:
    """Passes of microbatches through lanes of which at most `in_flight` are in flight at any time.

    Lanes (stages and links) work on one microbatch at a time, in order. With n in flight,
    microbatch q waits at the first lane until microbatch q - n has left the last. In decode that is
    the same microbatch, whose next token can only start once its last one is known: n of them go
    round in a closed loop. In prefill they are n places of an open stream.

    A lane may be free for the next microbatch before the last one is through: its GPUs take turns
    (`pipelab.costs`), or the message is still on the wire. Such a wait (`StageCosts.comm`, and
    `leaving` behind the last lane) delays the microbatch and keeps no other one from the lane.

    Parameters
    ----------
    costs : StageCosts
        `forward` holds one time per lane; links are lanes of their own (`pl.inference_costs`).
        `comm` is what passes between a lane's end and the next one's start.
    microbatches : int
        Passes in all; in decode pass q is token q // in_flight of microbatch q mod in_flight.
    in_flight : int
    leaving : float
        From the end of the last lane to the moment a microbatch has left.

    Returns
    -------
    Timeline
        `waited_for` shows where a pass waited for another one to leave.

    Raises
    ------
    InvalidValue, TooLarge
        A count is no positive whole number, or there are more than 5 million forwards.

    Examples
    --------
    >>> from pipelab.engine.timeline.simulation import simulate_in_flight
    >>> costs = StageCosts((1, 1, 1))
    >>> [simulate_in_flight(costs, microbatches=6, in_flight=n).makespan for n in (1, 2, 3)]
    [18.0, 10.0, 8.0]
    """
    in_flight = whole_number("simulate_in_flight", "in_flight", in_flight)
    lanes = np.size(costs.forward)
    schedule = make_schedule("Inference", lanes, microbatches)
    columns = columns_of(schedule)
    graph, row = columns.graph, columns.stage
    nothing = len(graph)
    # Node lane · microbatches + q is pass q on that lane.
    leaves = np.full(nothing, nothing)
    leaves[in_flight:microbatches] = (
        np.arange(max(0, microbatches - in_flight)) + (lanes - 1) * microbatches
    )
    waits = Graph(graph.first, graph.node, (*graph.waits, leaves), graph.meant)
    # From lane to lane; behind the last, as it leaves; before the first.
    delay = np.array([0.0, *costs.arrays(lanes, None)["comm"], leaving])
    took = np.broadcast_to(np.array(costs.forward, dtype=float), (lanes,))
    outside = np.where(leaves < nothing, lanes, 0)
    ends, arrivals = _finished(waits, took, row, delay, (None, row, outside))
    return _timed(schedule, costs, waits, ends, arrivals)


def check_transfers(transfers: str) -> None:
    """Raise `UnknownName` for an unknown transfer mode."""
    if not isinstance(transfers, str) or transfers not in TRANSFER_MODES:
        raise UnknownName(
            f"transfers {shown(transfers)} is not known; {nearest(transfers, TRANSFER_MODES)}"
        )
