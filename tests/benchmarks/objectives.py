"""Seconds and sizes of the cheapest and the quickest placement, bundled cases and beyond.

Run on an idle machine: `python tests/benchmarks/objectives.py [CSV]` (about seven minutes). Floors
are shares of the greatest throughput; prices are made up, one per type. The last problems show
where it ends: GPUs that all differ in their links.
"""

import dataclasses
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from aggregated import all_different, by_nodes, by_types

import pipelab as pl
from pipelab.files.reading_and_writing import write_to
from pipelab.writeup.linear_rates import with_link_units

LIMIT = 60.0  # seconds for each question
USD_PER_HOUR = (0.25, 0.4, 0.6, 0.9, 1.3, 1.8, 2.4, 3.1)


def priced(problem):
    """A price for every type, links in tokens."""
    types = list(dict.fromkeys(g.type for g in problem.cluster.gpus))
    pool = tuple(
        dataclasses.replace(g, usd_per_hour=USD_PER_HOUR[types.index(g.type)])
        for g in problem.cluster.gpus
    )
    cluster = pl.Cluster(pool, problem.cluster.bandwidth_gb_per_s, problem.cluster.group)
    return with_link_units(dataclasses.replace(problem, cluster=cluster), "tokens")


def different_layers(problem):
    """The same with layers of two weights and two amounts of work."""
    rng, layers = np.random.default_rng(0), problem.model.layers
    factors = {
        name: tuple(rng.choice([1.0, 1.5], layers)) for name in ("weight_factors", "work_factors")
    }
    return dataclasses.replace(problem, model=dataclasses.replace(problem.model, **factors))


def problems():
    for case in ("tiny", "small", "medium", "demo"):
        for k in (1, 2, 3, 4):
            yield f"{case}, k={k}", pl.load_case(case, max_gpus_per_stage=k)
    for k in (1, 2):
        yield (
            f"medium, layers different, k={k}",
            different_layers(pl.load_case("medium", max_gpus_per_stage=k)),
        )
    for k in (4, 8):
        yield f"1,000 GPUs of 8 types, 126 layers, k={k}", by_types(per_stage=k)
    for k in (2, 4):
        yield f"8 nodes of 8 GPUs, random links, k={k}", by_nodes(8, per_stage=k)
    for n in (8, 10, 12):
        yield f"{n} GPUs, all links different, k=2", all_different(n, per_stage=2)
    yield "12 GPUs, all links different, k=3", all_different(12)


def rows():
    for name, problem in problems():
        problem = priced(problem)
        top = pl.solve(problem, "aggregated").throughput
        for floor in (0.0, 0.5, 0.9):
            for goal in ("cost", "latency"):
                result = pl.solve(problem, objective=goal, at_least=floor * top, time_limit=LIMIT)
                yield {
                    "problem": name, "floor": floor, "goal": goal, "status": result.status,
                    "value": result.objective.value, "gap": result.gap, "tokens_per_s": result.throughput,
                    "seconds": result.seconds, "variables": result.size.get("variables", 0),
                    "rows": result.size.get("rows", 0),
                }  # fmt: skip
        for against in ("usd_per_million_tokens", "seconds_per_pass"):
            began = time.perf_counter()
            curve = pl.trade_off(problem, against, time_limit=LIMIT)
            yield {
                "problem": name, "goal": f"front, {against}", "value": len(curve.points),
                "status": "complete" if curve.complete else "not complete", "seconds": time.perf_counter() - began,
            }  # fmt: skip


def main(path=None):
    pl.solve(pl.load_case("tiny", link_units="tokens"), objective="latency")  # solvers loaded
    out = []
    for row in rows():
        out.append(row)
        print(
            {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in row.items()},
            flush=True,
        )
    frame = pd.DataFrame(out).round({"seconds": 4})
    if path:
        write_to("objectives", Path(path), frame.to_csv(index=False, lineterminator="\n"))
    print(
        frame.groupby(["goal", "status"])["seconds"].describe()[["count", "50%", "max"]].to_string()
    )


if __name__ == "__main__":
    main(*sys.argv[1:2])
