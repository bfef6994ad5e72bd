"""Times of stages that were measured for pipelab: what they are like, and how well the roofline predicts them."""

import pipelab as pl
from pipelab.course.n14 import layer_errors
from pipelab.files.bundled_folders import data_dir


def test_kernels_on_h200_which_nothing_was_fitted_to_are_predicted():
    table = pl.hardware.against_measured(path=data_dir() / "stage_times.csv")
    off = table["error"].abs().groupby([table["gpu_type"], table["phase"]]).mean()
    assert len(table) == 88
    assert off["H200-SXM", "decode"] < 0.09
    assert off["H200-SXM", "prefill"] < 0.05
    assert off["H100-SXM"].max() < 0.08


def test_weight_gradients_are_predicted_and_the_rest_is_faster_than_the_engine_of_2022():
    table = layer_errors()
    off = table.pivot_table(
        "error", ["model", "gpu_type", "microbatch", "sequence"], "what", sort=False
    )
    assert len(off) == 8
    assert off["backward_weight_ms"].abs().max() < 0.07
    # Compiled, a layer moves its activations less often than Megatron did.
    step = table[table["what"] != "backward_weight_ms"].groupby(
        ["model", "gpu_type", "microbatch", "sequence"]
    )
    ratio = step["predicted"].sum() / step["measured"].sum()
    assert ratio.min() > 1
    assert ratio.max() < 1.25
