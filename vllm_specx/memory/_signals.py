"""Save when the process is told to end, before its own handler of the signal runs.

vLLM waits a few seconds for its processes and then kills them, whether or not requests are still running: the
end of the process may come too late to save anything.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol


class Keeper(Protocol):
    def end_by_signal(self, go_on: Callable[[], None]) -> None:
        """Save, then call `go_on`."""


def watch_signals(keeper: Keeper) -> None:
    """Go in front of the handlers of SIGTERM and SIGINT; of none outside the main thread.

    Left alone are ignored signals, and a SIGINT that ends the process in an orderly way by itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    reference = weakref.ref(keeper)
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if callable(before) and before is not signal.default_int_handler:
            signal.signal(number, _in_front(reference, before))
        elif before is signal.SIG_DFL and number == signal.SIGTERM:
            signal.signal(number, _in_front(reference, _default))


def _in_front(reference: weakref.ref[Keeper], before: Callable[..., Any]) -> Callable[..., None]:
    def handler(number: int, frame: Any) -> None:
        keeper = reference()
        if keeper is None:
            before(number, frame)
        else:
            keeper.end_by_signal(lambda: before(number, frame))

    return handler


def _default(number: int, frame: Any) -> None:
    try:
        signal.signal(number, signal.SIG_DFL)
    except ValueError:  # the drafter was at work in a thread, which may not
        os._exit(128 + number)
    os.kill(os.getpid(), number)
