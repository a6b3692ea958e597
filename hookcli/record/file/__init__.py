"""Records of runs: what `hookcli run` writes while a script runs, and how it is read back."""
