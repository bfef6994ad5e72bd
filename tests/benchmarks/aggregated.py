"""How the time of the aggregated form grows, and how it compares with the joint ILP: writes data/aggregated_runs.csv.

Run on an idle machine: `python tests/benchmarks/aggregated.py` (about a quarter of an hour;
`--quick` leaves out the joint ILP as written on small; `--series "GPUs, all links different"` measures
one series again and keeps the others). Every size is solved for three random problems, with different
links for five; the table keeps each. A search that has not ended after a minute is stopped.
"""

import argparse
import resource
import time
from itertools import chain

import numpy as np
import pandas as pd

import pipelab as pl
from pipelab.files.bundled_folders import data_dir
from pipelab.files.reading_and_writing import write_to

RATES = pl.writeup.load_coefficients().coefficients
MEMORY = (16.0, 24.0, 40.0, 48.0, 80.0)
BANDWIDTH = (25.0, 50.0, 100.0, 200.0, 400.0)
# as the write-up: in tokens/s these links would hardly ever bind
_UNITS = "transfers"


def types(number, rng):
    """So many made-up types: the bundled rates, each with a constant and a memory of its own."""
    base = list(RATES.values())
    rates = {}
    for i in range(number):
        c = base[i % len(base)]
        rates[f"type {i}"] = pl.writeup.Coefficients(
            c.per_token, c.per_sequence, c.per_layer, c.constant * float(rng.uniform(0.7, 1.3))
        )
    return rates, {name: float(rng.choice(MEMORY)) for name in rates}


def by_types(gpus=1000, classes=8, layers=126, per_stage=8, seed=0):
    """GPUs of so many types, a speed for every pair of types, layers so heavy that several stages are needed."""
    rng = np.random.default_rng(seed)
    rates, memory = types(classes, rng)
    names = list(rates)
    links = {(a, b): float(rng.choice(BANDWIDTH)) for i, a in enumerate(names) for b in names[i:]}
    cluster = pl.Cluster.from_counts({n: max(1, gpus // classes) for n in names}, memory, links)
    model = pl.Model("large", layers, 8192, 28672, 315 / layers)
    return _problem(cluster, model, pl.Workload(512, 32), rates, per_stage)


def _problem(cluster, model, load, rates, per_stage):
    costs = pl.writeup.LinearThroughput(rates, link_units=_UNITS)
    return pl.Problem(cluster, model, load, costs, per_stage, same_type_stages=False)


def by_nodes(nodes=16, per_node=8, layers=80, per_stage=4, share=0.5, slow=0.25, seed=0):
    """Nodes of equal GPUs, random links between nodes, `share` of the memory needed for weights."""
    rng = np.random.default_rng(seed)
    rates, _ = types(3, rng)
    names, kind = list(rates), rng.integers(0, 3, nodes)
    speed = slow * rng.uniform(20, 400, (nodes, nodes))
    np.fill_diagonal(speed, 600.0)
    room = np.array([80.0, 40.0, 24.0])[kind]
    pool = tuple(
        pl.GPU(names[kind[i]], float(room[i])) for i in range(nodes) for _ in range(per_node)
    )
    cluster = pl.Cluster(pool, speed, np.repeat(np.arange(nodes), per_node))
    weight = share * room.sum() * per_node / layers
    model = pl.Model("nodes", layers, 4096, 11008, float(min(weight, 35.0)))
    return _problem(cluster, model, pl.Workload(1024, 32), rates, per_stage)


def all_different(gpus=12, layers=32, per_stage=3, seed=0):
    """Every link of its own speed: every GPU is a class."""
    return by_nodes(gpus, 1, layers, per_stage, seed=seed)


def identical_nodes(nodes=16, per_node=8, per_stage=8, seed=0):
    """Llama-3-70B on nodes of eight A100s; the network is ten times as slow from seed to seed."""
    gpus = tuple(
        pl.GPU("A100-SXM-40", 40, None, f"node {i}", 300.0)
        for i in range(nodes)
        for _ in range(per_node)
    )
    links = np.full((nodes, nodes), 12.5 / 10**seed)
    np.fill_diagonal(links, 300.0)
    cluster = pl.Cluster(gpus, links, np.repeat(np.arange(nodes), per_node))
    load, model = pl.Workload(2048, 32, "decode"), pl.load_model("Llama-3-70B")
    return pl.Problem(cluster, model, load, pl.Roofline(), per_stage, same_type_stages=True)


SERIES = {
    "GPUs": (by_types, "gpus", (16, 64, 250, 1000, 4000, 10_000)),
    "layers": (by_types, "layers", (8, 32, 126, 500, 1000)),
    "GPUs per stage": (by_types, "per_stage", (1, 2, 4, 8, 16)),
    "classes": (by_types, "classes", (2, 4, 8, 16, 32)),
    "nodes with random links": (by_nodes, "nodes", (4, 8, 12, 16, 20, 24)),
    "GPUs, all links different": (all_different, "gpus", (4, 6, 8, 10, 12, 14, 16, 20, 24, 28)),
    "identical nodes": (identical_nodes, "nodes", (1, 2, 4, 8, 16, 32, 64, 125)),
}
SEEDS = {"GPUs, all links different": 5}  # some are easy and some are not: more of them


def timed(problem, method="aggregated", **options):
    began = time.perf_counter()
    result = pl.solve(problem, method, time_limit=300 if method == "joint" else 60, **options)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "status": result.status, "throughput": result.throughput} | {
        name: result.size[name] for name in ("variables", "rows")
    }


def growth(chosen=tuple(SERIES)):
    for series in chosen:
        make, parameter, values = SERIES[series]
        for value in values:
            for seed in range(SEEDS.get(series, 3)):
                place = {"series": series, "value": value, "seed": seed, "method": "aggregated"}
                yield place | timed(make(**{parameter: value}, seed=seed))


def side_by_side(quick):
    for case, k, form in (
        *(("tiny", k, "written") for k in (1, 2, 3, 4)),
        *(("tiny", k, "tight") for k in (1, 2, 3, 4)),
        ("small", 1, "tight"), ("medium_small", 1, "tight"), ("large", 1, "tight"), ("small", 2, "tight"),
        *((("small", 1, "written"),) if not quick else ()),
    ):  # fmt: skip
        problem = pl.load_case(case, max_gpus_per_stage=k)
        for method, options in (("joint", {"form": form}), ("aggregated", {})):
            runs = 1 if method == "joint" else 5
            try:
                rows = [timed(problem, method, **options) for _ in range(runs)]
            except pl.errors.TooLarge as error:
                print(case, k, form, error)
                continue
            middle = sorted(rows, key=lambda row: row["seconds"])[runs // 2]
            name = f"joint, {form}" if method == "joint" else f"aggregated (beside {form})"
            place = {"series": "side by side", "value": f"{case}, {k}", "seed": 0, "method": name}
            yield place | middle


def main(quick, series=None):
    timed(pl.load_case("tiny"))  # solvers loaded
    rows, kept = [], []
    if series:
        before = pd.read_csv(data_dir() / "aggregated_runs.csv").to_dict("records")
        kept = [row for row in before if row["series"] != series]
    for row in growth((series,)) if series else chain(growth(), side_by_side(quick)):
        rows.append(row)
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    order = {name: i for i, name in enumerate([*SERIES, "side by side"])}
    rows = sorted(rows + kept, key=lambda row: order[row["series"]])
    frame = pd.DataFrame(rows).round({"seconds": 4})
    text = frame.to_csv(index=False, lineterminator="\n")
    write_to("aggregated", data_dir() / "aggregated_runs.csv", text)
    grown = frame[frame["series"] != "side by side"]
    print(grown.groupby(["series", "value"], sort=False)["seconds"].median().to_string())
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--series", choices=SERIES)
    main(**vars(parser.parse_args()))
