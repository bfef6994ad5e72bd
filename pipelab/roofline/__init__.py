"""Stage times from FLOPs and bytes: a cost model that physics would sign."""

from pipelab.roofline.against_measured import against_measured
from pipelab.roofline.roofline import Roofline

__all__ = ["Roofline", "against_measured"]
