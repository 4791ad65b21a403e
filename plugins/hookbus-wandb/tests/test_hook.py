import os
import subprocess
import sys

import pytest

from hookbus import Hook, build_hooks
from hookbus.errors import ConfigError, HookWarning
from hookbus.testing import check_hook, fake_training
from hookbus_wandb import WandbHook
from hookbus_wandb.files import TransactionLog, find_run_files

SERVICE_IS_DOWN = """
import sys, warnings
from pathlib import Path
from hookbus.errors import HookWarning
from hookbus.testing import fake_training, fingerprint
from hookbus_wandb import WandbHook

class ImpatientHook(WandbHook):
    patience = 10.0

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", HookWarning)
    training = fake_training([ImpatientHook(mode="online", interval=1)], work_dir=Path(sys.argv[1]))
print(training.run.outcome, fingerprint(training.model.state_dict()) == fingerprint(fake_training().model.state_dict()))
for warning in caught:
    print(warning.message)
"""


class SaveHook(Hook):
    """Emit `after_save_checkpoint` with a file after each epoch."""

    def after_epoch(self, run, epoch):
        path = run.work_dir.path / f"epoch_{epoch + 1}.pth"
        path.write_bytes(b"weights")
        run.bus.emit("after_save_checkpoint", path=path, is_best=epoch == 0)


def get_records(work_dir, name="wandb"):
    directory = work_dir / "logs" / name
    files = find_run_files(directory, (directory / "run_id").read_text())
    return [record for path in files for record in TransactionLog(path).read_records()]


def select_field(records, field):
    return [getattr(record, field) for record in records if record.HasField(field)]


def get_curve(work_dir, name):
    rows = [
        row
        for path in find_run_files(work_dir / "logs" / "wandb", get_run_id(work_dir))
        for row in TransactionLog(path).read_rows()
    ]
    return [(row["trainer/step"], row[name]) for row in rows if name in row]


def get_run_id(work_dir):
    return (work_dir / "logs" / "wandb" / "run_id").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hook_passes_the_conformance_checks():
    check_hook(WandbHook, mode="offline", interval=1)


def test_training_without_a_work_dir_is_refused():
    with pytest.raises(ConfigError, match="requires a work directory, got none. Set `work_dir`"):
        fake_training([WandbHook()])


@pytest.mark.parametrize(("setting", "name"), [(None, "digits-3"), ("mine", "mine")])
def test_run_name_is_the_setting_or_that_of_the_work_directory(tmp_path, setting, name):
    fake_training([WandbHook(project="mnist", name=setting)], work_dir=tmp_path / "digits-3")
    (run,) = select_field(get_records(tmp_path / "digits-3"), "run")
    assert (run.project, run.display_name) == ("mnist", name)


def test_run_name_is_not_the_name_of_the_hook():
    assert WandbHook(name="mine").name == "wandb"
    hooks = build_hooks({"wandb": {"name": "mine"}, "board": {"type": "wandb"}})
    assert [(hook.name, hook.config.name) for hook in hooks] == [("wandb", "mine"), ("board", None)]


def test_means_of_full_and_partial_intervals_are_logged_by_optimizer_step(tmp_path):
    fake_training([WandbHook(interval=4)], losses=float, work_dir=tmp_path)
    assert get_curve(tmp_path, "train/loss") == [(4, 2.5), (6, 5.5)]  # means of 1, 2, 3, 4 and of 5, 6


def test_id_setting_is_the_id_of_the_run(tmp_path):
    fake_training([WandbHook(id="mine-1")], work_dir=tmp_path)
    assert [run.run_id for run in select_field(get_records(tmp_path), "run")] == ["mine-1"]


def test_config_setting_takes_precedence_and_is_redacted(tmp_path):
    hook = WandbHook(config={"team": "vision", "api_key": "hush-hush"})
    fake_training([hook], work_dir=tmp_path, config={"lr": 0.5, "team": "?"})
    updates = [item for config in select_field(get_records(tmp_path), "config") for item in config.update]
    assert {item.key: item.value_json for item in updates} == {"lr": "0.5", "team": '"vision"', "api_key": '"***"'}
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hush-hush" in path.read_bytes()]


@pytest.mark.parametrize("log_model", [False, True])
def test_checkpoints_are_uploaded_only_with_log_model(tmp_path, log_model):
    fake_training([WandbHook(log_model=log_model), SaveHook()], work_dir=tmp_path)
    versions = [(version.name, sorted(version.aliases)) for version in select_field(get_records(tmp_path), "artifact")]
    name = f"model-{get_run_id(tmp_path)}"
    expected = [(name, ["best", "epoch_1", "latest"]), (name, ["epoch_2", "latest"])]
    assert versions == (expected if log_model else [])


@pytest.mark.slow
def test_code_is_uploaded_with_log_code(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print()")
    monkeypatch.chdir(tmp_path / "code")
    fake_training([WandbHook(log_code=True)], work_dir=tmp_path / "run")
    (artifact,) = select_field(get_records(tmp_path / "run"), "artifact")
    assert (artifact.type, [entry.path for entry in artifact.manifest.contents]) == ("code", ["train.py"])


@pytest.mark.slow
def test_resume_never_starts_a_new_run_each_time(tmp_path):
    ids = []
    for resume in ("allow", "allow", "never"):
        fake_training([WandbHook(resume=resume)], work_dir=tmp_path, resume="auto", fresh=True)
        ids.append(get_run_id(tmp_path))
    assert (ids[0] == ids[1], ids[1] == ids[2]) == (True, False)


def test_disabled_run_writes_no_file(tmp_path):
    fake_training([WandbHook(mode="disabled", interval=1)], work_dir=tmp_path)
    assert not list(tmp_path.rglob("*.wandb"))


@pytest.mark.slow
def test_online_run_without_an_api_key_warns_and_continues(tmp_path):
    with pytest.warns(HookWarning, match="wandb: no API key for an online run"):
        training = fake_training([WandbHook(mode="online")], work_dir=tmp_path)
    assert training.run.outcome == "finished"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_unavailable_service_warns_once_and_dropped_records_are_counted(tmp_path):
    service = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "a" * 40, "WANDB_INIT_TIMEOUT": "1"}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **service}
    environment.pop("WANDB_SERVICE", None)
    command = [sys.executable, "-c", SERVICE_IS_DOWN, str(tmp_path)]
    process = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    outcome, first, second = process.stdout.splitlines()
    assert outcome == "finished True"
    assert first.startswith("hook 'impatient': OSError: W&B: ")
    assert "7 records are missing: 6 numbers, 1 outcomes." in second


def test_invalid_mode_raises():
    with pytest.raises(ConfigError, match="mode"):
        WandbHook(mode="sometimes")


def test_two_instances_log_to_two_runs(tmp_path):
    hooks = [WandbHook(interval=1, instance=name) for name in ("first", "second")]
    fake_training(hooks, losses=float, work_dir=tmp_path)
    for name in ("first", "second"):
        (run,) = select_field(get_records(tmp_path, name), "run")
        assert run.run_id == (tmp_path / "logs" / name / "run_id").read_text()
        assert len(select_field(get_records(tmp_path, name), "exit")) == 1


def test_two_hooks_with_one_id_are_rejected_at_the_start(tmp_path):
    hooks = [WandbHook(id="1a2b", instance=name) for name in ("first", "second")]
    with pytest.raises(ConfigError, match="id: hook 'second' also logs to the W&B run 1a2b. Set another `id`."):
        fake_training(hooks, work_dir=tmp_path)
