"""Conformance check of bridges: `conformance` lists the checks, the other modules contain one subject each."""
