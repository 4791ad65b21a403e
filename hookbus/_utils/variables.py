"""Environment variables of hookbus that are no settings of a run."""

PREFIX = "HOOKBUS_"
"""Prefix of all environment variables of hookbus."""

BLOCK_VARIABLE = f"{PREFIX}BLOCK"
"""Environment variable with the comma-separated names of blocked plugins."""

DEBUG_RANKS_VARIABLE = f"{PREFIX}DEBUG_RANKS"
"""Environment variable that enables the comparison of collective calls across ranks."""

OWN_VARIABLES = frozenset({BLOCK_VARIABLE, DEBUG_RANKS_VARIABLE})
"""Variables with the prefix that are no settings of a run."""
