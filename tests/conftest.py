"""What several test files share."""

import dataclasses

import pytest

import pipelab as pl


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """Browser tests come first and in one process: they take longest, and two browsers would share the cores."""
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.xdist_group("browser"))
    items.sort(key=lambda item: item.get_closest_marker("browser") is None)


@pytest.fixture
def tiny():
    """The write-up's tiny case with two GPUs per stage."""
    return pl.load_case("tiny", max_gpus_per_stage=2)


@pytest.fixture
def two_stages(tiny):
    """tiny with layers so heavy that an A100 holds two: a placement needs two stages."""
    return dataclasses.replace(tiny, model=dataclasses.replace(tiny.model, layer_weight_gb=25))
