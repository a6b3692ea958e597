"""Views of a record: one step, all steps, one module over time, ranks beside each other, and the summary of a run."""
