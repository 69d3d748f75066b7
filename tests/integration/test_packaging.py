"""What `pip install vllm-specx` gives: a wheel made from the sdist, in an environment that has vLLM and no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, check: bool = True, **more: object) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], env=environment, capture_output=True, text=True, check=False, **more
    )  # type: ignore[call-overload]
    assert not check or done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from the files of the checkout that git knows."""
    folder = tmp_path_factory.mktemp("source")
    names = run("git", "ls-files", "-z", cwd=ROOT).stdout.split("\0")
    for name in filter(None, names):
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    build = "from setuptools.build_meta import build_sdist as build; print(build('dist'))"
    return folder / "dist" / run(sys.executable, "-c", build, cwd=folder).stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", out, sdist)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment with the wheel; everything else is that of this one."""
    folder = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    # Not as a site: this environment's own .pth files would bring the checkout along.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    return folder / "bin"


def test_the_sdist_has_what_the_wheel_is_made_of(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "vllm_specx/plugin.py"} <= names


def test_the_wheel_has_recipes_heads_and_workloads_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    assert {f"vllm_specx/_recipes/{path.name}" for path in (ROOT / "recipes").glob("*.yaml")} <= names
    for head in (ROOT / "drafters" / "heads").iterdir():
        assert f"drafters/heads/{head.name}/model.safetensors" in names
    assert any(name.startswith("vllm_specx/demo/workloads/") for name in names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"vllm_specx", "drafters"}
    for field in ("Summary: ", "License-Expression: ", "Requires-Python: ", "Description-Content-Type: "):
        assert f"\n{field}" in text


def test_nothing_comes_from_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = "import vllm_specx, drafters; print(vllm_specx.__file__, drafters.__file__)"
    code += "; print(vllm_specx.recipe('cpu-demo')['speculative_config']['model'])"
    *paths, model = run(installed / "python", "-c", code, cwd=tmp_path).stdout.split()
    assert all(path.startswith(str(installed.parent)) for path in paths)
    assert model == "vllm_specx.SuffixTreeProposer"
    assert "vllm-specx" in run(installed / "specx", "version", cwd=tmp_path).stdout


def test_vllm_finds_the_plug_in(installed: Path, model_dir: Path, tmp_path: Path) -> None:
    """It is our own check that answers."""
    wrong = '{"model": "vllm_specx.SufixTreeProposer", "num_speculative_tokens": 4}'
    command = [installed / "python", "-m", "vllm.entrypoints.cli.main", "serve", model_dir]
    command += ["--speculative-config", wrong]
    done = run(*command, check=False, cwd=tmp_path, timeout=240)
    assert done.returncode != 0
    assert "vllm-specx has no proposer 'vllm_specx.SufixTreeProposer'" in done.stdout + done.stderr
