"""Namespaces of the shared memory: whose text may meet whose."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

_MAX_INDEX: Final = (1 << 31) - 1  # a tag is index << 32 and stays a positive int64
COMMON: Final = ""


@dataclass(slots=True, eq=False)
class Namespace:
    """A namespace in use.

    Attributes:
        name: as its users call it.
        tag: int64, index << 32; every shared token of the namespace is stored as tag + token id.
        seed: what the hashes of its contexts start from, within [0, 2**63).
        num_users: documents and live requests that hold it.

    """

    name: str
    tag: int
    seed: int
    num_users: int = 0


class Namespaces:
    """Names in use and what they stand for; a name that nobody holds is forgotten and comes back as a new one.

    Seeds are secret, so that nobody can work out which of his contexts shares a bucket with which of somebody else's
    and learn from the time of a draft, or from what a full chain displaces, what others were told. The common
    namespace "" has the seed 0: a collision is predictable only where both seeds are known, and its runs then
    repeat exactly.

    Args:
        new_seed: returns the seed of the next new namespace.

    """

    def __init__(self, new_seed: Callable[[], int]) -> None:
        """Start with the common namespace, which is never forgotten."""
        self._new_seed = new_seed
        self._by_name = {COMMON: Namespace(COMMON, tag=0, seed=0, num_users=1)}
        self._used = {0}  # indices
        self._last_index = 0

    def __len__(self) -> int:
        """Return the number of names in use, the common one included."""
        return len(self._by_name)

    def __iter__(self) -> Iterator[Namespace]:
        """Iterate over the namespaces in use."""
        return iter(self._by_name.values())

    def get(self, name: str) -> Namespace | None:
        """Return the namespace of that name if it is in use."""
        return self._by_name.get(name)

    def acquire(self, name: str) -> Namespace:
        """Return the namespace of that name, made if need be, with one more user."""
        namespace = self._by_name.get(name)
        if namespace is None:
            namespace = Namespace(name, self._free_index() << 32, self._new_seed())
            self._by_name[name] = namespace
        namespace.num_users += 1
        return namespace

    def release(self, namespace: Namespace) -> None:
        """Take one user away."""
        namespace.num_users -= 1
        if namespace.num_users == 0:
            del self._by_name[namespace.name]
            self._used.discard(namespace.tag >> 32)

    def _free_index(self) -> int:
        while True:
            self._last_index = self._last_index % _MAX_INDEX + 1
            if self._last_index not in self._used:
                self._used.add(self._last_index)
                return self._last_index


def check_name(namespace: object) -> str:
    """Return a namespace's name.

    Raises:
        TypeError: not a str.

    """
    if not isinstance(namespace, str):
        raise TypeError(f"a namespace must be a str, got {type(namespace).__name__}")
    return namespace
