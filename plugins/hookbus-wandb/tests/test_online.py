"""Online, against a small service that answers as W&B's does, and keeps what it is sent."""

import gzip
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hookbus.testing.fault_injection import EXPECTED, run_with_faults
from hookbus_wandb import WandbHook
from hookbus_wandb.files import run_files

pytestmark = pytest.mark.slow

TRAIN = """
import sys, warnings
from hookbus.errors import HookWarning
from hookbus.testing import fake_training
from hookbus.testing.fault_injection import scores_of
from hookbus_wandb import WandbHook

WandbHook.patience = float(sys.argv[2])
hook = WandbHook(mode=sys.argv[3], project="digits", interval=1)
config = {"optimizer": {"lr": 0.5}, "api_key": "hush"}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", HookWarning)
    fake_training([hook], batches=5, losses=float, scores=scores_of, work_dir=sys.argv[1], resume="auto", fresh=True,
                  config=config)
for each in caught:
    if each.category is HookWarning:
        print(each.message)
"""


class Service:
    """What a run of W&B needs of the service.

    Attributes:
        rows: what was logged, by the id of the run.
        exit_codes: with which it was finished, by the id of the run.
        config: the last configuration.
        status: given the path and how often rows were sent before, the HTTP status of the answer.
    """

    def __init__(self):
        self.rows, self.exit_codes, self.config = {}, {}, {}
        self.status = lambda path, sent: 200
        self._sent = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"service": self}))
        self._server.handle_error = lambda *_: None  # a client that is killed
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def curves(self):
        found = {}
        for rows in self.rows.values():
            for row in rows:
                for name in row.keys() & EXPECTED.keys():
                    found.setdefault(name, []).append((row["trainer/step"], float(row[name])))
        return found

    def answer(self, path, body):
        status = self.status(path, self._sent)
        self._sent += path.endswith("/file_stream")
        if status != 200:
            return status, {"errors": [{"message": "no"}]}
        if path == "/graphql":
            return status, {"data": self._asked(json.loads(body))}
        if path.endswith("/file_stream"):
            self._take(path.split("/")[-2], json.loads(body))
        return status, {}

    def _take(self, run_id, sent):
        part = sent.get("files", {}).get("wandb-history.jsonl")
        if part:
            rows = self.rows.setdefault(run_id, [])
            rows[part["offset"] :] = [json.loads(line) for line in part["content"]]
        if sent.get("complete"):
            self.exit_codes[run_id] = sent["exitcode"]

    def _asked(self, request):
        name, given = request.get("operationName"), request.get("variables") or {}
        project = {"id": "p", "name": "digits", "entity": {"id": "e", "name": "me"}}
        if name == "RunResumeStatus":
            return {"model": {**project, "bucket": self._known(given["name"])}}
        if name == "UpsertBucket":
            self.config = json.loads(given.get("config") or "null") or self.config
            bucket = {"id": given["name"], "name": given["name"], "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": given["name"] not in self.rows}}
        if name == "CreateRunFiles":
            files = [{"name": each, "uploadUrl": f"{self.url}/upload"} for each in given["files"]]
            return {"createRunFiles": {"runID": given["run"], "uploadHeaders": [], "files": files}}
        return {}

    def _known(self, run_id):
        if run_id not in self.rows:
            return None
        rows, nothing = self.rows[run_id], json.dumps([])
        tails = {"historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]), "eventsTail": nothing}
        counts = {"historyLineCount": len(rows), "eventsLineCount": 0, "logLineCount": 0}
        held = {"config": "{}", "summaryMetrics": "{}", "wandbConfig": json.dumps({"t": 1}), "tags": []}
        return {"id": run_id, "name": run_id, **tails, **counts, **held}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        status, reply = self.service.answer(self.path, body)
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST  # noqa: N815

    def log_message(self, *_):
        """Nothing is printed."""


@pytest.fixture
def service(monkeypatch, tmp_path):
    made = Service()
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_SERVICE", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", made.url)
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    yield made
    made.close()


def train(work_dir, patience=60.0, mode="online"):
    """What the user is warned of."""
    command = [sys.executable, "-c", TRAIN, str(work_dir), str(patience), mode]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def test_what_is_recorded_is_sent_once_and_without_secrets(service, tmp_path):
    assert train(tmp_path) == []
    assert service.curves() == EXPECTED
    assert list(service.exit_codes.values()) == [0]
    assert service.config["optimizer"] == {"value": {"lr": 0.5}}
    assert service.config["api_key"] == {"value": "***"}


@pytest.mark.parametrize("settle", [0.0, 1.5])  # without and with time to get into the file of W&B
def test_what_a_kill_kept_from_being_sent_is_sent_by_the_next_process(service, tmp_path, settle):
    run_with_faults(WandbHook, {"mode": "online", "project": "digits"}, tmp_path, kill_at=7, settle=settle)
    assert train(tmp_path) == []
    assert service.curves() == EXPECTED
    assert len(service.rows) == 1


def test_a_run_that_went_offline_first_is_sent_as_a_whole_when_it_goes_on_online(service, tmp_path):
    run_with_faults(WandbHook, {"mode": "offline", "project": "digits"}, tmp_path, kill_at=7, settle=1.5)
    assert train(tmp_path) == []
    assert service.curves() == EXPECTED


def test_a_service_that_fails_for_a_while_loses_nothing(service, tmp_path):
    service.status = lambda path, sent: 500 if path.endswith("/file_stream") and sent < 2 else 200
    assert train(tmp_path) == []
    assert service.curves() == EXPECTED


def test_a_service_that_goes_away_costs_one_warning_which_says_how_the_rest_is_sent(service, tmp_path):
    service.status = lambda path, sent: 500 if path.endswith("/file_stream") else 200
    (told,) = train(tmp_path, patience=5.0)
    files = tmp_path / "logs" / "wandb" / "wandb" / "*run-*"
    assert told == (
        f"hook 'wandb': the back end did not answer for 5 s; what W&B has not got is sent by `wandb sync {files}`."
    )


@pytest.mark.parametrize("status", [401, 403])
def test_a_service_that_refuses_the_key_is_told_once_and_the_records_are_counted(service, tmp_path, status):
    service.status = lambda path, sent: status
    first, last = train(tmp_path)
    assert re.match(rf"hook 'wandb': OSError: W&B: .* error {status}: .*; the run goes on", first)
    assert last.startswith("hook 'wandb': 14 records are missing: 1 configurations, 12 numbers, 1 outcomes. ")


def test_files_of_an_offline_run_are_what_wandb_sync_sends(service, tmp_path):
    run_with_faults(WandbHook, {"mode": "offline", "project": "digits"}, tmp_path, kill_at=7, settle=1.5)
    assert train(tmp_path, mode="offline") == []
    directory = tmp_path / "logs" / "wandb"
    files = run_files(directory, (directory / "run_id").read_text())
    assert len(files) == 2
    command = [sys.executable, "-m", "wandb", "sync", *[path.parent for path in files]]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert service.curves() == EXPECTED
    assert list(service.exit_codes.values()) == [0]
