"""The YAML language server, which editors run: the errors that it shows in a file."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any


def find_server() -> str | None:
    """Return the path of an installed server; None if there is none."""
    local = Path(__file__).parents[1] / ".venv/npm/node_modules/.bin/yaml-language-server"
    return str(local) if local.exists() else shutil.which("yaml-language-server")


def find_errors(schema: Path, texts: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Return the marked part and the message of each error in YAML texts by the name of the file.

    Args:
        schema: JSON schema of the files.
        texts: Text of each file by its name, which need not exist.
    """
    settings = {"yaml": {"schemas": {schema.as_uri(): "*.yaml"}, "schemaStore": {"enable": False}}}
    process = subprocess.Popen(
        [str(find_server()), "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        return _exchange(process, settings, texts)
    finally:
        process.kill()
        process.communicate()


def _exchange(process: Any, settings: dict[str, Any], texts: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    capabilities = {"workspace": {"configuration": True}}
    _send(process, "initialize", {"processId": None, "rootUri": None, "capabilities": capabilities}, request=1)
    errors: dict[str, list[tuple[str, str]]] = {}
    while len(errors) < len(texts):
        message = _receive(process)
        if message.get("id") == 1 and "result" in message:
            _send(process, "initialized", {})
            _open(process, texts)
        elif message.get("method") == "workspace/configuration":
            items = message["params"]["items"]
            _write(process, {"id": message["id"], "result": [settings.get(item.get("section"), {}) for item in items]})
        elif "method" in message and "id" in message:  # another request of the server
            _write(process, {"id": message["id"], "result": None})
        elif message.get("method") == "textDocument/publishDiagnostics":
            name = message["params"]["uri"].rpartition("/")[2]
            errors[name] = [
                (_cut(texts[name], error["range"]), error["message"]) for error in message["params"]["diagnostics"]
            ]
    return errors


def _open(process: Any, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        document = {"uri": f"file:///{name}", "languageId": "yaml", "version": 1, "text": text}
        _send(process, "textDocument/didOpen", {"textDocument": document})


def _cut(text: str, place: dict[str, dict[str, int]]) -> str:
    """Return the part of a text that a range marks."""
    lines = text.splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    begin, end = (starts[place[key]["line"]] + place[key]["character"] for key in ("start", "end"))
    return text[begin:end]


def _send(process: Any, method: str, parameters: dict[str, Any], request: int | None = None) -> None:
    identity = {} if request is None else {"id": request}
    _write(process, {**identity, "method": method, "params": parameters})


def _write(process: Any, message: dict[str, Any]) -> None:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    process.stdin.flush()


def _receive(process: Any) -> dict[str, Any]:
    length = 0
    while (line := process.stdout.readline().strip()) or not length:
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    message: dict[str, Any] = json.loads(process.stdout.read(length))
    return message
