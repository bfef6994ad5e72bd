"""Exercises of notebook 05: the joint ILP."""

from functools import cache
from typing import TYPE_CHECKING

from pipelab.course.exercises.exercise import Exercise, Mistake

if TYPE_CHECKING:
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
}
