"""Callbacks for frameworks with their own training loop. Each file needs its framework."""
