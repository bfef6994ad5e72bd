"""What several test files share."""

import dataclasses

import pytest

import pipelab as pl


@pytest.fixture
def tiny():
    """The write-up's tiny case with two GPUs per stage."""
    return pl.load_case("tiny", max_gpus_per_stage=2)


@pytest.fixture
def two_stages(tiny):
    """tiny with layers so heavy that an A100 holds two: a placement needs two stages."""
    return dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, layer_weight_gb=25))
