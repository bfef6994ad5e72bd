"""What is given checks itself once, and says what is wrong."""

import dataclasses

import numpy as np
import pytest

import pipelab as pl
from pipelab.placement import Stage
from pipelab.writeup.linear_rates import with_link_units


def test_from_counts_builds_links_by_type():
    links = {("A100", "A100"): 400, ("A100", "V100"): 200, ("V100", "V100"): 300}
    memory, tiny = {"A100": 80, "V100": 32}, pl.load_case("tiny").cluster
    cluster = pl.Cluster.from_counts({"A100": 2, "V100": 2, "T4": 0}, memory, links)
    assert np.array_equal(cluster.bandwidth_matrix(), tiny.bandwidth_matrix())
    assert cluster.gpus == tiny.gpus  # a type without GPUs is left out
    assert cluster.bandwidth_gb_per_s.shape == (2, 2)  # one row per type, not per GPU
    cluster = pl.Cluster.from_counts({"A": 1, "B": 1}, 16, {("A", "B"): 10, ("B", "A"): 30})
    assert (cluster.bandwidth_between(0, 1), cluster.bandwidth_between(1, 0)) == (10, 30)


def test_latencies_go_with_their_links():
    kinds = pl.Cluster.from_counts(
        {"A": 2, "B": 1}, 16, 10, latency_ms={("A", "A"): 0.1, ("A", "B"): 5, ("B", "A"): 7}
    )
    assert kinds.latency_matrix().tolist() == [[0.1, 0.1, 5], [0.1, 0.1, 5], [7, 7, 0]]
    assert (kinds.latency_between(0, 2), kinds.latency_between(2, 1)) == (5, 7)
    more = kinds.with_counts({"A": 1, "B": 2}).scaled_bandwidth(2)
    assert (more.latency_between(0, 2), more.bandwidth_between(0, 2)) == (5, 20)
    plain = pl.Cluster.from_counts({"A": 2}, 16, 10)
    zero, late = (pl.Cluster.from_counts({"A": 2}, 16, 10, latency_ms=ms) for ms in (0, 3))
    assert late.latency_between(0, 1) == 3
    assert plain == zero != late
    assert hash(plain) == hash(zero)


def test_gpus_that_are_added_have_the_links_of_each_of_their_type_in_turn():
    links = np.array([[5.0, 2.0], [2.0, 7.0]])
    two_nodes = pl.Cluster((pl.GPU("T4", 16),) * 4, links, [0, 0, 1, 1])
    six = two_nodes.with_counts({"T4": 6})
    assert [six.bandwidth_between(0, g) for g in range(1, 6)] == [5, 2, 2, 5, 5]


def test_a_case_cannot_hold_latencies_or_training(tiny, tmp_path):
    late = dataclasses.replace(tiny, cluster=dataclasses.replace(tiny.cluster, latency_ms=2))
    with pytest.raises(pl.errors.NotApplicable, match=r"latency_ms = 2\.0: expected none"):
        pl.writeup.save_case(late, tmp_path / "late")
    step = dataclasses.replace(tiny.workload, phase="training", microbatches=4)
    with pytest.raises(pl.errors.NotApplicable, match=r"workload\.phase = 'training'"):
        pl.writeup.save_case(dataclasses.replace(tiny, workload=step), tmp_path / "step")


def test_problems_with_the_same_content_are_equal(tiny):
    assert pl.load_case("tiny", max_gpus_per_stage=2) == tiny
    assert dataclasses.replace(tiny, cluster=tiny.cluster.scaled_bandwidth(2)) != tiny
    assert dataclasses.replace(tiny, max_gpus_per_stage=3).cluster == tiny.cluster


A, PAIR, ONES = pl.GPU("A", 1), (pl.GPU("A", 1),) * 2, np.ones((2, 2))
cluster_of, placement_of = pl.Cluster.from_counts, pl.Placement.of


def changed(**fields):
    return dataclasses.replace(pl.load_case("tiny"), **fields)


def in_nodes(**options):
    return cluster_of({"A": 8}, 80, 50, **{"per_node": 2, "node_gb_per_s": 450, **options})


def rates(*numbers):
    of_type = pl.writeup.Coefficients(*numbers)
    return pl.writeup.LinearThroughput({"A100": of_type, "V100": of_type})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pl.GPU("A100", 0), "GPU: memory_gb = 0: expected more than 0"),
        (lambda: pl.GPU("A100", "much"), "memory_gb = 'much': expected a number"),
        (lambda: pl.GPU("A100", float("nan")), "expected a finite number"),
        (lambda: pl.GPU(" ", 80), "expected text that is not empty"),
        (lambda: pl.Cluster((), np.zeros((0, 0))), "expected at least one GPU"),
        (lambda: pl.Cluster((A,), np.ones((1, 2))), "expected a square matrix"),
        (lambda: pl.Cluster(PAIR, np.ones((1, 1))), "a row for each of the 2 GPUs"),
        (lambda: pl.Cluster((A,), [["fast"]]), "expected an array of numbers"),
        (lambda: pl.Cluster(PAIR, [[0, 0], [5, 0]]), r"gb_per_s\[0, 1\] = 0.0: expected a finite"),
        (lambda: pl.Cluster(PAIR, ONES, None, [[0, 1], [-1, 0]]), r"ms\[1, 0\] = -1.0: .* from 0"),
        (lambda: pl.Cluster(PAIR, ONES, None, [1, 2]), "expected one number, or an array of shape"),
        (lambda: cluster_of({"A": 1}, 80, 1, latency_ms={("A", "B"): 2}), "'B': names no type"),
        (lambda: cluster_of({"A": -2}, 80, 1), "A = -2: expected at least 0"),
        (lambda: cluster_of({"A": 2**70}, 80, 1), "A = 11805.*: expected at most 1,000,000"),
        (lambda: cluster_of([("A", 2)], 80, 1), "expected a mapping, such as"),
        (lambda: cluster_of({"A": 1}, {}, {}), "nothing is given for 'A'"),
        (lambda: cluster_of({"A": 1, "B": 1}, 80, {}), r"nothing is given for \('A', 'B'\)"),
        (lambda: cluster_of({"A": 2}, 80, []), "expected one number, or a mapping of numbers"),
        (lambda: cluster_of({"A": 2}, 80, {("A", "A"): [1, 2]}), r"\[1, 2\]: expected one number"),
        (
            lambda: cluster_of({"A": 5}, 80, 50, per_node=2),
            "node_gb_per_s = None: expected the band",
        ),
        (lambda: cluster_of({"A": 5}, 80, 50, node_gb_per_s=450), "expected none without per_node"),
        (lambda: in_nodes(node_gb_per_s={"B": 3}), "nothing is given for 'A'"),
        (lambda: in_nodes(per_machine=6, per_node=4), "= 6: expected a multiple of per_node = 4"),
        (lambda: cluster_of({"A": 2}, 80, {3: 1.0}), "bandwidth_gb_per_s = 3: names no type"),
        (lambda: changed().cluster.scaled_bandwidth("2"), "factor = '2'"),
        (lambda: placement_of([(2.5, (0,))]), r"part = \(2.5, \(0,\)\): expected"),
        (lambda: placement_of([(4, 0)]), r"expected \(number of layers, GPU ids\)"),
        (lambda: Stage(range(2**70), (0,)), "Stage: layers = .* expected consecutive layers"),
        (lambda: Stage(range(0, 8, 2), (0,)), "expected consecutive layers"),
        (lambda: pl.Model("m", True, 8, 8, 1), "layers = True: expected a whole number"),
        (lambda: pl.Workload(sequence_lenght=1, batch_size=1), "lenght = 1: is not a field"),
        (lambda: pl.Workload(2048, 8, "mixed"), "output_tokens = None: expected how many tokens"),
        (lambda: pl.writeup.LinearThroughput({}, efficiency=1.2), "= 1.2: expected at most 1"),
        (lambda: changed(batch_split="balancd"), "'balancd': expected 'even' or 'balanced'"),
        (lambda: changed(max_gpus_per_stage=0), "max_gpus_per_stage = 0: expected at least 1"),
        (lambda: changed(cluster=cluster_of({"A1000": 1}, 80, {})), "'A1000'.*did you mean 'A100'"),
        (lambda: with_link_units(changed(), "bytes"), "link_units = 'bytes'"),
        (lambda: changed(costs=rates(0, 0, 0, 1e20)), "expected rates below 1e15"),
        (
            lambda: changed(costs=rates(-1, 5, 2, 100), batch_split="balanced"),
            r"batch_split = 'balanced': .*for A100 the first is -1946",
        ),
    ],
)
def test_bad_value_names_field_value_and_expectation(make, message):
    with pytest.raises(pl.errors.InvalidValue, match=message):
        make()


def test_tables_have_units_in_their_columns(tiny):
    assert list(tiny.cluster.to_frame().columns) == ["type", "count", "memory_gb", "gpu_ids"]
    assert "2 × A100 (80 GB), 2 × V100 (32 GB)" in tiny._repr_html_()


def test_links_carry_tokens_unless_the_write_ups_files_say_otherwise(tiny, tmp_path):
    fields = (tiny.cluster, tiny.model, tiny.workload, pl.writeup.load_coefficients())
    assert pl.Problem(*fields).costs.link_units == "tokens"
    for case in pl.writeup.cases():
        assert pl.load_case(case).costs.link_units == "transfers"
        assert not pl.load_case(case).same_type_stages
    own = pl.load_case(pl.writeup.save_case(tiny, tmp_path / "own"))
    assert own.costs.link_units == "transfers"  # what was saved
    config = tmp_path / "own" / "config.csv"
    lines = config.read_text().splitlines(True)
    config.write_text("".join(line for line in lines if "link_units" not in line))
    assert pl.load_case(tmp_path / "own").costs.link_units == "tokens"


def test_stages_have_as_many_gpus_as_the_largest_node_and_of_one_type():
    """What nobody said: of GPUs in nodes, and of GPUs in none."""
    nodes = [pl.GPU("L4", 24, None, name, 30.0) for name in ("a", "b", "b", "b", "c", "c")]
    for cluster, most in (
        (pl.Cluster(tuple(nodes), np.ones((6, 6))), 3),
        (pl.Cluster.from_counts({"L4": 4}, 24, 10.0), 1),
    ):
        load, model = pl.Workload(2048, 8, "decode"), pl.load_model("Llama-3-8B")
        found = pl.Problem(cluster, model, load, pl.Roofline())
        assert (found.max_gpus_per_stage, found.same_type_stages) == (most, True)


def test_a_result_says_when_links_count_transfers(tiny):
    said = [pl.solve(one).sentence for one in (tiny, with_link_units(tiny, "tokens"))]
    assert ["transfers/s" in sentence for sentence in said] == [True, False]
