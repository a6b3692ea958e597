"""hookcli inside frameworks that have a training loop of their own. Each file needs its framework."""
