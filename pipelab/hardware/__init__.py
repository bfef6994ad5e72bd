"""GPUs, models and clusters with their sources, from the CSV files in `data/`, and cost models."""
