"""How close two numbers count as the same: the engine's tolerances, finest first, each with its reason.

They are shares of the larger number, unless it says otherwise. What fits in memory is checked with
`pipelab.problem.MEMORY_SLACK`, which the evaluator shares.
"""

# A placement's own rate and the same rate in the tables, computed by another path.
OTHER_PATH = 1e-13
# Rates that differ by the last bits of the arithmetic are one rate. Ten times `OTHER_PATH`, so that
# a rate computed by another path falls among those that are the same as it.
LAST_BITS = 1e-12
# A rate that misses the floor by the last bits of the arithmetic reaches it.
REACHED = 1e-10
# A solver's bound that comes this close to the value is a proof: the rest is its arithmetic.
PROVEN_WITHIN = 1e-9
# Answers this close are one answer: none is called better, and none is given out twice.
ONE_ANSWER = 1e-9
# SCIP and HiGHS keep rows and compare objectives within about this: no word of theirs is finer, and
# a value this close to a whole number is that number.
SOLVER = 1e-6
# Attainable rates come from sums of times, which a solver keeps within `SOLVER`: this close is one rate.
ATTAINED = 2e-6
# What is further off than this was not solved, whatever the solver says; ten times `SOLVER`.
NOT_SOLVED = 1e-5
