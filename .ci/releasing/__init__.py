"""Commands of the maintainers: the changelog rule and releases."""
