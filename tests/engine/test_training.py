"""Training: gradients counted in FLOPs, memory as Korthikanti et al. count it."""

import pytest

import pipelab as pl
from pipelab.hardware.training_memory import activation_bytes, weight_share

# What training takes


def _problem(sequence=4096, batch=1, count=2, **facts):
    gpu = pl.GPU("A100-SXM-80", float(pl.hardware.gpus().memory_gb["A100-SXM-80"]), **facts)
    cluster = pl.Cluster([gpu] * count, [[12.5] * count] * count)
    load, costs = pl.Workload(sequence, batch), pl.Roofline(engine="kernels")
    return pl.Problem(cluster, pl.load_model("Llama-3-8B"), load, costs, count)


def _stage(problem, layers, gpus):
    total = problem.model.layers
    other = next(g for g in range(len(problem.cluster)) if g not in gpus)
    stages = [(layers, gpus), (total - layers, (other,))]
    return pl.evaluate(problem, pl.Placement.of(stages)).stages[0]


@pytest.mark.parametrize("sequence", [512, 32768])
def test_gradients_are_forwards_scaled_by_flops(sequence):
    """FLOPs by hand: 2 per parameter and token, 4·H·h·s²/2 in causal attention, 2.5 times that backwards."""
    problem = _problem(sequence=sequence)
    report = _stage(problem, 16, (0,))
    cost = problem.costs.training_cost(problem, report)
    d, f, heads, keys = 4096, 14336, 32 * 128, 8 * 128
    parameters = d * (heads + 2 * keys) + heads * d + 3 * d * f + 2 * d
    matrices, attention = 2 * sequence * parameters, 4 * heads * sequence**2 / 2
    assert cost.backward_input / cost.forward == pytest.approx(
        (matrices + 2.5 * attention) / (matrices + attention), rel=1e-3
    )
    assert cost.backward_weight / cost.forward == pytest.approx(
        matrices / (matrices + attention), rel=1e-3
    )


def test_no_sequence_is_shared_by_two_gpus():
    one, two = _problem(count=3), _problem(batch=2, count=3)
    shared = one.costs.training_cost(one, _stage(one, 16, (0, 1)))
    alone = one.costs.training_cost(one, _stage(one, 16, (0,)))
    assert shared.forward == alone.forward
    both = two.costs.training_cost(two, _stage(two, 16, (0, 1)))
    assert both.forward == alone.forward
    # Replicas add their gradients up: 2·(k − 1)/k of 2 bytes per parameter over 12.5 GB/s.
    parameters = one.model.parameters(range(16))
    assert shared.step - alone.step == pytest.approx(2 * parameters * 2 / 2 / 12.5e9)


def test_weight_gradients_need_no_all_reduce():
    problem = _problem(count=5, node="n", node_gb_per_s=300.0)
    cost = problem.costs.training_cost(problem, _stage(problem, 16, (0, 1, 2, 3)))
    apart = _problem(count=5)
    whole = apart.costs.training_cost(apart, _stage(apart, 16, (0,)))
    # One sequence, four GPUs of a node: they cut its layers.
    assert 4 * cost.backward_weight == pytest.approx(whole.backward_weight, rel=0.02)
    ring = 16 * 2 * 2 * 3 / 4 * 4096 * 4096 * 2 / (300e9 * problem.costs.constants.link_efficiency)
    assert cost.forward - whole.forward / 4 == pytest.approx(ring, rel=0.1)
    assert cost.state_gb == pytest.approx(whole.state_gb / 4)


# Memory

GPT = [  # Korthikanti et al., table 1: name, heads, width, layers; sequences of 2,048, vocabulary of 51,200
    ("22B", 64, 6144, 48),
    ("1T", 160, 25600, 128),
]


@pytest.mark.parametrize(("name", "heads", "width", "layers"), GPT)
def test_activations_are_korthikanti_s_table_2(name, heads, width, layers):
    model = pl.hardware.Transformer(
        name, layers, width, 4 * width, heads, heads, width // heads, 51200
    )
    s, a, h, t, b = 2048, heads, width, 8, 4
    options = {"sequence": s, "gate": False, "dropout": True}

    def kept(**more):
        return activation_bytes(model, s * b, **options, **more) / (s * b * h)

    scores = 5 * a * s / h
    stored = {"fused_attention": False}
    assert kept(**stored) == pytest.approx(34 + scores)
    assert kept(**stored, degree=t) == pytest.approx(10 + 24 / t + scores / t)
    parallel = {"degree": t, "sequence_parallel": True}
    assert kept(**stored, **parallel) == pytest.approx((34 + scores) / t)
    assert kept(**stored, recompute="selective", degree=t) == pytest.approx(10 + 24 / t)
    assert kept(**stored, recompute="selective", **parallel) == pytest.approx(34 / t)
    assert kept(recompute="full") == pytest.approx(2)
    assert weight_share(model, gate=False, dropout=True) == pytest.approx(32 / 34)


HALVES = pl.Placement.of([(16, (0,)), (16, (1,))])


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"recompute": "some"}, "expected one of none, selective, full"),
        ({"recompute": ["full"]}, "expected one for each of 2 stages"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(recipe, words):
    with pytest.raises(pl.PipelabError, match=words):
        pl.timeline_of(_problem(), HALVES, training=True, **recipe)


def test_a_cost_model_without_training_takes_no_recipe():
    tiny = pl.load_case("tiny", link_units="tokens")
    halves = pl.Placement.of([(2, (0,)), (2, (1,))])
    step = pl.timeline_of(tiny, halves, training=True)
    assert (step.stages, step.memory_gb, step.shortfall) == (None, None, "")
    with pytest.raises(pl.errors.InvalidValue, match="recompute = 'full': expected a cost model"):
        pl.timeline_of(tiny, halves, training=True, recompute="full")
