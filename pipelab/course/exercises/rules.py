"""Exercises of notebooks 02 and 04: counting, and the heuristic."""

from math import comb, perm

from pipelab.course.exercises.exercise import Exercise, Mistake
from pipelab.course.exercises.rule_targets import (
    SLOW_GB_PER_S,
    placements,
    predicted_rate,
    sets_in_no_order,
    slow_enough,
    unlike,
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
    "04.1": Exercise(
        predicted_rate,
        "tokens/s",
        "solve it with method='type_count' and look for what it promises",
        (
            Mistake(
                lambda: predicted_rate(factor=False),
                "that is without the factor (2 - 1/k); it is asked as written",
            ),
            Mistake(
                lambda: predicted_rate(max_gpus_per_stage=2),
                "that is with two GPUs per stage; allow four",
            ),
        ),
        none="the heuristic names no GPU, so its result has no placement and no throughput; what it promises is in "
        "the result's details",
    ),
    "04.2": Exercise(
        lambda: slow_enough(unlike()[2]),
        "GB/s",
        "find the speed at which the link between L20 and A100 carries just the rate of the placement without the A100",
        (
            Mistake(
                lambda: slow_enough(unlike()[2], "transfers"),
                "that counts transfers/s; one transfer carries batch × sequence tokens",
            ),
            Mistake(
                lambda: slow_enough(unlike()[0]),
                "there the choice still yields all that it promised; it may fall to the placement without the A100",
            ),
            Mistake(
                lambda: SLOW_GB_PER_S / slow_enough(unlike()[2]),
                "that is how many times slower, not GB/s",
            ),
            Mistake(
                lambda: SLOW_GB_PER_S * unlike()[1] / unlike()[2],
                "upside down: the links must get slower",
            ),
        ),
        rel=1e-3,
    ),
}
