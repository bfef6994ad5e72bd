"""Files in and out: CSV cases, plans, formats of other tools, the command line, static pages."""
