"""How soon deployments are found and proven: `python tests/benchmarks/deployments.py [PART OF A NAME …]`.

Of each instance the best and the bound after 0.5, 1, 5 and 30 s of processor time, and the seconds until the end.
"""

import sys
import time

import numpy as np

import pipelab as pl

MOMENTS = (0.5, 1.0, 5.0, 30.0)
PROMPTS, DECODE = pl.Workload(2048, 1), pl.Workload(1024, 8, "decode")
MIXED = pl.Workload(2000, 1, "mixed", output_tokens=200)


def problem(cluster, load, model="Llama-3-70B", **costs):
    if isinstance(cluster, dict):
        memory = pl.hardware.gpus()["memory_gb"].to_dict()
        cluster = pl.Cluster.from_counts(cluster, memory, 12.5)
    return pl.Problem(cluster, pl.load_model(model), load, pl.Roofline(**costs))


def fleet(seed):
    """Draw 8 to 80 GPUs of four types."""
    rng = np.random.default_rng(seed)
    total = int(rng.choice([8, 16, 24, 48, 80]))
    types = rng.choice(["A100-SXM-80", "H100-SXM", "L4", "T4", "L40S", "A10"], 4, replace=False)
    counts = 1 + rng.multinomial(total - 4, rng.dirichlet(np.ones(4)))
    model = ["Llama-3-8B", "Llama-3-70B"][seed % 2]
    return problem(dict(zip(types.tolist(), counts.tolist(), strict=True)), DECODE, model)


def instances():
    eleven, helix = {"A100-SXM-40": 3, "L4": 4, "T4": 4}, pl.load_cluster("helix-single24")
    nodes = pl.hardware.cluster_of_counts({"A100-SXM-80": 16, "L40S": 8})
    yield "11 GPUs", problem(eleven, PROMPTS), {}
    yield "11 GPUs, ten batches", problem(eleven, PROMPTS), {"batches": [2**i for i in range(10)]}
    yield "single24", problem(helix, DECODE), {}
    yield "single24, by stages", problem(helix, DECODE, filling="by_stages"), {}
    yield "medium, pairs", pl.load_case("medium", max_gpus_per_stage=2), {}
    yield "requests", problem(nodes, MIXED), {"tpot_ms": 50}
    yield "requests, pools", problem(nodes, MIXED), {"tpot_ms": 50, "pools": True}
    yield from ((f"fleet {seed}", fleet(seed), {}) for seed in range(1, 9))


def main(*parts):
    for name, asked, options in instances():
        if parts and not any(part in name for part in parts):
            continue
        seen, began = [], time.process_time()

        def over(moment, seen=seen, began=began):
            seen.append((time.process_time() - began, moment.incumbent, moment.bound))
            return seen[-1][0] > MOMENTS[-1]

        found = pl.deploy(asked, stop=over, **options)
        seen.append((time.process_time() - began, found.value, found.bound))
        row = []
        for at in MOMENTS:
            known = [moment[1:] for moment in seen if moment[0] <= at]
            row.append(" / ".join(f"{v:.6g}" if v else "-" for v in known[-1]) if known else "-")
        print("|", " | ".join([name, *row, found.status, f"{seen[-1][0]:.2f} s"]), "|", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
