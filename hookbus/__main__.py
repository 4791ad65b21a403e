"""Entry point of `python -m hookbus`, which is equivalent to the `hookbus` command."""

from hookbus._cli.app import main

if __name__ == "__main__":
    main()
