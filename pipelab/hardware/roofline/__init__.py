"""Stage times from FLOPs and bytes: a cost model that physics would sign."""

from pipelab.hardware.roofline.cost_model import Roofline
from pipelab.hardware.roofline.measurements import against_measured

__all__ = ["Roofline", "against_measured"]
