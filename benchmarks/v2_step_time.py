"""Time what a step costs the host in the V2 adapter of the suffix tree, both copies included.

    python benchmarks/v2_step_time.py --model DIR [--device cuda] [--requests 64] [--prompt 1024] [--steps 200]

Live requests with 1k-token prompts; a step brings one to three tokens to each and asks for drafts of at most 16. The
tokens lie where model runner V2 keeps them; nothing else of vLLM runs. Prints one JSON object: milliseconds a step
(median, 95th percentile) for the whole of `propose`, and for the proposer in it.
"""

import argparse
import json
import time
from types import SimpleNamespace

import numpy as np
import torch
from step_time import stream


def main() -> None:
    """Run the steps of one batch."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    print(json.dumps(measure(args.model, args.device, args.requests, args.prompt, args.steps)))


def measure(
    model: str, device_name: str, num_requests: int, prompt: int, num_steps: int
) -> dict[str, object]:
    """Milliseconds of a step."""
    from vllm import SamplingParams
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.network_utils import get_open_port

    from vllm_specx import SuffixTreeProposer
    from vllm_specx.speculators.custom_class import CustomClassSpeculator

    device = torch.device(device_name)
    config = EngineArgs(
        model=model,
        max_num_seqs=num_requests,
        speculative_config={"model": "vllm_specx.SuffixTreeProposer", "num_speculative_tokens": 16},
    ).create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(
            1, 0, f"tcp://127.0.0.1:{get_open_port()}", 0, "nccl" if device.type == "cuda" else "gloo"
        )
        initialize_model_parallel(1)
    length = prompt + 3 * num_steps + 64
    states = SimpleNamespace(
        all_token_ids=SimpleNamespace(
            gpu=torch.zeros(num_requests, length, dtype=torch.int32, device=device)
        ),
        total_len=SimpleNamespace(gpu=torch.zeros(num_requests, dtype=torch.int32, device=device)),
    )
    random = np.random.default_rng(0)
    texts = np.stack([stream(random, length) for _ in range(num_requests)])
    states.all_token_ids.gpu.copy_(torch.from_numpy(texts))
    speculator = CustomClassSpeculator(SuffixTreeProposer, config, device, states)
    inner = speculator.proposer.propose
    spent = []

    def timed(*arguments: object, **more: object) -> object:
        begin = time.perf_counter()
        drafts = inner(*arguments, **more)
        spent.append(time.perf_counter() - begin)
        return drafts

    speculator.proposer.propose = timed
    names = [str(i) for i in range(num_requests)]
    params = SamplingParams(max_tokens=length)
    rows = torch.arange(num_requests, device=device)
    new = [
        SimpleNamespace(
            req_id=name,
            prompt_token_ids=texts[i, :prompt].tolist(),
            prefill_token_ids=texts[i, :prompt].tolist(),
            prompt_embeds=None,
            sampling_params=params,
            lora_request=None,
            cache_salt=None,
            mm_features=[],
        )
        for i, name in enumerate(names)
    ]
    totals = np.full(num_requests, prompt)
    whole = []
    for step in range(num_steps):
        sampled = random.integers(1, 4, size=num_requests)
        totals += sampled
        states.total_len.gpu.copy_(torch.from_numpy(totals))
        speculator.begin_step(
            SimpleNamespace(
                finished_req_ids=set(),
                preempted_req_ids=None,
                scheduled_new_reqs=[] if step else new,
                total_num_scheduled_tokens=num_requests,
            )
        )
        num_sampled = torch.from_numpy(sampled).int().to(device)
        batch = SimpleNamespace(
            num_reqs=num_requests, req_ids=names, idx_mapping=rows, num_draft_tokens_per_req=None
        )
        nothing = (None,) * 5
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        speculator.propose(batch, *nothing[:4], num_sampled, *nothing)
        whole.append(time.perf_counter() - begin)
    skip = num_steps // 10
    return {
        "device": device_name,
        "requests": num_requests,
        "whole_ms": _summary(whole[skip:]),
        "proposer_ms": _summary(spent[skip:]),
        "faults": speculator.proposer.faults,
    }


def _summary(seconds: list[float]) -> dict[str, float]:
    return {
        "median": round(1000 * float(np.median(seconds)), 3),
        "p95": round(1000 * float(np.percentile(seconds, 95)), 3),
    }


if __name__ == "__main__":
    main()
