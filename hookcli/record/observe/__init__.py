"""Observes the models of an unmodified program: which ones run, and what happens inside them in some of their steps."""
