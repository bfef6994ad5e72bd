"""How many requests per second of processor time `pl.serve` simulates: `python tests/benchmarks/serving.py [REQUESTS]`.

Llama-3-8B on so many T4, prompts of 500 tokens, batches of 16; by stages, tokens of an answer and load.
"""

import sys
from time import process_time

import pipelab as pl


def simulated(stages, answer, load, requests):
    """Requests per second of processor time."""
    gpus = pl.Cluster.from_counts({"T4": stages}, 16, 1.25)
    workload = pl.Workload(500, 16, "mixed", output_tokens=answer)
    problem = pl.Problem(gpus, pl.load_model("Llama-3-8B"), workload, pl.Roofline())
    held = [32 // stages + (k < 32 % stages) for k in range(stages)]
    plan = pl.Placement.of([(layers, [gpu]) for gpu, layers in enumerate(held)])
    rate = load * pl.evaluate(problem, plan).throughput / answer
    begin = process_time()
    pl.serve(problem, plan, requests, rate=rate)
    return requests / (process_time() - begin)


def main(requests=2000):
    print("| stages | tokens of an answer | load | requests/s |\n| ---: | ---: | ---: | ---: |")
    for stages in (4, 12, 24):
        for answer in (50, 200, 800):
            for load in (0.3, 0.8):
                each = simulated(stages, answer, load, int(requests))
                print(f"| {stages} | {answer} | {load:.0%} | {each:,.0f} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
