"""What stands behind a run: its directory, services, requests, validations and end."""
