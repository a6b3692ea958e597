"""All that hookcli registers with PyTorch: hooks on models, on autograd and on optimizers, and edits."""
