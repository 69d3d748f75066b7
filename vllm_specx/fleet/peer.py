"""One shard as a replica sees it: what it has to be told, what was heard of it, what it may have lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from vllm_specx.fleet import messages
from vllm_specx.fleet.inbox import Inbox
from vllm_specx.fleet.messages import Join, Joined, Prior, Sync, Synced
from vllm_specx.fleet.texts import Text, pack, unpack
from vllm_specx.memory.namespaces import has_parts

KEPT_BYTES: Final = 16 << 20  # of texts that wait, and of those that the store may yet lose, each
_TEXT_BYTES: Final = 128  # of a text beside its tokens
_MOST_CREDITS: Final = 4096  # in a message
_MOST_PURGES: Final = 1024  # that are told again to a store that was made anew

Ask = Callable[[str, bytes], bytes]  # method and message -> answer
Parts = tuple[str, ...]


class Refused(Exception):
    """The fleet does not take this replica; the message says why."""


class Unknown(Exception):
    """The store was made anew, and has to be joined again."""


class Waiting:
    """Texts in order, bounded in bytes: the oldest go first."""

    def __init__(self) -> None:
        """Start empty."""
        self._texts: deque[tuple[int, Text]] = deque()
        self._num_bytes = 0

    def __len__(self) -> int:
        """Return how many."""
        return len(self._texts)

    def add(self, text: Text, mark: int = 0) -> None:
        """Append one, with a number to know it by."""
        self._texts.append((mark, text))
        self._num_bytes += len(text.token_ids) + _TEXT_BYTES
        while self._num_bytes > KEPT_BYTES:
            self._take()

    def take(self, max_bytes: int) -> list[Text]:
        """Remove and return the oldest ones."""
        taken, size = [], 0
        while self._texts and size < max_bytes:
            taken.append(self._take())
            size += len(taken[-1].token_ids)
        return taken

    def put_back(self, texts: Sequence[Text]) -> None:
        """Undo `take`."""
        for text in reversed(texts):
            self._texts.appendleft((0, text))
            self._num_bytes += len(text.token_ids) + _TEXT_BYTES

    def drop(self, mark: int) -> None:
        """Remove those whose number is not above `mark`."""
        while self._texts and self._texts[0][0] <= mark:
            self._take()

    def forget(self, parts: Parts) -> None:
        """Remove those of namespaces with these parts."""
        kept = [(mark, text) for mark, text in self._texts if not has_parts(text.name, parts)]
        self._texts.clear()
        self._num_bytes = 0
        for mark, text in kept:
            self.add(text, mark)

    def _take(self) -> Text:
        text = self._texts.popleft()[1]
        self._num_bytes -= len(text.token_ids) + _TEXT_BYTES
        return text


class Peer:
    """Keeps what a shard is owed, and asks it.

    Args:
        join: the replica's introduction.
        vocab_size: of the target; ids beyond it are refused.
        most_bytes: of tokens that are worth hearing at once: what the replica's own memory holds.

    """

    def __init__(self, join: Join, vocab_size: int, most_bytes: int) -> None:
        """Start as one who has heard nothing."""
        self._join = join
        self._vocab_size = vocab_size
        self._most_bytes = most_bytes
        self._epoch = ""
        self._heard = self._after = 0
        self._unsent, self._sent = Waiting(), Waiting()
        self._credits: dict[bytes, int] = {}
        self._purges: list[Parts] = []
        self._purged: list[tuple[int, Parts]] = []  # of which the store knows
        self.num_pushed = self.num_pulled = 0  # texts

    def say(self, text: Text) -> None:
        """Have it told with the next exchange."""
        self._unsent.add(text)

    def credit(self, key: bytes, credit: int) -> None:
        """Have what a text has earned told with the next exchange."""
        if len(self._credits) < _MOST_CREDITS:
            self._credits[key] = credit

    def purge(self, parts: Parts) -> None:
        """Have it forgotten with the next exchange, and here what would bring it back."""
        self._purges.append(parts)
        self._unsent.forget(parts)
        self._sent.forget(parts)

    def join(self, ask: Ask) -> Joined:
        """Introduce the replica. Raises Refused, and what `ask` raises.

        A store that was made anew has lost what came after its last snapshot: that is told once more, what was to be
        forgotten first.
        """
        joined = messages.decode(ask("join", messages.encode(self._join)), Joined)
        if joined.refused:
            raise Refused(joined.refused)
        if not self._epoch:
            self._heard = joined.last
        elif joined.epoch != self._epoch:
            self._unsent.put_back(self._sent.take(KEPT_BYTES))
            self._purges = [*(parts for _, parts in self._purged), *self._purges]
            self._purged = []
        self._epoch = joined.epoch
        return joined

    def sync(self, ask: Ask, inbox: Inbox, priors: Mapping[str, Prior] | None = None) -> None:
        """Tell what there is to tell, hear what there is to hear.

        Args:
            ask: the shard.
            inbox: is given what others said and had forgotten.
            priors: to be told.

        Raises:
            Unknown: join first. And what `ask` raises; nothing is lost then.

        """
        size = before = last = 0
        is_first = True
        while is_first or before or len(self._unsent):
            is_first = False
            texts = self._unsent.take(messages.MESSAGE_BYTES)
            try:
                synced = self._exchange(ask, texts, before, priors or {})
            except BaseException:
                self._unsent.put_back(texts)
                raise
            if not before:
                last = synced.last
            priors = None
            self._account(texts, synced)
            for parts in synced.purges:
                self._sent.forget(parts)
                self._unsent.forget(parts)
                inbox.put_purge(parts)
            heard = unpack(synced.texts, self._vocab_size)
            if len(heard):
                self.num_pulled += len(heard)
                inbox.put(heard, is_older=before > 0)
            page = messages.MESSAGE_BYTES if synced.more else 0  # more follows a full page only
            size += max(len(synced.texts.token_ids), page)
            before = synced.more if len(heard) and size < self._most_bytes else 0  # an empty page is the last
            if not before:
                self._after = last

    def _account(self, texts: Sequence[Text], synced: Synced) -> None:
        """Note what the store has now, and what it cannot lose any more."""
        self._heard = synced.last
        self.num_pushed += len(texts)
        for text in texts:
            self._sent.add(text, synced.last)
        self._sent.drop(synced.durable)
        self._purged += [(synced.last, parts) for parts in self._purges]
        self._purged = [(mark, parts) for mark, parts in self._purged if mark > synced.durable][
            -_MOST_PURGES:
        ]
        self._purges.clear()
        self._credits.clear()

    def _exchange(self, ask: Ask, texts: Sequence[Text], before: int, priors: Mapping[str, Prior]) -> Synced:
        message = Sync(
            replica=self._join.replica,
            epoch=self._epoch,
            heard=self._heard,
            after=self._after,
            before=before,
            texts=pack(texts),
            credits=self._credits,
            purges=tuple(self._purges),
            priors=dict(priors),
        )
        synced = messages.decode(ask("sync", messages.encode(message)), Synced)
        if synced.is_unknown:
            raise Unknown
        return synced


def shard_of(key: bytes, num_shards: int) -> int:
    """Where a text belongs."""
    return int.from_bytes(key[:4], "little") % num_shards


def spread(texts: Iterable[Text], peers: Sequence[Peer]) -> None:
    """Tell each text to its shard."""
    for text in texts:
        peers[0 if len(peers) == 1 else shard_of(text.key, len(peers))].say(text)
