"""`simulate(schedule, costs)`: when every action starts and ends.

With buffered transfers equal to the definition, `pipelab.simulator.action_times`.
"""

import numpy as np

from pipelab.engine.schedules.columns import B, Columns, F, I, W, columns_of
from pipelab.engine.schedules.compiled import Graph
from pipelab.engine.schedules.views import with_communication
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.graphs import TRANSFER_MODES, incoming, slots, wire
from pipelab.engine.timeline.queued import queued_delays
from pipelab.engine.timeline.timeline import Timeline
from pipelab.errors import UnknownName, nearest, shown
from pipelab.fields import instance, true_or_false
from pipelab.schedules import KINDS, Schedule


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
    transfers : {"buffered", "queued", "rendezvous", "blocking"}
        `"buffered"`: a rank sends and goes on at once, and messages never wait for one another.
        `"queued"`: the same, but what one rank sends another goes one message at a time.
        `"rendezvous"`: what a rank sends and receives between two actions is posted together, and
        it goes on when all of it is through.
        `"blocking"`: every send and receive in its turn, as `with_communication` of
        `pipelab.engine.schedules` lists them; most schedules but GPipe deadlock.
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
        The schedule cannot be run, or not with these transfers; names the action or the edges that
        block.
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
    if transfers == "blocking" and not columns_of(schedule).communicates:
        schedule = with_communication(schedule)
    columns = columns_of(schedule)
    wiring = wire(columns, transfers)
    graph, table = wiring.graph, costs.tables(schedule)
    comm = np.append(table["comm"], 0.0)  # the last one is "no link"
    duration = _node_durations(columns, costs, table, graph)
    if wiring.held is not None:
        duration = duration + comm[wiring.held]
    if transfers == "queued":
        late = queued_delays(columns, graph, incoming(columns), comm, duration)
        delays = (None, *slots(columns, graph, late, 0.0))
    else:
        delays = tuple(_slowest(comm, link) for link in wiring.links)
    return timed(schedule, costs, graph, delays, duration, transfers, synchronous_optimizer)


def timed(
    schedule: Schedule,
    costs: StageCosts,
    graph: Graph,
    delays: tuple[np.ndarray | None, ...],
    duration: np.ndarray,
    transfers: str = "buffered",
    synchronous_optimizer: bool = True,
) -> Timeline:
    """A timeline from a graph of what waits for what, and how long every node takes and every wait adds."""
    end = graph.order.finish(duration, delays)
    # Nodes start when the last of what they wait for is there; end - duration would differ in the
    # last bit.
    known, start = np.append(end, 0.0), np.zeros(len(end))
    for waits, delay in zip(graph.waits, delays, strict=True):
        np.maximum(start, known[waits] if delay is None else known[waits] + delay, out=start)
    return Timeline(schedule, costs, transfers, synchronous_optimizer, start, end, graph, delays)


def check_transfers(transfers: str) -> None:
    """Raise `UnknownName` for an unknown transfer mode."""
    if not isinstance(transfers, str) or transfers not in TRANSFER_MODES:
        raise UnknownName(
            f"transfers {shown(transfers)} is not known; {nearest(transfers, TRANSFER_MODES)}"
        )


def _slowest(comm: np.ndarray, link: np.ndarray | None) -> np.ndarray | None:
    """The time of each node's slowest link; None if no link takes any, which saves a numpy call in every round."""
    if link is None or not comm.any():
        return None
    return comm[link] if link.ndim == 1 else comm[link].max(axis=1)


def _node_durations(columns: Columns, costs: StageCosts, table: dict, graph: Graph) -> np.ndarray:
    """How long every node takes; a pair its share of the sum of its parts; messages and idle ticks nothing."""
    lookup = np.zeros((len(KINDS), columns.stages))
    lookup[F], lookup[I], lookup[W] = (
        table["forward"],
        table["backward_input"],
        table["backward_weight"],
    )
    lookup[B] = lookup[I] + lookup[W]
    each = lookup.ravel()[columns.kind * np.int64(columns.stages) + columns.stage]
    if not columns.paired.any():
        return each
    total = np.bincount(graph.node, each, len(graph))
    total[graph.node[columns.paired]] *= costs.overlap
    return total
