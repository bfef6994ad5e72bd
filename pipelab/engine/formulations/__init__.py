"""One file per formulation, and what they share."""
