"""What docs/threat_model.md promises and no other test tries; and that every test that it names exists."""

from __future__ import annotations

import ast
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from fuzz_suffix_tree import SMALL

from drafters import SuffixTreeDrafter, training
from drafters import _index_kernels as kernels
from drafters._namespaces import Namespace
from drafters._ring import Ring
from drafters.training import CheckpointError
from vllm_specx.fleet.store import Store
from vllm_specx.fleet.texts import MAX_NAME, Text, pack, unpack
from vllm_specx.metrics import page
from vllm_specx.recipes import recipe

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # see test_suffix_tree

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("vllm_specx", "drafters", "packaging", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)
# Modules that run what they read, and calls that do unless told not to.
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle"}
CALLS = {
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
    "yaml.full_load",
}
WANTED = {"torch.load": ("weights_only", True)}
UNWANTED = {"allow_pickle", "trust_remote_code", "shell"}


def dangers(source: str) -> Iterator[str]:
    """What in a module's source may run what it reads, by the line."""
    names: dict[str, str] = {}  # as it is called here, and in full
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found = [node.module]
        else:
            continue
        yield from (f"{node.lineno}: {name}" for name in found if name.partition(".")[0] in MODULES)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        head, dot, rest = called.partition(".")
        called = names.get(head, head) + dot + rest
        keywords = {k.arg: getattr(k.value, "value", None) for k in node.keywords}
        keyword, value = WANTED.get(called, ("", None))
        if called in CALLS or keywords.get(keyword) is not value or any(keywords.get(k) for k in UNWANTED):
            yield f"{node.lineno}: {called}"


def test_no_module_runs_what_it_reads() -> None:
    found = {str(path.relative_to(ROOT)): list(dangers(path.read_text(encoding="utf-8"))) for path in SOURCES}
    assert len(found) > 200
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n from pickle import loads as read",
        "import marshal as m",
        "from multiprocessing import connection\nimport shelve",
        "import torch\ntorch.load(p)",
        "import torch as t\nt.load(p, weights_only=False)",
        "from torch import load\nload(p)",
        "import yaml\nyaml.load(f, Loader=L)",
        "from yaml import unsafe_load as load\nload(f)",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "eval(text)",
        "import os\nos.system(text)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_the_scan_finds_it(source: str) -> None:
    assert list(dangers(source))


def test_the_scan_lets_pass_what_is_safe() -> None:
    safe = "import torch, yaml, json\ntorch.load(p, weights_only=True)\nyaml.safe_load(f)\njson.load(f)\nm.eval()"
    assert list(dangers(safe)) == []


class Malicious:
    """A pickle of it makes a folder when it is read."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (os.environ["SPECX_TEST_CANARY"],)


def test_a_malicious_checkpoint_of_a_training_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECX_TEST_CANARY", str(tmp_path / "canary"))
    folder = tmp_path / "training"
    folder.mkdir()
    path = folder / training.CHECKPOINT.format(1)
    torch.save({"head": Malicious()}, path)
    told: list[str] = []
    with pytest.raises(CheckpointError, match="can be read"):
        training.load(folder, None, None, None, told.append)  # type: ignore[arg-type]
    assert len(told) == 1
    assert not (tmp_path / "canary").exists()
    torch.load(path, weights_only=False)  # so that it is known to be one
    assert (tmp_path / "canary").exists()


def test_yaml_makes_nothing_but_data(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    path = tmp_path / "recipe.yaml"
    path.write_text(f"model: !!python/object/apply:os.mkdir ['{canary}']\n")
    with pytest.raises(ValueError, match="not YAML"):
        recipe(path)
    assert not canary.exists()


# Tenants: drafts, promises and work


def walk(
    ring: Ring, context: np.ndarray, space: Namespace, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, int]:
    """What a request of a namespace finds of its context in a shared text: lengths, votes; and compared positions."""
    num_compared = 0
    match_length = kernels._match_length

    def counted(*args: Any) -> int:
        nonlocal num_compared
        num_compared += 1
        return int(match_length(*args))

    monkeypatch.setattr(kernels, "_match_length", counted)
    own = np.zeros(64, dtype=np.int32)
    own[: len(context)] = context
    hashes = np.zeros(kernels.NUM_ORDERS, dtype=np.int64)
    last = len(context) - 1
    kernels._hash_suffixes(own, 63, last, len(context), space.tag, space.seed, hashes)
    positions, lengths = (np.zeros(kernels.MAX_OCCURRENCES, dtype=np.int64) for _ in range(2))
    votes = np.zeros(kernels.MAX_OCCURRENCES)
    occurrences = getattr(kernels._occurrences, "py_func", kernels._occurrences)
    end = len(context)
    count = occurrences(
        *ring.store, ring.tail, own, end, False, space.tag, hashes, -1, positions, lengths, votes
    )
    monkeypatch.setattr(kernels, "_match_length", match_length)
    return (lengths[:count].tolist(), votes[:count].tolist()), num_compared


@pytest.mark.parametrize("is_apart", [True, False], ids=["namespaces of their own", "one namespace"])
def test_another_tenants_text_changes_neither_what_is_found_nor_the_work(
    is_apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacker says word for word what the victim said, eight times as often: he aims at every chain of it.

    The victim compares as many positions as without him, up to chance: 6 % more here. In one namespace it would be a
    multiple, and find other places.
    """
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 12, (20, 50)).astype(np.int32)
    victim = Namespace("victim", 1 << 32, 2**62 + 12345)
    attacker = Namespace("attacker", 2 << 32, 2**61 + 999) if is_apart else victim
    alone, beside = Ring(1 << 14), Ring(1 << 14)
    for text in texts:
        alone.append(text, victim)
        beside.append(text, victim)
        for _ in range(8):
            beside.append(text, attacker)
    compared = {"alone": 0, "beside": 0}
    is_same = True
    for text in texts:
        for end in (3, 17, 40):
            found, num = walk(alone, text[:end], victim, monkeypatch)
            found_beside, num_beside = walk(beside, text[:end], victim, monkeypatch)
            is_same &= found == found_beside
            compared["alone"] += num
            compared["beside"] += num_beside
    ratio = compared["beside"] / compared["alone"]
    if is_apart:
        assert is_same
        assert ratio < 1.1
    else:
        assert not is_same
        assert ratio > 1.5


def test_another_tenants_memory_changes_no_draft_and_no_reach() -> None:
    """To the last bit, as long as nothing has to make room; statistics, which are common, are held still."""

    def run(with_other: bool) -> list[tuple[list[int], list[float]]]:
        rng = np.random.default_rng(1)
        seeds = iter((12345, 2**40 + 1, 2**50 + 7))
        drafter = SuffixTreeDrafter(memory_bytes=1 << 24, min_reach=0.0, new_seed=lambda: next(seeds))
        seen = []
        drafter.start("keeps the name in use", [], namespace="a")
        for _ in range(30):
            text = rng.integers(0, 12, 60)
            drafter.start("a", text[:20], namespace="a")
            if with_other:
                drafter.start("b", text[:20], namespace="b")
                drafter.observe("b", text[20:])  # it knows already what a will say
            for at in range(20, 60, 4):
                drafter.calibration.clear()
                (draft,) = drafter.propose(["a"], 16)
                seen.append((draft.token_ids.tolist(), draft.reach.tolist()))
                drafter.observe("a", text[at : at + 4])
            drafter.stop("a")
            if with_other:
                drafter.stop("b")
            drafter._usual_luck = 0.5
        return seen

    alone = run(with_other=False)
    assert sum(map(len, (tokens for tokens, _ in alone))) > 1000
    assert run(with_other=True) == alone


# Floods


def survivors(share: float, uses_its_own: bool, is_used: bool = True) -> float:
    """Share of a victim's answers that still lead drafts while a tenant writes three times what the memory holds.

    Args:
        share: of the memory that the victim's answers take at first.
        uses_its_own: whether the other tenant asks for what it wrote, so that it earns credit.
        is_used: whether the victim asks for each of its answers four times in a round of the memory.

    """
    rng = np.random.default_rng(0)
    drafter = SuffixTreeDrafter(memory_bytes=64 * SMALL, min_reach=0.0)
    room, length = drafter.memory.capacity, 200

    def use(namespace: str, text: np.ndarray) -> bool:
        drafter.start("use", text[:20], namespace=namespace)
        (draft,) = drafter.propose(["use"], 32)
        drafter.observe("use", text[20:52])
        drafter.stop("use")
        return len(draft) > 0 and (draft.token_ids == text[20 : 20 + len(draft)]).all()

    answers = rng.integers(0, 50_000, (int(share * room / (length + 1)), length))
    for answer in answers:
        drafter.add_document(answer, "victim")
    fewest = 1.0
    for turn in range(12):
        flood = rng.integers(0, 50_000, (room // 4 // (length + 1), length))
        for text in flood:
            drafter.add_document(text, "attacker")
            if uses_its_own:
                use("attacker", text)
        if uses_its_own:
            for text in flood:
                use("attacker", text)
        if is_used or turn == 11:
            fewest = min(fewest, sum(use("victim", answer) for answer in answers) / len(answers))
    return fewest


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="slow in plain Python")
@pytest.mark.parametrize(
    ("share", "uses_its_own", "least"), [(0.4, False, 0.9), (0.2, True, 1 / 3), (0.4, True, 1 / 3)]
)
def test_a_flood_takes_a_share_of_what_is_in_use(share: float, uses_its_own: bool, least: float) -> None:
    assert survivors(share, uses_its_own) >= least


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="slow in plain Python")
def test_a_flood_takes_all_that_nobody_uses() -> None:
    """It is use that keeps an answer: what the page says of idle tenants."""
    assert survivors(0.4, uses_its_own=False, is_used=False) == 0.0


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="slow in plain Python")
def test_lies_are_found_out() -> None:
    """In a poisoned namespace, where no answer goes on as the target will, promises fall."""
    rng = np.random.default_rng(0)
    drafter = SuffixTreeDrafter(memory_bytes=1 << 22)
    lies = [rng.integers(0, 1000, 40) for _ in range(50)]
    for lie in lies:
        drafter.add_document(lie)
    promised = []
    for turn in range(300):
        lie = lies[turn % len(lies)]
        drafter.start("r", lie[:20])
        (draft,) = drafter.propose(["r"], 16)
        promised.append(float(draft.reach.sum()))
        drafter.observe("r", [2000 + turn])
        drafter.stop("r")
    assert np.mean(promised[:5]) > 3
    assert np.mean(promised[-50:]) < 0.3


# The fleet


def test_an_addition_to_the_store_is_bounded_work_whatever_others_have_earned() -> None:
    """A member that claims the largest credit for all that is there would have the store turn round for long."""
    store = Store(1 << 20)
    number = 0
    while store.num_bytes < store.max_bytes - 2000:
        text = Text("", np.array([number, 1, 2], dtype="<i4").tobytes())
        store.add(text, "a")
        store.raise_credit(text.key, 2**40)
        number += 1
    moves = 0
    insert = store._insert

    def counted(*args: Any) -> None:
        nonlocal moves
        moves += 1
        insert(*args)

    store._insert = counted  # type: ignore[method-assign]
    for extra in range(50):
        assert store.add(Text("", np.array([extra, 7, 7], dtype="<i4").tobytes()), "b")
    assert store.num_bytes <= store.max_bytes
    assert moves <= 4 * 50


def test_the_store_forgets_names_that_no_text_has() -> None:
    store = Store(64 * 700, clock=time.time)
    for number in range(2000):
        store.add(Text(f"salt={number:032x}", np.array([number, 1], dtype="<i4").tobytes()), "a")
    assert len(store._names) < 4 * len(store) + 200


@pytest.mark.parametrize("names", [("x" * (MAX_NAME + 1),), ("", "more names than texts")])
def test_names_in_a_message_are_bounded(names: tuple[str, ...]) -> None:
    import msgspec

    good = pack([Text("x" * MAX_NAME, np.array([1, 2, 3], dtype="<i4").tobytes())])
    assert len(unpack(good)) == 1
    with pytest.raises(ValueError, match="names"):
        unpack(msgspec.structs.replace(good, names=names))


# Files in a folder that everybody can write to


@pytest.mark.parametrize("trap", ["a link", "open to all"])
def test_numbers_are_in_a_folder_of_ones_own_or_in_none(
    trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, precious = tmp_path / "pages", tmp_path / "precious"
    precious.mkdir()
    (precious / "a.0.page").write_bytes(bytes(16))  # of a writer that is gone, for all that its bytes say
    monkeypatch.setattr(page, "folder", lambda: folder)
    if trap == "a link":
        folder.symlink_to(precious)
    else:
        precious.rename(folder)
        precious = folder
        folder.chmod(0o777)
    numbers = page.new_page("i", 0)
    numbers[0] = 1.0
    assert [path.name for path in precious.iterdir()] == ["a.0.page"]
    assert page.read_pages("i") == {}
    if trap == "a link":
        folder.unlink()
    else:
        folder.chmod(0o700)
    numbers = page.new_page("i", 0)
    assert page.read_pages("i").keys() == {0}


# The lock


def lock() -> Any:
    sys.path.insert(0, str(ROOT / "packaging"))
    try:
        import lock  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    return lock


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
def test_every_dependency_is_locked(path: Path) -> None:
    assert lock().locked(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("line", ["numpy", "numpy>=2", "torch==2.13.0", "-r other.txt"])
def test_a_line_that_locks_nothing_is_noticed(line: str) -> None:
    good = "torch==2.13.0  # why\n"
    assert lock().locked(good) == {"torch": "2.13.0"}
    with pytest.raises(ValueError, match=r"NAME==VERSION|twice"):
        lock().locked(good + line)


def test_what_is_installed_is_what_is_locked() -> None:
    found = lock().differences(
        {"torch": "2.13.0", "numpy": "2.3.5", "rich": "15.0.0"},
        {"torch": "2.13.0+cpu", "numpy": "2.3.4", "ours": "1"},
    )
    assert [line.partition(":")[0] for line in found] == ["numpy", "rich"]


# The page


def test_every_test_that_the_page_names_exists() -> None:
    text = (ROOT / "docs" / "threat_model.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text))
    assert len(named) > 30
    missing = {
        (path, name)
        for path, name in named
        if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    }
    assert missing == set()


def test_every_measure_has_a_test() -> None:
    """Each row of the page's tables names one."""
    text = (ROOT / "docs" / "threat_model.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| measure")]
    assert len(rows) > 20
    assert [row for row in rows if "`tests/" not in row] == []
