"""Measurements of one observed step: reports of probes, times and checks."""
