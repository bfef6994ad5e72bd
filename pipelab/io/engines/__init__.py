"""A plan as the settings of the engine that runs it: one module per engine, and what they share."""
