"""Global hooks, to observe a program that hookcli does not run itself."""
