"""Buffers that processes share, from Python."""
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

import berth

CHILD = """
import socket, sys
import numpy as np
import berth
line = socket.socket(fileno=int(sys.argv[1]))
text, descriptors, _, _ = socket.recv_fds(line, 100, 1)
offset, memory_bytes = map(int, text.split())
buffer = berth.import_shared(descriptors[0], (3, 4), "f32", offset=offset, memory_bytes=memory_bytes, writable=True)
array = buffer.numpy()
assert (array == np.arange(12).reshape(3, 4)).all()
array += 1
line.send(b"done")
"""


def test_shares_an_array_with_another_process():
    buffer = berth.Buffer((4, 4), "f32", berth.shareable(), zero=True)
    part = buffer.view_as("f32", (3, 4), 16)
    part.numpy()[:] = np.arange(12).reshape(3, 4)
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(theirs.fileno())], close_fds=False)
    try:
        ours.settimeout(60)
        with part.share(writable=True) as shared:
            socket.send_fds(ours, [f"{shared.offset} {shared.memory_bytes}".encode()], [shared.fileno()])
        assert ours.recv(10) == b"done"
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
        ours.close()
        theirs.close()
    assert (buffer.numpy().ravel() == [0, 0, 0, 0, *range(1, 13)]).all()


def test_imports_read_only_unless_asked():
    buffer = berth.Buffer(8, "i32", berth.shareable(), zero=True)
    with buffer.share() as shared:
        reader = berth.import_shared(shared, 8, "i32")
        with pytest.raises(ValueError, match="shared for reading"):
            berth.import_shared(shared, 8, "i32", writable=True)
    assert not reader.numpy().flags.writeable
    with pytest.raises(ValueError, match="closed"):
        shared.fileno()


def test_refuses_what_cannot_be_shared_or_imported(tmp_path):
    with pytest.raises(ValueError, match="make_shareable"):
        berth.Buffer(8, "i32").share()
    buffer = berth.Buffer(8, "i32", berth.shareable())
    with buffer.share() as shared:
        with pytest.raises(ValueError):
            berth.import_shared(shared, 1 << 40, "i32")
        with pytest.raises(ValueError):
            berth.import_shared(shared, (1 << 62, 1 << 62), "i32")
        with pytest.raises(ValueError):
            berth.import_shared(shared, 1, "i32", offset=1 << 63)
        number = shared.fileno()
    with pytest.raises(ValueError, match="not an open descriptor"):
        berth.import_shared(number, 8, "i32")
    with pytest.raises(TypeError):
        berth.import_shared("file", 8, "i32")
    with open(tmp_path / "file", "w+b") as file:
        file.write(b"0" * 4096)
        with pytest.raises(ValueError, match="sealed"):
            berth.import_shared(file, 8, "i32")
    buffer.release()
    with pytest.raises(ValueError):
        buffer.share()
