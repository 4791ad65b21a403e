import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hookbus_wandb.writer as module
from hookbus.errors import HookError
from hookbus_wandb.files import Log, run_files
from hookbus_wandb.names import artifact_name
from hookbus_wandb.writer import Target, WandbWriter, prepare, run_id_in


@pytest.fixture
def target(tmp_path):
    return Target(tmp_path / "own", "1a2b", project="digits", name="first", config={"seed": 1})


@pytest.fixture
def writer(target):
    writer = WandbWriter(target)
    yield writer
    writer.close()


def records(target, kind):
    logs = [Log(path) for path in run_files(target.directory, target.run_id)]
    return [getattr(record, kind) for log in logs for record in log.records() if record.HasField(kind)]


def rows(target):
    """(W&B's own step, step, what stands there) of each row."""
    found = [row for path in run_files(target.directory, target.run_id) for row in Log(path).rows()]
    names = [{name: value for name, value in row.items() if not name.startswith("_")} for row in found]
    return [(row["_step"], each.pop("trainer/step"), each) for row, each in zip(found, names, strict=True)]


def in_a_process_of_its_own(code, target):
    """What the code prints."""
    command = [sys.executable, "-c", code, str(target.directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("WANDB_SERVICE", None)
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def settings_in(target):
    items = [item for record in records(target, "config") for item in record.update]
    return {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}


def test_a_run_has_the_id_the_project_and_the_name_that_were_given(target, writer):
    writer.close()
    (run,) = records(target, "run")
    assert (run.run_id, run.project, run.display_name) == ("1a2b", "digits", "first")
    assert (target.directory / "run_id").read_text() == "1a2b"


@pytest.mark.parametrize("there", [None, "of-the-user"])
def test_trainings_that_are_started_from_here_find_the_process_that_was_there(target, monkeypatch, there):
    if there is not None:
        monkeypatch.setenv("WANDB_SERVICE", there)
    WandbWriter(target).close()
    assert os.environ.get("WANDB_SERVICE") == there


def test_every_metric_is_drawn_over_the_step_of_ours(target, writer):
    writer.close()
    defined = [(metric.name or metric.glob_name, metric.step_metric) for metric in records(target, "metric")]
    assert defined == [("trainer/step", ""), ("*", "trainer/step")]


def test_numbers_of_one_step_are_one_row_and_no_step_goes_back_for_wandb(target, writer):
    writer.write_scalars({"a": 1.5, "b": 2.0}, 3)
    writer.write_scalar("b", 1.0, 2)  # lower than before: another curve of wandb's would lose it
    writer.flush()
    assert rows(target) == [(0, 3, {"a": 1.5, "b": 2.0}), (1, 2, {"b": 1.0})]


def test_nan_and_infinities_are_kept(target, writer):
    writer.write_scalars({"nan": math.nan, "up": math.inf, "down": -math.inf}, 1)
    writer.flush()
    ((_, _, found),) = rows(target)
    assert (math.isnan(found["nan"]), found["up"], found["down"]) == (True, math.inf, -math.inf)


@pytest.mark.parametrize("shape", [(4, 5, 1), (4, 5, 3), (4, 5, 4), (1, 1, 1), (1, 3, 1), (4, 1, 3)])
def test_pictures_keep_every_pixel(target, writer, shape):
    picture = torch.arange(math.prod(shape), dtype=torch.uint8).reshape(shape) + 150
    writer.write_image("../val/picture", picture, 2, "a cat")
    writer.flush()
    (path,) = (target.directory / "wandb").rglob("*.png")
    assert path.parent.name == "val"
    assert np.asarray(Image.open(path)).reshape(shape).tolist() == picture.tolist()
    items = {tuple(item.nested_key): item.value_json for row in records(target, "history") for item in row.item}
    assert items["../val/picture", "caption"] == '"a cat"'


def test_a_distribution_is_of_the_finite_values(target, writer):
    writer.write_histogram("spread", torch.tensor([1.0, math.nan, 3.0, math.inf, 3.0]), 1)
    writer.flush()
    items = {tuple(item.nested_key): item.value_json for row in records(target, "history") for item in row.item}
    counts, bins = json.loads(items["spread", "values"]), json.loads(items["spread", "bins"])
    assert (sum(counts), counts[0], counts[-1], bins[0], bins[-1]) == (3, 1, 2, 1.0, 3.0)


def test_without_a_finite_value_there_is_none(writer):
    with pytest.raises(ValueError, match="'spread' holds no finite value"):
        writer.write_histogram("spread", torch.tensor([math.nan]), 1)


def test_a_text_is_shown_as_it_is(target, writer):
    writer.write_text("note", "1 < 2 & <b>", 1)
    writer.flush()
    (path,) = (target.directory / "wandb").rglob("*.html")
    assert "<pre>1 &lt; 2 &amp; &lt;b&gt;</pre>" in path.read_text()


def test_configuration_is_what_came_last_and_settings_of_the_hook_win(target, writer):
    writer.write_config({"optimizer": {"lr": 0.5}, "seed": 0})
    writer.write_config({"optimizer": {"lr": 0.25}})
    writer.close()
    assert settings_in(target) == {"optimizer": {"lr": 0.25}, "seed": 1}


@pytest.mark.parametrize(
    ("argument", "kept"),
    [("training.epochs=3", True), ("data.token=hush", False), ("--api-key", False), ("url=http://me:hush@h/", False)],
)
def test_a_command_line_with_a_secret_is_not_recorded(target, monkeypatch, argument, kept):
    monkeypatch.setattr(sys, "argv", ["train", argument])
    WandbWriter(target).close()
    (path,) = run_files(target.directory, "1a2b")
    assert (argument.encode() in path.read_bytes()) is kept


def test_a_checkpoint_is_a_version_of_the_model_of_the_run(target, writer, tmp_path):
    for name, is_best in (("epoch_1.pth", False), ("epoch_2.pth", True)):
        (tmp_path / name).write_bytes(name.encode())
        writer.write_model(tmp_path / name, is_best)
    writer.close()
    found = [
        (each.name, each.type, sorted(each.aliases), [entry.path for entry in each.manifest.contents])
        for each in records(target, "artifact")
    ]
    assert found == [
        ("model-1a2b", "model", ["epoch_1", "latest"], ["epoch_1.pth"]),
        ("model-1a2b", "model", ["best", "epoch_2", "latest"], ["epoch_2.pth"]),
    ]
    kept = [Path(entry.local_path) for each in records(target, "artifact") for entry in each.manifest.contents]
    assert [path.read_bytes() for path in kept] == [b"epoch_1.pth", b"epoch_2.pth"]


def test_a_checkpoint_that_is_gone_is_told(writer, tmp_path):
    with pytest.raises(ValueError, match="gone.pth is gone, or no file"):
        writer.write_model(tmp_path / "gone.pth", False)


def test_a_file_is_an_artifact_of_the_run(target, writer, tmp_path):
    (tmp_path / "a b.txt").write_text("hello")
    writer.write_artifact(tmp_path / "a b.txt")
    writer.write_artifact(tmp_path / "a b.txt", "notes")
    writer.close()
    found = [(each.name, each.type) for each in records(target, "artifact")]
    assert found == [(artifact_name("run-1a2b-a b.txt"), "file"), ("run-1a2b-notes", "file")]


def test_code_is_that_of_the_user(target, writer, tmp_path):
    code = tmp_path / "code"
    for name in ("train.py", "lib/net.py", ".venv/lib/x.py", "env/site-packages/y.py", "data.bin"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    writer.write_code(code)
    writer.close()
    (found,) = records(target, "artifact")
    assert sorted(entry.path for entry in found.manifest.contents) == ["lib/net.py", "train.py"]


@pytest.mark.parametrize(
    ("outcome", "code"), [("finished", 0), ("stopped", 0), ("interrupted", 255), ("failed", 1), ("preempted", 1)]
)
def test_the_outcome_is_the_exit_code_of_the_run(target, writer, outcome, code):
    writer.write_outcome(outcome)
    writer.close()
    writer.close()
    (left,) = records(target, "exit")
    assert left.exit_code == code
    assert len(records(target, "preempting")) == (outcome == "preempted")


def test_another_writer_for_the_same_place_goes_on_with_the_run(target):
    for first in (1, 3):
        writer = WandbWriter(target)
        writer.flush()
        for step in (first, first + 1):
            writer.write_scalar("a", float(step), step)
        writer.close()
    assert rows(target) == [(step - 1, step, {"a": float(step)}) for step in (1, 2, 3, 4)]
    assert len(run_files(target.directory, "1a2b")) == 2


def test_a_run_that_must_be_there_is_gone_on_with_or_missed_offline(target):
    with pytest.raises(HookError, match=r"resume: must, and .*own holds no run 1a2b of W&B"):
        WandbWriter(replace(target, resume="must"))
    assert run_files(target.directory, "1a2b") == []
    for resume in ("allow", "must"):
        WandbWriter(replace(target, resume=resume)).close()
    assert len(run_files(target.directory, "1a2b")) == 2


def test_places_from_the_asked_step_on_are_told(target):
    writer = WandbWriter(target)
    for step, names in [(1, "ab"), (2, "a"), (3, "a")]:
        writer.write_scalars(dict.fromkeys(names, 0.0), step)
    writer.close()
    again = WandbWriter(target)
    assert again.resume(2, 3) == {("scalar", "a", 2), ("scalar", "a", 3)}
    again.close()


def test_what_a_writer_before_got_into_the_file_is_not_written_again_after_trouble(target):
    writer = WandbWriter(target)
    writer.write_scalar("a", 1.0, 1)
    writer.close()
    again = WandbWriter(target)
    again.write_scalars({"a": 1.0, "b": 1.0}, 1)
    again.close()
    assert rows(target) == [(0, 1, {"a": 1.0}), (1, 1, {"b": 1.0})]


def test_rows_that_do_not_get_into_the_file_are_trouble_that_may_pass(target, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    monkeypatch.setattr(module, "FLUSH_SECONDS", 0)  # for wandb: only when its buffer is full, or the run finishes
    writer = WandbWriter(target)
    writer.write_scalar("a", 1.0, 1)
    with pytest.raises(OSError, match="what is recorded does not get into .*run-1a2b.wandb; is the disk full?"):
        writer.flush()
    monkeypatch.setattr(module, "PATIENCE", 60.0)
    writer.close()
    assert rows(target) == [(0, 1, {"a": 1.0})]


DIES = """
import os, signal, sys
from pathlib import Path
from hookbus_wandb.names import artifact_name
from hookbus_wandb.writer import Target, WandbWriter

target = Target(Path(sys.argv[1]), "1a2b", mode="offline")
writer = WandbWriter(target)
writer.write_scalar("a", 1.0, 1)
writer.flush()
for child in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
    for pid in child.read_text().split():
        os.kill(int(pid), signal.SIGKILL)
for step in (1, 2):  # what a WriterHook does: what was not flushed comes again
    for attempt in range(3):
        try:
            writer = writer or WandbWriter(target)
            writer.write_scalar("a", float(step), step)
            writer.flush()
            break
        except OSError as error:
            print("trouble:", str(error).partition(":")[0])
            writer = None
writer.close()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_process_of_wandb_that_dies_is_trouble_that_may_pass(target):
    told = in_a_process_of_its_own(DIES, target).splitlines()
    assert set(told) in ({"trouble: W&B"}, {"trouble: Connection lost", "trouble: W&B"})
    assert [(step, found["a"]) for _, step, found in rows(target)] == [(1, 1.0), (2, 2.0)]


def test_a_directory_keeps_the_id_of_its_run(tmp_path):
    first = run_id_in(tmp_path, new=False)
    assert len(first) == 8
    (tmp_path / "run_id").write_text("1a2b\n")
    assert run_id_in(tmp_path, new=False) == "1a2b"
    assert run_id_in(tmp_path, new=True) not in ("1a2b", first)


def test_a_run_that_is_disabled_takes_everything_and_leaves_no_file(tmp_path):
    writer = WandbWriter(Target(tmp_path, "1a2b", mode="disabled"))
    writer.write_scalar("a", 1.0, 1)
    writer.write_config({"lr": 1})
    writer.write_outcome("preempted")
    writer.flush()
    writer.close()
    assert run_files(tmp_path, "1a2b") == []


def test_without_a_key_an_online_run_says_what_to_do():
    with pytest.raises(HookError, match="Say `wandb login` once, set WANDB_API_KEY, or give mode: offline"):
        prepare("online")


def test_an_offline_run_stays_offline_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)
    prepare(None)  # WANDB_MODE is offline here
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    prepare("offline")
    assert os.environ["WANDB_ERROR_REPORTING"] == "true"


def test_the_ways_out_of_the_process_are_left_as_they_were(target):
    before = sys.exit, sys.excepthook
    prepare("offline")
    WandbWriter(target).close()
    assert (sys.exit, sys.excepthook) == before


def test_a_run_of_the_users_own_goes_on(target, run_of_the_user):
    WandbWriter(target).close()
    before = run_of_the_user.step
    run_of_the_user.log({"a": 1})
    assert run_of_the_user.step == before + 1


ENDS = """
import sys, threading
from pathlib import Path
from hookbus_wandb.writer import Target, WandbWriter

WandbWriter(Target(Path(sys.argv[1]), "1a2b")).close()
print([thread.name for thread in threading.enumerate()])
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_process_of_wandb_ends_with_the_last_run(target):
    assert in_a_process_of_its_own(ENDS, target) == "['MainThread']\n"
