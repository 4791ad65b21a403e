"""Behind the run file: YAML that remembers its lines, overrides, and hooks out of settings."""
