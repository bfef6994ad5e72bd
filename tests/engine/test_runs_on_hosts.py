"""Plans on random hosts of listings: a machine is what has an address, an island of NVLink what cuts layers."""

import dataclasses
import re

import made_hosts
import numpy as np
import pytest
from small_problems import divided, mask_of
from test_runs_on import accepted

import pipelab as pl
from pipelab.hardware.engine_rules import known_rules

ENGINES = list(known_rules())
SMALL = pl.hardware.Transformer("small", 4, 1024, 4096, 8, 8, 128, 32_000)


def hosts_of(rng, folder, number, most, **given):
    """Random hosts, NVIDIA's or AMD's all of them, and the cluster of their listings."""
    types = ("MI300X",) if rng.random() < 0.3 else ("A40", "RTX3090", "V100-SXM-32")
    hosts = [made_hosts.random_host(rng, f"h{i}", types, most=most, **given) for i in range(number)]
    by_uuid = [made_hosts.write(host, folder, rng)[0] for host in hosts]
    return hosts, by_uuid, pl.load_cluster(folder, network_gbit_per_s=10)


@pytest.mark.daily(2)
@pytest.mark.parametrize("seed", range(40))
def test_a_script_addresses_machines_and_calls_gpus_as_their_drivers_do(seed, tmp_path):
    for part in range(8):
        folder = tmp_path / str(part)
        folder.mkdir()
        look_at_scripts(np.random.default_rng([seed, part]), folder)


def look_at_scripts(rng, folder):
    hosts, by_uuid, cluster = hosts_of(rng, folder, int(rng.integers(1, 4)), 5)
    places = [
        (host, i, uuid)
        for host, uuid in zip(hosts, by_uuid, strict=True)
        for i in range(len(host.types))
    ]
    load = pl.Workload(100, 1, "decode")
    problem = pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, pl.Roofline())
    used = rng.permutation(len(places))[: rng.integers(1, min(len(places), 15) + 1)].tolist()
    inner = rng.choice(np.arange(1, 32), len(used) - 1, replace=False).tolist()
    cuts = np.diff([0, *sorted(inner), 32]).tolist()
    plan = pl.Placement.of([(n, (g,)) for n, g in zip(cuts, used, strict=True)])
    wanted = {}
    for host, i, uuid in (places[g] for g in used):
        wanted.setdefault(host.name, []).append(host.uuids[i] if uuid else host.numbers[i])
    for engine in ENGINES:
        rules = known_rules()[engine]
        try:
            found = pl.settings(problem, plan, engine)
        except pl.errors.InvalidPlacement:  # memory in use is not free
            return
        except pl.errors.NotApplicable as error:
            why = str(error)
            assert len(wanted) > 1 or "hosts =" not in why
            assert any(by_uuid) or "cluster.index" not in why
            assert re.search("hosts =|cluster.index|GPU type", why), why
            continue
        assert {host.name: list(host.gpus) for host in found.hosts} == wanted
        assert len(found.hosts) == len(wanted) == 1 or not rules.one_host
        assert not (rules.numbered and any(by_uuid))
        if len(wanted) == 1 and engine != "llama.cpp":
            kind, script = "HIP" if hosts[0].amd else "CUDA", found.script
            if "shares=(" in script:  # a start for each, as some have less memory
                numbers = " ".join(f'"{gpu}"' for gpu in found.hosts[0].gpus)
                assert f"gpus_of=({numbers})\n" in script
                assert f'{kind}_VISIBLE_DEVICES="${{gpus_of[$rank]}}"' in script
            else:
                numbers = ",".join(map(str, *wanted.values()))
                assert f"start 0 {kind}_VISIBLE_DEVICES={numbers} " in script
            assert hosts[0].amd or "CUDA_DEVICE_ORDER=PCI_BUS_ID" in script


def small_problem(rng, folder):
    """Up to four GPUs on one or two machines that hold a random part of a small model each."""
    shape = str(rng.choice(["pairs", "chain", "random", "none", "switch"]))
    _, _, cluster = hosts_of(
        rng, folder, int(rng.integers(1, 3)), 2 + int(rng.integers(0, 2)), shape=shape
    )
    cluster = cluster.only(range(min(len(cluster), 4)))
    cluster = dataclasses.replace(cluster, index=())
    room = float(SMALL.weight_gb(range(4)) * rng.choice([0.45, 0.7, 1.5]))
    gpus = tuple(dataclasses.replace(gpu, memory_gb=room) for gpu in cluster.gpus)
    load = pl.Workload(
        int(rng.choice([128, 2048])),
        int(rng.choice([1, 8])),
        str(rng.choice(["prefill", "decode"])),
    )
    cluster = dataclasses.replace(cluster, gpus=gpus)
    costs = pl.Roofline(memory_share=1.0)
    return pl.Problem(cluster, SMALL, load, costs, max_gpus_per_stage=int(rng.integers(1, 4)))


@pytest.mark.daily(2)
@pytest.mark.parametrize("seed", [1, 3, 0, 2, *range(4, 150)])
def test_engines_of_one_machine_have_its_best_plan(seed, tmp_path):
    """`solve` and `deploy` equal the best of all plans that `settings` accepts."""
    rng = np.random.default_rng([7, seed])
    problem = small_problem(rng, tmp_path)
    machines = len(set(problem.cluster.machine_of.tolist()))
    for engine in ("TensorRT-LLM", "transformers"):
        plans = accepted(problem, [engine])[engine]
        each = [0.0] * (1 << len(problem.cluster))
        for placement, evaluation in plans:
            assert len({problem.cluster.gpus[g].machine for g in placement.gpus}) == 1
            mask = mask_of(placement.gpus)
            each[mask] = max(each[mask], evaluation.attainable)
        for search, best in ((pl.solve, max(each)), (pl.deploy, divided(list(each))[-1])):
            try:
                result = search(problem, runs_on=engine)
            except pl.errors.NotApplicable:
                assert not plans
                continue
            assert result.status == ("optimal" if best else "infeasible"), (machines, result)
            if best:
                assert result.throughput == pytest.approx(best, rel=3e-6)
