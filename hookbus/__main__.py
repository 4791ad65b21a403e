"""Entry point of `python -m hookbus`, which is equivalent to the `hookbus` command."""

from hookbus.cli import main

main()
