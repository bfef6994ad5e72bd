"""A deployment as settings of engines, one set for each pipeline, and its files."""

import dataclasses
import json
import re
from functools import cache
from itertools import combinations

import pytest
from small_problems import three_types

import pipelab as pl
from pipelab.hardware.engine_rules import known_rules
from pipelab.io.plans import as_planned, load_plan


@cache
def several():
    """Six pipelines of one GPU per stage; two of three stages. Engines have room for themselves."""
    problem = three_types(phase="decode")
    found = pl.deploy(problem, batches=[8, 16])
    assert found.count == 6
    gpus = [dataclasses.replace(g, memory_gb=1.5 * g.memory_gb) for g in problem.cluster.gpus]
    cluster = dataclasses.replace(problem.cluster, gpus=tuple(gpus))
    return dataclasses.replace(problem, cluster=cluster), found


def ports(text):
    """Every port that a script gives: of the server, of what coordinates, of what serves a GPU."""
    return {
        *map(int, re.findall(r"(?:--(?:master-|ray-client-server-)?port|-p)[ =](\d+)", text)),
        *map(int, re.findall(r'\]}:(\d+)"', text)),
        *(int(port) for group in re.findall(r'--rpc "([^"]+)"', text)
          for port in re.findall(r":(\d+)", group)),
    }  # fmt: skip


@pytest.mark.quick(1)
@pytest.mark.parametrize("engine", known_rules())
def test_every_pipeline_has_its_own_gpus_and_ports(engine):
    """All on one host, where nothing keeps them apart but these."""
    problem, found = several()
    scripts = pl.settings(problem, found, engine, hosts="10.0.0.1")
    assert list(scripts) == [f"pipeline-{i}" for i in range(1, 7)]
    replicas = [(r, p.workload) for p in found.pipelines for r in p.replicas]
    for own, (replica, load) in zip(scripts.values(), replicas, strict=True):
        assert own.layers == tuple(len(stage.layers) for stage in replica.stages)
        assert [gpu for host in own.hosts for gpu in host.gpus] == list(replica.gpus)
        one = dataclasses.replace(problem, workload=load)
        alone = pl.settings(one, replica, engine, hosts="10.0.0.1")
        assert own.environment == alone.environment
        differ = [
            i
            for i, pair in enumerate(zip(own.arguments, alone.arguments, strict=True))
            if len({*pair}) > 1
        ]
        assert all(own.arguments[i - 1] == "--port" for i in differ)
        # these serve nobody on a port of their own
        assert ports(own.script) or engine in ("Megatron", "torchtitan", "transformers")
    assert (scripts.nginx != "") == bool(scripts["pipeline-1"].answers_at)
    if scripts.nginx:
        shares = re.findall(r"server 10\.0\.0\.1:(\d+) weight=(\d+);", scripts.nginx)
        rates = [p.throughput for p in found.pipelines for _ in p.replicas]
        for (port, weight), rate, own in zip(shares, rates, scripts.values(), strict=True):
            assert int(weight) == pytest.approx(1000 * rate / max(rates), abs=1)
            assert int(port) in ports(own.script)
        assert str(scripts).count("#!/usr/bin/env bash") == 6
    for a, b in combinations(scripts.values(), 2):
        assert not set(a.hosts[0].gpus) & set(b.hosts[0].gpus)
        assert not ports(a.script) & ports(b.script)


def test_settings_need_a_pipeline_and_gpus_of_its_own():
    problem, found = several()
    none = dataclasses.replace(found, pipelines=(), status="infeasible", reason="no layer fits")
    with pytest.raises(pl.errors.InvalidValue, match=r"with a pipeline\. No deployment"):
        pl.settings(problem, none, "vLLM")
    first = found.pipelines[0]
    twice = dataclasses.replace(first, replicas=first.replicas[:1] * 2)
    with pytest.raises(pl.errors.InvalidPlacement, match="is used by 2 pipelines"):
        pl.settings(problem, dataclasses.replace(found, pipelines=(twice,)), "vLLM")


def test_a_saved_deployment_is_no_placement(tmp_path):
    path = pl.save(several()[1], tmp_path / "plan.json")
    with pytest.raises(
        pl.errors.InvalidData, match=r"and this is a deployment; give it to `pipelab settings`"
    ):
        pl.load_placement(path)


FLEETS = {
    "tokens": {"batches": [8, 16]}, "engine": {"batches": [8, 16], "runs_on": "vLLM"},
    "requests": {"batches": [8], "tpot_ms": 500.0}, "pools": {"batches": [1, 8], "tpot_ms": 500.0, "pools": True},
}  # fmt: skip


@pytest.mark.parametrize("fleet", FLEETS)
def test_a_saved_deployment_is_started_and_served_as_the_one_that_was_found(fleet, tmp_path):
    problem = three_types((3, 3, 0), phase="mixed", sequence_length=512, output_tokens=64)
    found = pl.deploy(problem, gap=0.2, **FLEETS[fleet])
    path = pl.save(found, tmp_path / "plan.json")
    loaded, planned = load_plan(path, problem), as_planned(path, problem)[0]
    parts = [[(p.replicas, p.workload) for p in plan.pipelines] for plan in (found, loaded)]
    assert parts[0] == parts[1]
    for answer in (
        lambda of, plan: str(pl.settings(of, plan, "vLLM", hosts="h")),
        lambda of, plan: pl.serve(of, plan, 50, rate=1).sentence,
    ):
        assert answer(problem, found) == answer(planned, loaded)
    assert len(pl.settings(planned, loaded, "vLLM")) == found.count > 1
    for broken in (
        {"pipelines": [{}]},
        {"pipelines": [3]},
        {"pipelines": [{"batch_size": 0, "in_flight": 1}]},
    ):
        path.with_name("odd.json").write_text(json.dumps(json.loads(path.read_text()) | broken))
        with pytest.raises(
            pl.errors.InvalidData, match=r"odd\.json, pipeline 1: expected batch_size"
        ):
            load_plan(path.with_name("odd.json"), problem)
    other = dataclasses.replace(
        problem, workload=dataclasses.replace(problem.workload, sequence_length=513)
    )
    with pytest.raises(pl.errors.InvalidData, match="made with sequence_length = 512"):
        load_plan(path, other)
