"""What vllm-specx takes for granted of vLLM, in the sources of both releases and in the installed one."""

from __future__ import annotations

import ast
import inspect
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import patching
import pytest
import vllm_contract as contract
from vllm_contract import CONTRACT, Name

from vllm_specx._compat import versions
from vllm_specx.config import MAX_SPECULATIVE_TOKENS

SCHEDULER = "vllm.v1.core.sched.scheduler"


@pytest.fixture(scope="session", params=versions.SUPPORTED_MINORS)
def sources(request: pytest.FixtureRequest) -> Path:
    return patching.pristine_sources(request.param, Path(os.environ["SPECX_CACHE"]))


def faults_of(folder: Path, wanted: Name) -> list[str]:
    """What a release lacks of a name; empty if nothing."""
    where = f"{wanted.module}:{wanted.name}"
    try:
        found = contract.definition(folder, wanted.module, wanted.name)
    except FileNotFoundError:
        return [f"no module {wanted.module}"]
    if found is None:
        return [f"no {where}"]
    faults = [f"no {where}.{member}" for member in sorted({*wanted.members} - contract.members(found))]
    if wanted.parameters:
        has = contract.parameters(found)
        if wanted.is_whole and has != list(wanted.parameters):
            faults.append(f"{where} has the parameters {has}")
        elif [name for name in has if name in wanted.parameters] != list(wanted.parameters):
            faults.append(f"{where} has the parameters {has}, without {wanted.parameters} in this order")
    return faults


def test_names(sources: Path) -> None:
    assert [fault for name in CONTRACT for fault in faults_of(sources, name)] == []


def test_imports(sources: Path) -> None:
    """Each name that our sources import is bound in its module, or is a module."""
    missing = []
    for file, module, name in sorted(contract.imports()):
        if not name:
            contract.source_of(sources, module)
            continue
        is_module = any((sources / path).is_file() for path in contract.candidates(f"{module}.{name}"))
        if not is_module and contract.definition(sources, module, name) is None:
            missing.append(f"{file}: from {module} import {name}")
    assert missing == []
    assert len(contract.imports()) > 40


def test_environment_and_metrics(sources: Path) -> None:
    variables = contract.source_of(sources, "vllm.envs")
    unknown = {name for name in contract.constants(contract.VARIABLES) if f'"{name}"' not in variables}
    assert unknown == set()
    metrics = contract.source_of(sources, "vllm.v1.metrics.loggers")
    unknown = {
        name
        for name in contract.constants(contract.METRICS)
        if f'"{name.removesuffix("_total")}"' not in metrics
    }
    assert unknown == set()


def test_a_missing_name_is_told(tmp_path: Path) -> None:
    """The look-up itself: what is there, what is not, and by what."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "toy.py").write_text(
        "if True:\n    from vllm.other import Thing as T\nX: int = 1\nLAZY = {'Y': '.y'}\n"
        "class C:\n    a: int\n    def f(self, x, *, y=0): self.b, self.c = x, y\n    @property\n    def p(self): ...\n"
    )
    assert all(contract.definition(tmp_path, "vllm.toy", name) for name in ("T", "X", "Y", "C", "C.f", "C.a"))
    assert faults_of(tmp_path, Name("vllm.toy", "C", ("a", "b", "c", "f", "p"))) == []
    assert faults_of(tmp_path, Name("vllm.toy", "C", ("x",))) == ["no vllm.toy:C.x"]
    assert faults_of(tmp_path, Name("vllm.toy", "D")) == ["no vllm.toy:D"]
    assert faults_of(tmp_path, Name("vllm.gone", "D")) == ["no module vllm.gone"]
    assert faults_of(tmp_path, Name("vllm.toy", "C.f", parameters=("self", "y"))) == []
    for parameters, is_whole in ((("self", "x"), True), (("self", "z"), False), (("x", "self"), False)):
        (fault,) = faults_of(tmp_path, Name("vllm.toy", "C.f", parameters=parameters, is_whole=is_whole))
        assert "has the parameters ['self', 'x', 'y']" in fault


# What these names do, as far as their text says it.


def calls(node: ast.AST) -> list[tuple[int, str]]:
    """(line, name) of everything that is called, in order."""
    found = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    return sorted((n.lineno, ast.unparse(n.func)) for n in found)


def test_the_last_word_of_a_schedule_is_ours(sources: Path) -> None:
    """N is put into the output, then `_update_after_schedule` may change it, then nothing is done any more."""
    schedule = contract.definition(sources, SCHEDULER, "Scheduler.schedule")
    assert isinstance(schedule, ast.FunctionDef)
    names = [name for _, name in calls(schedule)]
    assert names.index("SchedulerOutput") < names.index("self._update_after_schedule") == len(names) - 1
    assert isinstance(schedule.body[-1], ast.Return)
    later = contract.definition(
        sources, "vllm.v1.core.sched.async_scheduler", "AsyncScheduler._update_after_schedule"
    )
    assert later is not None
    assert "scheduler_output.num_spec_tokens_to_schedule" in ast.unparse(later)


def test_only_without_a_table_are_cached_requests_padded(sources: Path) -> None:
    schedule = contract.definition(sources, SCHEDULER, "Scheduler.schedule")
    assert schedule is not None
    pads = "pad_spec_decode = True"
    (padding,) = (
        node
        for node in ast.walk(schedule)
        if isinstance(node, ast.If) and "self.dynamic_sd_lookup is None" in ast.unparse(node.test)
    )
    assert pads in ast.unparse(padding)
    assert ast.unparse(schedule).count(pads) == 1


def test_the_rank_whose_drafts_are_used(sources: Path) -> None:
    rule = contract.definition(
        sources, "vllm.v1.executor.multiproc_executor", "MultiprocExecutor._get_output_rank"
    )
    assert isinstance(rule, ast.FunctionDef)
    assert ast.unparse(rule.body[-1]) == (
        "return self.world_size - self.parallel_config.tensor_parallel_size * "
        "self.parallel_config.prefill_context_parallel_size"
    )


def test_async_scheduling_asks_a_global_for_its_methods(sources: Path) -> None:
    text = contract.source_of(sources, "vllm.config.vllm")
    assert "get_args(EagleModelTypes)" in text


def test_numbers(sources: Path) -> None:
    longest = contract.definition(sources, "vllm.v1.sample.rejection_sampler", "MAX_SPEC_LEN")
    group = contract.definition(sources, "vllm.plugins", "DEFAULT_PLUGINS_GROUP")
    assert isinstance(longest, ast.Assign)
    assert isinstance(group, ast.Assign)
    assert ast.literal_eval(longest.value) == MAX_SPECULATIVE_TOKENS
    assert ast.literal_eval(group.value) == "vllm.general_plugins"


# The installed vLLM, imported


def resolved(module: str, name: str) -> Any:
    found = import_module(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", CONTRACT, ids=lambda name: f"{name.module.rpartition('.')[2]}:{name.name}")
def test_the_installed_vllm_has_it(name: Name) -> None:
    pytest.importorskip("vllm")
    if name.module.startswith("vllm.v1.worker.gpu."):
        pytest.importorskip("triton")
    found = resolved(name.module, name.name)
    if name.parameters:
        has = [p for p in inspect.signature(inspect.unwrap(found)).parameters if p != "self"]
        wanted = [p for p in name.parameters if p not in ("self", "cls")]
        assert [p for p in has if p in wanted] == wanted


def test_the_schedulers_are_vllms_own() -> None:
    """The asynchronous one overlaps as vLLM's does, because it is one."""
    pytest.importorskip("vllm")
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from vllm_specx import AdaptiveAsyncScheduler, AdaptiveScheduler

    assert issubclass(AdaptiveAsyncScheduler, AsyncScheduler)
    assert issubclass(AdaptiveScheduler, Scheduler)
    assert not issubclass(AdaptiveScheduler, AsyncScheduler)


def test_a_speculator_has_all_that_vllm_calls() -> None:
    """Nothing abstract is left, and `propose` takes what vLLM's takes, in its order."""
    pytest.importorskip("vllm")
    pytest.importorskip("triton")
    from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

    from vllm_specx.speculators.custom_class import CustomClassSpeculator

    assert not CustomClassSpeculator.__abstractmethods__
    ours, theirs = (inspect.signature(c.propose).parameters for c in (CustomClassSpeculator, BaseSpeculator))
    assert list(ours) == list(theirs)
    assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]
