"""The parts of the pages that are derived from the code: `python -m docs.generating` writes them, a test compares them.

A page holds them between `<!-- generated: name -->` and `<!-- end -->`. Each hook of each package in `plugins/` is
a part `hook/<entry point>`, each model or data set a part `factory/<entry point>`; they stand on the page of their
package: `docs/plugins/ema.md` for hookbus-ema.
"""
