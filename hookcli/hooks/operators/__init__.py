"""Operators: the calls of PyTorch's functions while a model runs, each a place in the model, as a module is."""
