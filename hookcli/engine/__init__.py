"""Runs a model under hooks: once (`capture`), or several times (checks, comparisons, ranks)."""
