"""Every answer says in one line what it is, and is a table, HTML and plain JSON, however it ended."""

import dataclasses
import json
import threading

import pytest
from small_problems import priced, three_types

import oracle
import pipelab as pl

ENDED = threading.Event()
ENDED.set()
HEAVY = oracle.heavier(
    priced(pl.load_case("tiny", link_units="tokens", max_gpus_per_stage=2)), 20.0
)
DECODE = three_types((1, 2, 0), phase="decode")
MIXED = three_types((1, 1, 0), phase="mixed", batch_size=8, output_tokens=200)
TRAINED = dataclasses.replace(
    HEAVY, workload=dataclasses.replace(HEAVY.workload, phase="training", microbatches=4)
)
TRAINED_ON_ROOFLINE = three_types((1, 2, 0), phase="training", batch_size=1, microbatches=4)
THIRDS = pl.Placement.of([(20, (0,)), (6, (1,)), (6, (2,))])
HALVES = pl.Placement.of([(2, (0,)), (2, (1,))])
COSTS = pl.StageCosts(1, 1, 1, comm=0.5, weight_activation=0.5, unit="ms")


def make(A100):
    return dataclasses.replace(HEAVY, cluster=HEAVY.cluster.with_counts({"A100": A100}))


ANSWERS = {
    "optimum": lambda: pl.solve(HEAVY),
    "in the background": lambda: pl.solve_in_background(HEAVY).result(),
    "nothing fits": lambda: pl.solve(oracle.heavier(HEAVY, 500.0)),
    "ended": lambda: pl.solve(pl.load_case("medium"), stop=ENDED),
    "rate": lambda: pl.solve(DECODE, objective="rate"),
    "quickest": lambda: pl.solve(HEAVY, objective="latency", at_least=1.0),
    "cheapest within a budget": lambda: pl.solve(HEAVY, objective="cost", budget=20.0),
    "too fast a floor": lambda: pl.solve(HEAVY, objective="cost", at_least=1e9),
    "exhaustive": lambda: pl.solve(HEAVY, "exhaustive"),
    "even": lambda: pl.solve(HEAVY, "even"),
    "even on a roofline": lambda: pl.solve(DECODE, "even"),
    "plan for an engine": lambda: pl.solve(DECODE, runs_on="vLLM"),
    "cost of an engine's rules": lambda: pl.solve(DECODE, runs_on="vLLM").cost_of_rules(),
    "certificate": lambda: pl.certificate(pl.solve(pl.load_case("medium"))),
    "certificate of unlike layers": lambda: pl.certificate(pl.solve(DECODE, objective="rate")),
    "certificate of nothing": lambda: pl.certificate(pl.solve(oracle.heavier(HEAVY, 500.0))),
    "comparison": lambda: pl.compare(HEAVY, ["even", "exhaustive"]),
    "trade-off": lambda: pl.trade_off(HEAVY, "gpus"),
    "trade-off of deployments": lambda: pl.trade_off(DECODE, "usd_per_hour", deployments=True),
    "deployment": lambda: pl.deploy(DECODE),
    "deployment within limits": lambda: pl.deploy(MIXED, tpot_ms=100, batches=[8]),
    "deployment that ended": lambda: pl.deploy(MIXED, tpot_ms=11, stop=ENDED),
    "pools that ended": lambda: pl.deploy(MIXED, tpot_ms=11, pools=True, stop=lambda _: True),
    "flow": lambda: pl.flow(HEAVY),
    "no flow": lambda: pl.flow(oracle.heavier(HEAVY, 500.0)),
    "other speeds": lambda: pl.sensitivity(DECODE),
    "best schedule": lambda: pl.best_schedule(COSTS, 8, 2),
    "best schedule that ended": lambda: pl.best_schedule(
        COSTS, 8, 4, time_limit=0, max_in_flight=3
    ),
    "no schedule": lambda: pl.best_schedule(COSTS, 4, 2, memory=[0.1, 0.1]),
    "times of a schedule": lambda: pl.simulate(pl.schedule("1F1B", 2, 4), COSTS),
    "idle times": lambda: pl.simulate(pl.schedule("1F1B", 2, 4), COSTS).idle,
    "pipeline in time": lambda: pl.timeline_of(HEAVY, HALVES),
    "pipeline in time, one in flight": lambda: pl.timeline_of(HEAVY, HALVES, in_flight=1),
    "step on a roofline": lambda: pl.timeline_of(TRAINED_ON_ROOFLINE, THIRDS),
    "step": lambda: pl.timeline_of(TRAINED, HALVES),
    "least step": lambda: pl.solve(TRAINED, objective="step_time"),
    "least step that ended": lambda: pl.solve(TRAINED, objective="step_time", stop=ENDED),
    "sweep": lambda: pl.sweep(make, pl.grid(A100=[0, 1, 2]), jobs=1, progress=False),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_every_answer_can_be_read_shown_and_stored(what):
    answer = ANSWERS[what]()
    said = getattr(answer, "sentence", None) or str(answer)
    assert said
    assert len(said.splitlines()) == 1 or not hasattr(answer, "sentence")
    for name in ("_repr_html_", "to_frame"):
        if hasattr(answer, name):
            assert getattr(answer, name)() is not None
    if hasattr(answer, "to_dict"):
        json.dumps(answer.to_dict(), allow_nan=False)
