"""`hookcli run`: records what happens inside the models of a running program."""
