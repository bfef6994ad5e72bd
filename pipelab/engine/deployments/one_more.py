"""What one more GPU of each type would bring: the best deployment with it, beside its dual price."""

from collections import Counter
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any

from pipelab.engine.deadline import deadline_of

if TYPE_CHECKING:
    from pandas import DataFrame


def with_one_more(
    deployment: Any, time_limit: float | None = None, stop: Event | None = None
) -> "DataFrame":
    """See `Deployment.one_more`; `deployment` is one."""
    import pandas as pd

    with deadline_of(time_limit, stop) as deadline:
        counts = Counter(gpu.type for gpu in deployment.problem.cluster.gpus)
        rows = []
        for i, kind in enumerate(counts):
            own = None if time_limit is None else deadline.left / (len(counts) - i)
            rows.append(_row(deployment, dict(counts), kind, own, stop))
        return pd.DataFrame(rows)


def _row(
    before: Any,
    counts: dict[str, int],
    kind: str,
    time_limit: float | None,
    stop: Event | None,
) -> dict[str, Any]:
    problem = before.problem
    cluster = problem.cluster.with_counts(counts | {kind: counts[kind] + 1})
    added = next(gpu for gpu in problem.cluster.gpus if gpu.type == kind)
    more = replace(problem, cluster=cluster)
    after = before.again(more, before.at_least, time_limit=time_limit, stop=stop)
    price, proven = added.usd_per_hour, {"optimal", "infeasible"}
    row: dict[str, Any] = {"type": kind}
    if before.at_least:
        known = before.value is not None and after.value is not None
        row |= {
            "usd_per_hour_after": after.value,
            "saves_usd_per_hour": before.value - after.value if known else None,
            "usd_per_hour": price,
        }
    else:
        gain = (after.throughput or 0.0) - (before.throughput or 0.0)
        row |= {
            "throughput_after_tokens_per_s": after.throughput,
            "gain_tokens_per_s": gain,
            "dual_price_tokens_per_s": before.details.get("dual_prices", {}).get(kind),
            "usd_per_hour": price,
            "gain_per_usd_per_hour": gain / price if price else None,
        }
    return row | {"proven": {before.status, after.status} <= proven}
