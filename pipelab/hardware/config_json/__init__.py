"""Hugging Face's `config.json`: its fields, the families of models that it describes, and precisions."""
