"""Looks at the models of a program that runs as it is: which ran, and in some of their steps what was inside."""
