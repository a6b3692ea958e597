"""Optimizers of a program: their steps, parameter groups, the gradients that they get, and updates."""
