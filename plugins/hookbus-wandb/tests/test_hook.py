import os
import subprocess
import sys

import pytest

from hookbus import Hook, build_hooks
from hookbus.errors import ConfigError, HookWarning
from hookbus.testing import check_hook, fake_training
from hookbus_wandb import WandbHook
from hookbus_wandb.files import Log, run_files

SERVICE_IS_DOWN = """
import sys, warnings
from pathlib import Path
from hookbus.errors import HookWarning
from hookbus.testing import fake_training, fingerprint
from hookbus_wandb import WandbHook

class Hasty(WandbHook):
    patience = 100.0

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", HookWarning)
    training = fake_training([Hasty(mode="online", interval=1)], work_dir=Path(sys.argv[1]))
print(training.run.outcome, fingerprint(training.model.state_dict()) == fingerprint(fake_training().model.state_dict()))
for each in caught:
    print(each.message)
"""


class Saves(Hook):
    """Reports a checkpoint file after each epoch, as a saver does."""

    def after_epoch(self, run, epoch):
        path = run.work_dir.path / f"epoch_{epoch + 1}.pth"
        path.write_bytes(b"weights")
        run.bus.emit("after_save_checkpoint", path=path, is_best=epoch == 0)


def records(work_dir, name="wandb"):
    directory = work_dir / "logs" / name
    files = run_files(directory, (directory / "run_id").read_text())
    return [record for path in files for record in Log(path).records()]


def of_kind(found, kind):
    return [getattr(record, kind) for record in found if record.HasField(kind)]


def curve(work_dir, name):
    rows = [row for path in run_files(work_dir / "logs" / "wandb", run_id(work_dir)) for row in Log(path).rows()]
    return [(row["trainer/step"], row[name]) for row in rows if name in row]


def run_id(work_dir):
    return (work_dir / "logs" / "wandb" / "run_id").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_keeps_the_promises_that_users_rely_on():
    check_hook(WandbHook, mode="offline", interval=1)


def test_without_a_work_dir_it_says_what_to_do_and_the_run_goes_on():
    with pytest.warns(HookWarning, match="this run has none: give work_dir= to the run"):
        fake_training([WandbHook()])


@pytest.mark.parametrize(("given", "name"), [(None, "digits-3"), ("mine", "mine")])
def test_a_run_is_called_as_given_or_as_its_work_directory(tmp_path, given, name):
    fake_training([WandbHook(project="mnist", name=given)], work_dir=tmp_path / "digits-3")
    (run,) = of_kind(records(tmp_path / "digits-3"), "run")
    assert (run.project, run.display_name) == ("mnist", name)


def test_the_name_of_the_run_is_not_the_name_of_the_hook():
    assert WandbHook(name="mine").name == "wandb"
    hooks = build_hooks({"wandb": {"name": "mine"}, "board": {"type": "wandb"}})
    assert [(hook.name, hook.config.name) for hook in hooks] == [("wandb", "mine"), ("board", None)]


def test_means_over_each_interval_and_over_what_is_left_stand_on_updates(tmp_path):
    fake_training([WandbHook(interval=4)], losses=float, work_dir=tmp_path)
    assert curve(tmp_path, "train/loss") == [(4, 2.5), (6, 5.5)]  # means of 1, 2, 3, 4 and of 5, 6


def test_an_id_of_ones_own_is_the_id_of_the_run(tmp_path):
    fake_training([WandbHook(id="mine-1")], work_dir=tmp_path)
    assert [run.run_id for run in of_kind(records(tmp_path), "run")] == ["mine-1"]


def test_settings_of_its_own_are_recorded_beside_the_configuration_without_secrets(tmp_path):
    hook = WandbHook(config={"team": "vision", "api_key": "hush-hush"})
    fake_training([hook], work_dir=tmp_path, config={"lr": 0.5, "team": "?"})
    updates = [item for config in of_kind(records(tmp_path), "config") for item in config.update]
    assert {item.key: item.value_json for item in updates} == {"lr": "0.5", "team": '"vision"', "api_key": '"***"'}
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hush-hush" in path.read_bytes()]


@pytest.mark.parametrize("log_model", [False, True])
def test_checkpoints_are_versions_of_a_model_on_request(tmp_path, log_model):
    fake_training([WandbHook(log_model=log_model), Saves()], work_dir=tmp_path)
    found = [(each.name, sorted(each.aliases)) for each in of_kind(records(tmp_path), "artifact")]
    name = f"model-{run_id(tmp_path)}"
    expected = [(name, ["best", "epoch_1", "latest"]), (name, ["epoch_2", "latest"])]
    assert found == (expected if log_model else [])


def test_code_is_an_artifact_on_request(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print()")
    monkeypatch.chdir(tmp_path / "code")
    fake_training([WandbHook(log_code=True)], work_dir=tmp_path / "run")
    (found,) = of_kind(records(tmp_path / "run"), "artifact")
    assert (found.type, [entry.path for entry in found.manifest.contents]) == ("code", ["train.py"])


def test_never_begins_a_run_of_its_own_each_time(tmp_path):
    ids = []
    for resume in ("allow", "allow", "never"):
        fake_training([WandbHook(resume=resume)], work_dir=tmp_path, resume="auto", fresh=True)
        ids.append(run_id(tmp_path))
    assert (ids[0] == ids[1], ids[1] == ids[2]) == (True, False)


def test_a_disabled_one_writes_nothing(tmp_path):
    fake_training([WandbHook(mode="disabled", interval=1)], work_dir=tmp_path)
    assert not list(tmp_path.rglob("*.wandb"))


def test_without_a_key_an_online_run_says_what_to_do_and_the_run_goes_on(tmp_path):
    with pytest.warns(HookWarning, match="wandb has no key for an online run"):
        training = fake_training([WandbHook(mode="online")], work_dir=tmp_path)
    assert training.run.outcome == "finished"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_service_that_is_down_costs_one_warning_and_the_records_which_are_counted(tmp_path):
    service = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "a" * 40, "WANDB_INIT_TIMEOUT": "1"}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **service}
    environment.pop("WANDB_SERVICE", None)
    command = [sys.executable, "-c", SERVICE_IS_DOWN, str(tmp_path)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    outcome, first, second = done.stdout.splitlines()
    assert outcome == "finished True"
    assert first.startswith("hook 'hasty': OSError: W&B: ")
    assert "7 records are missing: 6 numbers, 1 outcomes." in second


def test_settings_that_cannot_be_are_told():
    with pytest.raises(ConfigError, match="mode"):
        WandbHook(mode="sometimes")
