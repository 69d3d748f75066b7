"""Version range, fingerprints, the ledger of the patches, and the price of importing the package."""

import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import patching
import pytest

from vllm_specx import _compat
from vllm_specx._compat import fingerprints, ledger, versions


@pytest.mark.parametrize("version", ["0.32.0", "0.32.0+cpu", "0.32.1.post1", "0.33.0", "0.33.0rc1"])
def test_supported(version: str) -> None:
    assert _compat.check_supported(version) == version[:4]


@pytest.mark.parametrize("version", ["0.31.2", "0.34.0", "0.34.0.dev3+cpu", "0.3.2", "1.0.0", "0.320.0"])
def test_outside_the_range(version: str) -> None:
    with pytest.raises(_compat.UnsupportedVLLM, match=re.escape(version)) as caught:
        _compat.check_supported(version)
    assert ">=0.32,<0.34" in str(caught.value)


def test_unreadable_version() -> None:
    with pytest.raises(_compat.UnsupportedVLLM, match="cannot read the vLLM version 'dev'"):
        _compat.check_supported("dev")


def test_installed_version_is_the_module_s(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("vllm")
    fake.__version__ = "0.31.0"
    monkeypatch.setitem(sys.modules, "vllm", fake)
    with pytest.raises(_compat.UnsupportedVLLM, match=r"vLLM 0\.31\.0 is not supported"):
        _compat.check_supported()


def test_no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(_compat.UnsupportedVLLM, match=r"cannot be imported.*>=0\.32,<0\.34"):
        _compat.check_supported()


def test_install_refuses_before_it_touches_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = types.ModuleType("vllm")  # has no submodules: touching one would be an ImportError
    fake.__version__ = "0.34.0"
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setattr(_compat, "_state", None)
    with pytest.raises(_compat.UnsupportedVLLM, match=r"0\.34\.0"):
        _compat.install()
    assert _compat._state is None


def test_each_target_has_a_fingerprint_for_each_version() -> None:
    for target, known in fingerprints.FINGERPRINTS.items():
        assert tuple(known) == versions.SUPPORTED_MINORS, target


def test_fingerprint_sees_code_and_nothing_else() -> None:
    source = "    def f(x):\n        # why\n\n        return x + 1  \n"
    assert fingerprints.fingerprint(source) == fingerprints.fingerprint("def f(x):\n    return x + 1")
    assert fingerprints.fingerprint(source) != fingerprints.fingerprint("def f(x):\n    return x + 2")


def test_text_and_live_function_have_one_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = textwrap.dedent(
        """
        import functools

        class C:
            @classmethod
            def f(cls):
                return (
                    1
                )

            def g(self): return 2

        def h():
            # reason
            return 3
        """
    )
    (tmp_path / "specx_toy_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import specx_toy_module as module

    for function, name in ((module.C.f, "C.f"), (module.C.g, "C.g"), (module.h, "h")):
        expected = fingerprints.fingerprint_in_text(text, f"specx_toy_module:{name}")
        assert fingerprints.fingerprint_of(function) == expected, name
    assert fingerprints.fingerprint_of(len) is None


def test_changed_source_is_refused_by_name_and_range() -> None:
    def _sample() -> None:
        """Not what vLLM has."""

    with pytest.raises(_compat.UnsupportedVLLM) as caught:
        fingerprints.require_pristine(fingerprints.SAMPLE, _sample, "0.32")
    assert "GPUModelRunner._sample" in str(caught.value)
    assert ">=0.32,<0.34" in str(caught.value)


def test_ledger_is_up_to_date() -> None:
    assert (patching.PATCHES / "README.md").read_text() == ledger.render(patching.PATCHES), (
        "run python -m vllm_specx._compat.ledger"
    )


def test_ledger_names_everything_that_is_replaced() -> None:
    text = ledger.render(patching.PATCHES)
    runtime = " ".join(line for line in text.splitlines() if line.startswith("- **Runtime**"))
    for target in fingerprints.FINGERPRINTS.keys() - set(fingerprints.WITHOUT_DIFF):
        assert (
            target.partition(":")[2] in runtime or target == fingerprints.V2_DRAFT_MODEL
        )  # it is not wrapped


@pytest.mark.parametrize("minor", versions.SUPPORTED_MINORS)
def test_each_version_has_its_patches(minor: str) -> None:
    names = [path.name for path in patching.diffs(minor)]
    both = [
        "0001-proposer-context.diff",
        "0002-cpu-rejection-expand.diff",
        "0003-cpu-kernel-rebind.diff",
        "0004-no-draft-sampling.diff",
        "0005-drafter-calls.diff",
    ]
    others = {
        "0.32": ["0006-shutdown-window.diff", "0007-v2-speculators.diff"],
        "0.33": ["0006-v2-speculators.diff"],
    }
    assert names == both + others[minor]


@pytest.mark.parametrize(
    "header", ["Patch: x\nWhy: y\n", "Patch: x\n" + "".join(f"{field}:  \n" for field in ledger.FIELDS[1:])]
)
def test_incomplete_header(header: str) -> None:
    with pytest.raises(ValueError, match="a header has the fields"):
        ledger.read_header(header + "\ndiff --git a/f b/f\n")


def test_import_costs_no_vllm() -> None:
    code = (
        "import sys, vllm_specx, vllm_specx._compat; "
        "print([m for m in ('vllm', 'torch', 'numba') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
