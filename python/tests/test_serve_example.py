"""The example server (examples/serve): workers that answer with the engine's bits and show their memory."""
import io
import json
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")

from test_onnxruntime import rows, same_bits, stock, tiny_model  # noqa: E402

SERVER = pathlib.Path(__file__).parents[2] / "examples" / "serve" / "server.py"


@pytest.fixture
def server(tmp_path):
    if not SERVER.exists():
        pytest.skip("the source tree is not here")
    (tmp_path / "tiny.onnx").write_bytes(tiny_model(2048))
    process = subprocess.Popen([sys.executable, str(SERVER), str(tmp_path / "tiny.onnx"), "--port", "0", "--workers", "2",
                                "--cache", str(tmp_path / "cache")], stdout=subprocess.PIPE, text=True)
    yield process.stdout.readline().strip()
    process.terminate()
    assert process.wait(20) == 0


def post(url, data):
    return urllib.request.urlopen(urllib.request.Request(url + "run", data), timeout=60).read()


def test_workers_answer_with_the_engines_bits_and_show_their_memory(server):
    reference = stock(tiny_model(2048))
    for seed in range(12):
        feed = {"x": rows(3 + seed % 4, seed)}
        body = io.BytesIO()
        np.savez(body, **feed)
        with np.load(io.BytesIO(post(server, body.getvalue()))) as outputs:
            assert same_bits([outputs["y"], outputs["d"]], reference.run(None, feed))
    for bad in (b"not an archive", b""):
        with pytest.raises(urllib.error.HTTPError, match="400"):
            post(server, bad)
    workers = json.loads(urllib.request.urlopen(server + "memory", timeout=60).read())
    assert sum(each["runs"] for each in workers) == 12
    assert all(each["weights"]["problem"] is None and each["pss"] > 0 for each in workers)
    assert b"<svg" in urllib.request.urlopen(server, timeout=60).read()
