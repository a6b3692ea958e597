"""What goes into a model in a training step, and what its modules do with it."""
