"""The diffs apply to the released sources of each version, and the fingerprints are those of that version."""

import ast
import difflib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import patching
import pytest

from vllm_specx._compat import context, fingerprints, versions


@pytest.fixture(scope="session", params=versions.SUPPORTED_MINORS)
def minor(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def pristine(minor: str) -> Path:
    return patching.pristine_sources(minor, Path(os.environ["SPECX_CACHE"]))


@pytest.fixture
def patched(minor: str, pristine: Path, tmp_path: Path) -> Path:
    patching.copy_sources(pristine, tmp_path)
    for diff in patching.diffs(minor):
        patching.apply_diff(diff, tmp_path)
    return tmp_path


def read(folder: Path, target: str) -> str:
    return (folder / f"{target.partition(':')[0].replace('.', '/')}.py").read_text()


def test_fingerprints(minor: str, pristine: Path) -> None:
    found = {t: fingerprints.fingerprint_in_text(read(pristine, t), t) for t in fingerprints.FINGERPRINTS}
    assert found == {target: known[minor] for target, known in fingerprints.FINGERPRINTS.items()}


def test_each_diff_applies_and_can_be_taken_back(minor: str, pristine: Path, tmp_path: Path) -> None:
    patching.copy_sources(pristine, tmp_path)
    for diff in patching.diffs(minor):
        patching.apply_diff(diff, tmp_path)
        changed = [n for n in patching.SOURCES if (tmp_path / n).read_text() != (pristine / n).read_text()]
        assert sorted(changed) == sorted(patching.touched(diff))
        with pytest.raises(subprocess.CalledProcessError):
            patching.apply_diff(diff, tmp_path)
        patching.apply_diff(diff, tmp_path, "--reverse")
        assert all((tmp_path / n).read_text() == (pristine / n).read_text() for n in patching.SOURCES)


def test_the_other_version_is_told_apart(minor: str, pristine: Path) -> None:
    """A swap of the two versions' tables would not go unnoticed."""
    target = fingerprints.PROPOSE
    (other,) = {*versions.SUPPORTED_MINORS} - {minor}
    found = fingerprints.fingerprint_in_text(read(pristine, target), target)
    assert found != fingerprints.FINGERPRINTS[target][other]


def test_patched_sources_compile_and_lose_nothing(pristine: Path, patched: Path) -> None:
    for name in patching.SOURCES:
        ast.parse((patched / name).read_text())
        before, after = ((folder / name).read_text().splitlines() for folder in (pristine, patched))
        removed = [line for line in difflib.ndiff(before, after) if line.startswith("- ")]
        # An import that grew over one line, and the call of the faulty kernel.
        assert len(removed) <= 7, removed


def test_context_has_the_same_fields_in_both_forms(patched: Path) -> None:
    tree = ast.parse(read(patched, fingerprints.CREATE))
    (definition,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "ProposerContext")
    fields = [n.target.id for n in definition.body if isinstance(n, ast.AnnAssign)]
    assert fields == list(context.ProposerContext.__dataclass_fields__)


def test_new_request_data_takes_another_attribute(pristine: Path) -> None:
    """The runtime form sets cache_salt on the instance, which a slotted or frozen dataclass would refuse."""
    tree = ast.parse(read(pristine, fingerprints.FROM_REQUEST))
    (definition,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "NewRequestData")
    assert [ast.unparse(decorator) for decorator in definition.decorator_list] == ["dataclass"]
    assert "__slots__" not in ast.unparse(definition)


def test_order_within_a_step(patched: Path) -> None:
    """The target's choices are read after the grammar's mask and before drafting; `_sample` runs once."""
    tree = ast.parse(read(patched, fingerprints.SAMPLE))
    runner = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "GPUModelRunner")
    step = next(n for n in runner.body if isinstance(n, ast.FunctionDef) and n.name == "sample_tokens")
    lines: dict[str, list[int]] = {}
    for call in (n for n in ast.walk(step) if isinstance(n, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        lines.setdefault(name, []).append(call.lineno)
    assert len(lines["_sample"]) == 1
    assert max(lines["apply_grammar_bitmask"]) < lines["_sample"][0] < min(lines["_input_fits_in_drafter"])
    assert lines["_sample"][0] < min(lines["propose_draft_token_ids"])


def test_expand_of_the_diff_is_that_of_the_runtime(patched: Path) -> None:
    """Run the function of the diff by itself, beside the runtime's."""
    torch = pytest.importorskip("torch")
    from vllm_specx._compat import cpu_sampling

    of_the_diff = function_of(read(patched, fingerprints.EXPAND), fingerprints.EXPAND, {"torch": torch})
    for kernel in (of_the_diff, cpu_sampling.expand_kernel_impl):
        assert cpu_sampling.expands_rightly(kernel)
        # Rows without a draft, and room left at the end.
        output = torch.full((5,), -1.0)
        kernel(output, torch.tensor([0.8, 0.0, 0.5]), torch.tensor([2, 2, 4]), 0, 1)
        assert output.tolist() == pytest.approx([0.8, 0.8, 0.5, 0.5, -1.0])
    assert not cpu_sampling.expands_rightly(lambda *_: None)
    assert not cpu_sampling.expands_rightly(lambda output, *_: output.zero_())


def function_of(source: str, target: str, scope: dict[str, Any]) -> Any:
    """The function `target` names, taken out of its module and run in `scope`."""
    name = target.partition(":")[2].rpartition(".")[2]
    (function,) = (n for n in ast.walk(ast.parse(source)) if getattr(n, "name", None) == name)
    future = ast.parse("from __future__ import annotations").body
    exec(compile(ast.Module([*future, function], []), "extract", "exec"), scope)
    return scope[name]


def test_kernel_scan_passes_over_odd_objects(pristine: Path, patched: Path) -> None:
    from vllm_specx._compat import cpu_kernels

    def scan(folder: Path) -> Any:
        return function_of(read(folder, fingerprints.REBIND), fingerprints.REBIND, {"sys": sys})

    assert not cpu_kernels.survives_odd_objects(scan(pristine))
    for rebind in (scan(patched), cpu_kernels.rebind_kernels):
        assert cpu_kernels.survives_odd_objects(rebind)
        module, kernel, override = ModuleType("specx_holder"), object(), object()
        owner = SimpleNamespace(kernel=kernel, _kernel_arg_names=["a"])
        module.copy, module.owner, module.other = kernel, owner, 1
        sys.modules[module.__name__] = module
        try:
            rebind([(kernel, override)])
        finally:
            del sys.modules[module.__name__]
        assert (module.copy, owner.kernel, module.other) == (override, override, 1)
        assert not hasattr(owner, "_kernel_arg_names")


def test_a_step_without_drafts_goes_to_the_sampler(pristine: Path, patched: Path) -> None:
    from vllm_specx._compat import no_draft_sampling

    def forward(folder: Path) -> Any:
        return function_of(read(folder, fingerprints.REJECT), fingerprints.REJECT, {"MAX_SPEC_LEN": 8})

    told: list[Any] = []
    owner = SimpleNamespace(sampler=lambda **given: told.append(given) or "sampled")
    nothing = SimpleNamespace(max_spec_len=0)  # it has none of what pristine vLLM reads next
    with pytest.raises(AttributeError):
        forward(pristine)(owner, nothing, None, "logits", "sampling")
    for function in (forward(patched), no_draft_sampling._forward(forward(pristine))):
        assert function(owner, nothing, None, "logits", "sampling") == "sampled"
        assert told.pop() == {"logits": "logits", "sampling_metadata": "sampling"}
        with pytest.raises(AttributeError):  # and other steps to what was there
            function(owner, SimpleNamespace(max_spec_len=1), None, "logits", "sampling")
