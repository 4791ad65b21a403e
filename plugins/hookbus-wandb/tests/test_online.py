"""Online runs against a local service that implements the API of W&B and stores the requests."""

import gzip
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hookbus.testing.backends import EXPECTED, run_with_faults
from hookbus_wandb import WandbHook
from hookbus_wandb.files import find_run_files

pytestmark = pytest.mark.slow

TRAIN = """
import sys, warnings
from hookbus.errors import HookWarning
from hookbus.testing import fake_training
from hookbus.testing.backends import get_scores
from hookbus_wandb import WandbHook

WandbHook.patience = float(sys.argv[2])
hook = WandbHook(mode=sys.argv[3], project="digits", interval=1)
config = {"optimizer": {"lr": 0.5}, "api_key": "hush"}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", HookWarning)
    fake_training([hook], batches=5, losses=float, scores=get_scores, work_dir=sys.argv[1], resume="auto", fresh=True,
                  config=config)
for warning in caught:
    if warning.category is HookWarning:
        print(warning.message)
"""


class Service:
    """Minimal W&B service.

    Attributes:
        rows: Logged rows by run ID.
        exit_codes: Exit code of each finished run by run ID.
        config: Last configuration.
        status: Function of the path and of the number of earlier row uploads that returns the HTTP status.
    """

    def __init__(self):
        self.rows, self.exit_codes, self.config = {}, {}, {}
        self.status = lambda path, sent: 200
        self._sent = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"service": self}))
        self._server.handle_error = lambda *_: None  # a killed client
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def curves(self):
        curves = {}
        for rows in self.rows.values():
            for row in rows:
                for name in row.keys() & EXPECTED.keys():
                    curves.setdefault(name, []).append((row["trainer/step"], float(row[name])))
        return curves

    def answer(self, path, body):
        status = self.status(path, self._sent)
        self._sent += path.endswith("/file_stream")
        if status != 200:
            return status, {"errors": [{"message": "no"}]}
        if path == "/graphql":
            return status, {"data": self._answer_query(json.loads(body))}
        if path.endswith("/file_stream"):
            self._store(path.split("/")[-2], json.loads(body))
        return status, {}

    def _store(self, run_id, upload):
        history = upload.get("files", {}).get("wandb-history.jsonl")
        if history:
            rows = self.rows.setdefault(run_id, [])
            rows[history["offset"] :] = [json.loads(line) for line in history["content"]]
        if upload.get("complete"):
            self.exit_codes[run_id] = upload["exitcode"]

    def _answer_query(self, request):
        name, variables = request.get("operationName"), request.get("variables") or {}
        project = {"id": "p", "name": "digits", "entity": {"id": "e", "name": "me"}}
        if name == "RunResumeStatus":
            return {"model": {**project, "bucket": self._get_bucket(variables["name"])}}
        if name == "UpsertBucket":
            self.config = json.loads(variables.get("config") or "null") or self.config
            bucket = {"id": variables["name"], "name": variables["name"], "project": project}
            return {"upsertBucket": {"bucket": bucket, "inserted": variables["name"] not in self.rows}}
        if name == "CreateRunFiles":
            files = [{"name": file, "uploadUrl": f"{self.url}/upload"} for file in variables["files"]]
            return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
        return {}

    def _get_bucket(self, run_id):
        if run_id not in self.rows:
            return None
        rows, no_events = self.rows[run_id], json.dumps([])
        tails = {"historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]), "eventsTail": no_events}
        counts = {"historyLineCount": len(rows), "eventsLineCount": 0, "logLineCount": 0}
        state = {"config": "{}", "summaryMetrics": "{}", "wandbConfig": json.dumps({"t": 1}), "tags": []}
        return {"id": run_id, "name": run_id, **tails, **counts, **state}


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
        """Print nothing."""


@pytest.fixture
def service(monkeypatch, tmp_path):
    service = Service()
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_SERVICE", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", service.url)
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    yield service
    service.close()


def train(work_dir, patience=60.0, mode="online"):
    """Train in a separate process and return its warnings."""
    command = [sys.executable, "-c", TRAIN, str(work_dir), str(patience), mode]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()


def test_records_are_uploaded_once_and_redacted(service, tmp_path):
    assert train(tmp_path) == []
    assert service.curves() == EXPECTED
    assert list(service.exit_codes.values()) == [0]
    assert service.config["optimizer"] == {"value": {"lr": 0.5}}
    assert service.config["api_key"] == {"value": "***"}


# Without and with time for W&B to write its file.
@pytest.mark.parametrize("kill_delay", [pytest.param(0.0, marks=pytest.mark.exhaustive), 1.5])
def test_next_process_uploads_the_records_of_a_killed_one(service, tmp_path, kill_delay):
    run_with_faults(WandbHook, {"mode": "online", "project": "digits"}, tmp_path, kill_at=7, kill_delay=kill_delay)
    assert train(tmp_path) == []
    assert service.curves() == EXPECTED
    assert len(service.rows) == 1


def test_offline_run_that_resumes_online_is_uploaded_completely(service, tmp_path):
    run_with_faults(WandbHook, {"mode": "offline", "project": "digits"}, tmp_path, kill_at=7, kill_delay=1.5)
    assert train(tmp_path) == []
    assert service.curves() == EXPECTED


def test_temporary_failure_of_the_service_loses_no_records(service, tmp_path):
    service.status = lambda path, sent: 500 if path.endswith("/file_stream") and sent < 2 else 200
    assert train(tmp_path) == []
    assert service.curves() == EXPECTED


def test_permanent_failure_of_the_service_warns_once_how_to_upload(service, tmp_path):
    service.status = lambda path, sent: 500 if path.endswith("/file_stream") else 200
    (message,) = train(tmp_path, patience=20.0)
    files = tmp_path / "logs" / "wandb" / "wandb" / "*run-*"
    assert message == (
        f"hook 'wandb': the backend timed out after 20 s; run `wandb sync {files}` to upload the missing records."
    )


@pytest.mark.parametrize("status", [pytest.param(401, marks=pytest.mark.exhaustive), 403])
def test_rejected_api_key_warns_once_and_dropped_records_are_counted(service, tmp_path, status):
    service.status = lambda path, sent: status
    first, last = train(tmp_path)
    assert re.match(rf"hook 'wandb': HookError: W&B: .* error {status}: .*; training continues", first)
    assert last.startswith("hook 'wandb': 14 records are missing: 1 configurations, 12 numbers, 1 outcomes. ")


def test_wandb_sync_uploads_the_files_of_an_offline_run(service, tmp_path):
    run_with_faults(WandbHook, {"mode": "offline", "project": "digits"}, tmp_path, kill_at=7, kill_delay=1.5)
    assert train(tmp_path, mode="offline") == []
    directory = tmp_path / "logs" / "wandb"
    files = find_run_files(directory, (directory / "run_id").read_text())
    assert len(files) == 2
    command = [sys.executable, "-m", "wandb", "sync", *[path.parent for path in files]]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert service.curves() == EXPECTED
    assert list(service.exit_codes.values()) == [0]
