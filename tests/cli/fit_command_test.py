"""berth fit, from the outside: tables, JSON, exit codes, sizes as people write them, and files that lie.

    fit_command_test.py BERTH
"""

import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import unittest

BERTH = None
MIB = 1 << 20


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(architecture, numbers, tensors, lists=None):
    """A GGUF file of {key: number}, {name: shape} and {key: [number]}; the tensors are f16 and have no meaning."""
    entries = [text("general.architecture") + struct.pack("<I", 8) + text(architecture)]
    for key, value in numbers.items():
        kind, form = (4, "<I") if value < 1 << 32 else (10, "<Q")
        entries.append(text(f"{architecture}.{key}") + struct.pack("<I", kind) + struct.pack(form, value))
    for key, values in (lists or {}).items():
        entries.append(text(f"{architecture}.{key}") + struct.pack("<IIQ", 9, 4, len(values)) +
                       struct.pack(f"<{len(values)}I", *values))
    infos, offset = b"", 0
    for name, shape in tensors.items():
        infos += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in reversed(shape))
        infos += struct.pack("<IQ", 1, offset)
        size = 2
        for extent in shape:
            size *= extent
        offset += (size + 31) // 32 * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries) + infos
    return head + bytes(-len(head) % 32) + bytes(offset)


NUMBERS = {"block_count": 2, "embedding_length": 256, "context_length": 4096, "attention.head_count": 4,
           "attention.head_count_kv": 2, "feed_forward_length": 512}


def blocks(count=2):
    tensors = {"token_embd.weight": [1000, 256], "output_norm.weight": [256]}
    for i in range(count):
        tensors.update({f"blk.{i}.attn_q.weight": [256, 256], f"blk.{i}.attn_k.weight": [128, 256],
                        f"blk.{i}.attn_v.weight": [128, 256], f"blk.{i}.attn_output.weight": [256, 256],
                        f"blk.{i}.ffn_gate.weight": [512, 256], f"blk.{i}.ffn_up.weight": [512, 256],
                        f"blk.{i}.ffn_down.weight": [256, 512]})
    return tensors


class FitCommand(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.model = self.write("m.gguf", gguf("llama", NUMBERS, blocks()))

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    def run_fit(self, *arguments, **options):
        return subprocess.run([BERTH, "fit", *arguments], capture_output=True, text=True, timeout=120, **options)

    def answer(self, *arguments, **options):
        ran = self.run_fit(*arguments, "--json", **options)
        self.assertIn(ran.returncode, (0, 3, 4), ran.stderr)
        answer = json.loads(ran.stdout)
        self.assertEqual(answer["fits"], {0: True, 3: False, 4: None}[ran.returncode])
        return answer

    def refuse(self, *arguments):
        ran = self.run_fit(*arguments)
        self.assertEqual((ran.returncode, ran.stdout), (2, ""), ran.stderr)
        self.assertTrue(ran.stderr.startswith("berth fit: ") or "--help" in ran.stderr, ran.stderr)
        return ran.stderr

    def test_adds_up_weights_cache_and_activations(self):
        answer = self.answer(self.model, "--ram", "1GiB", "--context", "2k", "--sequences", "3")
        self.assertEqual(answer["cache"], 2 * 2 * 128 * 2 * 2048 * 3)
        self.assertEqual(answer["weights"], 2 * (1001 * 256 + 2 * (256 * 256 * 2 + 128 * 256 * 2 + 3 * 512 * 256)))
        self.assertEqual(answer["total"], sum(answer[part] for part in ("weights", "cache", "activations", "outputs")))
        self.assertEqual(answer["cache"], sum(group["bytes"] for group in answer["cache_groups"]))
        self.assertEqual(answer["budget"], 1 << 30)

    def test_answers_by_exit_code(self):
        total = self.answer(self.model, "--ram", "1GiB")["total"]
        self.assertEqual(self.run_fit(self.model, "--ram", str(total)).returncode, 0)
        self.assertEqual(self.run_fit(self.model, "--ram", str(total - 1)).returncode, 3)
        self.assertEqual(self.run_fit(self.model, "--ram", "0").returncode, 3)

    def test_finds_the_largest_context_and_number_of_sequences(self):
        answer = self.answer(self.model, "--ram", "100MiB", "--context", "1k")
        context, sequences = answer["largest_context"], answer["largest_sequences"]
        for arguments, code in (([context, 1], 0), ([context + 1, 1], 3), ([1024, sequences], 0), ([1024, sequences + 1], 3)):
            ran = self.run_fit(self.model, "--ram", "100MiB", "--context", str(arguments[0]), "--sequences", str(arguments[1]))
            self.assertEqual(ran.returncode, code, arguments)

    def test_prints_a_table_for_people(self):
        ran = self.run_fit(self.model, "--ram", "1GiB")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        for word in ("llama, 2 layers", "weights", "cache, full attention", "activations", "1.0 GiB", "It fits",
                     "Largest context", "Largest number of sequences"):
            self.assertIn(word, ran.stdout)
        self.assertIn("It does not fit", self.run_fit(self.model, "--ram", "1MiB").stdout)

    def test_takes_sizes_strictly(self):
        for written, size in (("16GiB", 16 << 30), ("16GB", 16 * 10**9), ("1.5GiB", 3 << 29), ("4096", 4096), ("7B", 7),
                              ("2TiB", 2 << 40), ("512MiB", 512 * MIB), ("0", 0)):
            self.assertEqual(self.answer(self.model, "--ram", written)["budget"], size, written)
        for written in ("", "GiB", "16G", "16gib", "16 GiB", "-1", "+1", "0x10", "1e9", "1.5", "1.GiB", ".5GiB", "16GiB ",
                        "99999999999999999999", "99999999TiB", "1.0000000001GiB", "nan", "inf"):
            self.refuse(self.model, "--ram=" + written)
        for written, tokens in (("2k", 2048), ("2K", 2048), ("4096", 4096), ("1M", 1 << 20)):
            self.assertEqual(self.answer(self.model, "--context", written)["context"], tokens, written)
        for written in ("0", "-1", "32kb", "k", "1.5", "2 k", "99999999999999999999", "18446744073709551615", "4194304k"):
            self.refuse(self.model, "--context=" + written)
        for written in ("0", "-1", "x", "18446744073709551615"):
            self.refuse(self.model, "--sequences=" + written)
            self.refuse(self.model, "--batch=" + written)

    def test_counts_other_types_of_cache(self):
        plain = self.answer(self.model, "--ram", "1GiB")["cache"]
        self.assertEqual(self.answer(self.model, "--ram", "1GiB", "--cache-type", "q8_0")["cache"], plain * 34 // 64)
        self.assertEqual(self.answer(self.model, "--ram", "1GiB", "--cache-type-v", "q4_0")["cache"], plain * (64 + 18) // 128)
        self.assertIn("q8_0", self.refuse(self.model, "--cache-type", "q3_k"))

    def test_takes_what_this_process_may_take(self):
        answer = self.answer(self.model)
        free = {limit["name"]: limit["free_bytes"] for limit in answer["memory_limits"]}
        self.assertIn("MemAvailable", free)
        self.assertEqual(answer["budget"], min(free.values()))
        self.assertEqual(free[answer["budget_from"]], answer["budget"])

    @unittest.skipIf(os.environ.get("BERTH_SANITIZED"), "a limit on addresses stops the sanitizer itself")
    def test_heeds_the_limit_of_the_shell(self):
        limit = 600 * MIB
        answer = self.answer(self.model, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertEqual(answer["budget_from"], "RLIMIT_AS")
        self.assertLess(answer["budget"], limit)

    def test_divides_the_model_between_devices(self):
        arguments = [self.model, "--ram", "1GiB", "--context", "1k", "--device", "CUDA:0"]
        whole = self.answer(self.model, "--ram", "1GiB", "--context", "1k")
        answer = self.answer(*arguments, "--device-memory", "1GiB")
        host, gpu = answer["devices"]
        self.assertEqual((host["device"], gpu["device"]), ("CPU", "CUDA:0"))
        self.assertEqual(host["weights"], 1000 * 256 * 2)  # the table of tokens, which also computes the logits
        self.assertEqual(gpu["weights"], whole["weights"])
        self.assertEqual((gpu["cache"], gpu["activations"]), (whole["cache"], whole["activations"]))
        self.assertEqual((host["cache"], host["outputs"], gpu["outputs"]), (0, whole["outputs"], 0))
        self.assertEqual(self.run_fit(*arguments, "--device-memory", "1MiB").returncode, 3)
        self.assertEqual(self.run_fit(*arguments[:1], "--ram", "1KiB", *arguments[3:], "--device-memory", "1GiB").returncode, 3)
        self.refuse(self.model, "--device-memory", "1GiB")
        self.refuse(self.model, "--device", "NONE:0")

    @unittest.skipUnless(os.environ.get("BERTH_TEST_CUDA_DOUBLE"), "ctest gives the double of the driver")
    def test_asks_the_driver_of_a_gpu(self):
        surroundings = {**os.environ, "BERTH_CUDA_LIBRARY": os.environ["BERTH_TEST_CUDA_DOUBLE"]}
        answer = self.answer(self.model, "--ram", "1GiB", "--context", "1k", "--device", "CUDA:0", env=surroundings)
        gpu = answer["devices"][1]
        self.assertEqual(gpu["budget_from"], "the driver")
        self.assertGreater(gpu["budget"], 0)
        self.assertEqual(gpu["fits"], gpu["total"] <= gpu["budget"])

    def test_says_what_is_missing(self):
        numbers = {key: value for key, value in NUMBERS.items() if key != "attention.head_count"}
        model = self.write("u.gguf", gguf("unheard-of", numbers, blocks()))
        ran = self.run_fit(model, "--ram", "1GiB")
        self.assertEqual(ran.returncode, 4)
        self.assertIn("missing: unheard-of.attention.head_count", ran.stdout)
        answer = self.answer(model, "--ram", "1GiB")
        self.assertEqual(answer["missing"], ["unheard-of.attention.head_count"])
        self.assertGreater(answer["weights"], 0)
        self.assertEqual(self.run_fit(model, "--ram", "1KiB").returncode, 3)  # the weights alone are too large

    def test_computes_an_unheard_of_architecture_that_says_everything(self):
        model = self.write("u.gguf", gguf("unheard-of", NUMBERS, blocks()))
        self.assertEqual(self.answer(model, "--ram", "1GiB")["cache"], self.answer(self.model, "--ram", "1GiB")["cache"])

    def test_refuses_files_that_lie(self):
        for key, value in (("attention.head_count", 0), ("attention.head_count", 3), ("attention.head_count_kv", 3),
                           ("block_count", 1 << 32), ("block_count", (1 << 32) - 1), ("block_count", 3), ("block_count", 0),
                           ("embedding_length", 255), ("attention.key_length", 0), ("attention.key_length", 1 << 63)):
            lie = self.write("lie.gguf", gguf("llama", {**NUMBERS, key: value}, blocks()))
            self.assertIn(key.split(".")[-1].split("_")[0][:4], self.refuse(lie, "--ram", "1GiB"), (key, value))
        lie = self.write("lie.gguf", gguf("llama", NUMBERS, blocks(), {"attention.sliding_window_pattern": [1]}))
        self.run_fit(lie)
        self.refuse(self.write("empty.gguf", b""))
        self.refuse(os.path.join(self.folder, "nowhere.gguf"))

    def test_reads_a_folder_of_safetensors(self):
        header = json.dumps({"w": {"dtype": "BF16", "shape": [50], "data_offsets": [0, 100]}}).encode()
        self.write("hf/model.safetensors", struct.pack("<Q", len(header)) + header + bytes(100))
        config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4,
                  "num_key_value_heads": 2, "vocab_size": 1000, "intermediate_size": 512, "max_position_embeddings": 4096}
        folder = os.path.join(self.folder, "hf")
        self.assertIn("config.json", self.refuse(folder))
        self.write("hf/config.json", config)
        answer = self.answer(folder, "--ram", "1GiB")
        self.assertEqual((answer["weights"], answer["cache"]), (100, 2 * 2 * 128 * 2 * 4096))
        self.write("hf/config.json", {**config, "num_hidden_layers": 1 << 40})
        self.refuse(folder)
        del config["num_attention_heads"]
        self.write("hf/config.json", config)
        self.assertEqual(self.answer(folder, "--ram", "1GiB")["missing"], ["num_attention_heads"])


if __name__ == "__main__":
    BERTH = sys.argv.pop(1)
    unittest.main()
