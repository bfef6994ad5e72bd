"""A pipeline that never holds more than so many microbatches: one enters when another has left.

Lanes (stages and links) work on one microbatch at a time, in order. With n in flight, microbatch q
waits at the first lane until microbatch q - n has left the last. In decode that is the same
microbatch, whose next token can only start once its last one is known: n of them go round in a
closed loop. In prefill they are n places of an open stream. Both are one more edge in the graph of
what waits for what.

A lane may be free for the next microbatch before the last one is through: its GPUs take turns
(`pipelab.costs`), or the message is still on the wire. Such a wait (`StageCosts.comm`, and
`leaving` behind the last lane) delays the microbatch and keeps no other one from the lane.
"""

from math import ceil

import numpy as np

from pipelab.engine.schedules import schedule as make_schedule
from pipelab.engine.schedules.columns import columns_of
from pipelab.engine.schedules.compiled import Graph, entries_graph
from pipelab.engine.timeline.costs import StageCosts
from pipelab.engine.timeline.event_times import timed
from pipelab.engine.timeline.timeline import Timeline
from pipelab.errors import InvalidValue
from pipelab.fields import whole_number


def simulate_in_flight(
    costs: StageCosts, microbatches: int, in_flight: int, leaving: float = 0.0
) -> Timeline:
    """Passes of microbatches through lanes of which at most `in_flight` are in flight at any time.

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
    >>> from pipelab.engine.timeline.in_flight import simulate_in_flight
    >>> costs = StageCosts((1, 1, 1))
    >>> [simulate_in_flight(costs, microbatches=6, in_flight=n).makespan for n in (1, 2, 3)]
    [18.0, 10.0, 8.0]
    """
    in_flight = whole_number("simulate_in_flight", "in_flight", in_flight)
    lanes = np.size(costs.forward)
    schedule = make_schedule("Inference", lanes, microbatches)
    graph = entries_graph(columns_of(schedule))
    nothing = len(graph)
    # Node lane · microbatches + q is pass q on that lane.
    leaves = np.full(nothing, nothing)
    leaves[in_flight:microbatches] = (
        np.arange(max(0, microbatches - in_flight)) + (lanes - 1) * microbatches
    )
    graph = Graph(graph.first, graph.node, (*graph.waits, leaves), graph.meant)
    between = np.concatenate([[0.0], costs.arrays(lanes, None)["comm"]])
    waits = np.repeat(between, microbatches) if between.any() else None
    outside = np.where(leaves < nothing, leaving, 0.0) if leaving else None
    return timed(
        schedule, costs, graph, (None, waits, outside), np.repeat(costs.forward, microbatches)
    )


def round_time(costs: StageCosts, in_flight: int, leaving: float = 0.0) -> float:
    """How long a full pipeline takes for `in_flight` completions, measured in a simulation, in the costs' unit.

    Three rounds of `in_flight` microbatches are simulated, and the time from the last completion of
    the second to the last of the third is taken. No round differs from another: whatever leaves the
    last lane was delayed either by the slowest lane, which then never idles, or by nothing but its
    own way.
    """
    timeline = simulate_in_flight(costs, 3 * in_flight, in_flight, leaving)
    leaves = timeline.node_end[-3 * in_flight :]
    return float(leaves[-1] - leaves[-1 - in_flight])


def least_in_flight(
    costs: StageCosts, rate: float, leaving: float = 0.0, tolerance: float = 1e-6
) -> int:
    """The fewest microbatches in flight with which a full pipeline completes `rate` of them per unit of time.

    Found by bisection over simulations: more in flight are never slower, and as many as there are
    lanes, and as the slowest lane could begin during all waits, keep the slowest lane busy.

    Raises
    ------
    InvalidValue
        The rate is beyond the slowest lane's.
    """
    lanes, slowest = np.size(costs.forward), float(np.max(costs.forward))
    waits = float(np.sum(costs.arrays(lanes, None)["comm"])) + leaving
    low, high = 1, lanes + (ceil(waits / slowest) if waits else 0)
    if not _reaches(costs, high, rate, leaving, tolerance):
        raise InvalidValue(
            "least_in_flight", [("rate", rate, f"expected at most {1 / slowest:.9g}")]
        )
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if _reaches(costs, middle, rate, leaving, tolerance)
            else (middle + 1, high)
        )
    return low


def _reaches(
    costs: StageCosts, in_flight: int, rate: float, leaving: float, tolerance: float
) -> bool:
    return in_flight / round_time(costs, in_flight, leaving) >= rate * (1 - tolerance)
