"""The results that the write-up's author published later, beside pipelab's for the same GPUs."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame

    from pipelab.problem import Problem

# config/medium at commit 1221697, as far as these results use it: all of them are on its A100.
_GPUS, _MEMORY_GB, _LINK_GB_PER_S = 8, 80.0, 300.0
_LENGTH, _LAYERS, _D_MODEL, _D_FF, _HEADS, _VOCAB = 4096, 32, 8192, 22016, 64, 32000


def author_results() -> "DataFrame":
    """The results table of the author's repository, and what pipelab's roofline says of it.

    Returns
    -------
    pandas.DataFrame
        One row per published result: `batch`, `A100s` (one stage, tensor parallel), `said_tokens_per_s`
        and `said_usd_per_million`; then `needs_gb` on each of these GPUs with all keys and
        values, `fits` into its 80, `tokens_per_s` of the same GPUs as one stage, were memory no
        limit, and `least_usd_per_million` of any placement on the pool's eight A100 at the
        same price, proven; NaN where none exists. GB are 10^9 bytes, a tenth of 80 stays free.

    Examples
    --------
    >>> import pipelab.course as course
    >>> course.author_results()["fits"].tolist()
    [False, True, False, True, False, False, False, False]
    """
    import pandas as pd

    from pipelab.io.paths import data_dir
    from pipelab.solving import solve

    rows = []
    least: dict[int, float | None] = {}
    for said in pd.read_csv(data_dir() / "author_results.csv").itertuples():
        batch, gpus = int(said.batch_size), int(said.a100s)
        problem = _problem(batch, said.usd_per_hour / gpus)
        pool, everything = problem.cluster.gpus[:gpus], range(_LAYERS)
        stage = problem.costs.stage(problem.model, problem.workload, pool, everything, "even")
        if batch not in least:
            found = solve(problem, objective="cost")
            least[batch] = found.objective.value if found.placement else None
        rows.append(
            {
                "batch": batch,
                "A100s": gpus,
                "said_tokens_per_s": said.tokens_per_s,
                "said_usd_per_million": said.usd_per_million_tokens,
                "needs_gb": max(stage.memory_gb),
                "fits": max(stage.memory_gb) <= _MEMORY_GB,
                "tokens_per_s": stage.throughput,
                "least_usd_per_million": least[batch],
            }
        )
    return pd.DataFrame(rows)


def _problem(batch: int, usd_per_hour: float) -> "Problem":
    """Its A100 alone, each to each joined, at the price of its table."""
    from pipelab.cluster import GPU, Cluster
    from pipelab.hardware.roofline.cost_model import Roofline
    from pipelab.hardware.transformer import Transformer
    from pipelab.problem import Problem, Workload

    model = Transformer(
        "llama-8b", _LAYERS, _D_MODEL, _D_FF, _HEADS, _HEADS, _D_MODEL // _HEADS, _VOCAB
    )
    gpu = GPU("A100-SXM-80", _MEMORY_GB, usd_per_hour, "A100", _LINK_GB_PER_S)
    links = np.full((_GPUS, _GPUS), _LINK_GB_PER_S)
    one = Problem(
        Cluster((gpu,) * _GPUS, links), model, Workload(_LENGTH, batch), Roofline(), name="medium"
    )
    return replace(one, max_gpus_per_stage=_GPUS, same_type_stages=True)
