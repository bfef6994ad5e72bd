"""One problem after the other: points in, one row per point out.

`points` lists what is solved, `task` turns a point into a row, `workers` has joblib do it on
all cores, `rows_file` keeps the rows on disk, `sweep` is the door to all of them.
"""

from pipelab.engine.sweeps.points import grid, mixes
from pipelab.engine.sweeps.run import Sweep, sweep

__all__ = ["Sweep", "grid", "mixes", "sweep"]
