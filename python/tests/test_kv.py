"""The key-value cache from Python, with NumPy tables."""
import numpy as np
import pytest

import berth


def make(pages=64, **options):
    return berth.KvCache([{"name": "full", "kind": "full", "bytes_per_token": 64}], budget=pages * 4 * 64,
                         block_tokens=4, **options)


def test_shares_a_prefix_and_writes_tables():
    cache = make()
    tokens = np.arange(10, dtype=np.int32)
    first, cached = cache.open(tokens)
    assert cached == 0
    cache.commit(first)
    second, cached = cache.open(tokens)
    assert cached == 8
    table = cache.block_table(0, [first, second])
    assert table.dtype == np.int32 and table.shape == (2, 3)
    assert (table[0, :2] == table[1, :2]).all() and table[0, 2] != table[1, 2]
    slots = cache.append([first, second], [5, 6])
    assert slots.dtype == np.int64 and slots.shape == (1, 2)
    assert slots[0, 0] == table[0, 2] * 4 + 2
    indptr, indices, last = cache.csr(0, [first, second])
    assert indptr.tolist() == [0, 3, 6] and last.tolist() == [3, 3] and (indices[:3] == table[0]).all()
    assert cache.seq_lens([first, second]).tolist() == [11, 11]
    assert cache.slots(0, first, 10).tolist() == [slots[0, 0]]
    cache.check()


def test_writes_into_arrays_of_the_caller():
    cache = make()
    first, _ = cache.open([1, 2, 3])
    out = np.full((1, 8), 9, dtype=np.int32)
    assert cache.block_table(0, [first], 8, -1, out) is out
    assert out[0, 1:].tolist() == [-1] * 7
    with pytest.raises(TypeError):
        cache.block_table(0, [first], 8, -1, np.zeros((1, 8)))
    with pytest.raises(ValueError):
        cache.block_table(0, [first], 8, -1, np.zeros((1, 3), dtype=np.int32))


def test_pages_are_memory_that_numpy_sees():
    cache = make()
    first, _ = cache.open([1, 2, 3])
    pages = cache.pages(0).numpy()
    page = cache.block_table(0, [first])[0, 0]
    pages[page] = np.arange(256, dtype=np.uint8)
    fork = cache.fork(first)
    cache.append([fork], [4])
    copy = cache.block_table(0, [fork])[0, 0]
    assert copy != page and (pages[copy] == pages[page]).all()


def test_refusals_are_exceptions_that_say_what_helps():
    cache = make(pages=4)
    first, _ = cache.open(range(12))
    admission = cache.can_admit(range(100, 112))
    assert not admission["fits"] and admission["close_first"] == first
    with pytest.raises(MemoryError, match="close 1 of 1"):
        cache.open(range(100, 112))
    cache.close(first)
    with pytest.raises(ValueError) as caught:
        cache.close(first)
    assert caught.value.code == "NotFound"
    with pytest.raises(ValueError):
        berth.KvCache([{"kind": "full"}], budget=1000)
    with pytest.raises(ValueError, match="no field"):
        berth.KvCache([{"size": 3}], budget=1000)


def test_brings_back_blocks_from_tiers(tmp_path):
    cache = make(pages=4, eviction="lru", tiers=[{"device": "CPU", "budget": 2 * 256, "label": "host"},
                                                 {"folder": tmp_path, "budget": 8 * 256}])
    for first in (0, 100, 0):
        sequence, cached = cache.open(range(first, first + 13))
        cache.commit(sequence)
        cache.close(sequence)
    assert cached == 12
    counters = cache.counters()
    assert counters["tier_tokens"] == 12
    assert [tier["label"] for tier in counters["tiers"]] == ["host", ""]
    assert counters["tiers"][1]["stored"] > 0
    cache.check()
    with pytest.raises(ValueError):
        make(tiers=[{"where": "CPU"}])
    with pytest.raises(MemoryError):
        make(tiers=[{"device": "CPU", "budget": 10}])


def test_records_calls_and_runs_them_again(tmp_path):
    path = str(tmp_path / "calls.kv")
    cache = make(eviction="lru", record_to=path)
    for _ in range(2):
        sequence, cached = cache.open(range(13))
        cache.commit(sequence)
        cache.close(sequence)
    assert cached == 12
    cache.flush_recording()
    replay = make(eviction="lru").run_recording(path)
    assert (replay["opened"], replay["refused"], replay["cached_tokens"]) == (2, 0, 12)
    with pytest.raises(FileNotFoundError):
        make().run_recording(path + " of nobody")


def test_sequences_have_contiguous_addresses():
    cache = berth.KvCache([{"bytes_per_token": 1024}], budget=1 << 20, block_tokens=4, contiguous_tokens=64)
    first, _ = cache.open(range(6))
    tokens, position = cache.contiguous(0, first)
    assert position == 0
    tokens.numpy()[:] = 7
    cache.commit(first)
    second, cached = cache.open(range(6))
    assert cached == 4
    shared = cache.contiguous(0, second)[0].numpy()
    assert shared.shape == (6, 1024) and (shared[:4] == 7).all()
    addresses = cache.addresses(0, [first, second])
    assert addresses.dtype == np.uint64 and addresses[0] != addresses[1]
    for token in range(20):
        cache.append([first], [token])
    assert cache.addresses(0, [first])[0] == addresses[0]
    assert (cache.contiguous(0, first)[0].numpy()[:6] == 7).all()
    with pytest.raises(ValueError, match="multiple of 4 tokens"):
        berth.KvCache([{"bytes_per_token": 1024}], budget=1 << 20, block_tokens=3, contiguous_tokens=64)
    with pytest.raises(Exception) as caught:
        make().contiguous(0, 1)
    assert caught.value.code == "Unsupported"


def test_writes_when_pages_were_in_use(tmp_path):
    cache = make(timeline_uses=100)
    sequence, _ = cache.open(range(6))
    cache.close(sequence)
    path = tmp_path / "cache.html"
    cache.write_timeline(str(path))
    assert "sequence 0" in path.read_text()
