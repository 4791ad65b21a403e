import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hookbus_wandb.writer as module
from hookbus.errors import HookError
from hookbus_wandb import WandbConfig
from hookbus_wandb.config import to_artifact_name
from hookbus_wandb.files import TransactionLog, find_run_files
from hookbus_wandb.writer import Target, WandbWriter, get_run_id, prepare


@pytest.fixture
def target(tmp_path):
    return Target(tmp_path / "own", "1a2b", WandbConfig(project="digits"), name="first", config={"seed": 1})


@pytest.fixture
def writer(target):
    writer = WandbWriter(target)
    yield writer
    writer.close()


def get_records(target, field):
    logs = [TransactionLog(path) for path in find_run_files(target.directory, target.run_id)]
    return [getattr(record, field) for log in logs for record in log.read_records() if record.HasField(field)]


def contains(target, text):
    return any(text.encode() in path.read_bytes() for path in find_run_files(target.directory, target.run_id))


def get_rows(target):
    """Return (W&B step, step, records) of each row."""
    rows = [row for path in find_run_files(target.directory, target.run_id) for row in TransactionLog(path).read_rows()]
    values = [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]
    return [(row["_step"], logged.pop("trainer/step"), logged) for row, logged in zip(rows, values, strict=True)]


def run_in_separate_process(code, target):
    """Return the output of the code."""
    command = [sys.executable, "-c", code, str(target.directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("WANDB_SERVICE", None)
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def get_config(target):
    items = [item for record in get_records(target, "config") for item in record.update]
    return {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}


def test_run_has_the_configured_id_project_and_name(target, writer):
    writer.close()
    (run,) = get_records(target, "run")
    assert (run.run_id, run.project, run.display_name) == ("1a2b", "digits", "first")
    assert (target.directory / "run_id").read_text() == "1a2b"


@pytest.mark.parametrize("service", [None, "user-service"])
def test_child_processes_use_only_the_wandb_process_of_the_user(target, monkeypatch, service):
    if service is not None:
        monkeypatch.setenv("WANDB_SERVICE", service)
    WandbWriter(target).close()
    assert os.environ.get("WANDB_SERVICE") == service


def test_trainer_step_is_the_x_axis_of_all_metrics(target, writer):
    writer.close()
    defined = [(metric.name or metric.glob_name, metric.step_metric) for metric in get_records(target, "metric")]
    assert defined == [("trainer/step", ""), ("*", "trainer/step")]


@pytest.mark.slow
def test_scalars_of_one_step_are_one_row_and_wandb_steps_increase(target, writer):
    writer.write_scalars({"a": 1.5, "b": 2.0}, 3)
    writer.write_scalar("b", 1.0, 2)  # W&B drops rows with a lower W&B step
    writer.flush()
    assert get_rows(target) == [(0, 3, {"a": 1.5, "b": 2.0}), (1, 2, {"b": 1.0})]


def test_nan_and_infinities_are_logged(target, writer):
    writer.write_scalars({"nan": math.nan, "up": math.inf, "down": -math.inf}, 1)
    writer.flush()
    ((_, _, values),) = get_rows(target)
    assert (math.isnan(values["nan"]), values["up"], values["down"]) == (True, math.inf, -math.inf)


@pytest.mark.parametrize(
    "shape",
    [
        (4, 5, 1),
        (4, 5, 3),
        pytest.param((4, 5, 4), marks=pytest.mark.slow),
        (1, 1, 1),
        pytest.param((1, 3, 1), marks=pytest.mark.slow),
        (4, 1, 3),
    ],
)
def test_images_are_stored_losslessly(target, writer, shape):
    image = torch.arange(math.prod(shape), dtype=torch.uint8).reshape(shape) + 150
    writer.write_image("../val/image", image, 2, "a cat")
    writer.flush()
    (path,) = (target.directory / "wandb").rglob("*.png")
    assert path.parent.name == "val"
    assert np.asarray(Image.open(path)).reshape(shape).tolist() == image.tolist()
    items = {tuple(item.nested_key): item.value_json for row in get_records(target, "history") for item in row.item}
    assert items["../val/image", "caption"] == '"a cat"'


def test_histogram_contains_the_finite_values(target, writer):
    writer.write_histogram("weights", torch.tensor([1.0, math.nan, 3.0, math.inf, 3.0]), 1)
    writer.flush()
    items = {tuple(item.nested_key): item.value_json for row in get_records(target, "history") for item in row.item}
    counts, bins = json.loads(items["weights", "values"]), json.loads(items["weights", "bins"])
    assert (sum(counts), counts[0], counts[-1], bins[0], bins[-1]) == (3, 1, 2, 1.0, 3.0)


def test_histogram_without_a_finite_value_raises(writer):
    with pytest.raises(ValueError, match="'weights' contains no finite value"):
        writer.write_histogram("weights", torch.tensor([math.nan]), 1)


def test_text_is_escaped_and_preformatted(target, writer):
    writer.write_text("note", "1 < 2 & <b>", 1)
    writer.flush()
    (path,) = (target.directory / "wandb").rglob("*.html")
    assert "<pre>1 &lt; 2 &amp; &lt;b&gt;</pre>" in path.read_text()


def test_last_configuration_is_stored_and_target_config_takes_precedence(target, writer):
    writer.write_config({"optimizer": {"lr": 0.5}, "seed": 0})
    writer.write_config({"optimizer": {"lr": 0.25}})
    writer.close()
    assert get_config(target) == {"optimizer": {"lr": 0.25}, "seed": 1}


@pytest.mark.parametrize(
    ("argument", "is_logged"),
    [("training.epochs=3", True), ("data.token=hush", False), ("--api-key", False), ("url=http://me:hush@h/", False)],
)
def test_command_line_with_a_secret_is_not_logged(target, monkeypatch, argument, is_logged):
    monkeypatch.setattr(sys, "argv", ["train", argument])
    writer = WandbWriter(target)
    # W&B collects the command line in the background, and writes what it has when the run ends.
    deadline = time.monotonic() + 60
    while is_logged and not contains(target, argument) and time.monotonic() < deadline:
        time.sleep(0.01)
    writer.close()
    assert contains(target, argument) is is_logged


def test_checkpoint_is_a_version_of_the_model_of_the_run(target, writer, tmp_path):
    for name, is_best in (("epoch_1.pth", False), ("epoch_2.pth", True)):
        (tmp_path / name).write_bytes(name.encode())
        writer.write_model(tmp_path / name, is_best)
    writer.close()
    versions = [
        (version.name, version.type, sorted(version.aliases), [entry.path for entry in version.manifest.contents])
        for version in get_records(target, "artifact")
    ]
    assert versions == [
        ("model-1a2b", "model", ["epoch_1", "latest"], ["epoch_1.pth"]),
        ("model-1a2b", "model", ["best", "epoch_2", "latest"], ["epoch_2.pth"]),
    ]
    staged = [
        Path(entry.local_path) for version in get_records(target, "artifact") for entry in version.manifest.contents
    ]
    assert [path.read_bytes() for path in staged] == [b"epoch_1.pth", b"epoch_2.pth"]


def test_missing_checkpoint_file_raises(writer, tmp_path):
    with pytest.raises(ValueError, match="checkpoint file does not exist: .*gone.pth"):
        writer.write_model(tmp_path / "gone.pth", False)


def test_file_is_an_artifact_of_the_run(target, writer, tmp_path):
    (tmp_path / "a b.txt").write_text("hello")
    writer.write_artifact(tmp_path / "a b.txt")
    writer.write_artifact(tmp_path / "a b.txt", "notes")
    writer.close()
    artifacts = [(artifact.name, artifact.type) for artifact in get_records(target, "artifact")]
    assert artifacts == [(to_artifact_name("run-1a2b-a b.txt"), "file"), ("run-1a2b-notes", "file")]


def test_code_excludes_hidden_files_and_installed_packages(target, writer, tmp_path):
    code = tmp_path / "code"
    for name in ("train.py", "lib/net.py", ".venv/lib/x.py", "env/site-packages/y.py", "data.bin"):
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        (code / name).write_text(name)
    writer.write_code(code)
    writer.close()
    (artifact,) = get_records(target, "artifact")
    assert sorted(entry.path for entry in artifact.manifest.contents) == ["lib/net.py", "train.py"]


@pytest.mark.parametrize(
    ("outcome", "code"), [("finished", 0), ("stopped", 0), ("interrupted", 255), ("failed", 1), ("preempted", 1)]
)
def test_outcome_is_the_exit_code_of_the_run(target, writer, outcome, code):
    writer.write_outcome(outcome)
    writer.close()
    writer.close()
    (record,) = get_records(target, "exit")
    assert record.exit_code == code
    assert len(get_records(target, "preempting")) == (outcome == "preempted")


def test_second_writer_for_the_same_directory_continues_the_run(target):
    for first in (1, 3):
        writer = WandbWriter(target)
        writer.flush()
        for step in (first, first + 1):
            writer.write_scalar("a", float(step), step)
        writer.close()
    assert get_rows(target) == [(step - 1, step, {"a": float(step)}) for step in (1, 2, 3, 4)]
    assert len(find_run_files(target.directory, "1a2b")) == 2


def test_resume_must_requires_an_existing_offline_run(target):
    with pytest.raises(HookError, match=r"`resume: must` requires an existing W&B run, but .*own contains no run 1a2b"):
        WandbWriter(replace(target, settings=WandbConfig(resume="must")))
    assert find_run_files(target.directory, "1a2b") == []
    for resume in ("allow", "must"):
        WandbWriter(replace(target, settings=WandbConfig(resume=resume))).close()
    assert len(find_run_files(target.directory, "1a2b")) == 2


def test_resume_returns_the_records_from_the_step_on(target):
    writer = WandbWriter(target)
    for step, names in [(1, "ab"), (2, "a"), (3, "a")]:
        writer.write_scalars(dict.fromkeys(names, 0.0), step)
    writer.close()
    resumed = WandbWriter(target)
    assert resumed.resume(2, 3) == {("scalar", "a", 2), ("scalar", "a", 3)}
    resumed.close()


def test_records_of_an_earlier_writer_are_not_written_again(target):
    writer = WandbWriter(target)
    writer.write_scalar("a", 1.0, 1)
    writer.close()
    retry = WandbWriter(target)
    retry.write_scalars({"a": 1.0, "b": 1.0}, 1)
    retry.close()
    assert get_rows(target) == [(0, 1, {"a": 1.0}), (1, 1, {"b": 1.0})]


def test_rows_missing_in_the_file_raise_an_oserror(target, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(
        module, "FLUSH_INTERVAL_SECONDS", 0
    )  # W&B writes only if its buffer is full, or the run finishes
    writer = WandbWriter(target)
    writer.write_scalar("a", 1.0, 1)
    with pytest.raises(
        OSError, match=r"the logged records are not in .*run-1a2b\.wandb after 0\.1 s\. Check that the disk"
    ):
        writer.flush()
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 60.0)
    writer.close()
    assert get_rows(target) == [(0, 1, {"a": 1.0})]


KILL_SERVICE = """
import os, signal, sys
from pathlib import Path
from hookbus_wandb.config import WandbConfig
from hookbus_wandb.writer import Target, WandbWriter

target = Target(Path(sys.argv[1]), "1a2b", WandbConfig(mode="offline"))
writer = WandbWriter(target)
writer.write_scalar("a", 1.0, 1)
writer.flush()
for child in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
    for pid in child.read_text().split():
        os.kill(int(pid), signal.SIGKILL)
for step in (1, 2):  # as a WriterHook does: records that were not flushed are written again
    for attempt in range(3):
        try:
            writer = writer or WandbWriter(target)
            writer.write_scalar("a", float(step), step)
            writer.flush()
            break
        except OSError as error:
            print("error:", str(error).partition(":")[0])
            writer = None
writer.close()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_wandb_process_raises_an_oserror_and_a_retry_succeeds(target):
    errors = run_in_separate_process(KILL_SERVICE, target).splitlines()
    assert set(errors) in ({"error: W&B"}, {"error: Connection lost", "error: W&B"})
    assert [(step, values["a"]) for _, step, values in get_rows(target)] == [(1, 1.0), (2, 2.0)]


def test_directory_stores_the_id_of_its_run(tmp_path):
    first = get_run_id(tmp_path, new=False)
    assert len(first) == 8
    (tmp_path / "run_id").write_text("1a2b\n")
    assert get_run_id(tmp_path, new=False) == "1a2b"
    assert get_run_id(tmp_path, new=True) not in ("1a2b", first)


@pytest.mark.parametrize("content", [b"a/../b", b"\xff\xfe", b"x" * 1000, None])
def test_invalid_id_file_is_an_error_that_names_it(tmp_path, content):
    if content is None:
        os.mkfifo(tmp_path / "run_id")
    else:
        (tmp_path / "run_id").write_bytes(content)
    with pytest.raises(HookError, match=r"run_id: .*ID of (a|the) W&B run.* Remove"):
        get_run_id(tmp_path, new=False)


def test_disabled_run_accepts_all_records_and_writes_no_file(tmp_path):
    writer = WandbWriter(Target(tmp_path, "1a2b", WandbConfig(mode="disabled")))
    writer.write_scalar("a", 1.0, 1)
    writer.write_config({"lr": 1})
    writer.write_outcome("preempted")
    writer.flush()
    writer.close()
    assert find_run_files(tmp_path, "1a2b") == []


def test_online_run_without_an_api_key_raises():
    with pytest.raises(HookError, match="Run `wandb login` once, set WANDB_API_KEY, or set `mode: offline`"):
        prepare("online")


def test_error_reporting_is_disabled_unless_the_user_enables_it(monkeypatch):
    monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)
    prepare(None)  # WANDB_MODE is offline here
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    prepare("offline")
    assert os.environ["WANDB_ERROR_REPORTING"] == "true"


def test_sys_exit_and_excepthook_are_not_modified(target):
    before = sys.exit, sys.excepthook
    prepare("offline")
    WandbWriter(target).close()
    assert (sys.exit, sys.excepthook) == before


def test_active_run_of_the_user_continues(target, user_run):
    WandbWriter(target).close()
    before = user_run.step
    user_run.log({"a": 1})
    assert user_run.step == before + 1


CLOSE_LAST_RUN = """
import sys, threading
from pathlib import Path
from hookbus_wandb.writer import Target, WandbWriter

WandbWriter(Target(Path(sys.argv[1]), "1a2b")).close()
print([thread.name for thread in threading.enumerate()])
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_wandb_process_ends_with_the_last_run(target):
    assert run_in_separate_process(CLOSE_LAST_RUN, target) == "['MainThread']\n"
