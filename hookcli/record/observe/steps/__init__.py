"""Observed steps, from their first forward until they are handed on."""
