"""Tensors in nested values, and their statistics."""
