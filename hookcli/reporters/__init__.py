"""Reporters: each turns reports into text of one format."""
