"""What a step feeds the model, and what its modules make of it."""
