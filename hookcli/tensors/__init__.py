"""Tensors in nested values, and statistics of them."""
