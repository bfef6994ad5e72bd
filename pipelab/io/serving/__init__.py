"""A plan as the settings of the engine that runs it."""
