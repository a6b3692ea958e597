"""The memory that a training step takes, simulated on the meta device."""
