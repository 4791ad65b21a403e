import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from mlflow import MlflowClient

from hookbus_mlflow.target import Target, ensure_database
from hookbus_mlflow.writer import MLflowWriter

FAIL_SECOND_FLUSH = """
import resource, sqlite3, sys
from pathlib import Path
from hookbus_mlflow.target import Target
from hookbus_mlflow.writer import MLflowWriter

def limit_disk(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

target = Target(Path(sys.argv[1]), f"sqlite:///{sys.argv[2]}", "digits", "first")
other = sqlite3.connect(sys.argv[2])
writer = MLflowWriter(target)
for step in 1.0, 2.0:
    writer.time = step
    writer.write_scalar("a", step, int(step))
    if step == 2:
        BEGIN
    try:
        writer.flush()
    except OSError:
        writer.abandon()
        print("error at", step)
END
retry = MLflowWriter(target)
retry.time = 2.0
retry.write_scalar("a", 2.0, 2)
retry.close()
"""
"""The steps of a `WriterHook` in a separate process: the second flush fails, and another writer is created."""


KILL_BEFORE_THE_ID_IS_STORED = """
import os, signal, sys
from pathlib import Path
from hookbus_mlflow.target import Target
from hookbus_mlflow.writer import MLflowWriter

replace = os.replace
def replace_or_die(source, target):
    if Path(target).name == "run_id":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

os.replace = replace_or_die
MLflowWriter(Target(Path(sys.argv[1]), f"sqlite:///{sys.argv[2]}", "digits", "first"))
"""


@pytest.fixture
def target(database, tmp_path):
    return Target(tmp_path / "own", f"sqlite:///{database}", "digits", "first", {"team": "vision"})


@pytest.fixture
def writer(target, tmp_path):
    client = MlflowClient(target.uri)
    client.create_experiment("digits", (tmp_path / "artifacts").as_uri())
    writer = MLflowWriter(target)
    writer.time = 1000.5
    return writer


def get_run(target):
    return MlflowClient(target.uri).get_run(target.id_file.read_text())


def get_history(target, name):
    metrics = MlflowClient(target.uri).get_metric_history(target.id_file.read_text(), name)
    return [(metric.step, metric.value, metric.timestamp) for metric in metrics]


def get_artifacts(tmp_path):
    return {path.name: path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()}


def test_new_run_has_the_configured_name_and_tags(target, writer):
    run = get_run(target)
    assert (run.info.run_name, run.info.status, run.data.tags["team"]) == ("first", "RUNNING", "vision")


@pytest.mark.slow
def test_second_writer_for_the_same_directory_continues_the_run(target, writer):
    writer.write_outcome("preempted")
    writer.flush()
    assert get_run(target).info.status == "KILLED"
    MLflowWriter(target)
    run = get_run(target)
    assert run.info.status == "RUNNING"
    assert len(MlflowClient(target.uri).search_runs([run.info.experiment_id])) == 1


@pytest.mark.slow
def test_process_killed_before_the_id_is_stored_leaves_no_orphaned_run(database, target):
    command = [sys.executable, "-c", KILL_BEFORE_THE_ID_IS_STORED, str(target.directory), str(database)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert not target.id_file.exists()
    MLflowWriter(target)
    experiment = MlflowClient(target.uri).get_experiment_by_name("digits").experiment_id
    assert [run.info.run_id for run in MlflowClient(target.uri).search_runs([experiment])] == [
        get_run(target).info.run_id
    ]


def test_scalars_are_logged_by_flush_with_the_time_of_their_record(target, writer):
    writer.write_scalars({"a": 1.5, "b": 2.0}, 3)
    assert get_history(target, "a") == []
    writer.flush()
    assert (get_history(target, "a"), get_history(target, "b")) == ([(3, 1.5, 1000500)], [(3, 2.0, 1000500)])


def test_nan_is_logged_and_infinities_become_the_largest_float(target, writer):
    writer.write_scalars({"nan": math.nan, "up": math.inf, "down": -math.inf}, 1)
    writer.close()
    assert math.isnan(get_history(target, "nan")[0][1])
    infinities = get_history(target, "up")[0][1], get_history(target, "down")[0][1]
    assert infinities == (sys.float_info.max, -sys.float_info.max)


def test_scalars_beyond_the_batch_limit_are_all_logged(target, writer):
    writer.write_scalars({f"n/{k}": float(k) for k in range(1001)}, 1)
    writer.flush()
    assert get_run(target).data.metrics == {f"n/{k}": float(k) for k in range(1001)}


def test_scalar_that_is_written_again_is_stored_once(target, writer):
    for _ in range(2):
        writer.write_scalar("a", 1.5, 3)
        writer.flush()
    assert get_history(target, "a") == [(3, 1.5, 1000500)]


def test_abandoned_records_are_not_written(target, writer):
    writer.write_scalar("a", 1.5, 3)
    writer.abandon()
    writer.close()
    assert get_run(target).data.metrics == {}


def test_resume_returns_the_records_from_the_step_on(target, writer):
    for step, names in [(1, "ab"), (2, "a"), (3, "a")]:
        writer.write_scalars(dict.fromkeys(names, 0.0), step)
    writer.flush()
    assert writer.resume(2, 3) == {("scalar", "a", 2), ("scalar", "a", 3)}
    assert writer.resume(1, 3) == {("scalar", "b", 1), *(("scalar", "a", step) for step in (1, 2, 3))}


def test_configuration_is_logged_as_params_that_keep_their_values(target, writer, tmp_path):
    many = {f"key{k}": k for k in range(100)}
    writer.write_config({"optimizer": {"lr": 0.5}, "text": "x" * 600, **many})
    writer.write_config({"optimizer": {"lr": 0.25}, "new": 1})
    expected = {
        "optimizer.lr": "0.5",
        "text": "x" * 500,
        "new": "1",
        **{key: str(value) for key, value in many.items()},
    }
    assert get_run(target).data.params == expected
    assert json.loads(get_artifacts(tmp_path)["config.json"].read_text()) == {"optimizer": {"lr": 0.25}, "new": 1}


def test_texts_and_files_are_artifacts(writer, tmp_path):
    writer.write_text("val/note", "hello", 4)
    (tmp_path / "model.pth").write_bytes(b"weights")
    writer.write_artifact(tmp_path / "model.pth", "best")
    artifacts = {path.parent.name + "/" + path.name: path.read_bytes() for path in get_artifacts(tmp_path).values()}
    assert artifacts == {"note/4.txt": b"hello", "best/model.pth": b"weights"}


def test_histogram_is_an_artifact_of_counts_and_edges(writer, tmp_path):
    values = torch.tensor([0.0, 1.0, math.nan, 32.0, 64.0, math.inf])
    writer.write_histogram("weights/a", values, 3)
    histogram = json.loads(get_artifacts(tmp_path)["3.json"].read_text())
    assert histogram["edges"] == [float(edge) for edge in range(65)]
    assert {edge: count for edge, count in enumerate(histogram["counts"]) if count} == {0: 1, 1: 1, 32: 1, 63: 1}
    with pytest.raises(ValueError, match="'b' contains no finite value"):
        writer.write_histogram("b", torch.tensor([math.nan]), 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_stored_losslessly(writer, tmp_path, channels):
    from PIL import Image

    writer.write_image("val/image", torch.full((4, 5, channels), 200, dtype=torch.uint8), 2)
    image = Image.open(next(path for name, path in get_artifacts(tmp_path).items() if name.endswith(".png")))
    assert (image.size, set(image.convert("L").tobytes())) == ((5, 4), {200})


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("finished", "FINISHED"), ("stopped", "FINISHED"), ("failed", "FAILED"), ("preempted", "KILLED")],
)
def test_outcome_is_the_status_of_the_run(target, writer, outcome, status):
    writer.write_scalar("a", 1.5, 3)
    writer.write_outcome(outcome)
    writer.flush()
    assert (get_run(target).info.status, get_history(target, "a")) == (status, [(3, 1.5, 1000500)])


def test_unavailable_server_raises_an_oserror(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(OSError, match="MLflow: API request to http://127.0.0.1:9"):
        MLflowWriter(Target(tmp_path, "http://127.0.0.1:9", "digits", "first"))


def test_record_that_mlflow_rejects_raises_a_valueerror(writer):
    writer.write_scalar("a:b?c", 1.0, int(time.time()))
    with pytest.raises(ValueError, match="MLflow: "):
        writer.flush()


def test_record_that_the_database_rejects_raises_a_valueerror(writer):
    writer.write_scalar("a", 1.0, 2**70)
    with pytest.raises(ValueError, match="MLflow: "):
        writer.flush()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("limit_disk(20)", "limit_disk(resource.RLIM_INFINITY)"),
        ('other.execute("BEGIN EXCLUSIVE")', "other.rollback()"),
    ],
    ids=["full disk", "locked database"],
)
def test_database_failure_raises_an_oserror_and_a_retry_succeeds(database, target, begin, end):
    code = FAIL_SECOND_FLUSH.replace("BEGIN\n", f"{begin}\n").replace("END\n", f"{end}\n")
    command = [sys.executable, "-c", code, str(target.directory), str(database)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    assert process.stdout == "error at 2.0\n"
    assert get_history(target, "a") == [(1, 1.0, 1000), (2, 2.0, 2000)]


@pytest.mark.parametrize("content", [b"a/../b", b"\xff\xfe", b"x" * 1000, None])
def test_invalid_id_file_is_an_error_that_names_it(target, content):
    target.directory.mkdir()
    if content is None:
        target.id_file.symlink_to(target.directory)
    else:
        target.id_file.write_bytes(content)
    with pytest.raises(ValueError, match=r"run_id: .*ID of (an|the) MLflow run"):
        MLflowWriter(target)


def test_temporary_names_contain_the_owner(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"\.tmp-0a-[0-9a-f]{32}"):
        ensure_database(tmp_path / "missing" / "mlflow.db", "file:///artifacts", "0a")
