"""The process that speaks to Ray for a worker: `python -m vllm_specx.fleet.sidecar FD`, see `link`.

It finds the actors of the fleet, or makes them: named `specx-NAME-SHARD` in the namespace "specx", detached, restarted
by Ray wherever there is room. It ends with the socket.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final

import msgspec

from vllm_specx.fleet.actor import FleetActor
from vllm_specx.fleet.link import Answer, Call, Hello, receive, send
from vllm_specx.fleet.messages import Settings, encode

NAMESPACE: Final = "specx"
_RETRY_SECONDS: Final = 0.25
_PARENT_SECONDS: Final = 1.0
_NICE: Final = 5  # the engine goes first


def actor_name(settings: Settings) -> str:
    """Of the actor of a shard."""
    return f"specx-{settings.name}-{settings.shard}"


class Cluster:
    """The actors of a fleet.

    Args:
        hello: which cluster, which fleet.

    Raises whatever Ray raises where there is no such cluster.

    """

    def __init__(self, hello: Hello) -> None:
        """Join the cluster as a driver."""
        import ray

        self._ray = ray
        self._settings = hello.settings
        self._handles: dict[int, Any] = {}
        ray.init(
            address=hello.address,
            namespace=NAMESPACE,
            configure_logging=False,
            log_to_driver=False,
        )

    def call(self, call: Call) -> bytes:
        """Call a shard's actor, which may just be on its way back. Raises what Ray raises."""
        deadline = time.monotonic() + call.seconds
        while True:
            try:
                method = getattr(self._handle(call.shard), call.method)
                reference = method.remote(call.message) if call.message else method.remote()
                left = max(0.1, deadline - time.monotonic())
                answer: bytes = self._ray.get(reference, timeout=left)
                return answer
            except self._ray.exceptions.RayActorError:
                self._handles.pop(call.shard, None)
                if time.monotonic() + _RETRY_SECONDS > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)

    def _handle(self, shard: int) -> Any:
        if shard not in self._handles:
            settings = self._settings[shard]
            self._handles[shard] = (
                self._ray.remote(FleetActor)
                .options(
                    name=actor_name(settings),
                    get_if_exists=True,
                    lifetime="detached",
                    num_cpus=0,
                    max_restarts=-1,
                )
                .remote(encode(settings))
            )
        return self._handles[shard]


def reason(error: BaseException) -> str:
    """An error in a line: Ray's have tracebacks in them."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        error = cause
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"


def main(sock: socket.socket) -> None:
    """Answer until the other end is gone."""
    hello = receive(sock)
    if hello is None:
        return
    try:
        cluster = Cluster(msgspec.msgpack.decode(hello, type=Hello))
    except BaseException as error:  # Ray may want to end the process
        send(sock, encode(Answer(error=reason(error))))
        return
    send(sock, encode(Answer()))
    while (message := receive(sock)) is not None:
        try:
            answer = Answer(cluster.call(msgspec.msgpack.decode(message, type=Call)))
        except BaseException as error:
            answer = Answer(error=reason(error))
        send(sock, encode(answer))


def _end_with(parent: int) -> None:
    """End when the worker has: a call to Ray may last for long beyond."""
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    os.nice(_NICE)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with suppress(OSError):  # the worker is gone
        main(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # Ray's own goodbye can take long, and nothing is left to say
