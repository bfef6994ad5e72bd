"""Exercises of notebooks 05 and 06: the joint ILP, and counting instead of naming."""

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, cast

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.fields import given
from pipelab.problem import Model

if TYPE_CHECKING:
    from pipelab.engine.methods.proof import Certificate
    from pipelab.problem import Problem


def _tiny() -> "Problem":
    from pipelab.io.cases_csv import load_case

    return load_case("tiny", max_gpus_per_stage=2)


@cache
def _fastest() -> tuple[float, float, float]:
    """Of tiny: M_link as written, the fastest link and the fastest allocation."""
    from pipelab.engine.formulations.candidates import enumerate_candidates
    from pipelab.engine.formulations.joint import MARGIN

    candidates = enumerate_candidates(_tiny())
    fastest_link = candidates.link_throughput.max()
    return MARGIN * fastest_link, fastest_link, candidates.throughput.max()


def _heaviest(share_of_activations: float) -> float:
    tiny = _tiny()
    activations = tiny.costs.activation_gb(tiny.model, tiny.workload)
    return (tiny.cluster.gpus[0].memory_gb - activations * share_of_activations) / tiny.model.layers


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
    "05.1": Exercise(
        lambda: _fastest()[0] / _fastest()[2],
        "",
        "a number above 1; compare 1.1 · max ν with the optimum",
        (
            Mistake(
                lambda: _fastest()[1] / _fastest()[2],
                "that is max ν by max θ; M has a margin of 1.1",
            ),
            Mistake(
                lambda: _fastest()[2] / _fastest()[0],
                "upside down: slowing the links down divides max ν",
            ),
        ),
        rel=1e-3,
    ),
    "05.2": Exercise(
        lambda: _heaviest(1 / 2),
        "GB",
        "each A100 holds 4 layers and half of the activations in 80 GB",
        (
            Mistake(
                lambda: _heaviest(1),
                "two GPUs share the batch, so each holds half of the activations",
            ),
            Mistake(
                lambda: _heaviest(0), "that forgets the activations, of which each GPU holds half"
            ),
            Mistake(lambda: 4 * _heaviest(1 / 2), "that is the weight of all four layers"),
            Mistake(
                lambda: 2 * _heaviest(1 / 2),
                "both A100 hold every layer: they share the batch, not the weights",
            ),
        ),
        rel=1e-3,
    ),
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
