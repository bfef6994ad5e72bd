"""Numbers that papers print, for holding a simulator against them."""

import json
from functools import cache
from typing import NamedTuple

from pipelab.paths import data_dir
from pipelab.timeline import StageCosts

__all__ = ["PublishedBubble", "published_bubbles"]


class PublishedBubble(NamedTuple):
    """One setting of Zero Bubble's table 5, with its profile from table 9."""

    model: str
    ranks: int
    microbatches: int
    chunks: int  # of its interleaved column
    costs: StageCosts  # of a whole rank, in ms
    rates: dict[str, float]  # printed bubble rates by schedule: 1F1B, 1F1B-I, ZB-H1, ZB-H2, ZB-1p, ZB-2p


@cache
def published_bubbles() -> tuple[PublishedBubble, ...]:
    """The twelve settings of table 5 in *Zero Bubble Pipeline Parallelism* (arXiv 2401.10241v1).

    Returns
    -------
    tuple of PublishedBubble
        Of each setting: model, ranks, microbatches, chunks, the profile of table 9 as `StageCosts` in ms, and the
        printed bubble rates by schedule.

    References
    ----------
    P. Qi et al., *Zero Bubble Pipeline Parallelism*, arXiv 2401.10241v1, tables 5 and 9; `data/README.md` says more.

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
