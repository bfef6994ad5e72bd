"""The table of `docs/within_the_error.md`: `python tests/benchmarks/price_of_robustness.py [CASE …]`.

By case and band: what the best plan as predicted and the one that loses least keep in the worst scenario, what no plan
exceeds, and what the second costs if the prediction is right. Seconds are of the processor.
"""

import sys
from time import process_time

import pipelab as pl


def helix(name, stage):
    costs = pl.Roofline(filling="synchronous")
    load, model = pl.Workload(2048, 1), pl.load_model("Llama-3-70B")
    return pl.Problem(pl.load_cluster(name), model, load, costs, max_gpus_per_stage=stage)


def cards(model="Llama-3-8B", load=None, **counts):
    """GPUs of one network, as in notebook 12."""
    names = {name.replace("_", "-"): count for name, count in counts.items()}
    facts = {name: pl.hardware.load_gpus()[name] for name in names}
    memory = {name: gpu.memory_gb for name, gpu in facts.items()}
    price = {name: gpu.usd_per_hour for name, gpu in facts.items()}
    gpus = pl.Cluster.from_counts(names, memory, 12.5, usd_per_hour=price)
    load = load or pl.Workload(2048, 16, "decode")
    return pl.Problem(gpus, pl.load_model(model), load, pl.Roofline())


def eleven(**more):
    return cards(A100_SXM_40=1, L4=4, T4=6, **more)


def full(problem):
    return lambda within: pl.solve(problem, objective="rate", within=within)


def attained(problem):
    return lambda within: pl.solve(problem, within=within)


def deployed(problem, **asked):
    return lambda within: pl.deploy(problem, within=within, **asked)


CASES = {
    "single24, full pipeline": lambda: full(helix("helix-single24", 1)),
    "single24, attained": lambda: attained(helix("helix-single24", 1)),
    "geo24, full pipeline": lambda: full(helix("helix-geo24", 1)),
    "geo24, attained": lambda: attained(helix("helix-geo24", 1)),
    "11 GPUs, one pipeline": lambda: attained(eleven()),
    "11 GPUs, several": lambda: deployed(eleven()),
    "10 GPUs, prefill, several": lambda: deployed(
        cards(A100_SXM_40=2, L4=4, T4=4, load=pl.Workload(2048, 16))
    ),
    "11 GPUs, 8,192 tokens, several": lambda: deployed(
        eleven(load=pl.Workload(8192, 16, "decode"))
    ),
    "11 GPUs, 70B, several": lambda: deployed(eleven(model="Llama-3-70B")),
    "rent for 5,000 tokens/s": lambda: deployed(
        cards(H100_SXM=1, A100_SXM_40=3, A10=5),
        at_least=5000,
        batches=(8, 16, 32, 64, 96, 128, 192),
    ),
}


def row(name, within):
    """Cells of the table: shares in percent, or what fleets cost."""
    begin = process_time()
    answer = CASES[name]()(within)
    seconds = process_time() - begin
    words = "band" if within == "band" else f"±{within:.0%}"
    if getattr(answer, "at_least", 0):
        nominal = CASES[name]()(None).usd_per_hour
        cost = answer.usd_per_hour
        found = [f"${nominal:.2f}", "none" if cost is None else f"${cost:.2f}", "–"]
        price = "–" if cost is None else f"{cost / nominal - 1:.1%}"
    else:
        goal, lost = answer.objective, answer.details["nominal_lost"]
        kept = [100 * (1 - lost), 100 - goal.value, 100 - goal.bound]
        found, price = [f"{share:.1f}%" for share in kept], f"{answer.details['price']:.1%}"
    return [name, words, *found, price, f"{seconds:.1f}"]


def main(*names):
    print("| | speeds | nominal keeps | robust keeps | none keeps more than | price | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in names or CASES:
        for within in (0.1, "band"):
            print("| " + " | ".join(row(name, within)) + " |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
