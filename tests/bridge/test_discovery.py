"""Lookup of bridges and capabilities by entry points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hookbus import Hook, HookBus, Needs
from hookbus.bridge import discovery
from hookbus.bridge.discovery import find_entry_of, find_hosts
from hookbus.errors import ConfigError, PluginError, PluginImportError, PluginNotFoundError
from tests.foreign_trainer import CAPABILITIES, ForeignTrainer, publish


class Derived(ForeignTrainer):
    """Subclass of a trainer, such as one of the user."""


@pytest.mark.usefixtures("published")
def test_bridge_of_a_trainer_is_found_by_its_class_and_by_a_subclass() -> None:
    for cls in (ForeignTrainer, Derived):
        entry = find_entry_of(cls.__new__(cls))
        assert (entry.name, entry.package, entry.version) == ("tests.ForeignTrainer", "foreign-bridge", "1.0")


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("name", ["tests", "tests.ForeignTrainer", "TESTS.foreigntrainer"])
def test_capabilities_are_found_by_name(name: str) -> None:
    assert find_hosts(name) == [CAPABILITIES]


@pytest.mark.usefixtures("published")
def test_blocked_bridge_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKBUS_BLOCK", "tests.ForeignTrainer")
    with pytest.raises(PluginNotFoundError, match=r"got tests\.foreign_trainer\.ForeignTrainer"):
        HookBus().attach(ForeignTrainer.__new__(ForeignTrainer))


def test_unknown_object_is_refused_with_what_to_do() -> None:
    expected = r"bus\.attach: no installed package connects this type, got builtins\.dict\. Emit the points in the loop"
    with pytest.raises(PluginNotFoundError, match=expected):
        HookBus().attach({})


@pytest.mark.usefixtures("published")
def test_another_object_of_a_connected_library_names_its_trainers() -> None:
    with pytest.raises(
        PluginNotFoundError, match=r"got tests\..*\.Other\. Pass an instance of tests\.ForeignTrainer\.$"
    ):
        HookBus().attach(type("Other", (), {"__module__": "tests.models"})())


@pytest.mark.usefixtures("published")
def test_class_of_a_trainer_is_refused_as_a_class() -> None:
    expected = r"got the class tests\.foreign_trainer\.ForeignTrainer\. Pass an instance of tests\.ForeignTrainer\.$"
    with pytest.raises(PluginNotFoundError, match=expected):
        HookBus().attach(ForeignTrainer)


def make_trainer(package: str) -> Any:
    """Return an object whose class is defined in a package."""
    return type("Unpublished", (), {"__module__": f"{package}.trainer"})()


@pytest.mark.parametrize(
    ("package", "command"),
    [("ignite", "pip install hookbus-ignite"), ("pytorch_lightning", "pip install hookbus-lightning")],
)
def test_trainer_without_its_package_names_the_package(
    package: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "list_entries", lambda group: [])
    with pytest.raises(PluginNotFoundError, match=rf"got {package}\.trainer\.Unpublished\. Run: {command}$"):
        HookBus().attach(make_trainer(package))


def test_name_without_a_package_suggests_similar_names() -> None:
    with pytest.raises(PluginNotFoundError, match=r"host: .* got 'lightnin'\. Did you mean 'lightning'"):
        find_hosts("lightnin")


def test_entry_point_of_something_else_is_an_error(tmp_path: Path) -> None:
    expected = (
        r"foreign-bridge 1\.0: the entry point 'tests\.ForeignTrainer' .* should be an instance of hookbus\.bridge"
    )
    with publish(tmp_path, f"{__name__}:Derived"), pytest.raises(PluginError, match=expected):
        find_hosts("tests")


def test_entry_point_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    with publish(tmp_path, "tests.no_such_module:X"), pytest.raises(PluginImportError, match="no_such_module"):
        find_hosts("tests")


@pytest.mark.usefixtures("published")
def test_attach_refuses_a_hook_with_the_message_of_its_need() -> None:
    class ReplaceStep(Hook):
        needs = Needs(actions=("train_step",))

    expected = (
        rf"hook 'replace_step' \(.*\): wraps the action train_step, which {CAPABILITIES.host} does not call through "
        r"the bus\. Remove the hook\."
    )
    with pytest.raises(ConfigError, match=expected):
        HookBus([ReplaceStep()]).attach(ForeignTrainer.__new__(ForeignTrainer))


@pytest.mark.slow
def test_capabilities_are_read_without_importing_torch() -> None:
    program = "import sys, hookbus.needs, hookbus._run.host; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
