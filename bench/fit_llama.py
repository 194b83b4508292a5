"""What llama.cpp reserves for a model, for `./run bench fit`.

    fit_llama.py < REQUESTS

Reads one JSON request a line: model, context, sequences, batch, keys, values, flash_attention, full_window. Writes one
JSON answer a line: weights, cache, compute and outputs, in bytes; or error.
"""

import json
import re
import sys

import llama_library as llama

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}


def logged_outputs():
    """The size of the logits, which only the log has, to 10 KiB."""
    found = re.findall(r"output buffer size\s*=\s*([0-9.]+) MiB", "".join(llama.LOG))
    return sum(float(number) for number in found) * 1048576


def measure(library, request):
    llama.LOG.clear()
    model = library.llama_model_load_from_file(request["model"].encode(), library.llama_model_default_params())
    if not model:
        return {"error": "".join(llama.LOG)[-400:]}
    try:
        settings = llama.defaults(library)
        settings.n_ctx = request["context"] * request["sequences"]
        settings.n_seq_max = request["sequences"]
        settings.n_batch = 2048
        settings.n_ubatch = request["batch"]
        settings.type_k = TYPES[request["keys"]]
        settings.type_v = TYPES[request["values"]]
        settings.flash_attn_type = 1 if request["flash_attention"] else 0
        settings.swa_full = request["full_window"]
        settings.kv_unified = False
        context = library.llama_init_from_model(model, settings)
        if not context:
            return {"error": "".join(llama.LOG)[-400:]}
        try:
            _, cache, compute = llama.breakdown(library, context)
            return {"weights": library.llama_model_size(model), "cache": cache, "compute": compute,
                    "outputs": logged_outputs()}
        finally:
            library.llama_free(context)
    finally:
        library.llama_model_free(model)


def main():
    library = llama.load()
    for line in sys.stdin:
        print(json.dumps(measure(library, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
