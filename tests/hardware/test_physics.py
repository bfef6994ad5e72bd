"""Single facts of serving a model, by arithmetic of their own: no formula of the roofline is used."""

import numpy as np
import pytest

import pipelab as pl

LLAMA = pl.load_model("Llama-3-8B")


def _node(gpu_type, number, link=450.0):
    facts = pl.hardware.load_gpus()[gpu_type]
    gpu = pl.GPU(gpu_type, facts.memory_gb, None, "node", facts.link_gb_per_s)
    matrix = [[link] * number for _ in range(number)]
    return pl.Cluster((gpu,) * number, matrix)


def _problem(cluster, model, load, **options):
    costs = pl.Roofline(**options)
    gpus = len(cluster)
    return pl.Problem(cluster, model, load, costs, max_gpus_per_stage=gpus, same_type_stages=False)


def test_an_all_reduce_of_a_small_message_hardly_grows_with_the_number_of_gpus():
    """One token of Llama-2-70B on 8 × A100: measured 46.9, 26.3 and 16.0 ms with 2, 4 and 8 GPUs."""
    gpu = _node("A100-SXM-80", 1).gpus[0]
    model, load = pl.load_model("Llama-2-70B"), pl.Workload(105, 1, "decode")
    roof = pl.Roofline(engine="TensorRT-LLM")
    seconds = [roof.pass_seconds(model, load, gpu, range(80), t) for t in (2, 4, 8)]
    assert seconds == pytest.approx([1 / 21.32, 1 / 38.01, 1 / 62.5], rel=0.12)
    # Reading falls with the GPUs; what is left, mostly waiting, is nearly the same for 4 and 8.
    read = 2 * model.parameters() / (2039e9 * 0.8)
    assert seconds[1] - read / 4 == pytest.approx(seconds[2] - read / 8, rel=0.25)


@pytest.mark.parametrize(("engine", "tensors"), [("vLLM", 2), ("SGLang", 2), ("TensorRT-LLM", 1)])
def test_hidden_state_and_residual_travel_apart_in_vllm(engine, tensors):
    problem = _problem(_node("H100-SXM", 2), LLAMA, pl.Workload(1000, 4), engine=engine)
    seconds = 4000 / problem.link_throughput(2.0)
    assert seconds == pytest.approx(1e-5 + tensors * 4000 * 4096 * 2 / 2e9)
    # In training, it is one tensor, whatever engine the model is served with.
    plan = pl.Placement.of([(16, (0,)), (16, (1,))])
    hop = pl.timeline_of(problem, plan, training=True).timeline.costs.comm[0]
    assert hop == pytest.approx(1e-5 + 4000 * 4096 * 2 / 450e9)


def test_an_answer_is_timed_at_its_mean_context_or_at_its_last_token_with_memory_for_all_of_it():
    def stage(length, phase="decode", **load):
        load = pl.Workload(length, 16, phase, **load)
        return pl.Roofline().stage(LLAMA, load, [pl.GPU("A100-SXM-40", 40)], range(8), "even")

    answer = {"output_tokens": 500}
    mean, last = (stage(1000, **answer, timed_at=at) for at in ("mean", "last"))
    assert mean.throughput == pytest.approx(stage(1250).throughput, rel=1e-12)
    assert last.throughput == pytest.approx(stage(1500).throughput, rel=1e-12)
    assert mean.memory_gb == last.memory_gb == stage(1500).memory_gb
    assert stage(1000, **answer) == stage(1000)  # without `timed_at`
    plain, mean, last = (
        stage(1000, "mixed", **answer, timed_at=at) for at in (None, "mean", "last")
    )
    assert plain == mean
    assert last.throughput < mean.throughput
    with pytest.raises(pl.errors.InvalidValue, match="timed_at='last'"):
        pl.Workload(1000, 16, "decode", timed_at="last")


def test_any_layers_weigh_what_they_weigh_one_by_one():
    """Layers may be listed; they need not follow one another, as in the exercises of notebook 16."""
    rng = np.random.default_rng(7)
    for name in pl.hardware.models().index:
        model = pl.load_model(name)
        some = np.sort(rng.choice(model.layers, 5, replace=False)).tolist()
        one_by_one = sum(model.weight_gb(range(layer, layer + 1)) for layer in some)
        assert model.weight_gb(some) == pytest.approx(one_by_one)
