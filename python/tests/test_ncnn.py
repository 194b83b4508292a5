"""The released ncnn with Berth as its memory."""
import gc
import struct
import threading

import numpy as np
import pytest

import berth

ncnn = pytest.importorskip("ncnn")
import berth.ncnn  # noqa: E402


class Network:
    """A small residual network, drawn from a seed: what its two files contain."""

    def __init__(self, seed, channels=16):
        random = np.random.default_rng(seed)
        self.lines, self.weights = ["Input in 0 1 in"], b""

        def convolution(source, target, inputs, outputs, relu):
            count = outputs * inputs * 9
            values = random.uniform(-1, 1, count).astype("f4") * np.float32(np.sqrt(6 / (inputs * 9)))
            biases = random.uniform(-0.1, 0.1, outputs).astype("f4")
            self.weights += struct.pack("<I", 0) + values.tobytes() + biases.tobytes()
            self.lines.append(f"Convolution {target} 1 1 {source} {target} 0={outputs} 1=3 4=1 5=1 6={count} 9={relu}")

        convolution("in", "x0", 3, channels, 1)
        for i in range(4):
            self.lines.append(f"Split s{i} 1 2 x{i} x{i}a x{i}b")
            convolution(f"x{i}a", f"y{i}", channels, channels, 1)
            convolution(f"y{i}", f"z{i}", channels, channels, 0)
            self.lines.append(f"BinaryOp x{i + 1} 2 1 x{i}b z{i} x{i + 1} 0=0")
        convolution("x4", "out", channels, 3, 0)
        blobs = sum(int(line.split()[3]) for line in self.lines)
        self.text = "\n".join(["7767517", f"{len(self.lines)} {blobs}", *self.lines, ""])

    def load(self, folder, memory=None):
        param, weights = folder / "net.param", folder / "net.bin"
        param.write_text(self.text)
        weights.write_bytes(self.weights)
        net = ncnn.Net()
        net.opt.num_threads = 1
        if memory is not None:
            memory.prepare(net)
        assert net.load_param(str(param)) == 0
        assert net.load_model(str(weights)) == 0
        return net


def image(seed, width=32, height=24):
    values = np.random.default_rng(seed).uniform(-1, 1, (3, height, width)).astype("f4")
    return ncnn.Mat(values).clone()


def extract(net, mat):
    with net.create_extractor() as extractor:
        extractor.input("in", mat)
        status, out = extractor.extract("out")
        assert status == 0
        return np.array(out).copy()


def test_the_bits_are_the_same_from_an_arena_of_the_live_peak(tmp_path):
    network, memory = Network(1), berth.ncnn.Memory()
    net, stock = network.load(tmp_path, memory), network.load(tmp_path)
    outputs = []
    for i in range(5):
        mat = image(i)
        with memory.run("net", mat):
            outputs.append(extract(net, mat))
        assert outputs[-1].tobytes() == extract(stock, mat).tobytes(), i
        assert memory.report().recorded == (i == 0)
        assert memory.report().deviated == 0
    assert outputs[0].tobytes() != outputs[1].tobytes()
    report = memory.report()
    assert report.planned == report.requests > 8
    # Requests are placed in units of 64 bytes.
    assert report.live_peak <= report.arena_bytes <= report.live_peak + 64 * report.requests
    assert report.plan.optimal
    assert "from the arena" in repr(report)


def test_threads_each_have_an_arena(tmp_path):
    network, memory = Network(2), berth.ncnn.Memory()
    net, stock = network.load(tmp_path, memory), network.load(tmp_path)
    mats = [image(i) for i in range(2)]
    expected = [extract(stock, mat).tobytes() for mat in mats]
    good = []

    def work(mat, wanted):
        for _ in range(10):
            with memory.run("net", mat):
                good.append(extract(net, mat).tobytes() == wanted)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(mats, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert good == [True] * 20
    assert memory.report().arenas <= 2


def test_nets_and_shapes_share_the_arena(tmp_path):
    memory = berth.ncnn.Memory()
    networks = [Network(3, channels) for channels in (8, 24)]
    nets = [(network.load(tmp_path, memory), network.load(tmp_path)) for network in networks]
    peaks = []
    for i in range(12):
        net, stock = nets[i % 2]
        mat = image(i, 16 * (1 + i % 3), 16)
        with memory.run(f"net {i % 2}", mat):
            out = extract(net, mat)
        assert out.tobytes() == extract(stock, mat).tobytes(), i
        peaks.append(memory.report().live_peak)
    assert memory.report().arenas == 1
    assert memory.report().arena_bytes <= max(peaks) + 64 * 64


def test_a_mat_may_be_kept_and_the_memory_comes_back(tmp_path):
    network, memory = Network(4), berth.ncnn.Memory()
    net, stock = network.load(tmp_path, memory), network.load(tmp_path)
    kept = []
    for i in range(4):
        mat = image(i)
        with memory.run("net", mat), net.create_extractor() as extractor:
            extractor.input("in", mat)
            out = ncnn.Mat()  # the form of extract() that does not copy
            assert extractor.extract("out", out) == 0
            kept.append((extract(stock, mat), out))
    for expected, mat in kept:
        assert np.array(mat).tobytes() == expected.tobytes()
    assert memory.report().pool_bytes > 0
    del kept, mat, out, extractor
    gc.collect()
    assert memory.report().pool_bytes == 0
    assert memory.give_back() > 0
    assert memory.report().arena_bytes == 0


def test_one_extractor_can_be_prepared(tmp_path):
    network, memory = Network(5), berth.ncnn.Memory()
    net, mat = network.load(tmp_path), image(0)
    expected = extract(net, mat)
    for _ in range(3):
        with memory.run("net", tuple([mat.w, mat.h])), net.create_extractor() as extractor:
            memory.prepare(extractor)
            extractor.input("in", mat)
            assert np.array(extractor.extract("out")[1]).tobytes() == expected.tobytes()
    assert memory.report().planned > 0


def test_misuse_is_an_error():
    memory = berth.ncnn.Memory()
    with pytest.raises(TypeError, match="takes an ncnn.Net") as raised:
        memory.prepare("net")
    assert raised.value.code == "TypeMismatch"
    with pytest.raises((TypeError, ValueError)):
        with memory.run("net", 5):
            pass
    with pytest.raises(ZeroDivisionError):
        with memory.run("net"):
            1 / 0
    assert memory.report().runs == 1
    other = berth.ncnn.Memory()
    block = memory.fastMalloc(100)
    with pytest.raises(ValueError, match="not live"):
        other.fastFree(block)
    memory.fastFree(block)
    with pytest.raises(ValueError, match="not live"):
        memory.fastFree(block)
    assert memory.fastMalloc(0) is None
    assert memory.fastMalloc(2**62) is None
    memory.fastFree(None)
