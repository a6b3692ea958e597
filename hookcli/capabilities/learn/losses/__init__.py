"""Reads a loss from its autograd graph: which one it is, what it receives, and whether the two fit."""
