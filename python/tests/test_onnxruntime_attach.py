"""attach(): libraries that make their own sessions, unchanged, with Berth's memory."""
import importlib.util
import subprocess
import sys
import textwrap

import pytest

onnxruntime = pytest.importorskip("onnxruntime")

import berth.onnxruntime  # noqa: E402
from test_onnxruntime import options, rows, same_bits, stock, tiny_model  # noqa: E402

# Every session of the program, what made it, and how much of its runs followed a plan.
SESSIONS = """
import gc, onnxruntime
found = [each for each in gc.get_objects() if isinstance(each, onnxruntime.InferenceSession)]
assert found, "the library has made no session"
for each in found:
    memory = getattr(each, "memory", None)
    print("session", type(each).__module__.split(".")[0], 0 if memory is None else memory.runs + memory.async_runs,
          file=sys.stderr)
"""


@pytest.fixture
def attached():
    berth.onnxruntime.attach()
    yield
    berth.onnxruntime.detach()


def test_sessions_of_the_engine_are_berths_until_detach(attached):
    session = onnxruntime.InferenceSession(tiny_model(), options())
    assert type(session) is berth.onnxruntime.InferenceSession
    expected = None
    berth.onnxruntime.detach()
    reference = onnxruntime.InferenceSession(tiny_model(), options())
    assert type(reference) is onnxruntime.InferenceSession
    for seed in range(3):
        feed = {"x": rows(5, seed)}
        expected = reference.run(None, feed)
        assert same_bits(session.run(None, feed), expected)
    assert session.memory.planned > 0
    berth.onnxruntime.attach()
    assert type(onnxruntime.InferenceSession(tiny_model(), options())) is berth.onnxruntime.InferenceSession


def test_a_subclass_that_a_library_has_made_gets_it_too(attached):
    class Theirs(onnxruntime.InferenceSession):
        def __init__(self, model):
            super().__init__(model, options(), providers=["CPUExecutionProvider"])
            self.calls = 0

        def run(self, *arguments):
            self.calls += 1
            return super().run(*arguments)

    session = Theirs(tiny_model())
    assert isinstance(session, Theirs) and isinstance(session, berth.onnxruntime.InferenceSession)
    for _ in range(2):
        session.run(None, {"x": rows(4)})
    assert session.calls == 2 and session.memory.runs == 2 and session.memory.planned > 0
    berth.onnxruntime.detach()
    assert not isinstance(Theirs(tiny_model()), berth.onnxruntime.InferenceSession)


def test_options_note_what_is_asked_of_them_and_are_the_engines(attached):
    made = onnxruntime.SessionOptions()
    assert isinstance(made, berth.onnxruntime.SessionOptions)
    made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert made.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert same_bits(onnxruntime.InferenceSession(tiny_model(), made).run(None, {"x": rows(3)}),
                     stock(tiny_model()).run(None, {"x": rows(3)}))


def run_library(program, is_attached):
    """What a program prints, with its sessions on standard error."""
    begin = "import sys\n" + ("import berth.onnxruntime; berth.onnxruntime.attach()\n" if is_attached else "")
    ran = subprocess.run([sys.executable, "-c", begin + textwrap.dedent(program) + SESSIONS], capture_output=True,
                         text=True)
    assert ran.returncode == 0, ran.stderr
    sessions = [line.split()[1:] for line in ran.stderr.splitlines() if line.startswith("session ")]
    return ran.stdout, sessions


LIBRARIES = {
    # Three sessions: where text is, which way up it is, and what it says.
    "rapidocr_onnxruntime": ("cv2", """
        import cv2, numpy as np
        from rapidocr_onnxruntime import RapidOCR
        reader = RapidOCR()
        for text, size in [("BERTH 42", (240, 480)), ("memory", (160, 320)), ("BERTH 42", (240, 480))] * 2:
            image = np.full((*size, 3), 255, np.uint8)
            cv2.putText(image, text, (30, size[0] // 2), cv2.FONT_HERSHEY_SIMPLEX, 2, (0, 0, 0), 4)
            result, _ = reader(image)
            print(result)
        assert result and "42" in result[0][1], result
        """),
    # The package imports torch for its other models; this one needs NumPy and the engine alone, so that a module
    # without contents stands in where torch is not installed.
    "silero_vad": ("numpy", """
        import importlib.util, unittest.mock
        if importlib.util.find_spec("torch") is None:
            sys.modules["torch"] = unittest.mock.MagicMock(__spec__=None)
        import numpy as np, os, silero_vad
        path = os.path.join(os.path.dirname(silero_vad.__file__), "data", "silero_vad_16k_sequence.onnx")
        model = silero_vad.SileroVADSequence(path)
        for seed in range(4):
            noise = np.random.default_rng(seed).standard_normal(16000 * 2).astype(np.float32) / 10
            print(np.asarray(model.audio_forward(noise)).tobytes().hex())
        """),
    "magika": ("magika", """
        import magika
        detector = magika.Magika()
        for data in [b"#include <vector>\\nint main() { return 0; }\\n" * 20, b"import os\\nprint(os.name)\\n" * 20] * 3:
            print(detector.identify_bytes(data))
        """),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_gives_the_same_results_unchanged(library):
    needs, program = LIBRARIES[library]
    for name in (library, needs):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the package {name} is not installed")
    expected, before = run_library(program, False)
    got, after = run_library(program, True)
    assert expected != "" and got == expected
    assert {kind for kind, _ in before} == {"onnxruntime"}
    assert {kind for kind, _ in after} == {"berth"} and all(int(runs) > 1 for _, runs in after)
