"""`berth run` executes models in an order that needs less memory, says what it gave, and keeps it.

Usage: order_test.py BERTH, with a Python that has the package onnx. Exits with 77 (skipped) where it or ONNX Runtime is
not installed.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

BERTH = sys.argv[1]
ROWS, NARROW, WIDE = 128, 64, 512
SMALL, LARGE = ROWS * NARROW * 4, ROWS * WIDE * 4


def weights(name, rows, columns):
    values = ((np.arange(rows * columns) * 2654435761 % 2001).astype(np.float32) - 1000) / 8000
    return numpy_helper.from_array(values.reshape(rows, columns), name)


def model(nodes, functions=(), rows=ROWS):
    def value(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, NARROW])
    made = [node if isinstance(node, onnx.NodeProto) else helper.make_node(node[0], node[1], [node[2]])
            for node in nodes]
    initialisers = [weights("w", NARROW, NARROW), weights("up", NARROW, WIDE), weights("down", WIDE, NARROW)]
    graph = helper.make_graph(made, "graph", [value("x")], [value("y")], initialisers)
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid("local", 1)] if functions else [])
    return helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=list(functions))


# The engine begins with the branch that is later in the file, whose small result then waits for the other one.
BRANCHES = [("MatMul", ["x", "w"], "start"), ("MatMul", ["start", "up"], "wide"),
            ("MatMul", ["wide", "down"], "narrow"), ("Sigmoid", ["x"], "late"), ("Mul", ["narrow", "late"], "y")]


class Order(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def save(self, made, **options):
        path = os.path.join(self.folder, "model.onnx")
        onnx.save(made, path, **options)
        return path

    def run_model(self, path, *arguments):
        result = subprocess.run([BERTH, "run", path, "--runs", "2", "--json", "-", *arguments], capture_output=True,
                                text=True, timeout=240)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        report = json.loads(result.stdout)
        self.assertTrue(report["identical"])
        self.assertEqual(report["deviated_requests"], 0)
        self.assertLessEqual(report["live_peak_bytes"], report["stock_live_peak_bytes"])
        return report

    def test_executes_the_wide_branch_first(self):
        path = self.save(model(BRANCHES))
        report = self.run_model(path)
        order = report["models"][0]["order"]
        self.assertTrue(order["reordered"], order)
        self.assertEqual(report["stock_live_peak_bytes"], 2 * SMALL + LARGE)
        self.assertEqual(report["live_peak_bytes"], SMALL + LARGE)
        self.assertEqual(order["lower_bound_bytes"], SMALL + LARGE)
        shown = subprocess.run([BERTH, "run", path, "--runs", "2"], capture_output=True, text=True, timeout=240).stdout
        self.assertRegex(shown, r"order of execution +live peak 320.0 KiB -> 288.0 KiB: nodes in another order\n")
        as_written = self.run_model(path, "--order", "file")
        self.assertNotIn("order", as_written["models"][0])
        self.assertEqual(as_written["live_peak_bytes"], 2 * SMALL + LARGE)

    def test_releases_tensors_that_the_engine_would_keep(self):
        # The engine keeps b for e, while c and s are live.
        path = self.save(model([
            ("MatMul", ["x", "up"], "a"), ("MatMul", ["a", "down"], "b"), ("MatMul", ["b", "up"], "c"),
            ("Mul", ["c", "c"], "s"), ("MatMul", ["s", "down"], "e"), ("MatMul", ["e", "up"], "f"),
            ("MatMul", ["f", "down"], "y")]))
        report = self.run_model(path)
        order = report["models"][0]["order"]
        self.assertEqual((order["reordered"], order["engine_reuse"]), (False, False))
        self.assertEqual(report["stock_live_peak_bytes"], 2 * LARGE + SMALL)
        self.assertEqual(report["live_peak_bytes"], 2 * LARGE)
        self.assertEqual(self.run_model(path, "--threads", "2")["live_peak_bytes"], 2 * LARGE)

    def test_says_that_no_order_needs_less(self):
        path = self.save(model([("MatMul", ["x", "up"], "a"), ("MatMul", ["a", "down"], "y")]))
        shown = subprocess.run([BERTH, "run", path, "--runs", "2"], capture_output=True, text=True, timeout=240).stdout
        self.assertRegex(shown, r"order of execution +as written: no order needs less\n")

    def test_leaves_control_flow_in_its_order_and_says_so(self):
        def branch(kind):
            node = helper.make_node(kind, ["narrow", "narrow"], [f"from_{kind}"])
            output = helper.make_tensor_value_info(f"from_{kind}", TensorProto.FLOAT, [ROWS, NARROW])
            return helper.make_graph([node], kind, [], [output])
        choice = helper.make_node("If", ["is_positive"], ["chosen"], then_branch=branch("Add"),
                                  else_branch=branch("Mul"))
        nodes = [*BRANCHES[:-1], helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
                 helper.make_node("Constant", [], ["zero"], value_float=0.0),
                 helper.make_node("Greater", ["most", "zero"], ["is_positive"]), choice,
                 ("Mul", ["chosen", "late"], "y")]
        order = self.run_model(self.save(model(nodes)))["models"][0]["order"]
        self.assertFalse(order["reordered"])
        self.assertIn("control flow", order["note"])

    def test_takes_functions_and_external_weights(self):
        body = [helper.make_node("MatMul", ["a", "b"], ["c"])]
        function = helper.make_function("local", "Product", ["a", "b"], ["c"], body, [helper.make_opsetid("", 17)])
        called = helper.make_node("Product", ["x", "w"], ["start"], domain="local")
        made = model([called, *BRANCHES[1:]], functions=[function])
        path = self.save(made, save_as_external_data=True, location="model.weights", size_threshold=0)
        report = self.run_model(path)
        self.assertTrue(report["models"][0]["order"]["reordered"])
        self.assertEqual(report["live_peak_bytes"], SMALL + LARGE)

    def test_keeps_what_it_found_and_finds_damage(self):
        path, cache = self.save(model(BRANCHES)), os.path.join(self.folder, "cache")
        first = self.run_model(path, "--plan-cache", cache)
        files = sorted(os.listdir(cache))
        self.assertEqual(sorted(os.path.splitext(name)[1] for name in files),
                         [".berth-order", ".berth-plans", ".ort", ".ort"])
        before = {name: os.stat(os.path.join(cache, name)).st_ino for name in files}
        second = self.run_model(path, "--plan-cache", cache)
        self.assertFalse(second["planned_now"])
        self.assertEqual(second["models"][0]["order"], first["models"][0]["order"])
        self.assertEqual(before, {name: os.stat(os.path.join(cache, name)).st_ino for name in os.listdir(cache)})
        for name in files:
            file = os.path.join(cache, name)
            with open(file, "rb") as opened:
                whole = opened.read()
            for damaged in (whole[:len(whole) // 2], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]):
                with open(file, "wb") as opened:
                    opened.write(damaged)
                again = self.run_model(path, "--plan-cache", cache)
                self.assertEqual(again["live_peak_bytes"], first["live_peak_bytes"], name)
            os.unlink(file)
            self.assertEqual(self.run_model(path, "--plan-cache", cache)["live_peak_bytes"], first["live_peak_bytes"])
        self.assertEqual(sorted(os.listdir(cache)), files)

    def test_chooses_anew_for_other_shapes(self):
        path, cache = self.save(model(BRANCHES, rows="rows")), os.path.join(self.folder, "cache")
        for rows in (10, 100, 10):
            report = self.run_model(path, "--plan-cache", cache, "--dim", f"rows={rows}")
            self.assertEqual(report["live_peak_bytes"], rows * (NARROW + WIDE) * 4)
        self.assertEqual(len([name for name in os.listdir(cache) if name.endswith(".berth-order")]), 2)

    def test_a_real_text_detector_needs_less(self):
        try:
            import rapidocr_onnxruntime
        except ImportError as error:
            self.skipTest(str(error))
        path = os.path.join(os.path.dirname(rapidocr_onnxruntime.__file__), "models", "ch_PP-OCRv4_det_infer.onnx")
        report = self.run_model(path, "--dim", "x.0=1", "--dim", "x.2=320", "--dim", "x.3=320")
        self.assertTrue(report["models"][0]["order"]["reordered"])
        self.assertLess(report["live_peak_bytes"], 0.9 * report["stock_live_peak_bytes"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
