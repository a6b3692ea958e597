"""Whether gradients and optimizers reach the weights, and whether the weights move."""
