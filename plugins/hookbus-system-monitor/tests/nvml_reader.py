"""A process that reads GPUs through the real binding: commands come in as lines of JSON, answers go out so."""

import json
import os
import sys
from pathlib import Path

from hookbus_system_monitor.nvml import NvmlProvider
from hookbus_system_monitor.readings import Reader


def main() -> None:
    provider, lines = None, {}
    for line in sys.stdin:
        command = json.loads(line)
        if "scenario" in command:
            Path(os.environ["NVML_SCENARIO"]).write_text(command["scenario"])
        if "new" in command:
            lines = {"told": [], "warned": [], "complained": []}
            provider = NvmlProvider(
                **command["new"],
                reader=Reader(lines["complained"].append),
                tell=lines["told"].append,
                warn=lines["warned"].append,
            )
        values = [provider.read() for _ in range(command.get("reads", 0))]
        if command.get("close"):
            provider.close()
        sys.stdout.write(json.dumps({"values": values, **lines}) + "\n")
        sys.stdout.flush()


main()
