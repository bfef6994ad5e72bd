"""Numbers that leave the package are Python's own: they print as numbers and fit into JSON. Arrays stay arrays."""

import contextlib
import dataclasses
import inspect
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pytest

import oracle
import pipelab as pl
from pipelab.course.n08 import published_bubbles
from pipelab.engine.methods.exhaustive import count_placements
from pipelab.engine.methods.joint import joint_size
from pipelab.engine.methods.single_gpu import single_gpu_size
from pipelab.engine.solving import METHODS

NO_VALUES = ("DataFrame", "Series", "Figure", "ndarray", "Index")


def numpy_in(
    value: Any, place: str, seen: dict[int, Any] | None = None, deep: bool = True
) -> Iterator[str]:
    """Where in a value, its attributes and properties, its texts and plain forms, a number of numpy's is found.

    Of what a property makes, only the attributes are looked at: properties of properties have no
    end.
    """
    seen = {} if seen is None else seen
    if isinstance(value, np.generic):
        yield f"{place}: {value!r}"
    if id(value) in seen or type(value).__name__ in NO_VALUES or isinstance(value, type):
        return
    seen[id(value)] = value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from numpy_in(key, f"{place}, key {key!r}", seen, deep)
            yield from numpy_in(item, f"{place}[{key!r}]", seen, deep)
    elif isinstance(value, list | tuple | set | frozenset):
        for i, item in enumerate(value):
            yield from numpy_in(item, f"{place}[{i}]", seen, deep)
    if type(value).__module__.startswith("pipelab."):
        yield from _numpy_in_object(value, place, seen, deep)


def _numpy_in_object(value: Any, place: str, seen: dict[int, Any], deep: bool) -> Iterator[str]:
    for field in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
        yield from numpy_in(getattr(value, field.name), f"{place}.{field.name}", seen, deep)
    if not deep:
        return
    for name, found in inspect.getmembers_static(type(value)):
        if name.startswith("_") or not isinstance(found, property | cached_property):
            continue
        try:
            item = getattr(value, name)
        except pl.PipelabError as error:
            item = str(error)
        yield from numpy_in(item, f"{place}.{name}", seen, deep=False)
        if isinstance(item, str) and "np." in item:
            yield f"{place}.{name} says {item!r}"
    for name in ("to_dict", "row"):
        if callable(getattr(value, name, None)):
            yield from numpy_in(getattr(value, name)(), f"{place}.{name}()", seen, deep=False)
    for text in (repr(value), str(value)):
        if "np." in text:
            yield f"{place} is written {text[max(0, text.index('np.') - 60) :][:120]!r}"


def check(value: Any, place: str) -> None:
    found = list(numpy_in(value, place))
    assert not found, "\n".join(found[:20])
    if callable(getattr(value, "to_dict", None)):
        json.dumps(value.to_dict(), allow_nan=False)


def test_the_walk_finds_what_it_is_for():
    @dataclasses.dataclass
    class Thing:
        rate: Any

        @property
        def double(self):
            return [self.rate, self.rate]

    Thing.__module__ = "pipelab.thing"
    assert list(numpy_in(Thing({"a": (1.5, np.arange(3))}), "it")) == []
    # the attribute, twice the property, repr, str
    assert len(list(numpy_in(Thing(np.float64(1.5)), "it"))) == 5


def _problems() -> dict[str, pl.Problem]:
    tiny = pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens")
    heavy = oracle.heavier(tiny, 25)
    pool = pl.Cluster.from_counts(
        {"L4": 2, "T4": 2}, {"L4": 24, "T4": 16}, 2.0, {"L4": 0.8, "T4": 0.35}
    )
    load = pl.Workload(1024, 4, "decode")
    model = dataclasses.replace(pl.load_model("Llama-3-8B"), layers=4)
    real = pl.Problem(pool, model, load, pl.Roofline(), 2, same_type_stages=False)
    return {
        "tiny": tiny,
        "two stages": heavy,
        "balanced": dataclasses.replace(tiny, batch_split="balanced", max_gpus_per_stage=4),
        "roofline": real,
        "nothing fits": oracle.heavier(tiny, 500),
        "unlike layers": oracle.random_problem(3, unlike=True),
    }


PROBLEMS = _problems()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["two stages", "balanced", "roofline", "nothing fits", "unlike layers"]
)
def test_answers_of_every_method(name):
    problem, refused = PROBLEMS[name], []
    for method in METHODS:
        try:
            result = pl.solve(problem, method)
        except pl.PipelabError as error:
            refused.append((str(error), getattr(error, "problems", ())))
            continue
        check(result, method)
        if result.placement is not None:
            check(pl.score(problem, result.placement, result), f"{method}, score")
    check(refused, "refused")
    assert "np." not in str(refused)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two stages", "roofline", "nothing fits"])
def test_other_objectives_and_proofs(name):
    problem = PROBLEMS[name]
    asked = {
        "quickest": lambda: pl.solve(problem, objective="latency"),
        "cheapest": lambda: pl.solve(problem, objective="cost"),
        "trade_off": lambda: pl.trade_off(problem),
        "trade_off, time": lambda: pl.trade_off(problem, "seconds_per_pass"),
        "in flight": lambda: pl.solve(problem),
        "certificate": lambda: pl.certificate(pl.solve(problem, "aggregated")),
        "compare": lambda: pl.compare(problem),
        "count": lambda: count_placements(problem),
        "size": lambda: (joint_size(problem), single_gpu_size(problem)),
    }
    for what, ask in asked.items():
        with contextlib.suppress(pl.errors.NotApplicable, pl.errors.InvalidValue):
            check(ask(), what)
    placement = pl.solve(problem, "aggregated").placement
    if placement is None:
        return
    check(pl.evaluate(problem, placement), "evaluate")
    check(pl.timeline_of(problem, placement, 6), "timeline_of")
    if name == "roofline":
        reading = dataclasses.replace(problem, workload=pl.Workload(1024, 4))
        check(pl.timeline_of(reading, placement, 6, training=True), "training")


def test_sweeps_splits_and_schedules():
    tiny = PROBLEMS["tiny"]
    sweep = pl.sweep(lambda gpus: dataclasses.replace(tiny, max_gpus_per_stage=gpus), pl.grid(gpus=np.arange(1, 3)),
                     "even", jobs=1, progress=False)  # fmt: skip
    check(sweep, "sweep")
    costs, speeds = np.array([1.5, 2.0, 3.0, 0.5]), np.array([1.0, 2.0])
    check(pl.splits.split_minmax(costs, 2, speeds=speeds), "split_minmax")
    check(pl.splits.split_exhaustive(costs, 2, speeds=speeds), "split_exhaustive")
    check(pl.splits.split_even(np.int64(5), np.int64(2)), "split_even")
    check(pl.splits.split_proportional(4, speeds), "split_proportional")
    check(pl.splits.split_by_flops(costs, 2), "split_by_flops")
    check(pl.splits.bottleneck((range(2), range(2, 4)), costs, speeds), "bottleneck")
    for name in ("GPipe", "1F1B", "ZBH1", "Interleaved1F1B"):
        schedule = pl.schedule(name, ranks=np.int64(2), microbatches=np.int64(4))
        times = pl.StageCosts(np.float64(1.0), np.float64(1.0), np.float64(1.0))
        check(schedule, name)
        check(pl.simulate(schedule, times), f"{name}, timeline")
        check(pl.closed_forms(schedule, times), f"{name}, closed forms")
        check(pl.lower_bound(times, 4, 2), f"{name}, lower bound")
    check(published_bubbles(), "published_bubbles")


def test_facts_and_costs():
    tiny, real = PROBLEMS["tiny"], PROBLEMS["roofline"]
    for problem in (tiny, real):
        check(problem, "problem")
        check(problem.tensor_gb(), "tensor")
        check(problem.link_throughput(100.0), "link_throughput")
        check(problem.message_seconds(100.0, 0.1), "message_seconds")
        check(problem.cluster.bandwidth_between(0, 1), "bandwidth")
        check(problem.cluster.latency_between(0, 1), "latency")
        for split in ("even", "balanced"):
            check(
                problem.costs.stage(
                    problem.model, problem.workload, problem.cluster.gpus[:2], range(2), split
                ),
                split,
            )
        check(
            problem.costs.memory_parts(problem, problem.cluster.gpus[0], range(2)), "memory_parts"
        )
        check(problem.model.weight_gb(range(2)), "weight")
    check(tiny.costs.gpu_throughput("A100", tiny.workload, 4, 2), "gpu_throughput")
    check(tiny.costs.activation_gb(tiny.model, tiny.workload), "activation_gb")
    gpu, layers = real.cluster.gpus[0], range(2)
    check(real.costs.pass_seconds(real.model, real.workload, gpu, layers), "pass_seconds")
    check(pl.hardware.load_gpus(), "gpus")


class Numpys(pl.writeup.LinearThroughput):
    """A cost model of a reader's own that counts with numpy."""

    def stage(self, *given):
        cost = super().stage(*given)
        return cost._replace(
            throughput=np.float64(cost.throughput), batch=tuple(map(np.float64, cost.batch)),
            memory_gb=tuple(map(np.float32, cost.memory_gb)), degree=np.int64(1), pass_seconds=np.float64(1.0),
        )  # fmt: skip


def test_a_cost_model_of_ones_own_may_count_with_numpy():
    tiny = PROBLEMS["tiny"]
    costs = Numpys(tiny.costs.coefficients)
    check(pl.solve(dataclasses.replace(tiny, costs=costs), "even"), "even")


def test_errors_name_numbers_as_people_write_them():
    tiny = PROBLEMS["tiny"]
    for attempt in (
        lambda: dataclasses.replace(tiny, max_gpus_per_stage=np.float64(1.5)),
        lambda: pl.GPU("A100", np.float64(-1.0)),
        lambda: pl.splits.split_even(np.int64(2), np.int64(-2)),
        lambda: pl.solve(tiny, "joint", time_limit=np.float64(-3)),
        lambda: pl.Placement.of([(np.int64(0), (0,))]),
        lambda: pl.splits.split_minmax([np.float64("nan")], 1),
    ):
        with pytest.raises(pl.PipelabError) as caught:
            attempt()
        assert "np." not in str(caught.value)
