"""Commands that list what the installed packages publish: `hookbus hooks`, `points`, `schema` and `doctor`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hookbus._cli.console import escape_text, handle_errors, output_console, print_error, print_json
from hookbus._cli.hook_list import print_hooks
from hookbus._cli.options import Json
from hookbus._cli.output import print_hook_health, print_points
from hookbus._cli.output_file import check_output, explain_output_errors


def hooks(json_: Json = False) -> None:
    """List the installed hooks without importing them."""
    with handle_errors():
        from hookbus._cli.hook_summaries import read_summary
        from hookbus._utils.plugin_entries import short_names
        from hookbus.discovery import list_entries, warn_of_unknown_blocks

        warn_of_unknown_blocks()
        rows = [
            {
                "name": name,
                "class": plugin.class_name,
                "package": plugin.package,
                "version": plugin.version,
                "blocked": plugin.blocked,
                "summary": read_summary(plugin),
            }
            for plugin, name in short_names(list_entries()).items()
        ]
        (print_json if json_ else print_hooks)(rows)


def points(json_: Json = False) -> None:
    """List the points of a run and their arguments without importing plugins."""
    with handle_errors():
        from hookbus._events.points import POINT_ALIASES
        from hookbus._utils.packages import POINTS_GROUP
        from hookbus.discovery import list_entries
        from hookbus.lifecycle import POINTS

        aliases = {name: [alias for alias, point in POINT_ALIASES.items() if point == name] for name in POINTS}
        more = {plugin.name: f"{plugin.package} {plugin.version}" for plugin in list_entries(POINTS_GROUP)}
        if json_:
            own = {
                p.name: {"args": ["run", *p.args], "unit": p.unit, "aliases": aliases[p.name], "doc": p.description}
                for p in POINTS.values()
            }
            print_json({**own, **{name: {"package": package} for name, package in more.items()}})
        else:
            print_points(POINTS.values(), aliases, more)


def schema(output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None) -> None:
    """Print the JSON schema of run files, for editors."""
    with handle_errors():
        from hookbus._cli.schema import json_schema

        check_output(output)
        document, problems = json_schema()
        for problem in problems:
            print_error(problem)
        if output is None:
            print_json(document)
        else:
            from hookbus.checkpoint.atomic_files import write_json

            with explain_output_errors(output):
                write_json(output, document)
            first = f"# yaml-language-server: $schema={output}"
            output_console().print(escape_text(f"Wrote {output}. Add this line at the top of run files: {first}"))


def doctor(json_: Json = False) -> None:
    """Import all installed hooks in a process and report the broken ones."""
    with handle_errors():
        from hookbus._cli.doctor import check_installed_hooks

        with output_console().status("importing every installed hook"):
            reports = list(check_installed_hooks())
        if json_:
            print_json([asdict(report) for report in reports])
        else:
            print_hook_health(reports)
        raise typer.Exit(0 if all(report.ok for report in reports) else 1)
