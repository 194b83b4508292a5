"""`./run bench llama`: the decoder of examples/llama beside llama.cpp, on models with random weights.

    llama_bench.py [--seed N] [--threads N] [--new N]

Prints for each element type whether both choose the same tokens, how many tokens each computes in a second, and the memory
of each; and for sequences that share a prefix, what their caches take. llama.cpp is the one in the package xllamacpp.

Tokens. Both round in different places: llama.cpp rounds activations to f16 or 8 bits before it multiplies, the decoder
does not. Where two tokens are nearly as likely, that decides. So llama.cpp reads what the decoder wrote, and says for each
token how far it is behind its own first choice. Logits have a standard deviation of about 1.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time

import numpy

import llama_library as llama

sys.path.insert(0, "examples/llama")
import make_model  # noqa: E402

PROGRAM = "build/release/examples/llama/example_llama"
SIZES = {"layers": 8, "embedding": 768, "heads": 12, "heads_kv": 4, "feed_forward": 2048, "vocabulary": 8192}
NEAR = {"f32": 0.02, "f16": 0.02, "q8_0": 0.1, "q4_0": 0.1}  # how far behind a token may be and count as rounding


class Berth:
    """Runs examples/llama, and reads its report."""

    def __init__(self, model, threads):
        self.command = [PROGRAM, model, "--threads", str(threads)]

    def run(self, prompts, new, *options):
        """The new tokens of each prompt, and the numbers of the report."""
        words = [" ".join(map(str, prompt)) for prompt in prompts]
        ran = subprocess.run([*self.command, "--tokens", str(new), *map(str, options), *words], capture_output=True,
                             text=True)
        if ran.returncode != 0:
            sys.exit(ran.stderr)
        report = {line.split()[0]: [float(number) for number in re.findall(r"[0-9.]*[0-9]", line)]
                  for line in ran.stderr.splitlines() if line}
        report["reading"] = report["prompts"][2]
        report["rate"] = report["generated"][3]
        return [list(map(int, line.split())) for line in ran.stdout.splitlines()], report


class Llama:
    """One context of llama.cpp."""

    def __init__(self, library, model, sequences, context, threads, batch=64):
        self.library = library
        self.model = library.llama_model_load_from_file(model.encode(), library.llama_model_default_params())
        settings = llama.defaults(library)
        settings.n_ctx, settings.n_seq_max = context * sequences, sequences
        settings.n_ubatch = batch
        settings.n_threads = settings.n_threads_batch = threads
        self.context = library.llama_init_from_model(self.model, settings)
        if not self.context:
            sys.exit("llama.cpp refused: " + "".join(llama.LOG)[-400:])
        self.batch = library.llama_batch_init(2048, 0, 1)
        self.vocabulary = SIZES["vocabulary"]

    def close(self):
        self.library.llama_batch_free(self.batch)
        self.library.llama_free(self.context)
        self.library.llama_model_free(self.model)

    def memory(self):
        return llama.breakdown(self.library, self.context)

    def decode(self, entries):
        """Entries are (token, position, sequence, wants logits). Returns the logits of those that want them."""
        wanted = []
        for i, (token, position, sequence, wants) in enumerate(entries):
            self.batch.token[i], self.batch.pos[i], self.batch.logits[i] = token, position, wants
            self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
            if wants:
                wanted.append(i)
        self.batch.n_tokens = len(entries)
        if self.library.llama_decode(self.context, self.batch) != 0:
            sys.exit("llama_decode failed")
        return [numpy.ctypeslib.as_array(self.library.llama_get_logits_ith(self.context, i), (self.vocabulary,)).copy()
                for i in wanted]

    def greedy(self, prompts, new):
        """The most likely tokens after each prompt, and the seconds that the prompts and the new tokens took."""
        start = time.monotonic()
        results = []
        for sequence, prompt in enumerate(prompts):
            last = len(prompt) - 1
            logits = self.decode([(token, i, sequence, i == last) for i, token in enumerate(prompt)])
            results.append([int(numpy.argmax(logits[0]))])
        middle = time.monotonic()
        for step in range(1, new):
            logits = self.decode([(result[-1], len(prompt) + step - 1, sequence, True)
                                  for sequence, (prompt, result) in enumerate(zip(prompts, results))])
            for result, one in zip(results, logits):
                result.append(int(numpy.argmax(one)))
        return results, middle - start, time.monotonic() - middle

    def judge(self, sequence, prompt, tokens):
        """By how much each of `tokens` is behind the first choice."""
        text = prompt + tokens
        logits = self.decode([(token, i, sequence, i >= len(prompt) - 1) for i, token in enumerate(text[:-1])])
        return [float(one.max() - one[token]) for one, token in zip(logits, tokens)]


def prompts_of(chance, count, length):
    return [[chance.randrange(SIZES["vocabulary"]) for _ in range(length)] for _ in range(count)]


def compare(library, kind, folder, arguments):
    model = os.path.join(folder, kind + ".gguf")
    make_model.make(model, kind, seed=arguments.seed, **SIZES)
    chance = random.Random(arguments.seed)
    berth = Berth(model, arguments.threads)
    many, single, long = (prompts_of(chance, *size) for size in ((16, 8), (1, 8), (1, 512)))
    new = arguments.new
    ours, report = berth.run(many, new, "--sequences", 16, "--context", 1024)
    one = berth.run(single, new, "--sequences", 1, "--context", 1024)[1]
    prompt = berth.run(long, 1, "--sequences", 1, "--context", 1024, "--batch", 256)[1]

    peer = Llama(library, model, 16, 1024, arguments.threads)
    theirs, _, together = peer.greedy(many, new)
    _, cache, compute = peer.memory()
    peer.close()
    peer = Llama(library, model, 1, 1024, arguments.threads)
    alone = peer.greedy(single, new)[2]
    peer.close()
    peer = Llama(library, model, 1, 1024, arguments.threads, batch=256)
    reading = peer.greedy(long, 1)[1]
    peer.close()
    peer = Llama(library, model, 16, 1024, arguments.threads)
    behind = [gap for i in range(16) for gap in peer.judge(i, many[i], ours[i])]
    peer.close()

    same = sum(a == b for a, b in zip(ours, theirs))
    first = sum(gap == 0 for gap in behind)
    good = max(behind) <= NEAR[kind]
    print(f"{kind:<6}{first:>6} of {len(behind)}   {max(behind):>10.4f} {'yes' if good else 'NO':>5}   {same:>2} of 16"
          f"{rates(one['rate'], (new - 1) / alone)}{rates(report['rate'], 16 * (new - 1) / together)}"
          f"{rates(512 / prompt['reading'], 512 / reading)}"
          f"   {sizes(report['activations'][0], compute)}  {sizes(report['cache'][0], cache)}", flush=True)
    return good


def rates(ours, theirs):
    return f"   {ours:>6.0f} / {theirs:>6.0f} {ours / theirs:>5.2f}"


def sizes(ours, theirs):
    return f"{ours / 1048576:>6.1f} / {theirs / 1048576:>6.1f}"


def share(library, folder, arguments):
    """64 sequences that begin with the same 900 tokens, in contexts of 4,096."""
    model = os.path.join(folder, "small.gguf")
    make_model.make(model, "f16", seed=arguments.seed, vocabulary=SIZES["vocabulary"])
    chance = random.Random(arguments.seed)
    prefix = prompts_of(chance, 1, 900)[0]
    prompts = [prefix + prompt for prompt in prompts_of(chance, 64, 8)]
    tokens, report = Berth(model, arguments.threads).run(prompts, 80, "--sequences", 64, "--batch", 128,
                                                         "--context", 4096)
    peer = Llama(library, model, 64, 4096, arguments.threads)
    cache = peer.memory()[1]
    behind = max(gap for i in range(0, 64, 9) for gap in peer.judge(i, prompts[i], tokens[i]))
    peer.close()
    held = report["cache"][0]
    good = held * 10 <= cache and behind <= NEAR["f16"]
    print(f"\n64 sequences share 900 tokens: {report['prompts'][1]:.0f} of {report['prompts'][0]:.0f} tokens of the prompts "
          f"were in the cache\n"
          f"keys and values: {held / 1048576:.1f} MiB held, {cache / 1048576:.1f} MiB reserved by llama.cpp, which shares "
          f"only if its caller copies sequences: {held / cache:.3f} of it\n"
          f"goal: at most a tenth, tokens equal: {'met' if good else 'NOT met'} (farthest behind {behind:.4f})")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    # More threads than idle processors measure how each waits for the others, not how it computes.
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--new", type=int, default=32)
    arguments = parser.parse_args()
    library = llama.load()
    print("Berth / llama.cpp. Tokens: how many of the decoder's are llama.cpp's first choice when it reads them, how far "
          "the others are behind,\nand how many of 16 sequences are the same when each goes on by itself. Rates in tokens "
          f"per second with {arguments.threads} thread{'s' * (arguments.threads > 1)} each, memory in MiB.\n"
          f"{'type':<6}{'first choice':>13} {'farthest':>12} {'equal':>5}   {'alone':>8}"
          f"{'one sequence':>24}{'16 sequences':>24}{'prompt of 512':>24}{'activations':>18}{'cache':>14}")
    with tempfile.TemporaryDirectory() as folder:
        good = [compare(library, kind, folder, arguments) for kind in ("f32", "f16", "q8_0", "q4_0")]
        print(f"\ngoal: tokens equal up to rounding: {'met' if all(good) else 'NOT met'}")
        good.append(share(library, folder, arguments))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
