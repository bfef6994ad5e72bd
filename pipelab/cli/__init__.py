"""The command line, and what only its commands need: grading, static pages, JupyterLab."""
