import gc

import pytest

import berth


@pytest.fixture
def no_leak():
    """Fails if the test leaves memory behind on the CPU device."""
    gc.collect()
    before = berth.device("CPU").counters()["live_count"]
    yield
    gc.collect()
    assert berth.device("CPU").counters()["live_count"] == before
