"""The joint program: its candidates, how many there are, and its families of rows."""
