"""Exercises of notebook 06: counting instead of naming."""

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, cast

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.fields import given
from pipelab.problem import Model

if TYPE_CHECKING:
    from pipelab.engine.methods.proof import Certificate


@cache
def _proof(case: str = "medium_small", layer_weight_gb: float | None = 6) -> "Certificate":
    from pipelab.engine.methods.certificates import certificate
    from pipelab.io.cases_csv import load_case
    from pipelab.solving import solve

    problem = load_case(case)
    weight = layer_weight_gb or problem.model.layer_weight_gb
    heavy = replace(problem, model=replace(cast(Model, problem.model), layer_weight_gb=weight))
    return certificate(solve(heavy, "aggregated"))


@cache
def _gpus_of_a_demo(layer_weight_gb: float | None) -> float:
    """GPUs of the fastest placement with the fewest, for heavy layers or those that are bundled."""
    from pipelab.io.cases_csv import load_case
    from pipelab.solving import solve

    demo = load_case("demo", max_gpus_per_stage=3)
    heavy = replace(
        cast(Model, demo.model), layer_weight_gb=layer_weight_gb or demo.model.layer_weight_gb
    )
    return len(given(solve(replace(demo, model=heavy), "aggregated").placement).gpus)


PROGRAMS = {
    "06.1": Exercise(
        lambda: given(_proof().left_over),
        "layers",
        "20 minus the layers that all GPUs together hold at that rate",
        (
            Mistake(
                lambda: float(_proof().total_price),
                "that is what all GPUs hold; how many layers are left over?",
            ),
            Mistake(
                lambda: float(_proof().total_price) / 2,
                "that is what one A100 holds; there are two",
            ),
            Mistake(
                lambda: given(_proof("medium", None).left_over),
                "that is medium, of above; take medium_small",
            ),
        ),
    ),
    "06.2": Exercise(
        lambda: _gpus_of_a_demo(8),
        "GPUs",
        "ties are settled by the fewest GPUs: look at the answer's own",
        (
            Mistake(
                lambda: _gpus_of_a_demo(None),
                "that is the answer for the bundled layers; make them 8 GB heavy",
            ),
        ),
    ),
}
