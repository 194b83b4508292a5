"""llama.cpp through its C interface, for benches that compare with it: `./run bench fit` and `./run bench llama`.

The library is the one inside the wheel xllamacpp, which exports all of llama.cpp's functions, so that nothing has to be
compiled. BERTH_LLAMA_LIBRARY names another libllama.so. The structures below are those of builds near 11549; defaults()
refuses a library whose defaults are not where they are expected.
"""

import ctypes
import glob
import importlib.util
import os


class ModelParameters(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint64 * 64)]  # never changed; larger than any version's


class ContextParameters(ctypes.Structure):
    _fields_ = [("n_ctx", ctypes.c_uint32), ("n_batch", ctypes.c_uint32), ("n_ubatch", ctypes.c_uint32),
                ("n_seq_max", ctypes.c_uint32), ("n_rs_seq", ctypes.c_uint32), ("n_outputs_max", ctypes.c_uint32),
                ("n_outputs_max_per_seq", ctypes.c_uint32), ("n_threads", ctypes.c_int32),
                ("n_threads_batch", ctypes.c_int32), ("ctx_type", ctypes.c_int), ("rope_scaling_type", ctypes.c_int),
                ("pooling_type", ctypes.c_int), ("attention_type", ctypes.c_int), ("flash_attn_type", ctypes.c_int),
                ("rope_freq_base", ctypes.c_float), ("rope_freq_scale", ctypes.c_float),
                ("yarn", ctypes.c_float * 4), ("yarn_orig_ctx", ctypes.c_uint32), ("defrag_thold", ctypes.c_float),
                ("cb_eval", ctypes.c_void_p), ("cb_eval_user_data", ctypes.c_void_p), ("type_k", ctypes.c_int),
                ("type_v", ctypes.c_int), ("abort_callback", ctypes.c_void_p),
                ("abort_callback_data", ctypes.c_void_p), ("unknown", ctypes.c_void_p), ("embeddings", ctypes.c_bool),
                ("offload_kqv", ctypes.c_bool), ("no_perf", ctypes.c_bool), ("op_offload", ctypes.c_bool),
                ("swa_full", ctypes.c_bool), ("kv_unified", ctypes.c_bool), ("rest", ctypes.c_uint64 * 46)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.POINTER(ctypes.c_int32)), ("embd", ctypes.c_void_p),
                ("pos", ctypes.POINTER(ctypes.c_int32)), ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
                ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))), ("logits", ctypes.POINTER(ctypes.c_int8))]


LOG = []
LOG_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


@LOG_FUNCTION
def keep_log(level, text, user):
    LOG.append(text.decode("utf-8", "replace"))


def path():
    """The file of the library."""
    given = os.environ.get("BERTH_LLAMA_LIBRARY")
    if given:
        return given
    found = importlib.util.find_spec("xllamacpp")
    files = found and glob.glob(os.path.join(found.submodule_search_locations[0], "xllamacpp*.so"))
    if not files:
        raise SystemExit("the package xllamacpp is not there: build/venv/bin/pip install --no-deps xllamacpp, or set "
                         "BERTH_LLAMA_LIBRARY to a libllama.so")
    return files[0]


def load():
    library = ctypes.CDLL(path())
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
            ("llama_model_default_params", ModelParameters, []),
            ("llama_context_default_params", ContextParameters, []),
            ("llama_model_load_from_file", pointer, [ctypes.c_char_p, ModelParameters]),
            ("llama_model_size", ctypes.c_uint64, [pointer]),
            ("llama_model_free", None, [pointer]),
            ("llama_init_from_model", pointer, [pointer, ContextParameters]),
            ("llama_free", None, [pointer]),
            ("llama_log_set", None, [LOG_FUNCTION, pointer]),
            ("llama_backend_init", None, []),
            ("llama_batch_init", Batch, [number, number, number]),
            ("llama_batch_free", None, [Batch]),
            ("llama_decode", number, [pointer, Batch]),
            ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, number]),
            ("llama_get_memory", pointer, [pointer]),
            ("llama_memory_seq_cp", None, [pointer, number, number, number, number])):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    library.llama_log_set(keep_log, None)
    library.llama_backend_init()
    return library


def defaults(library):
    """The default parameters of a context. Ends the program if this build has others fields than those above."""
    settings = library.llama_context_default_params()
    seen = (settings.n_ctx, settings.n_batch, settings.n_ubatch, settings.n_seq_max, settings.rope_scaling_type,
            settings.flash_attn_type, settings.type_k, settings.type_v, settings.embeddings, settings.offload_kqv,
            settings.no_perf, settings.op_offload, settings.swa_full, settings.kv_unified)
    if seen != (512, 2048, 512, 1, -1, -1, 1, 1, False, True, True, True, True, False):
        raise SystemExit(f"{path()}: this llama.cpp has other parameters than bench/llama_library.py knows: {seen}")
    return settings


def breakdown(library, context):
    """The sizes of each kind of memory, in bytes: [weights, cache, compute].

    The function returns a std::map of C++. Its header is a colour, and the pointers to the root, the first and the last
    node; a node has the same four words, then the key and the value.
    """
    function = getattr(library, "_Z26llama_get_memory_breakdownPK13llama_context")
    function.restype, function.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p]
    room = (ctypes.c_uint64 * 6)()
    function(ctypes.addressof(room), context)
    sums, waiting = [0, 0, 0], [room[2]]
    while waiting:
        node = waiting.pop()
        if node:
            words = (ctypes.c_uint64 * 8).from_address(node)
            waiting += [words[2], words[3]]
            sums = [total + part for total, part in zip(sums, words[5:8])]
    return sums
