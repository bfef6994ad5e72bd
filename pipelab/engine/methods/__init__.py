"""One file per method: from a problem to a result."""
