"""Numbers that leave the package are Python's own: they print as numbers and fit into JSON. Arrays stay arrays."""

import dataclasses
import inspect
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from test_frozen import objects

import oracle
import pipelab as pl
from pipelab.course.n08 import published_bubbles
from pipelab.engine.methods.exhaustive import count_placements
from pipelab.engine.methods.joint import joint_size
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
    if isinstance(value, np.generic) or (isinstance(value, str) and "np." in value):
        yield f"{place}: {value!r}"
    if id(value) in seen or type(value).__name__ in NO_VALUES or isinstance(value, type):
        return
    seen[id(value)] = value
    parts: dict[Any, Any] = {}
    if isinstance(value, Mapping):
        parts |= {f"key {key!r}": key for key in value} | dict(value)
    elif isinstance(value, list | tuple | set | frozenset):
        parts |= dict(enumerate(value))
    ours = type(value).__module__.startswith("pipelab.")
    if ours and dataclasses.is_dataclass(value):
        parts |= {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for name, part in parts.items():
        yield from numpy_in(part, f"{place}, {name}", seen, deep)
    for name, made in _made_by(value) if ours and deep else ():
        yield from numpy_in(made, f"{place}.{name}", seen, deep=False)


def _made_by(value: Any) -> Iterator[tuple[str, Any]]:
    """What properties and methods without arguments say."""
    for name, found in inspect.getmembers_static(type(value)):
        if not name.startswith("_") and isinstance(found, property | cached_property):
            try:
                yield name, getattr(value, name)
            except pl.PipelabError as error:
                yield name, str(error)
    for name in ("to_dict", "row", "__repr__", "__str__"):
        if callable(getattr(value, name, None)):
            yield name, getattr(value, name)()


def check(value: Any, place: str) -> None:
    found = list(numpy_in(value, place))
    assert not found, "\n".join(found[:20])
    if callable(getattr(value, "to_dict", None)):
        json.dumps(value.to_dict(), allow_nan=False)


def _problems() -> dict[str, pl.Problem]:
    tiny = pl.load_case("tiny", max_gpus_per_stage=2, link_units="tokens")
    pool = pl.Cluster.from_counts(
        {"L4": 2, "T4": 2}, {"L4": 24, "T4": 16}, 2.0, {"L4": 0.8, "T4": 0.35}
    )
    load = pl.Workload(1024, 4, "decode")
    model = dataclasses.replace(pl.load_model("Llama-3-8B"), layers=4)
    return {
        "two stages": oracle.heavier(tiny, 25),
        "balanced": dataclasses.replace(tiny, batch_split="balanced", max_gpus_per_stage=4),
        "roofline": pl.Problem(pool, model, load, pl.Roofline(), 2, same_type_stages=False),
        "nothing fits": oracle.heavier(tiny, 500),
        "unlike layers": oracle.random_problem(3, unlike=True),
    }


PROBLEMS = _problems()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_answers_of_every_method(name):
    problem = PROBLEMS[name]
    check(problem, "problem")
    for method in METHODS:
        try:
            result = pl.solve(problem, method)
        except pl.PipelabError as error:
            check([str(error), getattr(error, "problems", ())], method)
            continue
        check(result, method)
        if result.placement is not None:
            check(pl.score(problem, result.placement, result), f"{method}, score")


@pytest.mark.slow
def test_an_object_of_every_public_class():
    for i, made in enumerate(objects()):
        check(made, f"objects()[{i}]")
    for problem in PROBLEMS.values():
        check((count_placements(problem), joint_size(problem)), problem.name)


def test_what_is_given_in_numpys_numbers_comes_back_in_pythons():
    tiny = pl.load_case("tiny")
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
    for name in ("GPipe", "ZBH1", "Interleaved1F1B"):
        schedule = pl.schedule(name, ranks=np.int64(2), microbatches=np.int64(4))
        times = pl.StageCosts(np.float64(1.0), np.float64(1.0), np.float64(1.0))
        check([schedule, pl.simulate(schedule, times), pl.closed_forms(schedule, times)], name)
        check(pl.lower_bound(times, 4, 2), f"{name}, lower bound")
    check(published_bubbles(), "published_bubbles")


@pytest.mark.parametrize("name", ["two stages", "roofline"])
def test_facts_and_costs(name):
    problem = PROBLEMS[name]
    cluster, model, costs, span = problem.cluster, problem.model, problem.costs, range(2)
    gpu, load = cluster.gpus[0], problem.workload
    parts = [
        (problem.tensor_gb(), problem.link_throughput(100.0), problem.message_seconds(100.0, 0.1)),
        (cluster.bandwidth_between(0, 1), cluster.latency_between(0, 1)),
        *(costs.stage(model, load, cluster.gpus[:2], span, how) for how in ("even", "balanced")),
        costs.memory_parts(problem, gpu, span),
        model.weight_gb(span),
    ]
    if name == "roofline":
        parts.append(costs.pass_seconds(model, load, gpu, span))
    else:
        parts += [costs.gpu_throughput("A100", load, 4, 2), costs.activation_gb(model, load)]
    check(parts, name)


class Numpys(pl.writeup.LinearThroughput):
    """A cost model of a reader's own that counts with numpy."""

    def stage(self, *given):
        cost = super().stage(*given)
        return cost._replace(
            throughput=np.array(cost.throughput), batch=np.array(cost.batch),
            memory_gb=np.array(cost.memory_gb, np.float32), degree=np.int64(1), pass_seconds=np.float64(1.0),
        )  # fmt: skip


def test_a_cost_model_of_ones_own_may_count_with_numpy():
    tiny = PROBLEMS["two stages"]
    costs = Numpys(tiny.costs.coefficients)
    check(pl.solve(dataclasses.replace(tiny, costs=costs), "even"), "even")
