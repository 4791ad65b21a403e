"""Create an environment for a peer and measure the peer in it.

    python -m benchmarks.peers ignite | lightning | mmengine | transformers | torchtnt | composer | all [--rounds 100]

The environments are stored under .venv/peers until the packages below change. All except that of Composer also
contain the packages of the running environment, so torch is not downloaded again and hookbus runs next to the peer.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".venv" / "peers"


@dataclass(frozen=True)
class Peer:
    """Packages of a peer. `shares_environment` is False if its requirements conflict with those of hookbus."""

    packages: tuple[str, ...]
    shares_environment: bool = True

    def __str__(self) -> str:
        return "\n".join(self.packages)


PEERS = {
    "ignite": Peer(("pytorch-ignite==0.5.5",)),
    "lightning": Peer(("lightning==2.6.6",)),
    "mmengine": Peer(("mmengine==0.10.7",)),
    "transformers": Peer(("transformers==5.24.0", "accelerate==1.15.0")),
    "torchtnt": Peer(("torchtnt==0.2.4", "setuptools<81")),
    "composer": Peer(("mosaicml==0.32.1", "torch<2.7.1", "setuptools<81", "scikit-learn"), shares_environment=False),
}


def environment(name: str) -> Path:
    """Return the interpreter of a peer's environment, which is created if it is missing or incomplete.

    Raises:
        CalledProcessError: If the packages cannot be installed.
    """
    peer, directory = PEERS[name], CACHE / name
    python, marker = directory / "bin" / "python", directory / "installed.txt"
    if marker.is_file() and marker.read_text() == str(peer):
        return python
    shutil.rmtree(directory, ignore_errors=True)
    venv.create(directory)
    if peer.shares_environment:
        _add_running_path(directory)
    print(f"{name}: installing {', '.join(peer.packages)} in {directory.relative_to(ROOT)}", flush=True)
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *peer.packages]
    subprocess.run(install, check=True, capture_output=True, text=True)
    marker.write_text(str(peer))
    return python


def _add_running_path(directory: Path) -> None:
    """Append the path of the running interpreter to that of the environment."""
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(directory)}))
    (packages / "running.pth").write_text("\n".join(path for path in sys.path if path))


def measure(name: str, options: list[str]) -> bool:
    """Measure one peer. Return whether the measurement succeeded."""
    try:
        python = environment(name)
    except subprocess.CalledProcessError as failure:
        errors = [line for line in failure.stderr.splitlines() if line.startswith("ERROR")] or [
            f"exit {failure.returncode}"
        ]
        print(f"{name}: skipped, its packages could not be installed. {errors[-1]}", flush=True)
        return False
    return subprocess.run([python, "-m", f"benchmarks.peers.{name}", *options], cwd=ROOT).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=[*PEERS, "all"])
    arguments, options = parser.parse_known_args()
    names = list(PEERS) if arguments.peer == "all" else [arguments.peer]
    measured = [measure(name, options) for name in names]
    return 0 if all(measured) else 1


if __name__ == "__main__":
    sys.exit(main())
