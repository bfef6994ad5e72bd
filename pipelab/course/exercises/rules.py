"""Exercises of notebooks 02 and 03: counting, one GPU per stage."""

from math import comb, perm

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.rule_targets import (
    fast_layers,
    loaded_case,
    medium_links,
    placements,
    sets_in_no_order,
)

RULES = {
    "02.1": Exercise(
        lambda: placements("medium_small"),
        "placements",
        "boundaries C(19, s-1) times ordered choices of s of 8 GPUs",
        (
            Mistake(
                lambda: sum(comb(19, s - 1) * comb(8, s) for s in range(1, 9)),
                "the order of the GPUs counts: ordered choices, not sets",
            ),
            Mistake(
                lambda: sum(comb(20, s - 1) * perm(8, s) for s in range(1, 9)),
                "twenty layers have nineteen boundaries",
            ),
            Mistake(
                lambda: sum(comb(19, s - 1) for s in range(1, 9)),
                "those are the ways to cut; each has its ways to choose GPUs",
            ),
            Mistake(
                lambda: placements("medium_small", max_gpus_per_stage=2),
                "that is with two GPUs per stage",
            ),
        ),
    ),
    "02.2": Exercise(
        lambda: placements("tiny", max_gpus_per_stage=2, same_type_stages=True),
        "placements",
        "six sets can be a stage: four single GPUs and two pairs. For s stages count families of s disjoint ones",
        (
            Mistake(
                lambda: placements("tiny", max_gpus_per_stage=2), "that counts mixed pairs too"
            ),
            Mistake(
                lambda: placements("tiny"),
                "that is with one GPU per stage; pairs of one type are allowed",
            ),
            Mistake(
                sets_in_no_order, "the order of the stages counts: s! for each family of s sets"
            ),
        ),
    ),
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
