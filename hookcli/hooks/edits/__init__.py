"""Edits: hooks that change what flows through a model."""
