"""Generate the parts of the documentation that are derived from the code: `python -m docs.generating`.

A page contains them between `<!-- generated: name -->` and `<!-- end -->`; a test compares them with the code. Each
hook of a package in `plugins/` is a part `hook/<entry point>`, each model or dataset a part `factory/<entry point>`.
They belong on the page of the package: `docs/plugins/ema.md` for hookbus-ema.
"""
