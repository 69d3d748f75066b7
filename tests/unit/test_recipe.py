"""`vllm_specx.recipe`: by name and by path, what a server alone has, and what is wrong with a file that is none."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import vllm_specx
from vllm_specx import recipes
from vllm_specx.config import KEY, SpecxConfig

FILES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_every_file_has_its_name() -> None:
    assert recipes.names() == [path.stem for path in FILES] != []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_recipe(path: Path) -> None:
    options = yaml.safe_load(path.read_text())
    arguments = vllm_specx.recipe(path.stem)
    assert arguments == vllm_specx.recipe(path)
    assert {"model", "max_model_len", "speculative_config", "additional_config"} <= arguments.keys()
    assert all(name.isidentifier() for name in arguments)
    assert arguments["speculative_config"] == options["speculative-config"]
    assert arguments["additional_config"] == options["additional-config"]
    SpecxConfig.from_mapping(arguments["additional_config"][KEY])


def test_what_only_a_server_has_is_left_out(tmp_path: Path) -> None:
    text = "model: m\nhost: h\nport: 1\napi-key: [k]\nchat-template: t\nmax-num-seqs: 4\nspeculative-config: {a-b: 1}\n"
    assert vllm_specx.recipe(str(written(tmp_path, text))) == {
        "model": "m",
        "chat_template": "t",
        "max_num_seqs": 4,
        "speculative_config": {"a-b": 1},
    }


def test_the_caller_may_change_what_it_got() -> None:
    vllm_specx.recipe("mtp")["speculative_config"]["num_speculative_tokens"] = 99
    assert vllm_specx.recipe("mtp")["speculative_config"]["num_speculative_tokens"] != 99


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("eagle-chat", "unknown recipe 'eagle-chat': did you mean 'eagle3-chat'? known are "),
        ("zzz", "unknown recipe 'zzz': known are "),
        ("", "unknown recipe "),
        ("../recipes/mtp", "unknown recipe '../recipes/mtp': "),
        ("no/such.yaml", "recipe no/such.yaml: No such file or directory; known by name are "),
    ],
)
def test_an_unknown_name(name: str, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        vllm_specx.recipe(name)
    assert str(caught.value).startswith(said)
    assert all(known in str(caught.value) for known in recipes.names())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: [", "not YAML: "),
        ("model: m\n\x00", "not YAML: "),
        ("!!int", "not YAML: "),
        ("dtype: !!float ''", "not YAML: "),
        ("enforce-eager: !!bool x", "not YAML: "),
        ("seed: !!timestamp x", "not YAML: "),
        ("", "must be a mapping of vLLM's options, got NoneType"),
        ("- model", "must be a mapping of vLLM's options, got list"),
        ("1: 2", "its keys must be names of vLLM's options, got 1"),
    ],
)
def test_a_broken_file(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError) as caught:
        vllm_specx.recipe(path)
    assert str(caught.value).startswith(f"recipe {path}: {said}")
    assert "\n" not in str(caught.value)


def test_a_file_of_other_bytes(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_bytes(b"model: \xff")
    with pytest.raises(ValueError, match="not YAML"):
        vllm_specx.recipe(path)


def declared(path: Path, suffix: str) -> set[str]:
    """Fields of the classes of a module whose names end in `suffix`, read without importing it."""
    return {
        field.target.id
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name.endswith(suffix)
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def test_the_server_s_options_are_those_of_the_installed_vllm() -> None:
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    home = Path(spec.origin).parent
    server = declared(home / "entrypoints/launchers/cli_args.py", "FrontendArgs")
    engine = declared(home / "engine/arg_utils.py", "EngineArgs") - {"enable_log_requests"}
    assert {"host", "api_key"} <= server
    assert server - engine - {"chat_template"} <= recipes.SERVER_ONLY
    assert not recipes.SERVER_ONLY & engine
