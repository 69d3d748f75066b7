"""A served recipe, as clients see it: chat, streams, samples, JSON, log-probabilities, aborts and a crowd."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from serving import Prometheus, Server, environment

MODEL = "SmolLM2-135M-Instruct"
ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "cpu-demo.yaml"
MONITORING = ROOT / "docs" / "monitoring"
MAX_N = 16  # the recipe's
NUM_ABORTED = 5
PROMETHEUS = shutil.which("prometheus")
REPEAT = "Repeat this exactly, five times: one red apple, two green pears, three blue plums."
SCHEMA = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green", "blue"]}, "size": {"enum": ["small", "large"]}},
    "required": ["color", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = [str(model_dir), "--config", str(RECIPE)]
    with Server(arguments, tmp_path_factory.mktemp("openai") / "log") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=240) as client:
        yield client


def chat(client: OpenAI, text: str = REPEAT, **options: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    defaults = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 64}
    return client.chat.completions.create(**(defaults | options))


def test_a_stream_says_what_the_answer_says(client: OpenAI) -> None:
    whole = chat(client)
    pieces, usage = [], None
    for chunk in chat(client, stream=True, stream_options={"include_usage": True}):
        pieces += [choice.delta.content or "" for choice in chunk.choices]
        usage = chunk.usage or usage
    assert "".join(pieces) == whole.choices[0].message.content
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    # A step with accepted drafts says several tokens at once.
    assert sum(map(bool, pieces)) < usage.completion_tokens


def test_completions_with_logprobs(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2,", max_tokens=32, temperature=0, logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == answer.choices[0].text
    tops: Any = logprobs.top_logprobs
    for token, value, top in zip(logprobs.tokens or [], logprobs.token_logprobs or [], tops, strict=True):
        assert value is not None
        assert -math.inf < value <= 0
        assert value == pytest.approx(max(top.values()), abs=1e-4), token  # greedy: the likeliest


def test_several_samples(client: OpenAI) -> None:
    answer = chat(client, "Name a color.", n=4, temperature=1.5, max_tokens=24)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_json_of_a_schema(client: OpenAI) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
    for temperature in (0, 1.0):
        text = "Describe an apple as JSON with color and size."
        answer = chat(client, text, response_format=wanted, temperature=temperature, max_tokens=64)
        found = json.loads(answer.choices[0].message.content or "")
        assert found.keys() == {"color", "size"}
        assert found["color"] in SCHEMA["properties"]["color"]["enum"]  # type: ignore[index]


def test_a_stream_that_is_left_ends_in_the_engine_and_harms_nobody(server: Server, client: OpenAI) -> None:
    expected = chat(client).choices[0].message.content
    stream = chat(
        client, "Write a long story.", stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
    )
    for _, _ in zip(range(5), stream, strict=False):
        pass
    stream.close()
    assert chat(client).choices[0].message.content == expected
    for _ in range(200):
        if server.metrics()["vllm:num_requests_running"] == 0:
            break
        chat(client, "Hi", max_tokens=2)  # steps go by
    else:
        pytest.fail("the request that nobody reads is still running")


def test_a_crowd_is_answered_as_each_alone(server: Server, client: OpenAI) -> None:
    """Four times as many clients as the engine has places, of which some leave early."""
    texts = [f"Repeat five times: {word} and {word}." for word in ("red", "tree", "seven", "paper")]
    alone = {text: chat(client, text, max_tokens=40).choices[0].message.content for text in texts}

    async def one(client: AsyncOpenAI, number: int) -> tuple[str, str | None]:
        text = texts[number % len(texts)]
        options: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 40}
        options["messages"] = [{"role": "user", "content": text}]
        if number % 8 == 7:
            async with await client.chat.completions.create(stream=True, **options) as stream:
                async for _ in stream:
                    return text, None
        answer = await client.chat.completions.create(**options)
        return text, answer.choices[0].message.content

    async def crowd() -> list[tuple[str, str | None]]:
        async with AsyncOpenAI(
            base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=240
        ) as many:
            return await asyncio.gather(*(one(many, number) for number in range(32)))

    answers = asyncio.run(crowd())
    assert len(answers) == 32
    assert all(said in (None, alone[text]) for text, said in answers)
    metrics = server.metrics()
    # A step that was under way when its request was aborted is one to the worker, and none to vLLM's scheduler.
    counted = metrics["vllm:spec_decode_num_accepted_tokens_total"]
    assert 0 < counted <= metrics["specx_accepted_tokens_total"] <= counted + MAX_N * NUM_ABORTED
    assert metrics["specx_drafting_faults_total"] == 0


@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on PATH")
def test_prometheus_reads_it_and_the_rules_and_the_dashboard_work(
    server: Server, client: OpenAI, tmp_path: Path
) -> None:
    """The 5 and 30 minutes of the rules and panels are 30 seconds here."""
    for name in ("rules.yaml", "dashboard.json"):
        text = (MONITORING / name).read_text()
        (tmp_path / name).write_text(re.sub(r"\[\d+m\]", "[30s]", text))
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {"job_name": "vllm", "static_configs": [{"targets": [server.url.removeprefix("http://")]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(configuration))
    panels = json.loads((tmp_path / "dashboard.json").read_text())["panels"]
    with Prometheus(tmp_path) as prometheus:
        deadline = time.monotonic() + 120  # it looks for targets every 5 s, and scrapes each second
        while not (found := prometheus.query("specx:realised_speedup:ratio_rate5m")):
            assert time.monotonic() < deadline, "no speedup:\n" + prometheus.log.read_text()[-2000:]
            chat(client)  # scraped while it works
        (speedup,) = found
        assert 0.2 < float(speedup["value"][1]) < 20
        assert speedup["metric"]["model_name"] == MODEL
        for rule in prometheus.get("rules")["groups"][0]["rules"]:
            assert rule["health"] == "ok", rule
        for expression in (target["expr"] for panel in panels for target in panel.get("targets", ())):
            # " > 0" leaves out what never was: here, an exchange with a fleet.
            assert prometheus.query(expression.replace("$model", ".*").replace(" > 0", "")), expression


def test_vllms_own_benchmark_runs_against_it(server: Server, model_dir: Path, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("vllm")), "bench", "serve", "--base-url", server.url]
    command += ["--model", MODEL, "--tokenizer", str(model_dir), "--dataset-name", "random"]
    command += ["--random-input-len", "32", "--random-output-len", "16", "--num-prompts", "8"]
    command += ["--max-concurrency", "4", "--ignore-eos", "--save-result", "--result-dir", str(tmp_path)]
    command += ["--result-filename", "result.json"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["completed"] == 8
    assert result["total_output_tokens"] == 8 * 16
    assert result["output_throughput"] > 0


def test_a_port_in_use_is_named(server: Server, model_dir: Path) -> None:
    port = server.url.rpartition(":")[2]
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(model_dir), "--config", str(RECIPE)]
    done = subprocess.run(
        [*command, "--host", "127.0.0.1", "--port", port],
        env=environment(), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "ddress already in use" in done.stdout + done.stderr


def test_a_stop_is_graceful(server: Server) -> None:
    """The last test: it ends the server."""
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0
