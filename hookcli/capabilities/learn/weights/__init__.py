"""What becomes of the weights: whether gradients and optimizers reach them, and whether they move."""
