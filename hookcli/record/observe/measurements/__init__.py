"""Measurements of one observed step: reports of probes, times, checks, and the first bad module."""
