"""A worker's end of the line to the fleet: a process of its own that imports Ray, and a socket to it.

A driver of Ray ends when its cluster's head does ("Failed to connect to GCS within 60 seconds"), and `ray.init` puts a
handler of its own in the place of SIGTERM's. Neither may happen to an engine. So the driver is a child process, the
sidecar; whatever is wrong with it, it is killed and started anew.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from contextlib import suppress
from typing import Final

import msgspec

from vllm_specx.fleet.messages import Settings, decode, encode

OPEN_SECONDS: Final = 60.0  # for starting Python, importing Ray, joining a cluster and making the actors
CALL_SECONDS: Final = 10.0
_MARGIN: Final = 5.0  # beyond what the sidecar itself waits
_LENGTH: Final = struct.Struct("<I")
_MOST: Final = 64 << 20  # bytes of a message


class LinkError(Exception):
    """The fleet cannot be reached; the message says why."""


class Hello(msgspec.Struct, frozen=True):
    """The first message to the sidecar."""

    address: str
    settings: tuple[Settings, ...]  # of each shard


class Call(msgspec.Struct, frozen=True):
    """Have a shard's actor do something; a method that takes no message has an empty one."""

    shard: int
    method: str
    message: bytes
    seconds: float


class Answer(msgspec.Struct, frozen=True):
    """What it said, or why it did not."""

    message: bytes = b""
    error: str = ""


def send(sock: socket.socket, message: bytes) -> None:
    """Send one message. Raises OSError."""
    sock.sendall(_LENGTH.pack(len(message)))
    sock.sendall(message)


def receive(sock: socket.socket) -> bytes | None:
    """Receive one message; None at the end. Raises OSError, and ValueError for what is none."""
    head = _exactly(sock, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MOST:
        raise ValueError(f"a message of {length} bytes")
    body = _exactly(sock, length)
    return None if body is None else bytes(body)


def _exactly(sock: socket.socket, length: int) -> bytearray | None:
    buffer = bytearray(length)
    view, at = memoryview(buffer), 0
    while at < length:
        got = sock.recv_into(view[at:])
        if not got:
            return None
        at += got
    return buffer


class Link:
    """Open it, call, close it; after a LinkError it is closed, and can be opened again.

    Args:
        address: of the Ray cluster.
        settings: of each shard.

    """

    def __init__(self, address: str, settings: tuple[Settings, ...]) -> None:
        """Start nothing yet."""
        self._hello = encode(Hello(address, settings))
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Of the sidecar, if there is one."""
        return None if self._process is None else self._process.pid

    def open(self) -> None:
        """Start a sidecar that has joined the cluster. Raises LinkError."""
        self.close()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vllm_specx.fleet.sidecar", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the engine, whose end it notices
            )
        self._exchange(self._hello, OPEN_SECONDS)

    def call(self, shard: int, method: str, message: bytes = b"", seconds: float = CALL_SECONDS) -> bytes:
        """Return what a shard answers. Raises LinkError."""
        return self._exchange(encode(Call(shard, method, message, seconds)), seconds + _MARGIN)

    def interrupt(self) -> None:
        """Make a call that is under way in another thread fail."""
        if (process := self._process) is not None:
            process.kill()

    def close(self) -> None:
        """End the sidecar."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _exchange(self, message: bytes, seconds: float) -> bytes:
        sock = self._socket
        if sock is None:
            raise LinkError("not connected")
        try:
            sock.settimeout(seconds)
            send(sock, message)
            received = receive(sock)
            if received is None:
                raise LinkError("the process that speaks to Ray has ended")
            answer = decode(received, Answer)
        except TimeoutError as error:
            self.close()
            raise LinkError(f"no answer within {seconds:g} s") from error
        except (OSError, ValueError) as error:
            self.close()
            raise LinkError(str(error)) from error
        except LinkError:
            self.close()
            raise
        if answer.error:
            self.close()
            raise LinkError(answer.error)
        return answer.message
