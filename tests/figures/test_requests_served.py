"""Figures of served requests: their bars and lines are the times that `Served` has."""

import random
from functools import cache

import numpy as np
import pytest

import pipelab as pl
from pipelab.costs import filled

LOAD = pl.Workload(200, 4, "mixed", output_tokens=10)


@cache
def planned(kind):
    """A problem and a plan of it."""
    filling = kind if kind in ("by_stages", "dynamic") else "synchronous"
    gpus = pl.Cluster.from_counts({"A100-SXM-40": 2, "L4": 2}, {"A100-SXM-40": 40, "L4": 24}, 1.0)
    costs = filled(pl.Roofline(), filling)
    problem = pl.Problem(gpus, pl.load_model("Llama-3-8B"), LOAD, costs)
    if kind in ("deployment", "pools"):
        limits = {"ttft_ms": 400, "tpot_ms": 30, "batches": [4], "pools": kind == "pools"}
        return problem, pl.deploy(problem, **limits)
    return problem, pl.Placement.of([(20, (0,)), (8, (2,)), (4, (3,))])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["placement", "by_stages", "dynamic", "deployment", "pools"])
def test_bars_and_lines_are_the_times_of_requests(kind, seed):
    chance = random.Random(seed)
    come = chance.choice([{"rate": chance.uniform(1, 20)}, {"clients": 9}])
    served = pl.serve(*planned(kind), chance.randint(2, 60), **come, seed=seed)
    columns = {name: column[:40] for name, column in served.requests.items()}
    bars = pl.plot(served, kind="requests").data
    assert sum(np.array(trace.x) for trace in bars) == pytest.approx(
        columns["ended_s"] - columns["came_s"]
    )
    assert bars[0].base == pytest.approx(columns["came_s"] - columns["came_s"][0])

    request = chance.randrange(len(served.requests["came_s"]))
    before, after = pl.plot(served, kind="way", request=request).data
    first = served.requests["ttft_ms"][request] / 1000
    assert max(before.base) < first * (1 + 1e-9)
    assert min(after.base, default=first) > first * (1 - 1e-6)

    curves = {trace.name: trace for trace in pl.plot(served).data}
    for time, name in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT")):
        assert curves[name].y[0] == served.requests[time].min()
        assert (np.diff(curves[name].y) >= 0).all()
        assert (f"limit of {name}" in curves) == (kind in ("deployment", "pools"))


@pytest.mark.parametrize("kind", ["percentiles", "requests", "way"])
def test_requests_that_memory_does_not_hold_are_left_out(kind, tmp_path):
    file = tmp_path / "requests.csv"
    file.write_text("seconds,prompt,answer\n" + "0,9000000,5\n" * 50)
    with pytest.raises(pl.PipelabError, match="served = '50 requests of a file'"):
        pl.plot(pl.serve(*planned("placement"), file), kind=kind)
    file.write_text(file.read_text() + "1,90,4\n")
    assert pl.plot(pl.serve(*planned("placement"), file), kind=kind).data
