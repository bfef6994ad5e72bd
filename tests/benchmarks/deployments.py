"""How soon deployments are found and proven: `python tests/benchmarks/deployments.py [PART OF A NAME …]`; or `ends`.

Of each of forty instances the best deployment and the bound after 0.5, 1, 5 and 30 s of processor time, and the seconds
until the end, after 60 s at the latest. Last, how many instances of at most 50 GPUs have after one second what they
have in the end: 95 % of the best, and a bound within 10 %.
"""

import os
import signal
import sys
import threading
import time

import numpy as np

import pipelab as pl
from pipelab.widgets.mix_values import beginning, problem_of

MOMENTS, LAST_S = (0.5, 1.0, 5.0, 30.0), 60.0
DECODE, MIXED = pl.Workload(1024, 8, "decode"), pl.Workload(2000, 1, "mixed", output_tokens=200)
SHORT_ANSWERS = pl.Workload(2048, 16, "mixed", output_tokens=200)
TYPES = ["A100-SXM-40", "A100-SXM-80", "H100-SXM", "L4", "T4", "L40S", "A10", "V100-SXM-32"]


def problem(cluster, load, model="Llama-3-70B", most=None, **costs):
    if isinstance(cluster, dict):
        known = pl.hardware.gpus()
        memory, price = known["memory_gb"].to_dict(), known["usd_per_hour"].dropna().to_dict()
        cluster = pl.Cluster.from_counts(cluster, memory, 12.5, usd_per_hour=price)
    more = {} if most is None else {"max_gpus_per_stage": most}
    return pl.Problem(cluster, pl.load_model(model), load, pl.Roofline(**costs), **more)


def fleet(seed):
    """Draw 8 to 120 GPUs of two to four types, and what they serve."""
    rng = np.random.default_rng(seed)
    total = int(rng.choice([8, 12, 16, 24, 32, 48, 64, 80, 100, 120]))
    types = rng.choice(TYPES, int(rng.integers(2, 5)), replace=False)
    counts = 1 + rng.multinomial(total - len(types), rng.dirichlet(np.ones(len(types))))
    load = pl.Workload(2048, *[(1, "prefill"), (8, "decode"), (32, "decode")][rng.integers(3)])
    model, most = ["Llama-3-8B", "Llama-3-70B"][rng.integers(2)], int(rng.integers(1, 3))
    return problem(dict(zip(types.tolist(), counts.tolist(), strict=True)), load, model, most)


def instances():
    """Yield a name, a problem and options of `deploy`."""
    eleven = {"A100-SXM-40": 3, "L4": 4, "T4": 4}
    for name, source in (("explorer", "Llama-3-70B"), ("explorer, medium", "medium")):
        mix = beginning(source)
        yield name, problem_of(mix), {"batches": mix.batches}
    five = dict.fromkeys(["H100-SXM", "A100-SXM-80", "L40S", "L4", "T4"], 13)
    yield "explorer, 65 GPUs", problem_of(beginning("Llama-3-70B", five, batch=16)), {}
    yield "11 GPUs", problem(eleven, pl.Workload(2048, 1), most=1), {}
    batches = {"batches": [2**i for i in range(10)]}
    yield "11 GPUs, ten batches", problem(eleven, pl.Workload(2048, 1), most=1), batches
    yield "medium, pairs", pl.load_case("medium", max_gpus_per_stage=2), {}
    long, eight = pl.Workload(2048, 16, "decode"), "Llama-3-8B"
    few = {"A100-SXM-40": 1, "L4": 4, "T4": 6}
    yield "notebook 11", problem(few, long, eight), {"batches": [16, 48, 80]}
    limits = {"tpot_ms": 30, "ttft_ms": 5000, "pools": True, "batches": [1, 4, 16]}
    five = {"A100-SXM-40": 1, "L4": 2, "T4": 2}
    yield "notebook 11, pools", problem(five, SHORT_ANSWERS, eight), limits
    for sequences in (12, 24):
        load = pl.Workload(750, sequences, "mixed", output_tokens=240)
        geo = problem(pl.load_cluster("helix-geo24"), load, "Llama-2-70B")
        yield f"notebook 16, {sequences} seq.", geo, {}
    nine = problem({"H100-SXM": 1, "A100-SXM-40": 3, "A10": 5}, long, eight)
    rent = {"at_least": 5000, "batches": [8, 16, 32, 64, 96, 128, 192]}
    yield "notebook 17, least price", nine, rent
    nodes = pl.hardware.cluster_of_counts({"A100-SXM-80": 16, "L40S": 8})
    single24 = pl.load_cluster("helix-single24")
    yield "requests, 50 ms", problem(nodes, MIXED), {"tpot_ms": 50}
    for tpot_ms in (20, 50):
        pools = {"tpot_ms": tpot_ms, "pools": True}
        yield f"requests, {tpot_ms} ms, pools", problem(nodes, MIXED), pools
    for pools in (False, True):
        name = "requests, single24" + ", pools" * pools
        yield name, problem(single24, MIXED, eight), {"tpot_ms": 100, "pools": pools}
    yield "single24", problem(single24, DECODE), {}
    yield "single24, by stages", problem(single24, DECODE, filling="by_stages"), {}
    parts = {"filling": "micro_batches", "filling_number": 8}
    yield "single24, micro-batches", problem(single24, DECODE, **parts), {}
    yield "hetero42", problem(pl.load_cluster("helix-hetero42"), DECODE), {}
    yield from ((f"fleet {seed}", fleet(seed), {}) for seed in range(1, 21))


def watched(asked, options):
    """Deploy for 60 s of processor time; return seconds, best and bound of every moment, and the answer."""
    stop, over, seen, began = threading.Event(), threading.Event(), [], time.process_time()

    def watch():
        while not over.wait(0.05):
            if time.process_time() - began > LAST_S:
                stop.set()

    def note(moment):
        seen.append((time.process_time() - began, moment.incumbent, moment.bound))

    threading.Thread(target=watch, daemon=True).start()
    try:
        found = pl.deploy(asked, stop=stop, on_progress=note, **options)
    finally:
        over.set()
    seen.append((time.process_time() - began, found.value, found.bound))
    return seen, found


def ended(asked, options, seconds, interrupt):
    """Deploy until a time limit or Ctrl-C; return the seconds after it, and the share of the best that is missing."""
    at, told, sign = [time.process_time()], [], 1 - 2 * ("at_least" in options)

    def end():
        at[0] = time.process_time()
        if interrupt:
            os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(seconds, end)
    timer.start()
    limit = {} if interrupt else {"time_limit": seconds}
    found = pl.deploy(asked, on_progress=lambda m: told.append(m.incumbent), **limit, **options)
    after = time.process_time() - at[0] if timer.finished.is_set() else 0.0
    timer.cancel()
    best = max((value for value in told if value), key=lambda value: sign * value, default=None)
    return after, 0.0 if best is None else max(0.0, sign * (1 - (found.value or 0.0) / best))


def ends():
    rng = np.random.default_rng(0)
    for name, asked, options in list(instances())[::2]:
        moments = [(s, False) for s in (0.2, 1.0, 5.0)] + [(s, True) for s in rng.uniform(0, 3, 3)]
        row = [(s, interrupt, *ended(asked, options, s, interrupt)) for s, interrupt in moments]
        shown = [f"{'Ctrl-C' if c else 'limit'} {s:.2g}: {after:.2f}" for s, c, after, _ in row]
        print("|", " | ".join([name, *shown, f"{max(r[3] for r in row):.1e}"]), "|", flush=True)


def main(*parts):
    if parts == ("ends",):
        return ends()
    met, small = [], 0
    for name, asked, options in instances():
        if parts and not any(part in name for part in parts):
            continue
        seen, found = watched(asked, options)
        at = [next((m[1:] for m in seen[::-1] if m[0] <= s), (None, None)) for s in MOMENTS]
        row = [" / ".join(f"{v:.5g}" if v else "-" for v in pair) for pair in at]
        print("|", " | ".join([name, *row, found.status, f"{seen[-1][0]:.2f} s"]), "|", flush=True)
        if len(asked.cluster) <= 50:
            (value, bound), (best, least) = at[1], seen[-1][1:]
            small, ratio = small + 1, -1 if "at_least" in options else 1
            close = value and bound and (value / best) ** ratio >= 0.95
            if not best or (close and (bound / least) ** ratio <= 1.1):
                met.append(name)
    print(f"after one second: {len(met)} of {small}: {', '.join(met)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
