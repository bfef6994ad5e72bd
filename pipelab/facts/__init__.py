"""Facts with their sources: GPUs, models and clusters, from the CSV files in `data/`."""

from pipelab.facts.clusters import clusters, load_cluster
from pipelab.facts.gpus import GPUFacts, gpus, load_gpus
from pipelab.facts.models import load_model, models
from pipelab.facts.transformer import LatentAttention, Transformer

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
