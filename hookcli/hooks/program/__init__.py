"""Global hooks, for a program that hookcli doesn't run itself."""
