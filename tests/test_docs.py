"""Tests of the documentation: examples run, and generated parts are up to date."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from releasing.projects import CORE, find_bridges, find_projects, read_project
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader

import hookbus
from docs.generating.packages import OFFERED
from docs.generating.parts import PARTS, page_text, pages
from hookbus import HookBus
from hookbus._config.models import TrainingConfig
from hookbus._events.points import POINT_ALIASES
from hookbus._utils.known_keys import PUBLISHED_HOOKS
from hookbus.errors import ConfigError
from hookbus.lifecycle import POINTS
from hookbus.testing.imports import PUBLIC_MODULES, get_public_names
from tests.pages import PAGES, PAGES_OF_TRAINERS, ROOT, Reader, blocks

LONG = (
    "docs/distributed.md",
    "docs/index.md",
    "docs/inference.md",
    "docs/plugins/mlflow.md",
    "docs/plugins/profiler.md",
    "docs/plugins/wandb.md",
    "docs/publishing.md",
    "docs/logging.md",
    "docs/own-data.md",
    "docs/recipes/fine-tuning.md",
    "docs/recipes/language-model.md",
    "docs/recipes/reinforcement-learning.md",
    "docs/resume.md",
    "docs/slow-training.md",
    "docs/sweeps.md",
    "docs/tutorial.md",
)
"""Pages with slow examples."""
WARNINGS = {"docs/inference.md": [".*LeafSpec"]}
"""Warnings that PyTorch itself raises in the exporter of ONNX, by page."""
MIGRATION_PAGE = ROOT / "docs/coming-from.md"


def get_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def parametrize_pages() -> Iterator[object]:
    """Yield the pages to run; the README has a separate test, and bridge/test_trainers.py runs those of trainers."""
    for page in PAGES:
        marks = [pytest.mark.slow, pytest.mark.timeout(600)] if get_name(page) in LONG else []
        marks += [pytest.mark.filterwarnings(f"ignore:{pattern}") for pattern in WARNINGS.get(get_name(page), ())]
        if page.parent != ROOT and page not in PAGES_OF_TRAINERS:
            yield pytest.param(page, id=get_name(page), marks=marks)


@pytest.mark.parametrize("page", list(parametrize_pages()))
def test_page_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    reader = Reader(page)
    reader.follow()
    if reader.skipped:
        pytest.skip("; ".join(reader.skipped))


def iter_texts() -> Iterator[Path]:
    """Yield the files with user-facing text: source files and pages."""
    for directory in ("hookbus", "plugins", "docs"):
        for pattern in ("*.py", "*.md"):
            yield from (ROOT / directory).rglob(pattern)


def test_public_names_are_imported_from_hookbus() -> None:
    long_names = re.compile("|".join(rf"{re.escape(home)}\.{name}\b" for name, home in hookbus._MODULES.items()))
    assert [
        f"{get_name(path)}: {match}" for path in iter_texts() for match in long_names.findall(path.read_text())
    ] == []


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_api_page_lists_all_public_names_of_a_module_in_its_section(module: str) -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    section = page.partition(f"\n## {module}\n")[2].partition("\n## ")[0]
    described = re.findall(rf"^::: {re.escape(module)}\.(\w+)$", section, re.MULTILINE)
    aliases = {"BaseHook", "HOOK_REGISTRY", "HookRegistry"} if module == "hookbus" else set()
    assert sorted(described) == sorted(set(get_public_names(module)) - aliases)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gallery_script_generates_the_images(tmp_path: Path) -> None:
    script, kept = ROOT / "docs" / "examples" / "gallery.py", ROOT / "docs" / "images"
    subprocess.run([sys.executable, script, tmp_path], check=True, capture_output=True, timeout=500)

    def get_height(path: Path) -> int:
        # Not the width: it depends on the predicted scores, which differ in the last digits between CPUs.
        with Image.open(path) as image:
            return image.height

    drawn = {path.name: get_height(path) for path in tmp_path.glob("*.png")}
    shown = set(re.findall(r"\(images/(\w+\.png)\)", (ROOT / "docs" / "gallery.md").read_text()))
    assert drawn == {name: get_height(kept / name) for name in shown}


def test_diagram_has_the_points_of_a_run_in_their_order() -> None:
    shown = re.findall(r'class="point"[^>]*>(\w+)<', (ROOT / "docs" / "images" / "run.svg").read_text())
    listed = (ROOT / "docs" / "points.md").read_text().partition("```text\n")[2].partition("```")[0].split()

    assert [point for point in shown if point in listed] == listed
    assert set(shown) - set(listed) == {
        "after_load_checkpoint", "before_val_epoch", "before_val_iter", "after_val_iter", "after_val_epoch",
    }  # fmt: skip


@pytest.mark.slow
def test_trace_script_generates_the_image(tmp_path: Path) -> None:
    script, kept = ROOT / "docs" / "examples" / "draw_trace.py", ROOT / "docs" / "images" / "trace.png"
    with profile(schedule=schedule(wait=0, warmup=1, active=2, repeat=1)) as profiler:
        for _ in range(3):
            (batch,) = DataLoader([torch.ones(2)])
            batch.requires_grad_().sum().backward()
            profiler.step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json.gz"))
    subprocess.run(
        [sys.executable, script, tmp_path / "trace.json.gz", tmp_path / "trace.png"], check=True, timeout=100
    )

    with Image.open(tmp_path / "trace.png") as drawn, Image.open(kept) as shown:
        assert drawn.size == shown.size


@pytest.mark.parametrize("page", PAGES, ids=get_name)
def test_every_block_has_a_language(page: Path) -> None:
    untagged = [block.line for block in blocks(page) if not hasattr(Reader, f"do_{block.language}")]

    assert not untagged, f"{page.name}: tag the blocks in lines {untagged}; use text for blocks that are not checked"
    assert page.read_text().count("```") == 2 * len(blocks(page)), f"{page.name}: a fence is not closed"


@pytest.mark.parametrize("page", pages(), ids=get_name)
def test_code_fits_the_page_width(page: Path) -> None:
    code = [block for block in blocks(page) if block.language in ("python", "py", "yaml", "toml")]
    long = [line for block in code for line in block.text.splitlines() if len(line) > 98]

    assert not long, "docs/extra.css allows 98 characters"


@pytest.mark.parametrize("page", PAGES, ids=get_name)
def test_links_to_files_are_valid(page: Path) -> None:
    targets = [link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text())]

    assert not [target for target in targets if target and not (page.parent / target).exists()]


@pytest.mark.parametrize("name", ["slow_loader.py", "slow_loader.yaml"])
def test_shown_example_equals_its_file(name: str) -> None:
    (shown,) = [block.text for block in blocks(ROOT / "docs" / "slow-training.md") if block.file == name]

    assert shown == f"# {name}\n{(ROOT / 'docs' / 'examples' / name).read_text()}"


@pytest.mark.parametrize("page", pages(), ids=get_name)
def test_generated_parts_are_up_to_date(page: Path) -> None:
    text = page.read_text()

    assert text == page_text(text), "run `make generate`"


def test_every_generated_part_is_on_a_page() -> None:
    text = "".join(page.read_text() for page in pages())

    assert set(re.findall(r"<!-- generated: (\S+) -->", text)) == set(PARTS)


@pytest.mark.parametrize("package", sorted(find_projects(ROOT).keys() - {CORE} - find_bridges(ROOT).keys()))
def test_every_package_has_a_page_with_its_entry_points(package: str) -> None:
    page = ROOT / "docs" / "plugins" / f"{package.removeprefix('hookbus-')}.md"
    assert page.is_file(), f"write {get_name(page)}: purpose, example, settings, notes and limitations"

    entries = read_project(ROOT / "plugins" / package)["entry-points"]
    offered = {name for group in OFFERED for name in entries.get(group, {})}
    assert {name.partition("/")[2] for name in re.findall(r"<!-- generated: (\S+) -->", page.read_text())} >= offered
    assert {block.language for block in blocks(page)} >= {"yaml", "python"}
    assert "\n## Notes and limitations\n" in page.read_text()


def test_points_and_members_of_a_run_in_the_migration_tables_exist() -> None:
    tables = re.findall(
        r"^\| [\w ]+ \| hookbus \|\n\|---\|---\|\n((?:\|.*\n)+)", MIGRATION_PAGE.read_text(), re.MULTILINE
    )
    cells = " ".join(row.split("| ")[2] for table in tables for row in table.splitlines())
    points = {name for name in re.findall(r"`((?:before|after|on|log)_\w+)`", cells) if name != "log_weights"}
    members = set(re.findall(r"`run\.(\w+)", cells))

    assert len(tables) == 5
    assert len(points) > 20
    assert points <= {*POINTS, *POINT_ALIASES}
    assert {name for name in members if not hasattr(HookBus().current, name)} == set()


def test_hooks_in_the_migration_tables_exist() -> None:
    tables = re.findall(r"built-in \| hookbus \|\n\|---\|---\|\n((?:\|.*\n)+)", MIGRATION_PAGE.read_text())
    cells = [row.split("| ")[2] for table in tables for row in table.splitlines()]
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} - {"lr", "fsdp2", "log_weights"}
    keys = {key for cell in cells for key in re.findall(r"`training\.(\w+)", cell)}
    known = json.loads((ROOT / "hookbus/_utils/known_keys.json").read_text())
    settings = {name for names in known["hooks"].values() for name in names}

    assert len(tables) == 5
    assert named - settings <= {name for hooks in PUBLISHED_HOOKS.values() for name in hooks}
    assert keys <= set(TrainingConfig.model_fields)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=get_name)
def test_referenced_commands_and_files_exist(page: Path) -> None:
    named = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE))
    makes = {word for name in named if name.startswith("make ") for word in name.split()[1:] if "=" not in word}
    files = {name for name in named if re.fullmatch(r"(?:hookbus|docs|tests|benchmarks|plugins|\.ci)/[\w./-]+", name)}

    assert makes <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert not [name for name in files if not (ROOT / name).exists()]


class TestReader:
    """Pages with errors are detected."""

    @pytest.fixture
    def follow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)

        def follow(language: str, text: str) -> None:
            (tmp_path / "page.md").write_text(f"```{language}\n{text}\n```\n")
            Reader(tmp_path / "page.md").follow()

        return follow

    @pytest.mark.parametrize(
        ("language", "text", "error", "message"),
        [
            ("python", "1 / 0", ZeroDivisionError, "division by zero"),
            ("py", "class:", SyntaxError, "invalid syntax"),
            ("yaml", "hooks: [{type: logger, intervall: 3}]", ConfigError, "part.yaml:1:24: .*unknown key"),
            ("toml", "a = ", ValueError, "Invalid value"),
            ("json", "{a: 1}", ValueError, "property name"),
            ("console", "$ pip install hookbus-unknown", AssertionError, "unknown package"),
            ("console", '$ pip install "hookbus[unknown]"', AssertionError, "unknown extra"),
            ("console", "$ pip install hookbus[standard]", AssertionError, "quote the extra"),
            ("console", "$ python -m unknown_module", AssertionError, "unknown module"),
            ("console", "$ make nothing", AssertionError, "unknown target"),
            ("console", "$ rm -rf /", AssertionError, "add support for this command to tests/pages.py"),
            ("console", "$ hookbus --version\nhookbus 9", AssertionError, "page.md:1: hookbus --version printed"),
            ("console", "$ hookbus --version\n...\nmore", AssertionError, "page.md:1: hookbus --version printed"),
        ],
    )
    def test_reader_reports_errors(self, follow, language: str, text: str, error: type[Exception], message: str):
        with pytest.raises(error, match=message):
            follow(language, text)

    @pytest.mark.parametrize("shown", ["", "\nhookbus 0.1.0", "\n...", "\n...\nhookbus 0.1.0", "\nhookbus 0.1.0\n..."])
    def test_reader_accepts_matching_output(self, follow, shown: str):
        follow("console", f"$ hookbus --version{shown}")

    def test_reader_lists_blocks_without_their_requirements(self, tmp_path: Path):
        (tmp_path / "page.md").write_text(
            "<!-- requires: json unknown_module -->\n\n```python\n1 / 0\n```\n\n"
            "<!-- requires: json -->\n\n```python\ndone = True\n```\n"
        )
        reader = Reader(tmp_path / "page.md")
        reader.follow()

        assert reader.skipped == ["line 3: requires unknown_module"]
        assert reader.names["done"]

    def test_reader_writes_modules_of_packages(self, follow):
        follow("python", "# package/name.py\nimport package.other")

        assert Path("package/name.py").read_text() == "# package/name.py\nimport package.other\n"

    def test_blocks_have_line_numbers(self, tmp_path: Path):
        (tmp_path / "page.md").write_text(
            "# One\n\n```python\n# a.py\nx = 1\n```\n\n- item\n\n  ```text\n  hello\n  ```\n"
        )

        assert [(b.language, b.text, b.line, b.file) for b in blocks(tmp_path / "page.md")] == [
            ("python", "# a.py\nx = 1\n", 3, "a.py"),
            ("text", "hello\n", 10, None),
        ]


def test_custom_backend_has_the_documented_length() -> None:
    assert "in about 60 lines" in (ROOT / "docs/logging.md").read_text()
    modules = (ROOT / "docs/examples/hookbus-tsv/hookbus_tsv").glob("*.py")
    assert abs(sum(len(module.read_text().splitlines()) for module in modules) - 60) < 5
