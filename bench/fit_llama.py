"""What llama.cpp reserves for a model, for `./run bench fit`.

    fit_llama.py < REQUESTS

Reads one JSON request a line: model, context, sequences, batch, keys, values, flash_attention, full_window. Writes one
JSON answer a line: weights, cache, compute and outputs, in bytes; or error. Needs llama_cpp, of the package
llama-cpp-python.
"""

import ctypes
import json
import re
import sys

import llama_cpp

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}
LOG = []


@llama_cpp.llama_log_callback
def keep_log(level, text, user):
    LOG.append(text.decode("utf-8", "replace"))


def breakdown(context):
    """The sizes of each kind of memory, in bytes: [weights, cache, compute]. None if the library does not tell.

    The function returns a std::map of C++. Its header is a colour, and the pointers to the root, the first and the last
    node; a node has the same four words, then the key and the value.
    """
    library = llama_cpp.llama_cpp._lib
    try:
        function = getattr(library, "_Z26llama_get_memory_breakdownPK13llama_context")
    except AttributeError:
        return None
    room = (ctypes.c_uint64 * 6)()
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    function(ctypes.addressof(room), context)
    sums = [0, 0, 0]
    waiting = [room[2]]
    while waiting:
        node = waiting.pop()
        if not node:
            continue
        words = (ctypes.c_uint64 * 8).from_address(node)
        waiting += [words[2], words[3]]
        sums = [total + part for total, part in zip(sums, words[5:8])]
    return sums


def logged(pattern):
    return sum(float(number) for number in re.findall(pattern + r"\s*=\s*([0-9.]+) MiB", "".join(LOG))) * 1048576


def measure(request):
    LOG.clear()
    parameters = llama_cpp.llama_model_default_params()
    parameters.use_mmap = True
    model = llama_cpp.llama_model_load_from_file(request["model"].encode(), parameters)
    if not model:
        return {"error": "".join(LOG)[-400:]}
    try:
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = request["context"] * request["sequences"]
        settings.n_seq_max = request["sequences"]
        settings.n_batch = 2048
        settings.n_ubatch = request["batch"]
        settings.type_k = TYPES[request["keys"]]
        settings.type_v = TYPES[request["values"]]
        settings.flash_attn_type = 1 if request["flash_attention"] else 0
        settings.swa_full = request["full_window"]
        settings.kv_unified = False
        context = llama_cpp.llama_init_from_model(model, settings)
        if not context:
            return {"error": "".join(LOG)[-400:]}
        try:
            exact = breakdown(context)
            return {"weights": llama_cpp.llama_model_size(model),
                    "exact": exact is not None,
                    "cache": exact[1] if exact else logged("(?:KV|RS) buffer size"),
                    "compute": exact[2] if exact else logged("compute buffer size"),
                    "outputs": logged("output buffer size"),
                    "log": [line for line in LOG if "buffer size" in line]}
        finally:
            llama_cpp.llama_free(context)
    finally:
        llama_cpp.llama_model_free(model)


def main():
    llama_cpp.llama_log_set(keep_log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    for line in sys.stdin:
        print(json.dumps(measure(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
