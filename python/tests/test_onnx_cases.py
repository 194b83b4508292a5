"""ONNX's own test cases, through the engine's session and Berth's: the same bits, or the same error, on every one.

BERTH_ONNX_CASES, a regular expression, chooses some of them by name.
"""
import os
import pathlib
import re

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

import berth.onnxruntime  # noqa: E402
from onnx import numpy_helper  # noqa: E402

# The cases themselves divide by zero.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
FILES = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data"
RUNS = 3  # one is recorded, the others follow its plan


def cases():
    """Name, model as bytes, and inputs of every case: those of the operators, and those that are stored in files."""
    from onnx.backend.test.case.node import collect_testcases
    chosen = re.compile(os.environ.get("BERTH_ONNX_CASES", ""))
    for case in collect_testcases(None):
        if chosen.search(case.name) and case.data_sets:
            values = [value_of(value) for value in case.data_sets[0][0]]
            yield case.name, case.model, dict(zip((each.name for each in case.model.graph.input), values))
    for path in sorted(FILES.glob("*/*/model.onnx")):
        if chosen.search(path.parent.name) and (path.parent / "test_data_set_0").exists():
            model = onnx.load(path, load_external_data=False)
            feed = {}
            for i, declared in enumerate(model.graph.input):
                file = path.parent / "test_data_set_0" / f"input_{i}.pb"
                if file.exists():
                    feed[declared.name] = value_of(PROTOS[declared.type.WhichOneof("value")].FromString(file.read_bytes()))
            yield path.parent.name, model, feed


PROTOS = {"tensor_type": onnx.TensorProto, "sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}


def value_of(value):
    """An input of a case as the engine takes it."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    return value


def bits(value):
    """Everything about an output, as something that can be compared."""
    if value is None or isinstance(value, (str, bytes, int, float, bool)):
        return value
    if isinstance(value, dict):
        return {key: bits(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(each) for each in value]
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tolist() if value.dtype == object else value.tobytes()
    return type(value).__name__


def outcome(make, model, feed):
    """The outputs of each run, or the error, as text without what differs from process to process."""
    def text(error):
        return type(error).__name__, re.sub(r"0x[0-9a-f]+", "", str(error))

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = make(model, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # the engine has classes of its own for its failures
        return "load", text(error)
    results = []
    for _ in range(RUNS):
        try:
            results.append(bits(session.run(None, feed)))
        except Exception as error:
            results.append(text(error))
    return "run", results


def is_random(model):
    return any(node.op_type in ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli",
                                "Multinomial", "Dropout") for node in model.graph.node)


def test_every_case_gives_the_same_bits_or_the_same_error(capsys):
    ran = refused = planned = random = 0
    different = []
    for name, model, feed in cases():
        data = model.SerializeToString()
        expected = outcome(onnxruntime.InferenceSession, data, feed)
        sessions = []

        def ours(*arguments, **named):
            sessions.append(berth.onnxruntime.InferenceSession(*arguments, **named))
            return sessions[0]

        got = outcome(ours, data, feed)
        runs = expected[0] == "run" and not isinstance(expected[1][0], tuple)
        if got != expected and is_random(model) and got[0] == expected[0]:
            random += 1
        elif got != expected:
            different.append((name, str(expected)[:300], str(got)[:300]))
        elif runs:
            ran += 1
            memory = sessions[0].memory
            planned += memory.requests > 0 and memory.deviated == 0 and not memory.recorded
        else:
            refused += 1
    with capsys.disabled():
        print(f"\n{ran + refused + random + len(different)} cases of ONNX {onnx.__version__} with ONNX Runtime "
              f"{onnxruntime.__version__}: {ran} ran with the same bits, {refused} were refused with the same error, {len(different)} differed; "
              f"{planned} followed a plan, {random} are random by definition")
    assert different == []
    assert os.environ.get("BERTH_ONNX_CASES") or ran > 1000
