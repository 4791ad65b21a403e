"""The model of a run: its raw and averaged weights, and how they are spread over processes."""
