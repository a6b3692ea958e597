"""Rules on a run: conditions on the figures of each step, checked while the program trains."""
