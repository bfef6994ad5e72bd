"""The write-up's cost model and its case files."""

from pipelab.lazy_names import public_names

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
