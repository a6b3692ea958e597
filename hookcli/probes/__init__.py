"""Probes: each asks a hook session for hooks and turns their events into a report."""
