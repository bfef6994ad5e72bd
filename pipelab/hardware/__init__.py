"""Facts with their sources: GPUs, models and clusters, from the CSV files in `data/`."""

from pipelab.hardware.known_clusters import clusters, load_cluster
from pipelab.hardware.known_gpus import GPUFacts, gpus, load_gpus
from pipelab.hardware.known_models import load_model, models
from pipelab.hardware.transformer import LatentAttention, Transformer

__all__ = [
    "GPUFacts",
    "LatentAttention",
    "Transformer",
    "clusters",
    "gpus",
    "load_cluster",
    "load_gpus",
    "load_model",
    "models",
]
