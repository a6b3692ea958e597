"""Hooks on the autograd graph in C++, which run without the GIL. Built on first use; needs a compiler and ninja."""
