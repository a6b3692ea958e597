"""What the graph of a loss tells: which loss it is, what it gets, and whether that fits."""
