"""Datasets, loaders and random number generators of a training run."""
