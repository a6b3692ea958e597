"""Judges the lines of learn in a record: the headline, its checks and the causes that they name. Needs no torch."""
