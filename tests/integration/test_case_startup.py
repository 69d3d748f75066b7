"""Faults of other engines, tried on vLLM without an engine: configurations, a parser and a kernel.

The numbers are those of docs/trust.md.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import N
from vllm.engine.arg_utils import EngineArgs

TREE = {"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 5}
NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
TABLE = "num_speculative_tokens_per_batch_size"


def build(model_dir: Path, speculative: dict[str, Any], **more: Any) -> Any:
    return EngineArgs(
        model=str(model_dir), max_model_len=256, speculative_config=speculative, **more
    ).create_engine_config()


@pytest.mark.parametrize("name", ["SuffixTreeProposer", "LookaheadProposer", "MedusaProposer"])
def test_17_pipelines_are_refused_by_name(model_dir: Path, name: str) -> None:
    """vLLM's runner V1 would end with an AttributeError: its first stage has no drafter, and looks for one."""
    speculative = {"model": f"vllm_specx.{name}", "num_speculative_tokens": 4}
    with pytest.raises(ValueError, match="pipeline_parallel_size must be 1, got 2"):
        build(model_dir, speculative, pipeline_parallel_size=2)


def test_14_a_draft_model_of_another_vocabulary(model_dir: Path, tmp_path: Path) -> None:
    """vLLM refuses it and names both sizes; with a length for each step that is no other."""
    draft = tmp_path / "draft"
    draft.mkdir()
    config = json.loads((model_dir / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | {"vocab_size": 1234}))
    with pytest.raises(ValueError, match=r"(?s)49152.*1234|1234.*49152"):
        build(
            model_dir,
            {"method": "draft_model", "model": str(draft), "num_speculative_tokens": 3},
            additional_config={"specx": {"adaptive": True}},
        )


@pytest.mark.parametrize("rows", [[[2, 256, 4]], [[1, 8, 4], [4, 256, 2]], [[9, 256, 2], [1, 8, 4]]], ids=str)
@pytest.mark.parametrize(("speculative", "options"), [(TREE, {}), (NGRAM, {"specx": {"adaptive": True}})])
def test_32_a_bad_table_of_lengths_is_refused(
    model_dir: Path, speculative: dict[str, Any], options: dict[str, Any], rows: list[list[int]]
) -> None:
    """One that does not begin at 1, one with an overlap, one out of order."""
    with pytest.raises(ValueError, match=TABLE):
        build(model_dir, speculative | {TABLE: rows}, additional_config=options)


@pytest.mark.parametrize("mark", ["-", "_"])
def test_31_a_file_for_vllm_serve(model_dir: Path, tmp_path: Path, mark: str) -> None:
    """Nested options through the parser of the command itself, with hyphens and with underscores."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    path = tmp_path / "serve.yaml"
    path.write_text(
        f"model: {model_dir}\nmax{mark}model{mark}len: 256\n"
        f"speculative{mark}config:\n  model: vllm_specx.SuffixTreeProposer\n  num_speculative_tokens: 5\n"
        f"additional{mark}config:\n  specx:\n    alpha: 0.1\n    drafters: [suffix_tree, lookahead]\n"
        "    lookahead_ngram: 4\n"
    )
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(["--config", str(path)])
    config = EngineArgs.from_cli_args(args).create_engine_config()
    assert config.speculative_config.num_speculative_tokens == 5
    assert config.additional_config["specx"] == {
        "alpha": 0.1,
        "drafters": ["suffix_tree", "lookahead"],
        "lookahead_ngram": 4,
    }
    assert config.model_config.max_model_len == 256


def test_8_tool_calls_in_blocks_of_any_size(model_dir: Path) -> None:
    """vLLM's streaming parser is given blocks as speculation makes them: markers are cut anywhere, or are inside."""
    from transformers import AutoTokenizer
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    tokenizer = AutoTokenizer.from_pretrained(str(model_dir))
    said = 'I look. <tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "unit": "C"}}\n</tool_call>\n'
    said += '<tool_call>\n{"name": "time", "arguments": {"zone": "CET"}}\n</tool_call>'
    ids = tokenizer.encode(said)
    functions = [{"name": name, "parameters": {"type": "object"}} for name in ("weather", "time")]
    request = ChatCompletionRequest(
        model="m",
        messages=[{"role": "user", "content": "x"}],
        tools=[{"type": "function", "function": function} for function in functions],
    )

    def parsed(sizes: Iterator[int]) -> tuple[str, dict[int, list[str]]]:
        parser = ToolParserManager.get_tool_parser("hermes")(tokenizer, request.tools)
        content, calls, at, before = "", {}, 0, ""
        while at < len(ids):
            end = at + next(sizes)
            after = tokenizer.decode(ids[:end])
            news = parser.extract_tool_calls_streaming(
                before, after, after[len(before) :], ids[:at], ids[:end], ids[at:end], request
            )
            content += (news and news.content) or ""
            for call in (news and news.tool_calls) or ():
                parts = calls.setdefault(call.index, ["", ""])
                parts[0] += call.function.name or ""
                parts[1] += call.function.arguments or ""
            at, before = end, after
        return content, calls

    one_by_one = parsed(iter(lambda: 1, 0))
    assert {name: json.loads(arguments) for name, arguments in one_by_one[1].values()} == {
        "weather": {"city": "Paris", "unit": "C"},
        "time": {"zone": "CET"},
    }
    for seed in range(100):
        rng = random.Random(seed)
        assert parsed(iter(lambda rng=rng: rng.randint(1, N + 1), 0)) == one_by_one


@pytest.mark.xfail(
    reason="vLLM's kernel for the CPU reads in front of a row for a draft of -1, and may accept it"
)
def test_4_a_placeholder_is_never_accepted() -> None:
    """The kernels for a GPU refuse drafts of -1; here the row in front has a likely last token."""
    import torch
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    probabilities = torch.tensor([[0.1, 0.1, 0.1, 0.1, 0.6], [0.3, 0.3, 0.2, 0.2, 0.0]])
    said = torch.full((2, 2), -1, dtype=torch.int64)
    kernel: Callable[..., None] = torch.ops._C.rejection_random_sample_kernel_impl
    kernel(
        said,
        torch.tensor([1, 2]),  # ends of the rows' drafts
        torch.tensor([1, -1]),
        None,
        probabilities,
        torch.tensor([3, 3]),  # bonus tokens
        torch.tensor([2, 2]),  # recovered tokens
        torch.tensor([0.5, 0.5]),
        torch.tensor([False, False]),
        1,
        5,
        True,
    )
    assert said[1].tolist() == [2, -1]
