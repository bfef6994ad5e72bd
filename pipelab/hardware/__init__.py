"""GPUs, models and clusters with their sources, from the CSV files in `data/`, and cost models."""

from pipelab.lazy_names import public_names

__all__, __getattr__, __dir__ = public_names(__name__, __file__)
