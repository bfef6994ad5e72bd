"""Times of stages that were measured for pipelab: what they are like, and how well the roofline predicts them."""

import pandas as pd
import pytest

import pipelab as pl
from pipelab.files.bundled_folders import data_dir
from pipelab.hardware.known_models import load_model
from pipelab.hardware.pass_times import Demand, Span
from pipelab.hardware.roofline import gradients
from pipelab.hardware.training_memory import activation_bytes


def test_kernels_on_h200_which_nothing_was_fitted_to_are_predicted():
    table = pl.hardware.against_measured(path=data_dir() / "stage_times.csv")
    off = table["error"].abs().groupby([table["gpu_type"], table["phase"]]).mean()
    assert len(table) == 88
    assert off["H200-SXM", "decode"] < 0.09
    assert off["H200-SXM", "prefill"] < 0.05
    assert off["H100-SXM"].max() < 0.08


def test_measured_time_is_proportional_to_layers():
    table = pd.read_csv(data_dir() / "stage_times.csv")
    some = table[
        table.eval("model == 'Llama-3-8B' and batch == 32 and tokens == 1024 and layers > 1")
    ]
    for _, rows in some.groupby("gpu_type"):
        each = rows["measured"] / rows["layers"]
        assert each.max() / each.min() < 1.02


def test_weight_gradients_are_predicted_and_the_rest_is_faster_than_the_engine_of_2022():
    costs = pl.Roofline().for_training()
    for row in pd.read_csv(data_dir() / "layer_step_times.csv").itertuples():
        model = load_model(row.model)
        work = pl.Workload(row.sequence, row.microbatch, "training")
        stored = activation_bytes(
            model, row.microbatch * row.sequence, sequence=row.sequence, degree=1
        )
        gpu = pl.GPU(row.gpu_type, costs.gpus[row.gpu_type].memory_gb)
        layer = Span.of(model, range(1, 2))
        times = gradients(costs, Demand(model, work), gpu, layer, row.microbatch, 1, stored)
        forward, back, weight = (1000 * float(seconds) for seconds in times)
        assert weight == pytest.approx(row.backward_weight_ms, rel=0.07)
        # Compiled, a layer moves its activations less often than Megatron did.
        step = row.forward_ms + row.backward_input_ms
        assert 1 < (forward + back) / step < 1.25
