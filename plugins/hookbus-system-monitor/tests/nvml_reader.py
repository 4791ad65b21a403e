"""Process that reads GPUs through the real NVML binding, controlled by JSON lines on standard input and output."""

import json
import os
import sys
from pathlib import Path

import pynvml

from hookbus_system_monitor.nvml import NvmlProvider
from hookbus_system_monitor.readings import Reader


def main() -> None:
    provider, lines, complete = None, {}, dict(vars(pynvml))
    for line in sys.stdin:
        command = json.loads(line)
        if "scenario" in command:
            Path(os.environ["NVML_SCENARIO"]).write_text(command["scenario"])
        for name in command.get("lacks", ()):  # an old version of the binding
            delattr(pynvml, name)
        if "new" in command:
            vars(pynvml).update(complete)
            lines = {"info": [], "warnings": [], "unavailable": []}
            provider = NvmlProvider(
                **command["new"],
                reader=Reader(lines["unavailable"].append),
                info=lines["info"].append,
                warn=lines["warnings"].append,
            )
        values = [provider.read() for _ in range(command.get("reads", 0))]
        if command.get("close"):
            provider.close()
        sys.stdout.write(json.dumps({"values": values, **lines}) + "\n")
        sys.stdout.flush()


main()
