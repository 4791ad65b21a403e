"""`python -m hookbus` is the same as `hookbus`."""

from hookbus.cli import main

main()
