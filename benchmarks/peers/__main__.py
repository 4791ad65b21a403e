"""Make an environment for a peer, and measure the peer in it.

    python -m benchmarks.peers ignite | lightning | mmengine | transformers | torchtnt | composer | all [--rounds 100]

The environments lie under .venv/peers and stay there until the packages below change. All but Composer's see the
packages of the running one behind their own, so torch is not fetched again and hookbus runs beside the peer.
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
    """What is installed for a peer; `beside_ours`: its demands fit those of hookbus."""

    packages: tuple[str, ...]
    beside_ours: bool = True

    def __str__(self) -> str:
        return "\n".join(self.packages)


PEERS = {
    "ignite": Peer(("pytorch-ignite==0.5.5",)),
    "lightning": Peer(("lightning==2.6.6",)),
    "mmengine": Peer(("mmengine==0.10.7",)),
    "transformers": Peer(("transformers==5.24.0", "accelerate==1.15.0")),
    "torchtnt": Peer(("torchtnt==0.2.4", "setuptools<81")),
    "composer": Peer(("mosaicml==0.32.1", "torch<2.7.1", "setuptools<81", "scikit-learn"), beside_ours=False),
}


def environment(name: str) -> Path:
    """The interpreter of a peer's environment, which is made where there is none that is whole.

    Raises:
        CalledProcessError: the packages could not be installed.
    """
    peer, place = PEERS[name], CACHE / name
    python, whole = place / "bin" / "python", place / "installed.txt"
    if whole.is_file() and whole.read_text() == str(peer):
        return python
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place)
    if peer.beside_ours:
        _see_the_running_one(place)
    print(f"{name}: installing {', '.join(peer.packages)} in {place.relative_to(ROOT)}", flush=True)
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *peer.packages]
    subprocess.run(install, check=True, capture_output=True, text=True)
    whole.write_text(str(peer))
    return python


def _see_the_running_one(place: Path) -> None:
    """Put the running interpreter's path behind the environment's own."""
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
    (packages / "running.pth").write_text("\n".join(path for path in sys.path if path))


def measure(name: str, options: list[str]) -> bool:
    """Measure one peer. Returns whether that could be done."""
    try:
        python = environment(name)
    except subprocess.CalledProcessError as failure:
        said = [line for line in failure.stderr.splitlines() if line.startswith("ERROR")] or [
            f"exit {failure.returncode}"
        ]
        print(f"{name}: left out, because its packages could not be installed. {said[-1]}", flush=True)
        return False
    return subprocess.run([python, "-m", f"benchmarks.peers.{name}", *options], cwd=ROOT).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=[*PEERS, "all"])
    given, options = parser.parse_known_args()
    names = list(PEERS) if given.peer == "all" else [given.peer]
    measured = [measure(name, options) for name in names]
    return 0 if all(measured) else 1


if __name__ == "__main__":
    sys.exit(main())
