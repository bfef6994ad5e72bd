"""1,000 GPU mixes on two cores: `python tests/benchmarks/sweep.py` (`--quick`: 100).

Prints seconds and points per second with one process and with two, how much of the time was not
spent on points, and where the time of a point goes. Wall-clock seconds only mean something on an
idle machine, so the processor's own seconds stand beside them.
"""

import cProfile
import dataclasses
import pstats
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import pipelab as pl

BASE = pl.load_case("medium", max_gpus_per_stage=4, link_units="tokens")
KINDS = BASE.cluster.kinds
LINKS = {(a.type, b.type): 600.0 if a == b else 100.0 for a in KINDS for b in KINDS}


def make(**counts):
    """medium's model on another mix of its seven types, slower links between types."""
    cluster = pl.Cluster.from_counts(counts, {kind.type: kind.memory_gb for kind in KINDS}, LINKS)
    return dataclasses.replace(BASE, cluster=cluster)


def random_mixes(number, seed=0):
    """So many different mixes of up to as many GPUs of each type as medium has."""
    rng, found = random.Random(seed), {}
    while len(found) < number:
        counts = tuple(rng.randint(0, int(n)) for n in BASE.cluster.kind_count)
        if any(counts):
            found[counts] = {kind.type: n for kind, n in zip(KINDS, counts, strict=True)}
    return list(found.values())


def processor_seconds():
    """Of this process and of all its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(r.ru_utime + r.ru_stime for r in used)


def timed(points, jobs, file):
    from joblib.externals.loky import get_reusable_executor

    began, used = time.perf_counter(), processor_seconds()
    sweep = pl.sweep(make, points, path=file, jobs=jobs, progress=False)
    seconds = time.perf_counter() - began
    get_reusable_executor().shutdown(wait=True)  # what children used is known once they have ended
    on_points = sum(row["seconds"] for row in sweep.rows)
    print(f"jobs={jobs}: {sweep.sentence}")
    rate, elsewhere = len(points) / seconds, 1 - on_points / seconds / jobs
    print(
        f"    {rate:.1f} points/s; {elsewhere:.1%} of the workers' time not spent on points",
        end="; ",
    )
    print(f"{processor_seconds() - used:.1f} processor seconds")
    return seconds


def profile(points):
    """Where the time of a point goes, as shares of all of it."""
    tool = cProfile.Profile()
    tool.enable()
    pl.sweep(make, points, jobs=1, progress=False)
    tool.disable()
    stats = pstats.Stats(tool)
    whole = max(cumulative for _, _, _, cumulative, _ in stats.stats.values())
    told = {
        "scip.py:load": "a SCIP model made and filled", "scip.py:_solve": "SCIP at work, its thread included",
        "scip.py:version": "SCIP's version read", "counting.py:program": "rows of a program",
        "recipes.py:recipes_at": "recipes at a rate",
        "evaluate.py:evaluate": "the evaluator", "rates.py:stage_rates": "stage rates",
    }  # fmt: skip
    for (path, _, name), (calls, _, _, cumulative, _) in stats.stats.items():
        key = f"{Path(path).name}:{name}"
        if key in told:
            print(
                f"    {cumulative / whole:6.1%} {told[key]} ({calls / len(points):.1f} times a point)"
            )


def main(quick):
    points = random_mixes(100 if quick else 1000)
    pl.solve(make(**points[0]), "aggregated")  # what is loaded once
    with tempfile.TemporaryDirectory() as folder:
        two = timed(points, 2, f"{folder}/two.csv")
        one = timed(points, 1, f"{folder}/one.csv")
    print(f"two processes take {two / one:.2f} of the time of one")
    profile(points[:100])


if __name__ == "__main__":
    main("--quick" in sys.argv)
