"""Several pipelines on one cluster: which GPUs form a pipeline, and how many such pipelines."""
