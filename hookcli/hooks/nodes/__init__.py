"""Hooks on nodes of the autograd graph: walks over the graph, the creation of nodes, and the nodes themselves."""
