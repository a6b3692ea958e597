"""The record of several ranks: a part for each, which read as one record with merged steps."""
