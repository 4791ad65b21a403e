"""Tests of plugin discovery: metadata first, imports on request only."""

from __future__ import annotations

import json
import re
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from hookbus import discovery
from hookbus._utils.packages import HOOKS_GROUP
from hookbus._utils.plugin_entries import PluginEntry
from hookbus.discovery import warn_of_unknown_blocks
from hookbus.errors import HookWarning, PluginConflictError

if TYPE_CHECKING:
    from tests.conftest import Environment

LOADING = """
    import json, os, sys
    from hookbus._config.hooks import get_hook_class
    from hookbus.errors import PluginError

    answer = {}
    for name in json.loads(os.environ["NAMES"]):
        try:
            found = get_hook_class(name)
            answer[name] = f"{found.__module__}:{found.__qualname__}"
        except PluginError as error:
            answer[name] = f"{type(error).__name__}: {error}"
"""
NAMES = [
    *("greet", "GreetHook", "acme-hooks/greet", "Acme.Hooks/GreetHook"),
    *("broken", "tomorrow", "odd", "twin", "TwinHook", "twin-one/twin", "twin_two/twin", "Twin.Two/TwinHook"),
    *("greeet", "nothing_like_it", "killing-hooks/greet"),
]


@pytest.fixture(scope="module")
def loaded(environment: Environment) -> dict[str, str]:
    """Return the class or the error of each name."""
    answer: dict[str, str] = environment.answer(LOADING, NAMES=json.dumps(NAMES))
    return answer


class TestLookup:
    @pytest.mark.parametrize("name", ["greet", "GreetHook", "acme-hooks/greet", "Acme.Hooks/GreetHook"])
    def test_short_class_and_full_name_refer_to_the_hook(self, loaded: dict[str, str], name: str) -> None:
        assert loaded[name] == "acme_hooks:GreetHook"

    def test_import_error_names_package_version_and_cause(self, loaded: dict[str, str]) -> None:
        assert loaded["broken"] == (
            "PluginImportError: broken-hooks 0.3 publishes 'broken', but broken_hooks:BrokenHook cannot be imported: "
            "ModuleNotFoundError: No module named 'surely_not_there'. Repair or remove the package (`hookbus doctor` "
            "lists all broken packages)."
        )

    def test_version_error_names_the_pip_command(self, loaded: dict[str, str]) -> None:
        import hookbus

        assert loaded["tomorrow"] == (
            f"PluginVersionError: tomorrow-hooks 5.0 requires hookbus>=99, but hookbus {hookbus.__version__} is "
            "installed. Run: pip install --upgrade hookbus tomorrow-hooks"
        )

    def test_entry_point_must_refer_to_a_class(self, loaded: dict[str, str]) -> None:
        assert loaded["odd"].startswith(
            "PluginError: 'odd': should refer to a hook class, got <function not_a_class at "
        )
        assert loaded["odd"].endswith(">.")

    def test_close_match_is_suggested(self, loaded: dict[str, str]) -> None:
        assert loaded["greeet"].startswith(
            "PluginNotFoundError: No installed package publishes the hook 'greeet'. Did you mean 'greet'"
        )
        assert loaded["greeet"].endswith("use an import string such as my_module:greeet.")

    def test_unknown_name_lists_the_available_hooks(self, loaded: dict[str, str]) -> None:
        assert " Available: BrokenHook, GreetHook, " in loaded["nothing_like_it"]
        assert "Install the package" in loaded["nothing_like_it"]

    def test_full_name_requires_the_right_package(self, loaded: dict[str, str]) -> None:
        assert loaded["killing-hooks/greet"].startswith("PluginNotFoundError: ")


class TestConflicts:
    @pytest.mark.parametrize("name", ["twin", "TwinHook"])
    def test_conflict_names_both_packages(self, loaded: dict[str, str], name: str) -> None:
        other = " and tomorrow-hooks 5.0" if name == "TwinHook" else ""
        assert loaded[name].startswith(f"PluginConflictError: The hook {name!r} is published by ")
        for package in ("twin-one 1.0", "twin-two 2.0", *other.split(" and ")[1:]):
            assert package in loaded[name]
        assert "'twin-one/twin' or 'twin-two/twin'." in loaded[name]

    def test_package_with_two_classes_of_a_name_is_named_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        entries = [
            PluginEntry(name, "TwinHook", "twins", "1.0", EntryPoint(name, f"twins.{name}:TwinHook", HOOKS_GROUP))
            for name in ("a", "b")
        ]
        monkeypatch.setattr(discovery, "list_entries", lambda group: entries)
        with pytest.raises(PluginConflictError) as caught:
            discovery.find_entry("TwinHook")
        assert str(caught.value) == (
            "The hook 'TwinHook' is published by twins 1.0. Use one of the full names: 'twins/a' or 'twins/b'."
        )

    def test_full_name_resolves_a_conflict(self, loaded: dict[str, str]) -> None:
        assert loaded["twin-one/twin"] == "twin_one:TwinHook"
        assert {loaded["twin_two/twin"], loaded["Twin.Two/TwinHook"]} == {"twin_two:TwinHook"}

    def test_blocking_one_package_resolves_a_conflict(self, environment: Environment) -> None:
        answer = environment.answer(LOADING, NAMES='["twin"]', HOOKBUS_BLOCK="twin-two/twin")
        assert answer == {"twin": "twin_one:TwinHook"}

    @pytest.mark.slow
    def test_run_file_accepts_a_full_name(self, environment: Environment) -> None:
        script = """
            from hookbus import load_config
            hooks = load_config({"hooks": [{"type": "Twin.Two/twin"}]}).build_hooks()
            answer = [hook.origin for hook in hooks]
        """
        assert environment.answer(script) == ["twin_two"]


@pytest.mark.parametrize(
    "blocked", ["greet", "GreetHook", "acme-hooks/greet", "other, greet ,x", "ACME_hooks/GreetHook"]
)
def test_lookup_of_a_blocked_hook_raises(environment: Environment, blocked: str) -> None:
    answer = environment.answer(LOADING, NAMES='["greet"]', HOOKBUS_BLOCK=blocked)
    assert answer == {
        "greet": f"PluginError: The hook 'greet' is blocked by HOOKBUS_BLOCK={blocked}. Remove it from the variable."
    }


@pytest.mark.slow
def test_installed_hook_is_neither_imported_nor_registered(environment: Environment) -> None:
    script = """
        import sys
        from hookbus._config.hooks import get_default_hooks
        from hookbus import load_config
        from hookbus.discovery import list_entries
        config = load_config({"hooks": [{"type": "greet"}]})
        defaults = [type(hook).__module__ for hook in get_default_hooks()]
        ours = {plugin.entry.module for plugin in list_entries()}
        answer = {
            "hooks": [hook.name for hook in config.build_hooks()],
            "defaults": defaults,
            "imported": sorted(ours & set(sys.modules)),
        }
    """
    marker = environment.path / "silent-was-imported"
    answer = environment.answer(script, MARKER=str(marker))
    assert answer == {"hooks": ["greet"], "defaults": ["stub_logger"], "imported": ["acme_hooks", "stub_logger"]}
    assert not marker.exists()


def test_requested_package_is_imported(environment: Environment) -> None:
    marker = environment.path / "silent-was-named"
    assert environment.answer(LOADING, NAMES='["silent"]', MARKER=str(marker)) == {"silent": "silent_hooks:SilentHook"}
    assert marker.exists()


@pytest.mark.slow
def test_hook_of_the_file_replaces_the_default_hook(environment: Environment) -> None:
    script = """
        from hookbus._config.hooks import get_default_hooks
        from hookbus import load_config
        from hookbus._config.hooks import merge_defaults
        from hookbus import HookBus
        config = load_config({"hooks": [{"type": "logger", "text": "mine"}]})
        bus = HookBus(merge_defaults(config.build_hooks(), get_default_hooks()))
        answer = {name: hook.config.text for name, hook in bus.hooks.items()}
    """
    assert environment.answer(script) == {"logger": "mine"}


def test_blocked_default_hook_is_skipped(environment: Environment) -> None:
    script = "from hookbus._config.hooks import get_default_hooks\nanswer = len(get_default_hooks())"
    assert environment.answer(script) == 1
    assert environment.answer(script, HOOKBUS_BLOCK="logger") == 0


def test_points_of_a_package_are_declared_on_use(environment: Environment) -> None:
    script = """
        import io, contextlib
        from hookbus import HookBus
        from hookbus._config.hooks import build_hook
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            bus = HookBus([build_hook({"type": "render"})])
            bus.emit("after_render", image="an image")
            HookBus().emit("after_render", image="not rendered")
        answer = output.getvalue()
    """
    assert environment.answer(script) == "rendered an image\n"


def test_order_depends_on_priority_and_not_on_the_origin(environment: Environment) -> None:
    (environment.path / "own_1.py").write_text(
        "from hookbus import Hook\n\nclass OwnHook(Hook):\n    def before_run(self, run): ...\n"
    )
    script = """
        import itertools
        from hookbus import HookBus
        from hookbus._config.hooks import build_hook
        answer = []
        for numbers in itertools.permutations((10, 20, 30)):
            bus = HookBus()
            bus.on("before_run", name="code", priority=numbers[0])(lambda run: None)
            bus.register(build_hook({"type": "own_1:OwnHook", "name": "path", "priority": numbers[1]}))
            bus.register(build_hook({"type": "greet", "name": "package", "priority": numbers[2]}))
            by_number = [name for _, name in sorted(zip(numbers, ("code", "path", "package")))]
            answer.append(([row.hook for row in bus.explain().points["before_run"]], by_number))
    """
    orders = environment.answer(script)
    assert len(orders) == 6
    for listed_order, by_number in orders:
        assert listed_order == by_number


@pytest.mark.slow
def test_broken_optional_packages_are_not_imported(bare_environment: Environment) -> None:
    broken = bare_environment.path / "broken_optional"
    broken.mkdir()
    for name in ("wandb", "mlflow", "tensorboard", "pynvml", "psutil"):
        (broken / f"{name}.py").write_text("raise ImportError('broken here')\n")
    script = """
        import hookbus
        from hookbus._config.load import parse_config
        from hookbus.testing import fake_training
        everything = [getattr(hookbus, name) for name in hookbus.__all__]
        outcome = fake_training(epochs=1).run.outcome
        answer = outcome, parse_config({"hooks": ["wandb", "MLflowHook", "tensorboard"]})[1]
    """
    outcome, problems = bare_environment.answer(script, PYTHONPATH=str(broken))
    assert outcome == "finished"
    assert problems == [
        f"config: hooks.{i}: The hook {name!r} is not installed. Run: pip install hookbus-{package}"
        for i, (name, package) in enumerate(
            [("wandb", "wandb"), ("MLflowHook", "mlflow"), ("tensorboard", "tensorboard")]
        )
    ]


@pytest.mark.parametrize(
    ("blocked", "message"),
    [
        ("hookbus-logger", "HOOKBUS_BLOCK: 'hookbus-logger' is not an installed hook and is ignored."),
        ("logger, loger", "'loger' is not an installed hook and is ignored. Did you mean 'logger'"),
    ],
)
def test_unknown_blocked_name_is_a_warning(monkeypatch: pytest.MonkeyPatch, blocked: str, message: str) -> None:
    monkeypatch.setenv("HOOKBUS_BLOCK", blocked)
    with pytest.warns(HookWarning, match=re.escape(message)) as caught:
        warn_of_unknown_blocks()
    assert len(caught) == 1


@pytest.mark.parametrize("blocked", ["", " , ", "logger,LoggerHook,Hookbus_Logger/logger", "cnn,digits", "EMAHook"])
def test_known_blocked_names_do_not_warn(monkeypatch: pytest.MonkeyPatch, blocked: str) -> None:
    monkeypatch.setenv("HOOKBUS_BLOCK", blocked)
    warn_of_unknown_blocks()
