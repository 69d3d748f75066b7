"""Who may join a fleet, what is saved and restored, and that nothing but whole, fitting files are."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from drafters import SuffixTreeDrafter, memory_file
from vllm_specx.fleet import snapshots
from vllm_specx.fleet.messages import Join, Joined, Prior, Settings, Sync, Synced, encode
from vllm_specx.fleet.server import FleetServer
from vllm_specx.fleet.texts import pack, pieces, texts_of, unpack

PRIOR = Prior(5.0, {"weights": b"\0" * 8})


def text(seed=0, name="", n=10):
    return pieces(name, np.random.default_rng(seed).integers(0, 1000, n).astype(np.int32))[0]


def server(**settings):
    return FleetServer(encode(Settings(**({"name": "f", "snapshot_interval_s": 1e6} | settings))))


def join(made, replica="a", model="m", vocabulary="v", **more):
    return msgspec.msgpack.decode(made.join(encode(Join(replica, model, vocabulary, **more))), type=Joined)


def sync(made, epoch, replica="a", texts=(), **more):
    message = encode(Sync(replica=replica, epoch=epoch, texts=pack(texts), **more))
    return msgspec.msgpack.decode(made.sync(message), type=Synced)


def said(synced):
    return [t for t, _, _ in texts_of(unpack(synced.texts))]


def status(made):
    return msgspec.json.decode(made.status())


def saved(place, texts=(), **more):
    """A server that has heard these, and written them down."""
    made = server(snapshot_path=str(place))
    sync(made, join(made).epoch, texts=texts, **more)
    made.save()
    return made


def test_the_first_replica_says_what_it_is_for():
    made = server()
    assert not join(made).refused
    for other, words in (
        ({"vocabulary": "w"}, ["fleet 'f'", "another vocabulary", "'v'", "'w'"]),
        ({"model": "n"}, ["fleet 'f'", "another model", "'m'", "'n'", "another name"]),
        ({"num_shards": 2}, ["1 shards", "wants 2"]),
        ({"protocol": 0}, ["version 1 of the protocol", "0"]),
    ):
        refused = join(made, **other).refused
        assert all(word in refused for word in words), refused
    assert not join(made, "b").refused


def test_two_replicas():
    made = server()
    epoch = join(made, "a").epoch
    assert said(sync(made, epoch, "a", [text(0), text(1)])) == []
    answer = sync(made, epoch, "b", [text(2)])
    assert said(answer) == [text(0), text(1)]
    assert said(sync(made, epoch, "b", after=answer.last)) == []
    assert sync(made, "another").is_unknown
    held = status(made)
    assert (held["texts"], held["tokens"], held["model"], set(held["replicas"])) == (3, 30, "m", {"a", "b"})


def test_the_best_informed_prior_is_passed_on():
    made = server()
    epoch = join(made).epoch
    sync(made, epoch, priors={"reach": PRIOR})
    sync(made, epoch, priors={"reach": msgspec.structs.replace(PRIOR, evidence=4.0)})
    assert join(made, "b").priors == {"reach": PRIOR}
    sync(made, epoch, priors={"reach": msgspec.structs.replace(PRIOR, evidence=6.0)})
    assert join(made, "b").priors["reach"].evidence == 6.0


@pytest.mark.parametrize("where", ["file", "memory://specx-{}/store", "file://{}/remote"])
def test_what_was_saved_is_restored(tmp_path, where):
    """With namespaces, credit, priors and what was purged; numbers go on rising."""
    place = str(tmp_path / "store") if where == "file" else where.format(tmp_path)
    made = server(snapshot_path=place)
    epoch = join(made).epoch
    texts = [text(0), text(1, "salt=1"), text(2, "salt=2", 300)]
    first = sync(made, epoch, texts=texts, credits={text(0).key: 7}, priors={"reach": PRIOR})
    sync(made, epoch, texts=[text(0)])
    sync(made, epoch, purges=(("salt=1",),))
    assert sync(made, epoch).durable == 0
    made.save()
    last = sync(made, epoch)
    assert last.durable >= first.last

    again = server(snapshot_path=place)
    joined = join(again, "b")
    assert (joined.refused, joined.notice, joined.priors) == ("", "", {"reach": PRIOR})
    assert joined.epoch != epoch
    answer = sync(again, joined.epoch, "b", heard=first.last)
    assert sorted(said(answer)) == sorted([texts[0], texts[2]])
    assert sorted(unpack(answer.texts).credits.tolist()) == [0, 7 + 10]
    assert answer.purges == (("salt=1",),)
    assert answer.durable == answer.last >= last.last
    # Numbers are times in microseconds; reading takes a moment, by which they may have come to be later.
    assert said(sync(again, joined.epoch, "b", after=last.last + 10**7)) == []


def test_nothing_is_written_that_has_not_changed(tmp_path):
    made = saved(tmp_path / "store", [text()])
    (tmp_path / "store").unlink()
    made.save()
    assert not (tmp_path / "store").exists()


def test_a_purge_is_written_at_once(tmp_path):
    """Where the next save would be in a week."""
    made = saved(tmp_path / "store", [text(0), text(1, "salt=1")])
    epoch = join(made).epoch
    sync(made, epoch, purges=(("salt=1",),))
    assert made._save_now.is_set() or status(made)["is_saved"]


@pytest.mark.parametrize("damage", ["truncate", "flip", "other", "json"])
def test_a_damaged_store_is_kept_aside_and_begun_anew(tmp_path, damage):
    place = tmp_path / "store"
    saved(place, [text()])
    data = place.read_bytes()
    broken = {
        "truncate": data[:-9],
        "flip": data[:60] + bytes([data[60] ^ 1]) + data[61:],
        "other": b"my diary",
        "json": data,
    }[damage]
    place.write_bytes(broken)
    if damage == "json":
        (tmp_path / "store.json").write_text('{"model": 3')
    again = server(snapshot_path=str(place))
    joined = join(again, "b", model="n")
    assert not joined.refused
    assert "damaged" in joined.notice
    assert str(place) in joined.notice
    assert status(again)["texts"] == 0
    assert (tmp_path / "store.damaged").read_bytes() == broken
    sync(again, joined.epoch, texts=[text(1)])
    again.save()
    assert len(memory_file.read(place, "v")) == 1


def test_a_store_of_another_model_is_refused_and_stays(tmp_path):
    place = tmp_path / "store"
    saved(place, [text()])
    before = place.read_bytes()
    again = server(snapshot_path=str(place))
    assert "another model: 'm'" in join(again, model="n").refused
    assert "another vocabulary: 'v'" in join(again, vocabulary="w").refused
    again.save()
    assert place.read_bytes() == before
    assert not join(again).refused


def test_a_store_that_cannot_be_read_now_is_not_overwritten(tmp_path, monkeypatch):
    place = tmp_path / "store"
    saved(place, [text()])
    again = server(snapshot_path=str(place))

    def fails(*arguments):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(memory_file, "read", fails)
        with pytest.raises(OSError, match="Input/output"):
            join(again)
    assert not join(again).refused
    assert status(again)["texts"] == 1


def test_a_file_of_specx_warm_is_a_start(tmp_path):
    """A memory file with answers of any length, and nothing beside it."""
    drafter = SuffixTreeDrafter(memory_bytes=1 << 20)
    drafter.add_document(np.arange(2000), "salt=1")
    drafter.save(tmp_path / "store", fingerprint="v")
    foreign = server(snapshot_path=str(tmp_path / "store"))
    assert "another vocabulary" in join(foreign, vocabulary="w").refused
    made = server(snapshot_path=str(tmp_path / "store"))
    joined = join(made, "b")
    assert said(sync(made, joined.epoch, "b")) == pieces("salt=1", np.arange(2000, dtype=np.int32))


def test_shards_have_files_of_their_own(tmp_path):
    for shard in range(2):
        made = server(snapshot_path=str(tmp_path / "store"), num_shards=2, shard=shard)
        sync(made, join(made, num_shards=2).epoch, texts=[text(shard)])
        made.save()
    assert {p.name for p in tmp_path.iterdir()} >= {"store.0of2", "store.1of2"}


def test_only_the_owner_can_read_it(tmp_path):
    saved(tmp_path / "store", [text()])
    assert {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {0o600}
    assert snapshots.load_about(str(tmp_path / "nothing")) is None
