"""How long an engine may take to end: the runtime form, and the sources that heed the variable themselves."""

import ast
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import patching
import pytest

from vllm_specx._compat import fingerprints, shutdown_window, versions

NAME = "get_engine_process_shutdown_timeout"


def function_of(source: str) -> Any:
    """The function, in the text of its module, on a platform that is not ROCm."""
    tree = ast.parse(source)
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == NAME)
    envs = SimpleNamespace(
        is_set=lambda name: name in os.environ,
        **{shutdown_window.VARIABLE: int(os.environ.get(shutdown_window.VARIABLE, "5"))},
    )
    scope: dict[str, Any] = {"envs": envs, "current_platform": SimpleNamespace(is_rocm=lambda: False)}
    exec(compile(ast.Module([function], []), "extract", "exec"), scope)
    return scope[NAME]


@pytest.mark.parametrize("is_set", [False, True])
@pytest.mark.parametrize("minor", versions.SUPPORTED_MINORS)
def test_both_forms(minor: str, is_set: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(shutdown_window.VARIABLE, raising=False)
    if is_set:
        monkeypatch.setenv(shutdown_window.VARIABLE, "15")
    pristine = patching.pristine_sources(minor, Path(os.environ["SPECX_CACHE"]))
    name = f"{fingerprints.SHUTDOWN.partition(':')[0].replace('.', '/')}.py"
    runtime = shutdown_window._timeout(function_of((pristine / name).read_text()))
    patching.copy_sources(pristine, tmp_path)
    for diff in patching.diffs(minor):
        patching.apply_diff(diff, tmp_path)
    text = (tmp_path / name).read_text()
    assert f'is_set("{shutdown_window.VARIABLE}")' in text
    for timeout in (runtime, function_of(text)):
        assert timeout(0, 0) == (15.0 if is_set else 0)
        assert [timeout(5, 5), timeout(5, 0), timeout(0, 3), timeout(0, None)] == [5, 0, 3, None]


def test_a_variable_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutdown_window, "is_present", lambda: True)
    monkeypatch.setenv(shutdown_window.VARIABLE, "3")
    shutdown_window.open_window(15)
    assert os.environ[shutdown_window.VARIABLE] == "3"
    monkeypatch.delenv(shutdown_window.VARIABLE)
    shutdown_window.open_window(15)
    assert os.environ[shutdown_window.VARIABLE] == "15"
