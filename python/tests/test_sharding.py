"""Sharding plans and sharded loads from Python."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import berth


@pytest.fixture
def model(tmp_path):
    path = str(tmp_path / "model.safetensors")
    rng = np.random.default_rng()
    berth.save(path, {
        "q": rng.random((8, 6), dtype=np.float32),
        "o": rng.random((6, 8), dtype=np.float32),
        "experts.0.w": rng.random(5, dtype=np.float32),
        "experts.1.w": rng.random(5, dtype=np.float32),
        "norm": rng.random(6, dtype=np.float32),
    })
    return path


RULES = "q row\no column\nexperts.#.w expert\n"


def test_plan_from_text_and_from_tuples(model):
    with berth.open(model) as file:
        plan = berth.shard_plan(file, RULES, 2)
        plan.check()
        same = berth.shard_plan(file, [("q", "row"), ("o", "column", 1), ("experts.#.w", "expert")], ranks=2)
        assert str(plan) == str(same)
    assert plan.ranks == plan.parts == 2
    assert plan.shard("o", 1)["shape"] == (6, 4)
    assert plan.shard("experts.1.w", 0)["nbytes"] == 0
    assert plan.cost()["storage_bytes"] == plan.cost()["file_bytes"]
    assert "2 ranks" in repr(plan)


def test_what_cannot_be_planned(model):
    with berth.open(model) as file:
        with pytest.raises(ValueError, match="line 1"):
            berth.shard_plan(file, "q rows", 2)
        with pytest.raises(ValueError, match="replicated, row, column or expert"):
            berth.shard_plan(file, [("q", "rows")], 2)
        with pytest.raises(TypeError):
            berth.shard_plan(file, ["q row"], 2)
        with pytest.raises(ValueError, match="0 ranks"):
            berth.shard_plan(file, RULES, 0)
        plan = berth.shard_plan(file, RULES, 2)
    with pytest.raises(KeyError):
        plan.shard("absent", 0)
    with pytest.raises(ValueError):
        plan.shard("q", 2)


def test_join_says_what_is_missing(tmp_path):
    with pytest.raises(ValueError):
        berth.Cluster.join(give_up_after=0)
    with pytest.raises((OSError, ValueError, RuntimeError)):
        berth.Cluster.join(folder=str(tmp_path / "absent"), rank=0, ranks=1, token="t")


def test_two_processes_load_together(model, tmp_path):
    program = textwrap.dedent("""
        import sys, numpy as np, berth
        rank, folder, model, rules = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
        try:
            cluster = berth.Cluster.join(folder=folder, rank=rank, ranks=2, token="job")
        except Exception as error:
            if "apt-get install libucx" in str(error):
                print("no UCX")
                sys.exit(0)
            raise
        with berth.open(model) as file:
            loaded = berth.load_sharded(cluster, file, rules)
            for _ in range(2):
                for name, buffer in loaded.buffers.items():
                    shard = loaded.plan.shard(name, rank)
                    expected = file.load_slice(name, axis=shard["axis"], begin=shard["begin"], end=shard["end"])
                    assert np.array_equal(buffer.numpy(), expected.numpy()), name
                loaded = berth.reshard(cluster, loaded, berth.shard_plan(file, "", 2))
            assert len(loaded.buffers) == 5
        cluster.barrier()
        print("ok", cluster.rank, cluster.ranks, cluster.lost)
    """)
    folder = tmp_path / "job"
    folder.mkdir()
    ranks = [subprocess.Popen([sys.executable, "-c", program, str(rank), str(folder), model, RULES],
                              stdout=subprocess.PIPE, text=True, env=dict(os.environ)) for rank in range(2)]
    outputs = [rank.communicate(timeout=120)[0].strip() for rank in ranks]
    if "no UCX" in outputs:
        pytest.skip("needs UCX: apt-get install libucx0")
    assert [text.split()[0] for text in outputs] == ["ok", "ok"]
    assert [rank.returncode for rank in ranks] == [0, 0]
