"""hookbus and other trainers side by side: `python -m benchmarks.peers ignite`, or `all`."""
