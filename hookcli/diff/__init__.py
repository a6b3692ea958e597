"""Comparisons of two runs, from plain numbers; free of torch."""
