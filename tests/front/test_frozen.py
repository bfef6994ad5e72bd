"""What is given and answered does not change: neither itself, nor a copy, nor through a container of the caller's.

The classes are all public ones: those named in a module of public names, those that its functions return, and all
that an object of these holds.
"""

import copy
import dataclasses
import importlib
import inspect
import os
import pickle
import pkgutil
import re
import subprocess
import sys
import typing
from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from threading import Event

import numpy as np
import pandas as pd
import pytest

import pipelab
import pipelab as pl
from pipelab.engine.answers import Result

BENCH = Path(__file__).parents[1] / "data" / "measured" / "llama_bench.json"
MODULES = (pl, pl.hardware, pl.writeup)
CHANGES = set(dir(dict)) & {"__ior__", *dir(MutableMapping)} - set(dir(Mapping))  # of a dict itself
OPERATIONS = ("sentence", "to_frame", "to_dict", "table", "_repr_html_", "__str__")

pytestmark = pytest.mark.slow


@cache
def objects():
    """At least one object of every public class, as the package's functions make them."""
    tiny = pl.writeup.with_link_units(pl.load_case("tiny", max_gpus_per_stage=2), "tokens")
    gpus = pl.Cluster.from_counts(
        {"A100-SXM-40": 1, "L4": 2},
        {"A100-SXM-40": 40, "L4": 24},
        12.5,
        {"A100-SXM-40": 3, "L4": 1},
    )
    llama, prompts = pl.load_model("Llama-3-8B"), pl.Workload(2048, 16, "decode")
    decode = pl.Problem(gpus, llama, prompts, pl.Roofline())
    requests = dataclasses.replace(
        decode, workload=pl.Workload(2048, 4, "mixed", output_tokens=100)
    )
    step = pl.Workload(2048, 16, "training", microbatches=4)
    training = dataclasses.replace(tiny, workload=step)
    solved, trained = pl.solve(tiny), pl.solve(training, objective="step_time")
    kept = pl.solve(decode, runs_on="vLLM", stop=Event(), on_progress=lambda progress: None)
    several, flow = pl.deploy(decode, runs_on="vLLM"), pl.flow(tiny)
    costs = pl.StageCosts([1.0, 2.0], [1.0, 2.0], [1.0, 1.0], comm=[0.1])
    one = pl.schedule("1F1B", ranks=2, microbatches=3)
    times = {t: {(n, b): n * (5 + b) for n in (1, 4) for b in (1, 16)} for t in ("V100", "H100")}
    rows = [[pl.Schedule.of("one", [["0F0"]]).actions[0][0]]]
    return [
        tiny, decode, requests, solved, trained, kept, several, flow, costs, one,
        pl.Schedule("lists", 1, [0], rows), pl.Schedule.of("rows", [["0F0", "0B0"]]),
        pl.best_schedule(costs, 3), pl.simulate(one, costs), pl.closed_forms(one, costs),
        pl.timeline_of(tiny, solved), pl.timeline_of(training, trained, training=True),
        pl.solve(requests, objective="cost"), pl.deploy(requests, requests_per_s=0.1, tpot_ms=200, batches=[1, 2]),
        pl.evaluate(tiny, solved.placement), pl.evaluate(decode, several), pl.evaluate(tiny, flow),
        pl.score(tiny, solved.placement), pl.sensitivity(decode), pl.certificate(solved),
        pl.serve(requests, pl.solve(requests), 30, rate=1),
        pl.trade_off(tiny), pl.compare(tiny, ["even", "auto"]), pl.settings(kept.problem, kept.placement, "vLLM"),
        pl.sweep(pl.load_case, [{"name": "tiny"}], progress=False, jobs=1),
        pl.hardware.Measured(times, tiny.costs), pl.LayerTimes({"A": 1.0}),
        pl.hardware.capacity(decode, kept.placement), pl.hardware.expected_rate(decode, pl.solve(decode).evaluation),
        pl.load_model("DeepSeek-V3"), pl.Model("heavy head", 2, 3, 4, 1.0, weight_factors=[1, 2]),
        pl.course.helix_cluster("single24"), pl.course.published_bubbles(),
        pl.hardware.calibrate(pl.Roofline(), BENCH),
    ]  # fmt: skip


def held(value, path="", seen=()):
    """Every value that one of ours holds, in its fields and what it derives from them, with how it is reached."""
    yield path, value
    parts, seen = {}, (*seen, id(value), type(value) if is_ours(value) else None)
    if is_ours(value):
        of = {k: v for c in type(value).__mro__ for k, v in vars(c).items()}
        names = [one.name for one in dataclasses.fields(value)]
        names += [k for k, v in of.items() if isinstance(v, cached_property) and k[0] != "_"]
        parts = {f".{name}": getattr(value, name) for name in names}
    elif isinstance(value, Mapping):
        parts = {f"[{key!r}]": part for key, part in value.items()}
    elif isinstance(value, list | tuple):
        parts = {f"[{i}]": part for i, part in enumerate(value[:20])}
    for name, part in parts.items():
        if (
            id(part) not in seen and type(part) not in seen
        ):  # a model has one without windows, and so on
            yield from held(part, path + name, seen)


def is_row(value):
    return isinstance(value, Sequence) and not isinstance(value, str | range)


def is_ours(value):
    return dataclasses.is_dataclass(value) and type(value).__module__.startswith("pipelab")


@cache
def every_kind():
    """One object of every class of ours, largest first."""
    found = {}
    for i, given in enumerate(objects()):
        for path, value in held(given, f"objects()[{i}]"):
            if is_ours(value) and not isinstance(value, type):
                found.setdefault(type(value), (path, value))
    return found


def public_classes():
    for module in MODULES:
        for name in module.__all__:
            public = getattr(module, name)
            made = public if isinstance(public, type) else None
            if inspect.isfunction(public):
                made = inspect.signature(public).return_annotation
            for one in typing.get_args(made) or [made]:
                if dataclasses.is_dataclass(one) and one.__dataclass_params__.frozen:
                    yield one


def state(value):
    """What an object is made of, to compare: an array has no single truth value."""
    if is_ours(value):
        return type(value), {
            f.name: state(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: state(part) for key, part in value.items()}
    if isinstance(value, np.ndarray):
        return value.dtype, value.tolist()
    if isinstance(value, pd.DataFrame):
        return value.to_dict()
    if is_row(value):
        return [state(part) for part in value]
    return getattr(value, "__qualname__", None) or (value.func if hasattr(value, "func") else value)


def changeable(value):
    """The containers that somebody could change."""
    return [
        path
        for path, one in held(value)
        if is_writable(one)
        or isinstance(one, list | set)
        or (isinstance(one, Mapping) and not refuses(one))
    ]


def is_writable(array):
    return isinstance(array, np.ndarray) and (array.flags.writeable or is_writable(array.base))


def refuses(mapping):
    return all(getattr(type(mapping), name, None) is not getattr(dict, name) for name in CHANGES)


def loosened(value):
    """The same containers as their changeable kinds, and all of them."""
    if isinstance(value, np.ndarray):
        loose = value.copy()
        return loose, [loose]
    if isinstance(value, Mapping):
        parts = {key: loosened(part) for key, part in value.items()}
        loose = {key: part for key, (part, _) in parts.items()}
    elif is_row(value) and not hasattr(value, "_make"):
        parts = dict(enumerate(map(loosened, value)))
        loose = [part for part, _ in parts.values()]
    else:
        return value, []
    return loose, [loose, *(inner for _, more in parts.values() for inner in more)]


def spoil(container):
    if isinstance(container, np.ndarray):
        container[...] = 0
    else:
        container.clear()


def has_equals(value):
    """Whether it, and what it holds, is compared by its content: answers are not."""
    return all(type(one).__eq__ is not object.__eq__ for _, one in held(value) if is_ours(one))


def hashed(value):
    try:
        return hash(value) if has_equals(value) else None
    except TypeError:
        return None


def test_every_public_class_has_an_object_here():
    assert set(public_classes()) - set(every_kind()) == set()


def test_no_container_of_a_frozen_object_can_be_changed():
    assert {path: found for path, one in every_kind().values() if (found := changeable(one))} == {}


def test_a_frozen_object_does_not_change_with_the_callers_containers():
    changed = []
    for kind, (path, given) in every_kind().items():
        init = [one.name for one in dataclasses.fields(given) if one.init]
        arguments = {name: loosened(getattr(given, name)) for name in init}
        made = kind(**{name: loose for name, (loose, _) in arguments.items()})
        before = state(made), hashed(made)
        for _, containers in arguments.values():
            for one in containers:
                spoil(one)
        again = dataclasses.replace(given)
        if (state(made), hashed(made)) != before or before != (state(again), hashed(again)):
            changed.append(path)
    assert changed == []


def copies(value):
    pickled = pickle.loads(pickle.dumps(value))
    return [copy.copy(value), copy.deepcopy(value), dataclasses.replace(value), pickled]


def shown(value):
    """What everything says that can be asked of it without arguments."""
    out = []
    for name in OPERATIONS:
        own = getattr(type(value), name, "") is not getattr(object, name, "")
        said = (
            getattr(value, name) if own else ""
        )  # not Python's text, in which sets have any order
        said = said() if callable(said) else said
        out.append(re.sub(r"T_\w+", "", str(said)))  # pandas names each table at random
    return out


def test_copies_are_equal_frozen_and_as_good():
    for path, given in every_kind().values():
        for one in copies(given):
            assert (type(one), state(one)) == (type(given), state(given)), path
            assert one == given or not has_equals(given), path
            assert hashed(one) == hashed(given), path
            assert changeable(one) == [], path
        assert shown(one) == shown(given), path  # of the one that was pickled


def test_copies_can_be_solved_evaluated_and_drawn():
    for given in objects():
        for one in copies(given) if is_ours(given) else []:
            if isinstance(one, pl.Problem) and one.workload.phase != "training":
                best = pl.solve(one)
                assert pl.evaluate(one, best.placement) == pl.evaluate(given, best.placement)
            if isinstance(one, Result | pl.Deployment) and one.any_engine is not None:
                assert one.cost_of_rules().share == given.cost_of_rules().share


def test_an_empty_proxy_can_be_copied():
    """A copy begins without attributes, and is asked for some."""
    for module in pkgutil.walk_packages(pipelab.__path__, "pipelab."):
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and "__getattr__" in vars(one):
                empty = one.__new__(one)
                vars(empty)["kept"] = 1
                assert vars(copy.copy(empty)) == {"kept": 1}


def test_a_pickle_has_the_hashes_of_the_process_that_reads_it(tmp_path):
    kept = [given for _, given in every_kind().values() if hashed(given) is not None]
    (tmp_path / "kept").write_bytes(pickle.dumps(kept))
    script = "import pickle, sys, dataclasses\n"
    script += "for one in pickle.load(open(sys.argv[1], 'rb')):\n"
    script += "    assert hash(one) == hash(dataclasses.replace(one)), type(one)"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", script, tmp_path / "kept"], env=environment, check=True)
