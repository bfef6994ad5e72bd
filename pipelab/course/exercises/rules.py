"""Exercises of notebook 03: one GPU per stage."""

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.rule_targets import (
    fast_layers,
    loaded_case,
    medium_links,
)

RULES = {
    "03.1": Exercise(
        fast_layers,
        "layers",
        "only A100 are that fast; add up the most layers of each",
        (
            Mistake(
                lambda: fast_layers(strictly=False),
                "that includes the rate of the bound itself; strictly above",
            ),
            Mistake(lambda: fast_layers() / 5, "that is what one A100 holds; there are five"),
        ),
    ),
    "03.2": Exercise(
        lambda: medium_links()[1] / medium_links()[0],
        "",
        "the slowest link may just fall to the bound; count it in tokens/s first",
        (
            Mistake(
                lambda: medium_links()[0] / medium_links()[1],
                "upside down: a number above 1 is asked for",
            ),
            Mistake(
                lambda: medium_links("transfers")[1] / medium_links()[0],
                "that compares transfers/s with tokens/s, as the write-up does; one transfer carries many tokens",
            ),
            Mistake(
                lambda: (
                    medium_links("transfers")[1]
                    / medium_links()[0]
                    * loaded_case("medium").workload.batch_size
                ),
                "a transfer carries every token of its sequences, not one of each",
            ),
            Mistake(
                lambda: medium_links()[2] / medium_links()[0],
                "that is the fastest link; the slowest is the first to fall below the bound",
            ),
        ),
        rel=1e-3,
    ),
}
