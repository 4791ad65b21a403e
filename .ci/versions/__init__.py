"""Environments with other versions of torch, Python and the dependencies, and the table of what passes in them."""
