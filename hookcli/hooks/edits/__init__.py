"""Edits: hooks that change tensors on their way through a model."""
