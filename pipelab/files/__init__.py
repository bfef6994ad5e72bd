"""Files of any kind: where they lie, CSV cells, and writing a file whole."""
