"""The engine: the fast, exact, stoppable version of each idea. Each part names the definition it must equal."""
