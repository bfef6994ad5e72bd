"""Numbers that papers print, for holding a simulator against them."""

import json
from functools import cache
from typing import NamedTuple

import numpy as np

from pipelab.engine.schedules import schedule
from pipelab.engine.timeline import StageCosts, simulate
from pipelab.io.paths import data_dir


class PublishedBubble(NamedTuple):
    """One setting of Zero Bubble's table 5, with its profile from table 9."""

    model: str
    ranks: int
    microbatches: int
    chunks: int  # of its interleaved column
    costs: StageCosts  # of a whole rank, in ms
    # printed bubble rates by schedule: 1F1B, 1F1B-I, ZB-H1, ZB-H2, ZB-1p, ZB-2p
    rates: dict[str, float]


@cache
def published_bubbles() -> tuple[PublishedBubble, ...]:
    """The twelve settings of table 5 in *Zero Bubble Pipeline Parallelism* (arXiv 2401.10241v1).

    Returns
    -------
    tuple of PublishedBubble
        Of each setting: model, ranks, microbatches, chunks, the profile of table 9 as `StageCosts`
        in ms, and the printed bubble rates by schedule.

    References
    ----------
    P. Qi et al., *Zero Bubble Pipeline Parallelism*, arXiv 2401.10241v1, tables 5 and 9;
    `data/README.md` says more.

    Examples
    --------
    >>> first = published_bubbles()[0]
    >>> first.model, first.ranks, first.microbatches, first.rates["ZB-H1"]
    ('1.5B', 8, 24, 0.1585)
    """
    table = json.loads((data_dir() / "zb_table5.json").read_text(encoding="utf-8"))
    return tuple(
        PublishedBubble(
            row["model"], row["p"], row["m"], row["v_1f1b_i"],
            StageCosts(row["TF"], row["TB"], row["TW"], row["Tcomm"], unit="ms"),
            dict(zip(table["columns"], row["bubble"], strict=True)),
        )
        for row in table["rows"]
    )  # fmt: skip


def published_interleaved_rate(
    ranks: int, microbatches: int, chunks: int, costs: StageCosts, *, as_printed: bool
) -> float:
    """The interleaved column of Zero Bubble's table 5: as printed, or with every dependency kept.

    Parameters
    ----------
    costs : StageCosts
        Of one chunk.
    as_printed : bool
        True drops the dependency from the last rank back to the first for all but the first
        microbatch of each group of p, which is what the printed figures come out of.

    Returns
    -------
    float
        zb_bubble_rate.
    """
    whole = schedule("Interleaved1F1B", ranks, microbatches, chunks)
    timeline = simulate(whole, costs)
    if not as_printed:
        return timeline.zb_bubble_rate
    graph, duration = timeline.graph, timeline.node_end - timeline.node_start
    stage, kind, batch = timeline.columns.stage, timeline.columns.kind, timeline.columns.microbatch
    around = np.where(kind == 0, (stage > 0) & (stage % ranks == 0), stage % ranks == ranks - 1)
    dropped = around & (batch % ranks != 0)
    waits = np.where(dropped, len(graph), graph.waits[1])
    free = type(graph)(graph.first, graph.node, (graph.waits[0], waits))
    delay = timeline.arrivals[1] - np.append(timeline.node_end, 0.0)[graph.waits[1]]
    own = np.arange(len(graph))
    end = free.finish(duration, own, np.where(dropped, 0.0, delay), (None, own))
    first, last = (end - duration).reshape(ranks, -1)[:, 0], end.reshape(ranks, -1)[:, -1]
    span = float((last - first).max())
    return (span - timeline.ideal) / span
