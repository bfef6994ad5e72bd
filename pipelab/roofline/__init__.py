"""Stage times from FLOPs and bytes: a cost model that physics would sign."""

from pipelab.roofline.roofline import Roofline

__all__ = ["Roofline"]
