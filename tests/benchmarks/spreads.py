"""Rates over thirty orders of magnitude: how many answers are right, refused, left open or wrong?

`python tests/benchmarks/spreads.py [problems] [orders] [first seed]` solves small random problems
by every exact method and compares with brute force (20,000 problems: about half an hour on two
cores). An answer is right if it is proven and within one part in 10^9 of the truth; "open" if its
status is "feasible" and its bound is not below the truth.
"""

import dataclasses
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
from joblib import Parallel, delayed

sys.path.insert(0, str(Path(__file__).parents[1]))
import oracle
import pipelab as pl

REFUSALS = (pl.errors.InvalidValue, pl.errors.NotApplicable, pl.errors.TooLarge)
CLOSE = 1e-9


def methods(problem, seed):
    """Name, question and truth of everything that is asked of one problem."""
    alone = dataclasses.replace(problem, max_gpus_per_stage=1)
    form = ("written", "tight")[seed % 2]
    rate, single = oracle.best(problem), oracle.best(alone)
    seconds = min((took for _, _, took in oracle.passes(problem)), default=None)
    yield "aggregated", lambda: pl.solve(problem, "aggregated"), rate, 1
    yield f"joint, {form}", lambda: pl.solve(problem, "joint", form=form), rate, 1
    yield "single_gpu", lambda: pl.solve(alone, "single_gpu"), single, 1
    yield "exhaustive", lambda: pl.solve(problem, "exhaustive"), rate, 1
    yield "quickest", lambda: pl.solve(problem, objective="latency"), seconds, -1


def verdict(ask, truth, sense):
    """One word for one answer; `sense` is 1 where more is better."""
    try:
        answer = ask()
    except REFUSALS as refusal:
        return "refused", str(refusal)
    except Exception as error:  # whatever it is, it is counted
        return "unexpected error", f"{type(error).__name__}: {error}"
    goal = answer.objective
    value, bound = (goal.value, goal.bound) if goal else (answer.throughput, answer.bound)
    if truth is None or answer.status == "infeasible":
        good = truth is None and answer.status == "infeasible"
        return ("right" if good else "wrong", f"{answer.status} where the truth is {truth}")
    if answer.status == "optimal":
        return (
            "right" if abs(value / truth - 1) <= CLOSE else "wrong optimal",
            f"{value} where the truth is {truth}",
        )
    valid = bound is None or sense * bound >= sense * truth * (1 - sense * CLOSE)
    return ("open" if valid else "wrong bound", f"bound {bound} where the truth is {truth}")


def ask_all(seed, orders):
    """Rows of one problem."""
    problem = oracle.wild_problem(seed, orders)
    return [
        (name, seed, *verdict(ask, truth, sense))
        for name, ask, truth, sense in methods(problem, seed)
    ]


def main(number=20_000, orders=30.0, first=0):
    """Print a table of verdicts by method, and the first of each that is not right."""
    seeds = range(first, first + number)
    rows = Parallel(n_jobs=-1, batch_size=50)(delayed(ask_all)(seed, orders) for seed in seeds)
    frame = pd.DataFrame(
        [row for part in rows for row in part], columns=["method", "seed", "verdict", "what"]
    )
    print(f"{number:,} problems, stage and link rates over {orders:g} orders of magnitude")
    print(pd.crosstab(frame["method"], frame["verdict"]).to_string())
    odd = frame[frame["verdict"] != "right"]
    for name, count in Counter(odd["verdict"]).items():
        print(f"\n{name} ({count:,}):")
        print(odd[odd["verdict"] == name].head(8).to_string(index=False, max_colwidth=160))


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, float, int), sys.argv[1:], strict=False)))
