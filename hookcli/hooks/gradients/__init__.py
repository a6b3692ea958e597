"""Hooks on gradients: of modules' inputs and outputs, and of parameters. Only edits change the graph."""
