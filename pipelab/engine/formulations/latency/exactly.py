"""Is any placement quicker than this? A feasibility problem in whole numbers, which no tolerance can blur.

Solvers keep a row within a millionth of its right side, and take a bound that is as near for a
proof. So times are counted in whole steps, of which the time in question has 10^11, each rounded
down: what is quick enough stays so. And the sum is kept in two places, as one adds on paper (see
`aggregated.usage`): with c = step·a + b, 0 ≤ b < step, and a whole number z that is carried,

    P mod step - (step - 1) ≤ Σ b n - step·z ≤ P mod step,        Σ a n + z ≤ P div step.

No number in it is above 320,000, so that one step too many is seen.
"""

import numpy as np
import scipy.sparse as sp

from pipelab.engine.solvers.linear_program import Columns, LinearProgram, RowBlock
from pipelab.engine.tolerances import PROVEN_WITHIN

_STEPS, _PLACE = 10**11, 320_000


def at_most(program: LinearProgram, cost: np.ndarray, most: float) -> LinearProgram:
    """The same rows, without an objective, for whole columns that cost at most so much; with a column more.

    Every solution that costs at most `most` is one of this program. What is one of it costs at most
    10^-11 of `most` more for each of its stages and hops.
    """
    steps = np.floor(np.minimum(cost / most, 1.0 + PROVEN_WITHIN) * _STEPS).astype(np.int64)
    high, low = np.divmod(steps, _PLACE)
    most_high, most_low = divmod(_STEPS, _PLACE)
    columns = Columns({**program.columns.sizes, "z": 1})
    blocks = {
        name: RowBlock(sp.csr_array(_widened(block.matrix)), block.lower, block.upper)
        for name, block in program.blocks.items()
    }
    blocks["most_seconds"] = _row(high, 1, -np.inf, most_high)
    blocks["seconds_carry"] = _row(low, -_PLACE, most_low - (_PLACE - 1), most_low)
    return LinearProgram(
        columns, np.zeros(columns.total), np.append(program.upper, np.inf), np.append(program.integer, True),
        np.zeros(columns.total), blocks,
    )  # fmt: skip


def _widened(matrix: sp.csr_array) -> sp.csr_array:
    height, width = matrix.shape
    return sp.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(height, width + 1))


def _row(values: np.ndarray, carried: int, lower: float, upper: float) -> RowBlock:
    row = sp.csr_array(np.append(values, carried)[None].astype(float))
    return RowBlock(row, np.array([lower], dtype=float), np.array([upper], dtype=float))
