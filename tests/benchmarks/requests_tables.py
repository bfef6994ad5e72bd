"""What limits on TPOT and pools cost: `python tests/benchmarks/requests_tables.py [SECONDS [CLUSTER …]]`.

The most requests/s for prompts of 2,000 and answers of 200 tokens on three clusters, with both phases in one pipeline
and with two pools, as rows of a Markdown table: proven, or how much more there may be when the seconds (30) ended.
"""

import sys

import pipelab as pl

CLUSTERS = {
    "helix-single24": lambda: pl.load_cluster("helix-single24"),
    "8 × H100-SXM": lambda: pl.hardware.cluster_of_counts({"H100-SXM": 8}),
    "16 × A100-SXM-80, 8 × L40S": lambda: pl.hardware.cluster_of_counts(
        {"A100-SXM-80": 16, "L40S": 8}
    ),
}


def cell(problem, seconds, **asked):
    """Requests/s, what is open, and the seconds that it took."""
    found = pl.deploy(problem, time_limit=seconds, **asked)
    if found.status == "infeasible":
        return f"none ({found.seconds:.1f} s)"
    if not found.pipelines:
        return f"none found in {found.seconds:.1f} s"
    known = "" if found.status == "optimal" else f", up to {found.gap:.1%} more"
    return f"{found.requests_per_s:.4g}{known} ({found.seconds:.1f} s)"


def main(seconds=30.0, *names):
    print("| GPUs | model | TPOT, ms | together | two pools |\n| --- | --- | ---: | ---: | ---: |")
    for name in names or CLUSTERS:
        for model in ("Llama-3-8B", "Llama-3-70B"):
            load = pl.Workload(2000, 1, "mixed", output_tokens=200)
            problem = pl.Problem(CLUSTERS[name](), pl.load_model(model), load, pl.Roofline())
            for tpot_ms in (20, 50, 100):
                cells = [
                    cell(problem, float(seconds), tpot_ms=tpot_ms, pools=p) for p in (False, True)
                ]
                print("|", " | ".join([name, model, str(tpot_ms), *cells]), "|", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
