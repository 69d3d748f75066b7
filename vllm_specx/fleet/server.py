"""A shard of a fleet's store, as its Ray actor runs it: who may join, what each hears, what is saved."""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from drafters.memory_file import ForeignMemoryFile, MemoryFileError, Snapshot
from vllm_specx.fleet import messages, snapshots, texts
from vllm_specx.fleet.messages import Join, Joined, Prior, Settings, Sync, Synced
from vllm_specx.fleet.store import Page, Purge, Store, steady_clock

_PRIOR_SECONDS: Final = 600.0  # after which a better informed one need not be waited for
_REPLICA_SECONDS: Final = 3600.0  # after which one that was not heard is not listed any more
_MOST_REPLICAS: Final = 4096
_MOST_PRIORS: Final = 64
_PRIOR_BYTES: Final = 1 << 20

logger = logging.getLogger("specx.fleet")


class FleetServer:
    """Keeps the store of one shard. Messages are bytes; see `messages`.

    It belongs to the first replica's model and vocabulary, or to those that it was saved with. A message that makes no
    sense is a ValueError, and leaves it as it was.

    Args:
        settings: encoded Settings.
        clock: seconds since 1970; steady ones unless given.

    """

    def __init__(self, settings: bytes, clock: Callable[[], float] | None = None) -> None:
        """Start empty; what was saved is restored when the first replica joins and says which vocabulary it has."""
        self._settings = messages.decode(settings, Settings)
        self._clock = clock = clock or steady_clock()
        self._lock = threading.Lock()  # of the store
        self._save_lock = threading.Lock()  # of the file
        self._save_now = threading.Event()
        self._epoch = secrets.token_hex(8)
        self._model = self._vocabulary = self._notice = ""
        self._store = Store(self._settings.max_bytes, ttl=self._settings.ttl_s, clock=clock)
        self._priors: dict[str, tuple[Prior, float]] = {}
        self._changes = self._saved_changes = 0
        self._durable = 0
        self._replicas: dict[str, float] = {}  # when each was heard last
        if self._place:
            threading.Thread(target=self._save_forever, name="specx-fleet-save", daemon=True).start()

    @property
    def _place(self) -> str:
        settings = self._settings
        path = settings.snapshot_path
        return (
            path
            if not path or settings.num_shards == 1
            else f"{path}.{settings.shard}of{settings.num_shards}"
        )

    def join(self, message: bytes) -> bytes:
        """Take up a replica, or say why not. Raises OSError where what was saved cannot be read."""
        join = messages.decode(message, Join)
        with self._lock:
            refused = self._refusal(join)
            if not refused and not self._vocabulary:
                refused = self._restore(join)
            refused = refused or self._refusal(join)  # of what was restored
            if refused:
                return messages.encode(Joined(refused=refused))
            if not self._vocabulary:
                self._model, self._vocabulary = join.model, join.vocabulary
            now = self._clock()
            self._replicas = {n: t for n, t in self._replicas.items() if now - t < _REPLICA_SECONDS}
            self._note(join.replica)
            priors = {name: prior for name, (prior, _) in self._priors.items()}
            return messages.encode(
                Joined(epoch=self._epoch, last=self._store.last, notice=self._notice, priors=priors)
            )

    def sync(self, message: bytes) -> bytes:
        """Take what a replica has to say, and answer with what the others said."""
        sync = messages.decode(message, Sync)
        with self._lock:
            if sync.epoch != self._epoch:
                return messages.encode(Synced(is_unknown=True))
            self._note(sync.replica)
            self._changes += self._store.expire()
            self._take(sync)
            page = self._store.since(sync.after, sync.before, sync.replica, messages.MESSAGE_BYTES)
            return messages.encode(
                Synced(
                    last=self._store.last,
                    more=page.more,
                    durable=self._durable,
                    texts=_packed(page),
                    purges=self._store.purges(sync.heard, sync.replica),
                )
            )

    def status(self) -> bytes:
        """Return numbers as JSON: what is held, for whom, how much of it is saved."""
        with self._lock:
            now = self._clock()
            return msgspec.json.encode(
                {
                    "pid": os.getpid(),
                    "model": self._model,
                    "vocabulary": self._vocabulary,
                    "texts": len(self._store),
                    "tokens": self._store.num_tokens,
                    "bytes": self._store.num_bytes,
                    "max_bytes": self._store.max_bytes,
                    "is_saved": self._saved_changes == self._changes,
                    "replicas": {name: now - heard for name, heard in self._replicas.items()},
                    "priors": {name: prior.evidence for name, (prior, _) in self._priors.items()},
                }
            )

    def save(self) -> None:
        """Write a snapshot now, if anything has changed since the last one. Raises OSError."""
        with self._save_lock:
            with self._lock:
                changes, last = self._changes, self._store.last
                if not self._vocabulary or changes == self._saved_changes:
                    return
                self._store.expire()
                snapshot = self._store.snapshot()
                priors = {name: prior for name, (prior, _) in self._priors.items()}
                about = snapshots.About(self._model, self._vocabulary, priors, self._store.all_purges)
            snapshots.save(self._place, snapshot, about)
            with self._lock:
                self._saved_changes, self._durable = changes, last

    def _refusal(self, join: Join) -> str:
        name, settings = self._settings.name, self._settings
        if join.protocol != messages.PROTOCOL:
            return (
                f"fleet {name!r} speaks version {messages.PROTOCOL} of the protocol, this replica {join.protocol}: "
                "run one version of vllm-specx, or name another fleet"
            )
        if join.num_shards != settings.num_shards:
            return f"fleet {name!r} has {settings.num_shards} shards, this replica wants {join.num_shards}"
        for what, ours, theirs in (
            ("model", self._model, join.model),
            ("vocabulary", self._vocabulary, join.vocabulary),
        ):
            if ours and ours != theirs:
                return (
                    f"fleet {name!r} holds outputs of another {what}: {ours!r}, and this replica has {theirs!r}. "
                    "Give it a fleet of another name"
                )
        return ""

    def _restore(self, join: Join) -> str:
        """Read what was saved; return why the replica that joins may not have it."""
        if not self._place:
            return ""
        snapshot: Snapshot | None = None
        purges: tuple[Purge, ...] = ()
        try:
            about = snapshots.load_about(self._place)
            snapshot = snapshots.load(self._place, about.vocabulary if about else join.vocabulary)
            if about is not None:
                self._model, self._vocabulary = about.model, about.vocabulary
                self._priors = {name: (prior, 0.0) for name, prior in about.priors.items()}
                purges = about.purges
        except ForeignMemoryFile as error:
            return str(error)
        except (
            MemoryFileError
        ) as error:  # an OSError is raised: what cannot be read now must not be overwritten
            snapshots.move_away(self._place)
            self._notice = f"the saved store was damaged, and is .damaged by name now: {error}"
            logger.warning("specx: %s", self._notice)
        if snapshot is not None:
            self._store.restore(texts.texts_of(snapshot), purges)
            self._durable = self._store.last
        return ""

    def _note(self, replica: str) -> None:
        """That it was heard."""
        self._replicas.pop(replica, None)
        self._replicas[replica] = self._clock()
        if len(self._replicas) > _MOST_REPLICAS:
            del self._replicas[next(iter(self._replicas))]

    def _take(self, sync: Sync) -> None:
        said = texts.unpack(sync.texts)
        for parts in sync.purges:
            self._changes += 1
            self._store.purge(parts, sync.replica)
            self._save_now.set()
        for text, _, _ in texts.texts_of(said):
            self._changes += self._store.add(text, sync.replica, heard=sync.heard)
        for key, credit in sync.credits.items():
            self._store.raise_credit(key, credit)
        for name, prior in sync.priors.items():
            if not _is_sound(prior) or (name not in self._priors and len(self._priors) >= _MOST_PRIORS):
                continue
            held, when = self._priors.get(name, (None, 0.0))
            if held is None or prior.evidence >= held.evidence or self._clock() - when > _PRIOR_SECONDS:
                self._priors[name] = prior, self._clock()
                self._changes += 1

    def _save_forever(self) -> None:
        while True:
            self._save_now.wait(self._settings.snapshot_interval_s)
            self._save_now.clear()
            try:
                self.save()
            except Exception as error:  # a disk that is full today may not be tomorrow
                logger.warning("specx: the fleet's store was not saved: %s", error)


def _is_sound(prior: Prior) -> bool:
    return 0 <= prior.evidence < math.inf and sum(map(len, prior.arrays.values())) <= _PRIOR_BYTES


def _packed(page: Page) -> messages.Texts:
    return texts.pack(page.texts, page.ages, page.credits)
