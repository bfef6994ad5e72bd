"""Single facts of serving a model, by arithmetic of their own: no formula of the roofline is used."""

from dataclasses import replace

import pytest

import pipelab as pl
from pipelab.hardware.serving_engines import load_engines

LLAMA = pl.load_model("Llama-3-8B")


def _node(gpu_type, number, link=450.0):
    facts = pl.hardware.load_gpus()[gpu_type]
    gpu = pl.GPU(gpu_type, facts.memory_gb, None, "node", facts.link_gb_per_s)
    matrix = [[link] * number for _ in range(number)]
    return pl.Cluster((gpu,) * number, matrix)


def _problem(cluster, model, load, **options):
    costs = pl.Roofline(**options)
    gpus = len(cluster)
    return pl.Problem(
        cluster,
        model,
        load,
        costs,
        max_gpus_per_stage=gpus,
        same_type_stages=False,
    )


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


@pytest.mark.slow
def test_the_quickest_on_eight_h100_cuts_every_layer_eight_ways():
    load = pl.Workload(2048, 1, "decode")
    problem = _problem(_node("H100-SXM", 8), pl.load_model("Llama-3-70B"), load, prefer="time")
    result = pl.solve(problem, objective="latency")
    assert [stage.degree for stage in result.evaluation.stages] == [8]


def test_memory_is_what_drivers_report():
    """81,559 MiB on an H100: two of them have 12.8 GB for keys and values of Llama-3-70B at 90%."""
    bytes_ = 2 * 81_559 * 2**20
    model = pl.load_model("Llama-3-70B")
    offered = 2 * pl.hardware.load_gpus()["H100-SXM"].memory_gb
    assert offered == pytest.approx(bytes_ / 1e9, rel=1e-5)
    assert 0.9 * offered - 2 * model.parameters() / 1e9 == pytest.approx(12.8, abs=0.1)


def test_half_a_sequence_has_no_cache_of_its_own():
    """128 Ki tokens of Llama-3-8B: 16.1 GB of weights and 17.2 GB of cache are too much for 32 GB."""
    cache = 131_072 * 32 * 2 * 8 * 128 * 2 / 1e9
    weights = 2 * LLAMA.parameters() / 1e9
    cluster, load = _node("V100-SXM-32", 2), pl.Workload(131_072, 1, "decode")
    problem = _problem(cluster, LLAMA, load, tensor_parallel=False)
    with pytest.raises(pl.errors.InvalidPlacement, match="GB"):
        pl.evaluate(problem, pl.Placement.of([(32, (0, 1))]))
    big = replace(problem, cluster=_node("A100-SXM-80", 2))
    (stage,) = pl.evaluate(big, pl.Placement.of([(32, (0, 1))])).stages
    used = stage.memory_gb[0] - 0.1 * stage.memory_limit_gb[0]
    assert used == pytest.approx(weights + cache, abs=0.01)


def test_a_quantised_model_keeps_embedding_and_head_in_16_bits():
    """The layers' matrices of Llama-3-8B have 6.98 of 8.03·10⁹ parameters; groups of 128 share scale and zero."""
    matrices = 32 * (4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    rest = LLAMA.parameters() - matrices
    small = pl.load_model("Llama-3-8B", precision="int4")
    by_hand = matrices * (4 + 20 / 128) / 8 + 2 * rest
    assert small.weight_gb(range(32)) == pytest.approx(by_hand / 1e9, rel=1e-12)
    assert by_hand / 1e9 == pytest.approx(5.73, abs=0.01)


def test_fp8_matrices_compute_at_twice_the_rate_and_attention_does_not():
    """Prompts of 8,192 tokens, where nothing but computing counts: the time that fp8 saves is half of the matrices'."""
    engine = replace(load_engines()["kernels"], layer_overhead_us=0, decode_overlap=1.0)
    gpu, load = pl.GPU("H100-SXM", 80), pl.Workload(8192, 4)
    roof = pl.Roofline(engine="kernels", engines={"kernels": engine})
    model = {p: pl.load_model("Llama-3-8B", precision=p) for p in ("bf16", "fp8")}
    slow, fast = (roof.pass_seconds(model[p], load, gpu, range(1, 2)) for p in ("bf16", "fp8"))
    matrices = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    reached = 989e12 * roof.gpus["H100-SXM"].compute_efficiency
    of_matrices = 4 * 8192 * 2 * matrices / reached
    attention = 4 * 4 * 32 * 128 * 8192**2 / 2 / reached
    assert slow == pytest.approx(of_matrices + attention, rel=1e-3)
    assert fast == pytest.approx(of_matrices * 989 / 1979 + attention, rel=1e-3)


@pytest.mark.parametrize(("engine", "tensors"), [("vLLM", 2), ("SGLang", 2), ("TensorRT-LLM", 1)])
def test_hidden_state_and_residual_travel_apart_in_vllm(engine, tensors):
    problem = _problem(_node("H100-SXM", 2), LLAMA, pl.Workload(1000, 4), engine=engine)
    seconds = 4000 / problem.link_throughput(2.0)
    assert seconds == pytest.approx(1e-5 + tensors * 4000 * 4096 * 2 / 2e9)
    # In training, it is one tensor, whatever engine the model is served with.
    plan = pl.Placement.of([(16, (0,)), (16, (1,))])
    hop = pl.timeline_of(problem, plan, training=True).timeline.costs.comm[0]
    assert hop == pytest.approx(1e-5 + 4000 * 4096 * 2 / 450e9)


def test_a_long_prompt_works_in_chunks_and_every_gpu_has_the_whole_residual():
    """16 × 8,192 tokens: 9.7 GB of activations if they all passed at once, 0.6 GB for 8,192 of them."""
    gpu = pl.GPU("H100-SXM", 85)
    load, plan = pl.Workload(8192, 16), range(32)
    for engine, tokens in (("vLLM", 8192), ("vLLM 0.2", 16 * 8192), ("llama.cpp", 512)):
        problem = _problem(pl.Cluster((gpu,), [[1.0]]), LLAMA, load, engine=engine)
        found = problem.costs.memory_parts(problem, gpu, plan)["activations"]
        assert found == pytest.approx(tokens * 2 * (2 * 4096 + 2 * 14336) / 1e9)
    cut = _problem(_node("H100-SXM", 4), LLAMA, pl.Workload(32_768, 1), prefer="time")
    (stage,) = pl.evaluate(cut, pl.Placement.of([(32, (0, 1, 2, 3))])).stages
    assert stage.degree == 4
    kept = 2 * LLAMA.parameters() / 4 + 32_768 * 32 * 2 * 8 * 128 * 2 / 4
    activations = 8192 * 2 * (2 * 4096 + 2 * 14336 / 4)
    used = stage.memory_gb[0] - 0.1 * stage.memory_limit_gb[0]
    assert used == pytest.approx((kept + activations) / 1e9, rel=1e-6)


def test_an_answer_is_timed_at_its_mean_context_or_at_its_last_token_with_memory_for_all_of_it():
    model, gpu = pl.load_model("Llama-3-8B"), [pl.GPU("A100-SXM-40", 40)]

    def stage(length, **load):
        load = pl.Workload(length, 16, "decode", **load)
        return pl.Roofline().stage(model, load, gpu, range(8), "even")

    mean, last = (stage(1000, output_tokens=500, timed_at=at) for at in ("mean", "last"))
    assert mean.throughput == pytest.approx(stage(1250).throughput, rel=1e-12)
    assert last.throughput == pytest.approx(stage(1500).throughput, rel=1e-12)
    assert mean.memory_gb == last.memory_gb == stage(1500).memory_gb
    assert stage(1000, output_tokens=500) == stage(1000)  # as before, without `timed_at`
    mixed = [
        pl.Roofline().stage(
            model, pl.Workload(1000, 16, "mixed", 500, timed_at=at), gpu, range(8), "even"
        )
        for at in (None, "mean", "last")
    ]
    assert mixed[0] == mixed[1]
    assert mixed[2].throughput < mixed[1].throughput
    with pytest.raises(pl.errors.InvalidValue, match="timed_at='last'"):
        pl.Workload(1000, 16, "decode", timed_at="last")
