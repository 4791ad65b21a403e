"""Parts of a run: work directory, services, requests, validations and teardown."""
