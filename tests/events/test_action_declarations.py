"""Tests of custom actions, declared by a function, a name or a spec class."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hookbus import Hook, HookBus, actionspec, hookimpl
from hookbus.errors import PointError, RegistrationError


def sample(run: Any, prompts: list[str], count: int = 1) -> list[str]:
    """Return samples for prompts."""
    return [prompt * count for prompt in prompts]


class Upper(Hook):
    def sample(self, prompts: list[str]) -> list[str]:
        return [prompt.upper() for prompt in prompts]


class Bracket(Hook):
    """Wrap the result of the step in brackets."""

    @hookimpl(wrapper=True)
    def sample(self, run: Any) -> Iterator[None]:
        result: Any = yield
        return [f"({text})" for text in result]


class SampleActions:
    @actionspec
    def sample(self, prompts: list[str]) -> list[str]:
        """Return samples for prompts."""
        raise NotImplementedError

    def after_sample(self, images: Any) -> None:
        """Samples were drawn."""


class TestFunction:
    def test_function_is_the_step_unless_a_hook_replaces_it(self) -> None:
        bus = HookBus()
        draw = bus.declare_action(sample)
        assert (draw(["a", "b"]), draw(["a"], count=2), draw(prompts=["b"])) == (["a", "b"], ["aa"], ["b"])
        bus.register(Upper())
        assert draw(["a", "b"]) == ["A", "B"]
        bus.unregister("upper")
        assert draw(["a"]) == ["a"]

    def test_hooks_registered_before_the_declaration_take_part(self) -> None:
        bus = HookBus([Upper(), Bracket()])
        assert bus.declare_action(sample)(["a"]) == ["(A)"]

    def test_name_and_documentation_are_those_of_the_function(self) -> None:
        draw = HookBus().declare_action(sample)
        assert (draw.__name__, draw.__doc__) == ("sample", "Return samples for prompts.")

    def test_hooks_receive_the_run_and_default_arguments(self) -> None:
        class Count(Hook):
            def sample(self, run: Any, count: int) -> Any:
                return run, count

        bus = HookBus([Count()])
        draw: Any = bus.declare_action(sample)
        with bus.run() as run:
            assert draw(["a"]) == (run, 1)

    def test_declaring_the_same_function_again_is_valid(self) -> None:
        bus = HookBus()
        bus.declare_action(sample)
        assert bus.declare_action(sample)(["a"]) == ["a"]
        with pytest.raises(PointError, match="'sample': the action is already declared. Choose another name"):
            bus.declare_action("sample", args=("prompts",))

    def test_error_of_a_hook_names_it(self) -> None:
        class Broken(Hook):
            def sample(self) -> Any:
                raise ValueError("no model")

        bus = HookBus([Broken()])
        with pytest.raises(ValueError, match="no model") as caught:
            bus.declare_action(sample)(["a"])
        assert "raised by hook 'broken'" in caught.value.__notes__[0]

    def test_error_of_the_step_is_not_attributed_to_a_wrapper(self) -> None:
        def fail(run: Any) -> None:
            raise ValueError("no data")

        class Wrap(Hook):
            @hookimpl(wrapper=True)
            def fail(self) -> Iterator[None]:
                return (yield)

        bus = HookBus([Wrap()])
        with pytest.raises(ValueError, match="no data") as caught:
            bus.declare_action(fail)()
        assert not hasattr(caught.value, "__notes__")


class TestDeclaredByHooks:
    def test_hook_declares_its_action_in_each_run(self) -> None:
        class Sampler(Hook):
            def before_run(self, run: Any) -> None:
                self.draw = run.bus.declare_action("sample", args=("prompts",))
                run.bus.action("sample", lambda prompts: len(prompts))

        hook = Sampler()
        bus = HookBus([hook])
        for _ in range(2):
            with bus.run(fresh=True):
                assert hook.draw(["a"]) == 1

    def test_action_of_another_hook_cannot_be_declared_before_it_leaves(self) -> None:
        class Sampler(Hook):
            def declare(self, bus: Any) -> Any:
                return bus.declare_action("sample", args=("prompts",))

        first, second = Sampler(name="first"), Sampler(name="second")
        bus = HookBus([first, second])
        first.declare(bus)
        with pytest.raises(PointError, match="'sample': the action is already declared"):
            second.declare(bus)
        bus.unregister(first)
        second.declare(bus)

    def test_step_of_a_hook_leaves_with_it(self) -> None:
        class Sampler(Hook):
            def draw(self, run: Any) -> int:
                return 1

            def declare(self, bus: Any) -> Any:
                return bus.declare_action(self.draw)

        hook = Sampler()
        bus = HookBus([hook])
        draw = hook.declare(bus)
        assert draw() == 1
        bus.unregister(hook)
        with pytest.raises(PointError, match="draw: no hook has returned a result"):
            draw()


class TestName:
    def test_step_is_set_by_action(self) -> None:
        bus = HookBus()
        draw = bus.declare_action("sample", args=("prompts",), doc="Draw samples.")
        assert draw.__doc__ == "Draw samples."
        step = bus.action("sample", lambda prompts: [len(prompt) for prompt in prompts])
        assert step(["ab"]) == draw(["ab"]) == draw(prompts=["ab"]) == [2]

    def test_action_without_a_step_requires_a_hook(self) -> None:
        bus = HookBus()
        draw = bus.declare_action("sample", args=("prompts",))
        with pytest.raises(PointError, match=r"no hook has returned a result.*sample\(run, prompts\)"):
            draw(["a"])
        bus.register(Upper())
        assert draw(["a"]) == ["A"]

    @pytest.mark.parametrize(
        ("name", "args", "message"),
        [
            ("a b", (), "invalid name of a point or argument, got 'a b'"),
            ("sample", ("run",), "sample: reserved argument run"),
            ("sample", ("a", "a"), "duplicate argument"),
            ("sample", ("a", 1), "invalid name of a point or argument, got 1"),
            ("sample", "prompts", r"invalid `args`, got 'prompts'. Pass args=\('prompts',\)"),
            ("train_step", ("batch",), "'train_step': the action is already declared"),
            ("before_train", (), "'before_train': a point has this name"),
            ("state_dict", (), "'state_dict' is reserved for .* hooks"),
            ("invalidate", (), "'invalidate' is reserved for .* the bus"),
        ],
    )
    def test_invalid_declaration_states_the_reason(self, name: str, args: Any, message: str) -> None:
        with pytest.raises(PointError, match=message):
            HookBus().declare_action(name, args)

    def test_function_without_run_is_refused(self) -> None:
        def draw(prompts: Any) -> Any: ...

        bus: Any = HookBus()
        with pytest.raises(PointError, match=r"draw\(prompts.*: invalid function of an action. Define it with `run`"):
            bus.declare_action(draw)

    def test_unknown_action_is_suggested(self) -> None:
        bus = HookBus()
        bus.declare_action(sample)
        with pytest.raises(PointError, match=r"Unknown action 'smaple'. Did you mean 'sample'\?"):
            bus.action("smaple", lambda prompts: prompts)


class TestCall:
    @pytest.mark.parametrize(
        ("args", "kwargs", "problem"),
        [
            ((), {}, "missing a required argument: 'prompts'"),
            ((["a"],), {"cuont": 2}, "got an unexpected keyword argument 'cuont'"),
            ((["a"], 1, 2), {}, "too many positional arguments"),
        ],
    )
    def test_wrong_arguments_state_the_signature(self, args: Any, kwargs: Any, problem: str) -> None:
        draw: Any = HookBus().declare_action(sample)
        with pytest.raises(PointError, match=rf"sample: {problem}. Call sample\(prompts: .*, count: 'int' = 1\)"):
            draw(*args, **kwargs)

    def test_hook_with_an_unknown_argument_is_rejected(self) -> None:
        class Wrong(Hook):
            def sample(self, promts: Any) -> Any: ...

        bus = HookBus()
        bus.declare_action(sample)
        with pytest.raises(RegistrationError, match="unknown argument 'promts'. Did you mean 'prompts'?"):
            bus.register(Wrong())

    def test_declaration_that_does_not_match_a_registered_hook_declares_nothing(self) -> None:
        class Wrong(Hook):
            def sample(self, promts: Any) -> Any: ...

        bus = HookBus([Wrong()])
        with pytest.raises(RegistrationError, match="unknown argument 'promts'"):
            bus.declare_action(sample)
        assert "sample" not in bus.actions

    def test_step_with_the_wrong_number_of_parameters_is_refused(self) -> None:
        bus = HookBus()
        bus.declare_action(sample)
        with pytest.raises(PointError, match=r"got 1 required .* \(prompts, count\) or \(run, prompts, count\)"):
            bus.action("sample", lambda prompts: prompts)


class TestSpecClass:
    def test_methods_marked_as_actions_are_no_points(self) -> None:
        bus = HookBus([Upper()])
        bus.declare_from(SampleActions)
        assert ("sample" in bus.actions, "sample" in bus.points, "after_sample" in bus.points) == (True, False, True)
        assert bus.declare_action(SampleActions.sample)(["a"]) == ["A"]  # type: ignore[call-arg, arg-type]

    def test_method_declares_the_action_on_its_own(self) -> None:
        bus: Any = HookBus()
        draw = bus.declare_action(SampleActions.sample)
        bus.declare_from(SampleActions)
        assert bus.action("sample", lambda prompts: prompts)(["a"]) == draw(["a"]) == ["a"]


PACKAGE = {
    "acme_sample.py": """
from hookbus import actionspec

class SampleActions:
    @actionspec
    def sample(self, prompts):
        pass
""",
    "acme_sample-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-sample\nVersion: 1.0\n",
    "acme_sample-1.0.dist-info/entry_points.txt": "[hookbus.points]\nsample = acme_sample:SampleActions\n",
}
SCRIPT = """
from hookbus import Hook, HookBus, hookimpl

class Upper(Hook):
    @hookimpl
    def sample(self, prompts):
        return prompts.upper()

assert "sample" in HookBus([Upper()]).actions
assert HookBus().action("sample", lambda prompts: prompts + "!")("a") == "a!"
"""


@pytest.mark.slow  # starts Python
def test_action_of_an_installed_package_is_discovered(tmp_path: Path) -> None:
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    subprocess.run([sys.executable, "-c", SCRIPT], env={**os.environ, "PYTHONPATH": path}, check=True)


def test_explanation_lists_the_hooks_of_actions() -> None:
    bus = HookBus()
    bus.declare_action(sample)
    bus.register(Upper(priority=60))
    bus.register(Bracket())
    rows = bus.explain().actions["sample"]
    assert [(row.hook, row.priority, row.role) for row in rows] == [("bracket", 50, "wraps"), ("upper", 60, "replaces")]
    lines = str(bus.explain()).splitlines()[-3:]
    assert [" ".join(line.split()) for line in lines] == [
        "action sample",
        f"50 bracket ({rows[0].source}) wraps",
        f"60 upper ({rows[1].source}) replaces",
    ]
