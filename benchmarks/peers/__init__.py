"""Comparison of hookbus with other trainers: `python -m benchmarks.peers ignite`, or `all`."""
