"""Run-file parsing: YAML with locations, overrides, and construction of hooks from settings."""
