"""A deployment as settings of engines, one set for each pipeline, and its files."""

import dataclasses
import re
from functools import cache
from itertools import combinations

import pytest
from small_problems import three_types

import pipelab as pl
from pipelab.hardware.engine_rules import known_rules


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
        pl.errors.InvalidData, match=r"and this is a deployment; pl.settings\(problem, pl.deploy"
    ):
        pl.load_placement(path)
