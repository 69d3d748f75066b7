"""A page of numbers in a file that one process writes and others read: 8-byte numbers, each whole at any time.

It lies in a folder of the user's own below the temporary one, named by the engine's instance, which all of its
processes know, and goes when its writer ends; what a killed writer left goes when the next one begins. A folder that
somebody else has made, or a link that leads elsewhere, is not used: the page is in memory alone, and none is read.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vllm_specx.metrics.layout import FINGERPRINT, NUM_VALUES

_HEADER: Final = 2  # fingerprint of the layout, process id
_NAME: Final = re.compile(r"(?P<instance>[\w-]+)\.(?P<engine>\d+)\.page$")


def folder() -> Path:
    """Where pages lie."""
    return Path(tempfile.gettempdir()) / f"vllm-specx-{os.getuid()}"


def new_page(instance: str, engine: int) -> NDArray[np.float64]:
    """Return the numbers of an engine's page, all 0; in memory alone where no file can be made."""
    path = folder() / f"{instance}.{engine}.page"
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if not _is_own():
            return np.zeros(NUM_VALUES)
        _remove_leftovers()
        numbers = np.memmap(path, dtype=np.float64, mode="w+", shape=(_HEADER + NUM_VALUES,))
    except OSError:
        return np.zeros(NUM_VALUES)
    numbers[:_HEADER] = FINGERPRINT, os.getpid()
    Finalize(numbers, path.unlink, kwargs={"missing_ok": True}, exitpriority=5)
    return np.asarray(numbers)[_HEADER:]  # a view without the class, which makes each access dear


def read_pages(instance: str) -> dict[int, NDArray[np.float64]]:
    """Return the numbers of each engine of an instance, by its index."""
    pages: dict[int, NDArray[np.float64]] = {}
    if not _is_own():
        return pages
    for path in sorted(folder().glob(f"{instance}.*.page")):
        match = _NAME.match(path.name)
        with suppress(OSError, ValueError):
            numbers = np.fromfile(path, dtype=np.float64)
            if match and len(numbers) == _HEADER + NUM_VALUES and numbers[0] == FINGERPRINT:
                pages[int(match["engine"])] = numbers[_HEADER:]
    return pages


def _is_own() -> bool:
    """Whether the folder is one of this user's, in which nobody else can write."""
    try:
        found = folder().lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _remove_leftovers() -> None:
    for path in folder().glob("*.page"):
        with suppress(OSError, ValueError, OverflowError):
            header = np.fromfile(path, dtype=np.float64, count=_HEADER)
            if len(header) == _HEADER and not _is_alive(int(header[1])):
                path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
