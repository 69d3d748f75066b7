"""Work spread over the nodes of a Ray cluster: on each node, or each of its GPUs, one piece at a time.

The cluster is the one that this machine is part of, or that RAY_ADDRESS names. Nodes need the same software, and models
at the same paths.
"""

from __future__ import annotations

import os
import socket
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_specx.bench.errors import BenchError, EngineFailed

_CONNECT_SECONDS: Final = 10.0
_MAX_LOSSES: Final = 2  # of one piece, with its node or process


@dataclass(frozen=True)
class _Slot:
    node_id: str
    name: str
    num_gpus: int


def spread(
    function: Callable[..., Any],
    pieces: Sequence[tuple[Any, ...]],
    done: Callable[[int, str, Any], None],
) -> None:
    """Call `function` with the arguments of each piece, in a process of its own on some node.

    A piece that is lost with its node is done once more elsewhere.

    Args:
        function: what BenchError and EngineFailed it raises are raised here.
        pieces: arguments.
        done: called with the number of a piece, the name of its node and the result, as they end.

    Raises:
        BenchError: Ray is not installed, or there is no cluster.
        EngineFailed: a piece failed, or was lost twice, or no node is left.

    """
    ray = _join()
    try:
        _run(ray, function, pieces, done)
    finally:
        ray.shutdown()


def _join() -> Any:
    try:
        import ray
    except ImportError as error:
        raise BenchError(f"--ray needs Ray (pip install 'vllm-specx[ray]'): {error}") from error
    try:
        address = os.environ.get("RAY_ADDRESS", "")
        if ":" in address and "://" not in address:  # Ray would try for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        ray.init(address="auto", log_to_driver=False, configure_logging=False)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BenchError(
            f"--ray finds no cluster (`ray start --head`, or RAY_ADDRESS=HOST:PORT): {said}"
        ) from error
    return ray


def _slots(ray: Any) -> deque[_Slot]:
    nodes = [node for node in ray.nodes() if node["Alive"]]
    gpus = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in nodes}
    return deque(
        _Slot(node["NodeID"], node["NodeManagerHostname"], min(1, num))
        for node in nodes
        if (num := gpus[node["NodeID"]]) or not any(gpus.values())
        for _ in range(max(1, num))
    )


def _run(
    ray: Any,
    function: Callable[..., Any],
    pieces: Sequence[tuple[Any, ...]],
    done: Callable[[int, str, Any], None],
) -> None:
    from ray.exceptions import RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(max_calls=1, max_retries=0)(function)  # an engine's memory goes with its process
    waiting, slots, losses = deque(range(len(pieces))), _slots(ray), Counter[int]()
    running: dict[Any, tuple[int, _Slot]] = {}
    while waiting or running:
        while waiting and slots:
            index, slot = waiting.popleft(), slots.popleft()
            place = NodeAffinitySchedulingStrategy(slot.node_id, soft=False)
            options = {"num_cpus": 0, "num_gpus": slot.num_gpus, "scheduling_strategy": place}
            running[remote.options(**options).remote(*pieces[index])] = index, slot
        if not running:
            raise EngineFailed("no node of the Ray cluster is left")
        (reference,), _ = ray.wait(list(running), num_returns=1)
        index, slot = running.pop(reference)
        try:
            result = ray.get(reference)
        except RayTaskError as error:
            if isinstance(error.cause, BenchError | EngineFailed):
                raise error.cause from None
            raise EngineFailed(f"{slot.name}: {type(error.cause).__name__}: {error.cause}") from error
        except RayError as error:
            losses[index] += 1
            if losses[index] == _MAX_LOSSES:
                raise EngineFailed(f"{slot.name}: lost twice: {type(error).__name__}") from error
            waiting.append(index)
            if any(node["NodeID"] == slot.node_id and node["Alive"] for node in ray.nodes()):
                slots.append(slot)
        else:
            slots.append(slot)
            done(index, slot.name, result)
