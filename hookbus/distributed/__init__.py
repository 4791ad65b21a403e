"""Model of a run: raw and averaged weights, and their sharding across ranks."""
