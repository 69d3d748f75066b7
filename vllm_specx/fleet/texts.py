"""Pieces of answers: what they are known by, and how they get into flat buffers and out of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drafters._tokens import MAX_TOKEN_ID
from drafters.memory_file import MAX_CREDIT, Snapshot
from vllm_specx.fleet.messages import Texts

PIECE: Final = (
    512  # tokens; a longer answer travels in pieces, so that each is absorbed in a fraction of a step
)
OVERLAP: Final = 32  # tokens that the next piece begins with: the context of its first draft
MAX_NAME: Final = 128  # characters of a namespace: two digests take 75
_MAX_AGE: Final = float(1 << 40)


class Text(NamedTuple):
    """A piece of an answer: the namespace of its request, and its tokens as int32, little-endian."""

    name: str
    token_ids: bytes

    @property
    def key(self) -> bytes:
        """What it is known by, 16 bytes."""
        digest = hashlib.blake2b(self.name.encode("utf-8", "surrogatepass"), digest_size=16, person=b"specx")
        digest.update(b"\0" + self.token_ids)
        return digest.digest()


def pieces(name: str, token_ids: NDArray[np.int32]) -> list[Text]:
    """Cut an answer into pieces; none of them has less than two tokens."""
    return [_piece(name, token_ids, at) for at in _starts(len(token_ids)) if len(token_ids) > 1]


def piece_at(name: str, token_ids: NDArray[np.int32], place: int) -> Text:
    """The piece of an answer that a place in it belongs to."""
    starts = _starts(len(token_ids))
    return _piece(name, token_ids, starts[min(place // starts.step, len(starts) - 1)])


def _starts(num_tokens: int) -> range:
    return range(0, max(1, num_tokens - OVERLAP), PIECE - OVERLAP)


def _piece(name: str, token_ids: NDArray[np.int32], at: int) -> Text:
    return Text(name, token_ids[at : at + PIECE].astype("<i4", copy=False).tobytes())


def pack(texts: Sequence[Text], ages: Sequence[float] = (), credits: Sequence[int] = ()) -> Texts:
    """Put texts into one message; without ages they are said now, without credits they have none."""
    indices: dict[str, int] = {}
    namespaces = [indices.setdefault(text.name, len(indices)) for text in texts]
    return Texts(
        b"".join(text.token_ids for text in texts),
        np.array([len(text.token_ids) // 4 for text in texts], dtype="<i8").tobytes(),
        tuple(indices),
        np.array(namespaces, dtype="<i8").tobytes(),
        np.array(ages or [0.0] * len(texts), dtype="<f8").tobytes(),
        np.array(credits or [0] * len(texts), dtype="<i8").tobytes(),
    )


def unpack(texts: Texts, vocab_size: int = MAX_TOKEN_ID + 1) -> Snapshot:
    """Take texts out of a message.

    Raises:
        ValueError: they are not as they should be; nothing of such a message is used.

    """
    token_ids = np.frombuffer(texts.token_ids, dtype="<i4")
    lengths = np.frombuffer(texts.lengths, dtype="<i8")
    namespaces = np.frombuffer(texts.namespaces, dtype="<i8")
    ages = np.frombuffer(texts.ages, dtype="<f8")
    credits = np.frombuffer(texts.credits, dtype="<i8")
    _check(len(lengths) == len(namespaces) == len(ages) == len(credits), "counts")
    _check(_within(lengths, 2, PIECE) and int(lengths.sum()) == len(token_ids), "lengths")
    _check(len(texts.names) <= len(lengths) and all(len(n) <= MAX_NAME for n in texts.names), "names")
    _check(_within(namespaces, 0, len(texts.names) - 1), "namespaces")
    _check(_within(token_ids, 0, vocab_size - 1), "token ids")
    _check(_within(ages, 0.0, _MAX_AGE), "ages")
    _check(_within(credits, 0, MAX_CREDIT), "credits")
    return Snapshot(token_ids, lengths, texts.names, namespaces, ages, credits, 0.0)


def texts_of(snapshot: Snapshot) -> Iterator[tuple[Text, float, int]]:
    """Give each text, in pieces where it is long, its age and what it has earned."""
    ends = np.cumsum(snapshot.lengths).tolist()
    rows = zip(
        ends,
        snapshot.lengths.tolist(),
        snapshot.namespaces.tolist(),
        snapshot.ages.tolist(),
        snapshot.credits.tolist(),
        strict=True,
    )
    for end, length, namespace, age, credit in rows:
        for text in pieces(snapshot.names[namespace], snapshot.token_ids[end - length : end]):
            yield text, age, credit * len(text.token_ids) // (4 * length)


def _within(values: NDArray[Any], low: float, high: float) -> bool:
    return not len(values) or bool(low <= values.min() and values.max() <= high)


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"a message whose {what} are not as they should be")
