"""The results that the write-up's author published later, beside pipelab's for the same GPUs."""

from typing import TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    from pandas import DataFrame

    from pipelab.hardware.roofline import Roofline
    from pipelab.problem import Problem

# config/medium at commit 1221697, as far as these results use it: all of them are on its A100.
_TYPE, _GPUS, _LINK_GB_PER_S = "A100-SXM-80", 8, 300.0
_LENGTH, _LAYERS, _D_MODEL, _D_FF, _HEADS, _VOCAB = 4096, 32, 8192, 22016, 64, 32000


def author_results() -> "DataFrame":
    """The results table of the author's repository, and what pipelab's roofline says of it.

    Returns
    -------
    pandas.DataFrame
        One row per published result: `batch`, `A100s`, `said_tokens_per_s` and
        `said_usd_per_million`. Then, if all these GPUs cut each layer among them: `needs_gb` on each
        with all keys and values; `fits`, whether a tenth of its 85.9 GB is left; and `tokens_per_s`,
        were memory no limit. Last, `least_usd_per_million` of any placement on the pool's eight A100
        at the same price, proven; NaN where none exists. GB are 10^9 bytes.

    Examples
    --------
    >>> import pipelab.course as course
    >>> course.author_results()["fits"].tolist()
    [False, True, False, True, False, True, False, False]
    """
    import pandas as pd

    from pipelab.io.paths import data_dir
    from pipelab.solving import solve

    rows = []
    least: dict[int, float | None] = {}
    for said in pd.read_csv(data_dir() / "author_results.csv").itertuples():
        batch, gpus = int(said.batch_size), int(said.a100s)
        problem = _problem(batch, said.usd_per_hour / gpus)
        costs, gpu = cast("Roofline", problem.costs), problem.cluster.gpus[0]
        mixes = costs.node_mixes(problem.model, problem.workload, gpu, gpus)
        cut = mixes[mixes["tensor_parallel"] == gpus].iloc[0]
        free = (1 - costs.memory_share) * gpu.memory_gb
        if batch not in least:
            found = solve(problem, objective="cost")
            least[batch] = found.objective.value if found.placement else None
        rows.append(
            {
                "batch": batch,
                "A100s": gpus,
                "said_tokens_per_s": said.tokens_per_s,
                "said_usd_per_million": said.usd_per_million_tokens,
                "needs_gb": cut["memory_needed_gb"] - free,
                "fits": cut["fits"],
                "tokens_per_s": cut["tokens_per_s"],
                "least_usd_per_million": least[batch],
            }
        )
    return pd.DataFrame(rows)


def _problem(batch: int, usd_per_hour: float) -> "Problem":
    """Its A100 alone, each to each joined, at the price of its table."""
    from pipelab.cluster import GPU, Cluster
    from pipelab.hardware.known_gpus import load_gpus
    from pipelab.hardware.roofline import Roofline
    from pipelab.hardware.transformer import Transformer
    from pipelab.problem import Problem, Workload

    model = Transformer(
        "llama-8b", _LAYERS, _D_MODEL, _D_FF, _HEADS, _HEADS, _D_MODEL // _HEADS, _VOCAB
    )
    gpu = GPU(_TYPE, load_gpus()[_TYPE].memory_gb, usd_per_hour, "A100", _LINK_GB_PER_S)
    links = np.full((_GPUS, _GPUS), _LINK_GB_PER_S)
    return Problem(
        Cluster((gpu,) * _GPUS, links), model, Workload(_LENGTH, batch), Roofline(), name="medium"
    )
