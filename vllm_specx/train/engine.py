"""A vLLM engine in this process whose forward passes are recorded (vllm is imported inside).

What is recorded is what vLLM would hand to an EAGLE-3 head: the states of the layers that it takes by default or that
were asked for, and the state that the output matrix is applied to.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


class RecordingEngine:
    """Generates, and keeps every token's states until they are taken.

    Args:
        model, dtype: as for vLLM.
        max_len: longest prompt and answer, in tokens.
        num_slots: requests in flight at most.
        seed: of the sampling.

    """

    def __init__(self, model: str, dtype: str, max_len: int, num_slots: int, seed: int) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine

        config = EngineArgs(
            model=model,
            dtype=dtype,
            max_model_len=max_len,
            max_num_seqs=num_slots,
            max_num_batched_tokens=max(2048, max_len),
            enable_prefix_caching=False,  # a prefix that is not computed has no states
            enforce_eager=True,
            seed=seed,
        ).create_engine_config(UsageContext.LLM_CLASS)
        self._engine = LLMEngine.from_vllm_config(config)
        worker = self._engine.model_executor.driver_worker
        self._runner = getattr(worker, "worker", worker).model_runner
        target = self._runner.get_model()
        if not hasattr(target, "get_eagle3_default_aux_hidden_state_layers"):
            raise TypeError(f"{type(target).__name__} does not hand out the states of its layers (vLLM)")
        self.layers: tuple[int, ...] = target.get_eagle3_default_aux_hidden_state_layers()
        target.set_aux_hidden_state_layers(self.layers)
        self._runner.use_aux_hidden_state_outputs = True
        self._forward = self._runner._model_forward
        self._runner._model_forward = self._recorded
        self._slots: dict[str, int] = {}
        self._free = list(range(num_slots))
        hidden = config.model_config.get_hidden_size()
        width = (len(self.layers) + 1) * hidden
        self._states = torch.zeros(num_slots, max_len, width, dtype=torch.bfloat16)
        self._hidden = hidden

    @property
    def num_free(self) -> int:
        return len(self._free)

    def add(self, request_id: str, prompt: Sequence[int], params: Any) -> None:
        """Start a request; its id must be new."""
        self._slots[request_id] = self._free.pop()
        rendered = self._engine.renderer.render_cmpl([{"prompt_token_ids": list(prompt)}])
        self._engine.add_request(request_id, rendered[0], params)

    def step(self) -> list[Any]:
        """One step; returns the outputs (vLLM's) of requests that ended."""
        return [output for output in self._engine.step() if output.finished]

    def take(self, request_id: str, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return states (tokens, layers * hidden) and finals (tokens, hidden) of a request that ended; free its slot.

        The row of the last token, which the target never read, is zero.
        """
        slot = self._slots.pop(request_id)
        self._free.append(slot)
        rows = self._states[slot, :num_tokens].clone()
        rows[-1] = 0
        return rows[:, : -self._hidden].contiguous(), rows[:, -self._hidden :].contiguous()

    def drop(self, request_id: str) -> None:
        """Free the slot of a request that ended and whose states are not wanted."""
        self._free.append(self._slots.pop(request_id))

    def _recorded(self, *args: Any, **kwargs: Any) -> Any:
        output = self._forward(*args, **kwargs)
        batch = self._runner.input_batch
        slots = [self._slots.get(name.rpartition("-")[0], self._slots.get(name)) for name in batch.req_ids]
        if slots and None not in slots:
            finals, layers = output
            positions = kwargs["positions"] if "positions" in kwargs else args[1]
            counts = np.diff(self._runner.query_start_loc.np[: len(slots) + 1])
            num_tokens = int(counts.sum())
            rows = torch.from_numpy(np.repeat(np.array(slots), counts))
            states = torch.cat([*layers, finals], dim=-1)[:num_tokens].to(torch.bfloat16)
            self._states[rows, positions[:num_tokens].long()] = states
        return output
