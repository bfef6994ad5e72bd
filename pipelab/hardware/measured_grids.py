"""A table of measured times as arrays, interpolated."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipelab.errors import InvalidValue


@dataclass(frozen=True, eq=False)
class Grid:
    """Times of one type of GPU, for every pair of the layers and batches measured."""

    layers: np.ndarray  # ascending
    batch: np.ndarray  # ascending
    seconds: np.ndarray  # (len(layers), len(batch))

    def at(self, layers: np.ndarray, batch: np.ndarray) -> np.ndarray:
        """Seconds by linear interpolation in both directions; infinite beyond what was measured."""
        from scipy.interpolate import interpn

        # One measured value stands for itself alone; interpn wants two, so it is given a neighbour
        # as good as equal.
        axes = [
            x if len(x) > 1 else np.array([x[0], np.nextafter(x[0], np.inf)])
            for x in (self.layers, self.batch)
        ]
        values = (
            np.broadcast_to(self.seconds, [len(x) for x in axes])
            if 1 in self.seconds.shape
            else self.seconds
        )
        points = np.stack(np.broadcast_arrays(layers, batch), axis=-1)
        return interpn(axes, values, points, bounds_error=False, fill_value=np.inf).reshape(
            points.shape[:-1]
        )


def grid_of(name: str, table: Mapping, per_layer: bool) -> Grid:
    """The table as arrays; every pair of measured layers and batches must be there."""
    if not table:
        raise InvalidValue(
            "Measured", [(name, {}, "expected at least one time, such as {(1, 8): 2.5}")]
        )
    layers, batch = (np.unique([key[i] for key in table]).astype(float) for i in (0, 1))
    missing = [(n, b) for n in layers for b in batch if (n, b) not in table]
    problems = []
    if missing:
        n, b = missing[0]
        problems.append(
            (name, "table", f"{n:g} layers with batch {b:g} are missing; expected every pair")
        )
    if per_layer and layers.tolist() != [1.0]:
        problems.append(
            (name, f"layers {layers.tolist()}", "per_layer=True expects times of one layer only")
        )
    if problems:
        raise InvalidValue("Measured", problems)
    seconds = np.array([[table[n, b] / 1000 for b in batch] for n in layers])
    return Grid(layers, batch, seconds)
