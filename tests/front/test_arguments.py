"""Any value in any argument is answered, or refused in one line: never an error of Python's own."""

import inspect
import math
from decimal import Decimal
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

import pipelab as pl

GPUS = pl.Cluster.from_counts({"A": 2, "B": 1}, {"A": 4, "B": 2}, 1.0, usd_per_hour=1.0)
MODEL, TIMES = pl.Model("three layers", 3, 8, 8, 0.1), pl.LayerTimes({"A": 1, "B": 2})
PROBLEM = pl.Problem(GPUS, MODEL, pl.Workload(100, 1, output_tokens=5), TIMES, 1)
TRAINED = pl.Problem(GPUS, MODEL, pl.Workload(100, 1, "training"), TIMES, 1)
WHOLE = pl.Placement.of([(3, (0,))])
COSTS = pl.StageCosts([1, 1], [2, 2], 1)
ODD = [
    np.array(2.0), np.array(2), np.array([1, 2]), np.array([1.5]), np.eye(2), np.array([None, "x"], dtype=object),
    Fraction(1, 3), Decimal("0.3"), 5e-324, -5e-324, 1e308, 10**400, math.nan, math.inf, -math.inf,
    True, np.True_, None, "x", "a\0b", "\ud800", b"x", [], [1, 2], [[1, 2], [3]], (1,), {1}, frozenset({1}), {},
    {"a": 1}, {"A": np.array(2.0)}, -1, 0, 1, 0.5, 1j, object(), int, range(3), iter([1]), PROBLEM,
]  # fmt: skip
# what is asked, with arguments that fit, and options beside those in the signature
ASKED = {
    "solve": (pl.solve, {"problem": PROBLEM}, ("time_limit", "gap", "stop", "budget")),
    "latency": (partial(pl.solve, objective="latency"), {"problem": PROBLEM}, ("at_least", "gap")),
    "exhaustive": (partial(pl.solve, method="exhaustive"), {"problem": PROBLEM}, ("limit",)),
    "step": (partial(pl.solve, objective="step_time"), {"problem": TRAINED}, ("schedule", "gap")),
    "evaluate": (pl.evaluate, {"problem": PROBLEM, "placement": WHOLE}, ()),
    "score": (pl.score, {"problem": PROBLEM, "placement": WHOLE}, ()),
    "compare": (pl.compare, {"problem": PROBLEM, "methods": ["even"]}, ()),
    "deploy": (pl.deploy, {"problem": PROBLEM, "time_limit": 0.2}, ()),
    "pools": (partial(pl.deploy, pools=True), {"problem": PROBLEM, "time_limit": 0.2}, ()),
    "flow": (pl.flow, {"problem": PROBLEM, "time_limit": 0.2}, ()),
    "curve": (pl.trade_off, {"problem": PROBLEM, "time_limit": 0.2}, ()),
    "grid": (pl.grid, {"a": [1]}, ("a",)),
    "part": (lambda part: pl.grid(part), {"part": [{"a": 1}]}, ()),
    "mixes": (pl.mixes, {"most": {"A": 1}, "usd_per_hour": {"A": 1.0}}, ()),
    "sweep": (pl.sweep, {"make": lambda **_: PROBLEM, "points": [{"a": 1}], "jobs": 1}, ("gap",)),
    "schedule": (pl.best_schedule, {"costs": COSTS, "microbatches": 2, "time_limit": 2}, ()),
    "bound": (pl.lower_bound, {"costs": COSTS, "microbatches": 2, "ranks": 2}, ()),
    "GPU": (pl.GPU, {"type": "A", "memory_gb": 4.0}, ()),
    "Workload": (pl.Workload, {"sequence_length": 10, "batch_size": 1}, ()),
    "LayerTimes": (pl.LayerTimes, {"ms_per_layer": {"A": 1}}, ()),
}
PARTS = 32  # of the odd values: an eighth of them each day, the others at night
LEFT = {("solve", "budget", Fraction)}  # refused elsewhere


def refusal_of(ask, given):
    try:
        ask(**given)
    except pl.PipelabError as error:
        return str(error)
    return ""


@pytest.mark.quick(2)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the largest and least floats
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("what", ASKED)
def test_any_value_of_any_argument_is_answered_or_refused_in_one_line(
    what, part, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    ask, fits, options = ASKED[what]
    ask(**fits)
    parameters = inspect.signature(ask).parameters.values()
    names = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    for name in dict.fromkeys([*names, *options]):
        for value in ODD[part::PARTS]:
            called = callable(value) and name.startswith("on_")  # its errors are its own
            if called or (what, name, type(value)) in LEFT:
                continue
            told = refusal_of(ask, {**fits, name: value})
            assert len(told.splitlines()) <= 1, (name, value)


@pytest.mark.parametrize("tpot_ms", [5e-324, 1e-300, 1e300])
@pytest.mark.parametrize("pools", [False, True])
def test_a_limit_of_any_size_is_answered(tpot_ms, pools):
    load = pl.Workload(100, 1, "mixed", output_tokens=5)
    problem = pl.Problem(GPUS, MODEL, load, TIMES, 1)
    found = pl.deploy(problem, tpot_ms=tpot_ms, pools=pools, batches=[1])
    assert found.status == ("optimal" if tpot_ms > 1 else "infeasible")


@pytest.mark.parametrize(
    "made", [pl.GPU, pl.Model, pl.Problem, pl.Workload, pl.Roofline, pl.StageCosts]
)
def test_a_misspelt_argument_is_refused_with_its_name(made):
    for name in inspect.signature(made).parameters:
        wrong = name[:2] + name[3:] if len(name) > 4 else f"{name}_"
        with pytest.raises((pl.errors.InvalidValue, TypeError), match=f"did you mean '{name}'"):
            made(**{wrong: 1})
