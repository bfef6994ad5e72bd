"""GPUs, models and clusters with their sources, from the CSV files in `data/`, and cost models."""

from pipelab.lazy_names import public_names

__all__, __getattr__ = public_names(__name__, __file__)


def __dir__() -> list[str]:
    return __all__
