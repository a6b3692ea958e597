"""Starts a program under `hookcli run`: finds the command, and lets Python load hookcli in all of its processes."""
