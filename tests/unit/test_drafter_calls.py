"""The drafter hears of weight changes and can be called: both forms of the patch, on a stand-in for a worker."""

import ast
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import patching
import pytest

from vllm_specx._compat import drafter_calls, fingerprints, versions
from vllm_specx.proposers._memory import path_of_engine, watch_weights


class Drafter:
    def __init__(self, log):
        self._log = log

    def on_weights_changed(self):
        self._log.append("told")

    def purge(self, name, number=0):
        return name, number


class Worker:
    def __init__(self, log, drafter):
        self._log = log
        self.model_runner = SimpleNamespace(**({} if drafter is None else {"drafter": drafter}))
        self.rank = 7

    def _does(name):
        def method(self, *args, **kwargs):
            self._log.append(name)
            if "fail" in args:
                raise RuntimeError(name)
            return name

        method.__name__ = name
        return method

    sleep, wake_up, reload_weights = _does("sleep"), _does("wake_up"), _does("reload_weights")
    update_weights, finish_weight_update = _does("update_weights"), _does("finish_weight_update")
    reset_weights, add_lora = _does("reset_weights"), _does("add_lora")


def runtime_form() -> type:
    original = lambda self, attr: getattr(self.worker, attr)  # noqa: E731
    return type("Wrapper", (), {"__getattr__": drafter_calls._getattr(original)})


def diff_form(minor: str, tmp_path: Path) -> type:
    """The methods that the diff adds, taken out of the patched source."""
    pristine = patching.pristine_sources(minor, Path(os.environ["SPECX_CACHE"]))
    patching.copy_sources(pristine, tmp_path)
    for diff in patching.diffs(minor):
        patching.apply_diff(diff, tmp_path)
    tree = ast.parse((tmp_path / "vllm/v1/worker/worker_base.py").read_text())
    changes = next(n for n in tree.body if isinstance(n, ast.Assign) and "_WEIGHT_CHANGES" in ast.unparse(n))
    wrapper = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "WorkerWrapperBase")
    names = {"__getattr__", "_get_drafter", "call_drafter", "_change_weights", "_replaces_lora"}
    wrapper.body = [n for n in wrapper.body if isinstance(n, ast.FunctionDef) and n.name in names]
    assert len(wrapper.body) == len(names)
    future = ast.parse("from __future__ import annotations").body
    scope: dict[str, Any] = {"partial": partial}
    exec(compile(ast.Module([*future, changes, wrapper], []), "extract", "exec"), scope)
    assert scope["_WEIGHT_CHANGES"] == drafter_calls._WEIGHT_CHANGES
    return scope["WorkerWrapperBase"]


@pytest.fixture(params=["runtime", *versions.SUPPORTED_MINORS])
def make(request, tmp_path):
    form = runtime_form() if request.param == "runtime" else diff_form(request.param, tmp_path)

    def made(log, drafter):
        wrapper = form()
        wrapper.worker = Worker(log, drafter)
        return wrapper

    return made


@pytest.mark.parametrize("name", sorted(drafter_calls._WEIGHT_CHANGES))
def test_told_after_a_change(make, name):
    log: list[str] = []
    wrapper = make(log, Drafter(log))
    assert getattr(wrapper, name)(1, x=2) == name
    assert log == [name, "told"]
    with pytest.raises(RuntimeError, match=name):  # who knows how far it went
        getattr(wrapper, name)("fail")
    assert log == [name, "told"] * 2


def test_an_adapter_that_replaces_one_is_a_change(make):
    log: list[str] = []
    wrapper = make(log, Drafter(log))
    wrapper.add_lora(SimpleNamespace(load_inplace=False))
    wrapper.wake_up()
    assert (wrapper.rank, log) == (7, ["add_lora", "wake_up"])
    wrapper.add_lora(lora_request=SimpleNamespace(load_inplace=True))
    assert log[2:] == ["add_lora", "told"]


@pytest.mark.parametrize("drafter", [None, object()])
def test_drafters_that_do_not_care(make, drafter):
    log: list[str] = []
    assert make(log, drafter).sleep() == "sleep"
    assert log == ["sleep"]


def test_calls(make):
    assert make([], Drafter([])).call_drafter("purge", "a", number=2) == ("a", 2)
    assert make([], None).call_drafter("purge", "a") is None
    with pytest.raises(AttributeError):
        make([], Drafter([])).call_drafter("no_such_method")
    with pytest.raises(AttributeError):
        _ = make([], None).no_such_attribute


def test_everything_that_is_waited_for_exists_in_both_versions():
    """The names in the list are methods of the workers of each release."""
    for minor in versions.SUPPORTED_MINORS:
        assert fingerprints.FINGERPRINTS[fingerprints.WRAPPER][minor]
    installed = patching.installed_vllm()
    if installed is not None:
        text = (installed[0] / "vllm/v1/worker/gpu_worker.py").read_text()
        assert all(f"def {name}(" in text for name in [*drafter_calls._WEIGHT_CHANGES, "add_lora"])


class Model:
    def load_weights(self, weights):
        if weights == "bad":
            raise ValueError(weights)
        return {weights}


def test_weights_that_a_caller_loads_into_the_model_itself():
    log: list[str] = []
    drafter, model = Drafter(log), Model()
    watch_weights(model, drafter.on_weights_changed)
    assert model.load_weights("w") == {"w"}
    with pytest.raises(ValueError):
        model.load_weights("bad")
    assert log == ["told", "told"]
    del drafter  # neither keeps the other alive
    assert model.load_weights(weights="w") == {"w"}
    assert log == ["told", "told"]
    watch_weights(object(), Drafter(log).on_weights_changed)  # a model without the method


def test_each_engine_of_a_data_parallel_group_has_a_file_of_its_own():
    assert [path_of_engine("/m/f", index) for index in range(3)] == ["/m/f", "/m/f.dp1", "/m/f.dp2"]
