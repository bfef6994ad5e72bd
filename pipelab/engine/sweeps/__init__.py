"""One problem after the other: points in, one row per point out."""
