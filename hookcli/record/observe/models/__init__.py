"""The models of a program: which ones run, their names, and why one cannot be observed."""
