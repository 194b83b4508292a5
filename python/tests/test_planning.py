"""Plans, arenas, schedules and pools from Python."""
import threading

import numpy as np
import pytest

import berth

LIVES = [(4096, 0, 2), (8192, 1, 3), (4096, 2, 4), (0, 0, 1)]


def test_plans_lists_dicts_and_structured_arrays_alike():
    from_list = berth.plan(LIVES)
    from_dicts = berth.plan([{"bytes": b, "first": f, "last": l, "label": "x"} for b, f, l in LIVES])
    array = np.array(LIVES, dtype=[("bytes", "u8"), ("first", "i4"), ("last", "i4")])
    from_array = berth.plan(array)
    assert from_list.offsets == from_dicts.offsets == from_array.offsets
    assert from_list.size == from_list.lower_bound == 12288 and from_list.optimal and from_list.gap == 0
    assert from_list.blocks == [12288] and len(from_list) == 4
    assert from_list.slot(1)[2] == 8192
    assert from_list.fingerprint == from_array.fingerprint
    from_list.validate()
    with pytest.raises(IndexError):
        from_list.slot(3)


def test_refuses_what_cannot_be_planned():
    with pytest.raises(ValueError) as caught:
        berth.plan([(100, 0, 2), (100, 0, 2)], capacity=150)
    assert caught.value.code == "Infeasible"
    with pytest.raises(ValueError, match="no field"):
        berth.plan([{"size": 3}])
    with pytest.raises(ValueError, match="no field"):
        berth.plan(np.zeros(2, dtype=[("bytes", "i8")]))
    with pytest.raises(ValueError):
        berth.plan([(1, 2)])


def test_shows_itself_as_a_page_and_in_a_notebook():
    plan = berth.plan(LIVES)
    page = plan.to_html("my plan")
    assert page.lstrip().lower().startswith("<!doctype html") and "my plan" in page
    assert plan._repr_html_().startswith("<iframe")
    assert repr(plan) == "<berth.Plan 4 buffers in 12.0 KiB, optimal>"


def test_an_arena_holds_the_plan(no_leak):
    plan = berth.plan([(16, 0, 1), (24, 0, 1), (0, 0, 1)], alignment=16)
    arena = berth.Arena(plan, zero=True, shadow="on")
    assert arena.nbytes == plan.size and arena.has(0) and not arena.has(2)
    arena.write_f32(0, [1, 2, 3, 4])
    assert arena.read_f32(0).tolist() == [1, 2, 3, 4]
    assert arena.buffer(0).numpy().tolist() == [1, 2, 3, 4]
    assert arena.shadow(0).numpy().tolist() == [1, 2, 3, 4] and arena.shadow(0).dtype == "f16"
    with pytest.raises(ValueError) as caught:
        arena.write_f32(0, np.zeros(5))
    assert caught.value.code == "SizeMismatch"
    with pytest.raises(ValueError):
        arena.offset(9)
    view = arena.buffer(1)
    del arena
    assert view.nbytes == 24  # keeps the memory


def test_a_schedule_runs_python_callables_in_an_order_that_keeps_bytes_safe():
    builder = berth.ScheduleBuilder()
    nodes = [builder.node(64, label=f"n{i}") for i in range(8)]
    out = builder.node(64, output=True)
    threads = set()

    def fill(node, value):
        def step(run):
            threads.add(threading.get_ident())
            run.node(node).copyin(bytes([value]) * 64)

        return step

    for i, node in enumerate(nodes):
        builder.step(fill(node, i + 1), writes=[node], label=f"fill {i}")

    def add(run):
        total = sum(run.node(node).view_as("u8", 64).numpy().astype(int) for node in nodes)
        run.node(out).view_as("u8", 64).numpy()[:] = total

    last = builder.step(add, reads=nodes, writes=[out])
    schedule = builder.build()
    assert schedule.level_of(last) == 1 and schedule.level_count == 2
    assert sorted(schedule.dependencies_of(last)) == list(range(8))
    plan = berth.plan(schedule.lifetimes())
    arena = berth.Arena(plan)
    bound = schedule.bind(arena)
    for workers in (1, 4):
        bound.run(workers=workers, check_overlaps=True)
        assert set(arena.buffer(out.id).view_as("u8", 64).numpy().tolist()) == {36}


def test_a_failing_step_names_itself_and_its_error():
    builder = berth.ScheduleBuilder()
    buffer = berth.Buffer(4, "u8", zero=True)
    builder.step(lambda run: 1 / 0, writes=[buffer], label="divide")
    schedule = builder.build()
    with pytest.raises(ValueError, match="divide.*ZeroDivisionError"):
        schedule.run()


def test_a_cycle_is_refused():
    builder = berth.ScheduleBuilder()
    builder.step(lambda run: None, after=[1])
    builder.step(lambda run: None, after=[0])
    with pytest.raises(ValueError) as caught:
        builder.build()
    assert caught.value.code == "Cycle"


def test_pools_limits_and_stats_stack():
    stats = berth.statistics("CPU")
    pool = berth.caching_pool(berth.limit(stats, 1 << 20))
    for _ in range(10):
        berth.Buffer(1000, "f32", pool).release()
    assert pool.counters()["hits"] == 9 and stats.counters()["allocations"] == 1
    assert pool.trim() > 0 and stats.counters()["live_bytes"] == 0
    with pytest.raises(MemoryError, match="budget"):
        berth.Buffer(2 << 20, "u8", pool)


def test_a_buffer_pool_refuses_what_is_returned_twice():
    pool = berth.StepBuffers("CPU")
    buffer = pool.allocate(100, "f32", zero=True)
    assert buffer.numpy().sum() == 0
    pool.release(buffer)
    with pytest.raises(ValueError) as caught:
        pool.release(buffer)
    assert caught.value.code == "NotOwned"
    pool.register_existing(berth.Buffer(4, "f32"))
    assert pool.counters()["registered"] == 1
    pool.clear()
    assert pool.counters()["bytes"] == 0


def test_a_trace_records_what_passes_through_and_replays_elsewhere(tmp_path):
    path = tmp_path / "run.trace"
    recorder = berth.record(path, berth.statistics("CPU"))
    first = berth.Buffer(1024, "u8", recorder, label="first")
    second = berth.Buffer(2048, "u8", recorder)
    first.release()
    recorder.flush()
    recording = berth.read_recording(path)
    assert len(recording) == 3 and recording.blocks == 2
    assert [event["kind"] for event in recording] == ["allocate", "allocate", "free"]
    assert recording[0]["label"] == "first" and recording[-1]["block"] == 0
    with pytest.raises(IndexError):
        recording[3]
    assert recording.lifetimes() == [(1024, 0, 2), (2048, 1, 3)]
    report = recording.replay(berth.limit("CPU", 2048))
    assert report["failures"] == 1 and report["peak_live_bytes"] == 1024
    second.release()


def test_a_damaged_trace_says_where(tmp_path):
    path = tmp_path / "cut.trace"
    with berth.record(path) as recorder:
        berth.Buffer(1024, "u8", recorder).release()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError) as caught:
        berth.read_recording(path)
    assert caught.value.code == "InvalidData"
    with pytest.raises(OSError):
        berth.read_recording(tmp_path / "none.trace")
    with pytest.raises(OSError):
        berth.record(tmp_path / "no_folder" / "a.trace")


def test_residency_counters_are_there_or_none():
    counters = berth.device("CPU").residency()
    assert counters is None or set(counters) == {"added", "removed", "commits", "members"}
