"""Records: the files that `hookcli run` writes while a script runs, and how they are read back."""
