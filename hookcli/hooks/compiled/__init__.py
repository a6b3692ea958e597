"""What compiled programs show: an operator in them that calls back, and the hooks that torch.compile traces it from."""
