"""Where choosing cuts and GPU sets together pays: `python tests/benchmarks/joint_choice.py [PROBLEMS [FILE]]`.

Random problems (2 to 4 types of GPU, model, links, phase, batch, context), each solved three times by the same method,
in single layers, by the rate of the full pipeline: with one GPU per stage, with up to four of one type, with up to four
of any. The table, one row per problem with an answer, is `joint_choice.csv`; notebook 05 quotes it.
"""

import csv
import sys
from dataclasses import replace
from itertools import combinations_with_replacement, count, islice
from pathlib import Path
from random import Random

import pipelab as pl
from pipelab.hardware.relative_bands import relative_band

GPU_TYPES = (
    *("H200-SXM", "H100-SXM", "A100-SXM-80", "A100-SXM-40", "L40S", "A40"),
    *("RTX4090", "RTX3090", "A10", "V100-SXM-16", "L4", "T4"),
)
MODELS = (
    *("Llama-3-8B", "Qwen2.5-7B", "Qwen3-30B-A3B", "Mixtral-8x7B", "Qwen2.5-32B", "LLaMA-30B"),
    *("Llama-3-70B", "Qwen2.5-72B", "Qwen3-235B-A22B", "Llama-3.1-405B", "DeepSeek-V3"),
)
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)
NETWORKS_GBIT = (1, 10, 100)  # between nodes; "sites": 0.1, 1 or 10 for every pair of types
DECODE_BATCHES = (4, 32, 128)
IN_FLIGHT = 16  # microbatches whose cache every stage keeps in decode
GPUS_PER_STAGE = 4
TABLE = Path(__file__).with_suffix(".csv")
MOST_NODES = 40  # then a solve is stopped, on every machine at the same point


def cluster_of_sites(counts, random):
    """One site for each type, 10 Gbit/s within it, and a link of its own between every two."""
    facts = pl.hardware.load_gpus()
    memory = {name: facts[name].memory_gb for name in counts}
    pairs = combinations_with_replacement(counts, 2)
    gbit = {(a, b): 10 if a == b else random.choice((0.1, 1, 10)) for a, b in pairs}
    return pl.Cluster.from_counts(counts, memory, {pair: g / 8 for pair, g in gbit.items()}), gbit


def random_problem(seed):
    """What is asked, as columns, and the problem."""
    random = Random(seed)
    counts = {
        name: random.choice(COUNTS) for name in random.sample(GPU_TYPES, random.randint(2, 4))
    }
    network = random.choice((*NETWORKS_GBIT, "sites"))
    if network == "sites":
        cluster, gbit = cluster_of_sites(counts, random)
        network = "; ".join(f"{a} {b} {g}" for (a, b), g in gbit.items() if a != b)
    else:
        cluster = pl.hardware.cluster_of_counts(counts, network_gbit_per_s=network)
    phase = random.choice(("prefill", "decode"))
    batch = random.choice((1, 4) if phase == "prefill" else (8, 64, "best"))
    context = random.choice((512, 2048, 8192))
    tensor = random.choice((False, True))
    model = random.choice(MODELS)
    asked = {
        "seed": seed,
        "model": model,
        "gpus": " + ".join(f"{count} {name}" for name, count in counts.items()),
        "network_gbit": network,
        "phase": phase,
        "batch": batch,
        "context": context,
        "may_cut_layers": tensor,
    }
    in_flight = IN_FLIGHT if phase == "decode" else None
    load = pl.Workload(context, 1 if batch == "best" else batch, phase, in_flight=in_flight)
    costs = pl.Roofline(tensor_parallel=tensor, filling="synchronous")
    return asked, pl.Problem(cluster, pl.load_model(model), load, costs, GPUS_PER_STAGE)


def enough(progress):
    return progress.nodes >= MOST_NODES


def row_of(asked, problem):
    """The three rates, and how much more the joint choice yields than each of the others."""
    batches = DECODE_BATCHES if asked["batch"] == "best" else None
    one_gpu, one_type, any_set = (
        pl.solve(limited, objective="rate", batches=batches, stop=enough)
        for limited in (
            replace(problem, max_gpus_per_stage=1),
            replace(problem, same_type_stages=True),
            replace(problem, same_type_stages=False),
        )
    )
    if any_set.placement is None:
        return None
    used = {problem.cluster.gpus[g].type for s in any_set.placement.stages for g in s.gpus}
    rates = {"one_gpu": one_gpu, "one_type": one_type, "any_set": any_set}
    gains = {
        f"over_{name}": any_set.throughput / result.throughput - 1 if result.placement else ""
        for name, result in rates.items()
    }
    return {
        **asked,
        **{name: f"{r.throughput:.6g}" if r.placement else "" for name, r in rates.items()},
        "proven": all(r.status in ("optimal", "infeasible") for r in rates.values()),
        **{name: f"{g:.4f}" if g != "" else "" for name, g in gains.items() if "any" not in name},
        "band": f"{max(relative_band(name).share for name in used):.4f}",
    }


def main(problems=2000, file=TABLE):
    rows = filter(None, (row_of(*random_problem(seed)) for seed in count()))
    with Path(file).open("w", newline="", encoding="utf-8") as out:
        for number, row in enumerate(islice(rows, int(problems))):
            writer = csv.DictWriter(out, row, lineterminator="\n")
            if number == 0:
                writer.writeheader()
            writer.writerow(row)
            out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
