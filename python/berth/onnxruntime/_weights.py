"""One copy of a model's weights for all processes of a machine.

A cache folder has two parts. `models` has models as the engine has optimised them, with their weights in a file that
the engine maps; a process that finds its model there need not optimise it again. `blocks` has what sessions keep after
loading, mostly what the engine's kernels pack from the weights; each process compares its own bytes with the file and
then uses the pages of the file. Both may be deleted when no process starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import time
import zlib

import onnxruntime as _engine

from .. import _berth
from . import _options

_FORMAT = 1
_PARTS = "models", "blocks", "seen"
_MODEL, _WEIGHTS, _MANIFEST = "model.onnx", "weights.bin", "manifest.json"
_EXTERNAL = "session.optimized_model_external_initializers_"
# Smaller initialisers stay in the model.
_SMALLEST = "1024"
_WAIT_SECONDS = 120
_LEFTOVER_SECONDS = 3600
# What was used this recently stays, whatever the bound: another process may be about to load it.
_RECENT_SECONDS = 60
# Options that change neither the optimised graph nor its weights.
_ELSEWHERE = {"enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse", "enable_profiling", "execution_mode",
              "execution_order", "inter_op_num_threads", "intra_op_num_threads", "log_severity_level",
              "log_verbosity_level", "logid", "optimized_model_filepath", "profile_file_prefix",
              "use_per_session_threads"}
_READABLE_CALLS = {"add_session_config_entry", "add_free_dimension_override_by_name",
                   "add_free_dimension_override_by_denotation"}


class _NotCached(Exception):
    """Why this model is loaded as the engine loads it."""


class _StockSession(_engine.InferenceSession):
    _berth_plain = True


class Weights:
    """What a cache did for one session."""

    def __init__(self, folder):
        self.folder, self.mapped, self.problem, self.kept = folder, 0, None, {"bytes": 0, "shared": 0, "problem": None}

    def report(self):
        return {"folder": self.folder, "bytes": self.kept["bytes"], "shared": self.kept["shared"],
                "mapped": self.mapped, "problem": self.problem or self.kept["problem"]}

    def show_original(self, session, model, options):
        """A session from the cache shows the model and the options that it was asked for."""
        if self.mapped:
            is_path = isinstance(model, (str, os.PathLike))
            session._model_path = os.fspath(model) if is_path else None
            session._model_bytes = None if is_path else model
            session.get_session_options().graph_optimization_level = options.graph_optimization_level


def folder(value):
    """The cache folder that was asked for, None if there is none."""
    if value is None:
        value = os.environ.get("BERTH_WEIGHTS_CACHE") or False
    if value is False:
        return None
    if value is True:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        value = os.path.join(home, "berth")
    return os.path.abspath(os.fspath(value))


def bound(value):
    """The most bytes of the cache folder, None if there is no bound. ValueError if it is not a number of bytes."""
    if value is None:
        value = os.environ.get("BERTH_WEIGHTS_CACHE_BYTES") or None
    if value is None:
        return None
    try:
        bytes_ = int(value)
    except (TypeError, ValueError):
        bytes_ = -1
    if bytes_ < 0:
        raise ValueError(f"the bound of the weights cache is a number of bytes, not {value!r}")
    return bytes_


def load(cache, most, model, options, providers, kwargs, load_model):
    """Loads through `load_model(model, option_values)`, from the cache where it can be, and keeps it within `most`."""
    try:
        _refuse_what_others_can_write(cache)
    except _NotCached as reason:
        load_model(model, {})
        weights = Weights(cache)
        weights.problem = str(reason)
        return weights
    weights = _load(cache, model, options, providers, kwargs, load_model)
    if most is not None:
        _stay_within(cache, most)
    return weights


def _load(cache, model, options, providers, kwargs, load_model):
    weights = Weights(cache)
    ready = None
    try:
        ready = _ready_folder(cache, model, options, providers, kwargs)
    except _NotCached as reason:
        weights.problem = str(reason)
    except Exception as error:  # the engine has classes of its own for its failures; it says below what they are
        weights.problem = f"the model could not be kept in {cache}: {error}"
    _remove_leftovers(cache)
    scope = _berth._OnnxRuntimeLoad(os.path.join(cache, "blocks"))
    try:
        if ready is not None:
            try:
                load_model(os.path.join(ready, _MODEL),
                           {"graph_optimization_level": _engine.GraphOptimizationLevel.ORT_DISABLE_ALL})
                weights.mapped = os.path.getsize(os.path.join(ready, _WEIGHTS))
                return weights
            except Exception as error:
                weights.problem = f"the engine refused the model in {ready}: {error}"
                _remove(ready)
        load_model(model, {})
    finally:
        weights.kept = scope.end()
    return weights


def _refuse_what_others_can_write(cache):
    """A model that another user has put into the cache would be loaded as if it were the one that was asked for."""
    for path in (cache, *(os.path.join(cache, part) for part in _PARTS)):
        try:
            status = os.stat(path) if path == cache else os.lstat(path)
        except OSError:  # it is made, or that it cannot be read is said later
            continue
        if path != cache and not stat.S_ISDIR(status.st_mode):
            raise _NotCached(f"{path} is not a folder")
        if not _is_ours(status):
            raise _NotCached(f"others than this user can write to {path}: choose another folder, or change its owner "
                             "and mode")


def _is_ours(status):
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & stat.S_IWOTH


def _ready_folder(cache, model, options, providers, kwargs):
    """The folder of the optimised model, written if it is not there."""
    _refuse_what_cannot_be_kept(model, options, providers, kwargs)
    stamp = _stamp(cache, model, options)
    models = os.path.join(cache, "models")
    ready = os.path.join(models, hashlib.sha256(stamp.encode()).hexdigest()[:32])
    if _is_complete(ready, stamp):
        _note_use(os.path.join(ready, _MANIFEST))
        return ready
    os.makedirs(models, exist_ok=True)
    with _locked(ready + ".lock"):
        if not _is_complete(ready, stamp):
            _remove(ready)
            _write(ready, stamp, model, options)
    return ready


def _refuse_what_cannot_be_kept(model, options, providers, kwargs):
    calls = getattr(options, "_calls", None)
    if calls is None:
        raise _NotCached("the options of an onnxruntime.SessionOptions cannot be read back: use "
                         "berth.onnxruntime.SessionOptions, or call attach() before they are made")
    for name, arguments, _ in calls:
        if name not in _READABLE_CALLS:
            raise _NotCached(f"SessionOptions.{name} was called, and an optimised model cannot be kept with it")
        if arguments and "external_initializers" in str(arguments[0]):
            raise _NotCached(f"the options have an entry {arguments[0]}")
    if options.optimized_model_filepath:
        raise _NotCached("the options have an optimized_model_filepath")
    if kwargs.get("disabled_optimizers"):
        raise _NotCached("optimisers are disabled by name")
    if int(kwargs.get("read_config_from_model", os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL") == "1")):
        raise _NotCached("the model may bring options along")
    wanted = _engine.get_available_providers() if providers is None else [
        each if isinstance(each, str) else each[0] for each in providers]
    others = set(wanted) - {"CPUExecutionProvider"}
    if providers is None:
        others -= {"AzureExecutionProvider"}  # in every package, and in use only on request
    if others:
        raise _NotCached(f"{', '.join(sorted(others))} may run a part of the model")
    if isinstance(model, bytes):
        if model[4:8] == b"ORTM":
            raise _NotCached("the model is in the engine's own format, which is optimised already")
    elif os.fspath(model).endswith(".ort"):
        raise _NotCached("the model is in the engine's own format, which is optimised already")


def _stamp(cache, model, options):
    """Everything that an optimised model depends on, as text."""
    return json.dumps({
        "format": _FORMAT,
        "engine": [_engine.__version__, getattr(_engine, "get_build_info", str)()],
        "processor": _processor(),
        "options": {name: str(value) for name, value in _options.attributes(options).items()
                    if name not in _ELSEWHERE},
        "calls": [repr(call) for call in options._calls],
        "model": _model_digests(cache, model),
    }, sort_keys=True)


def _processor():
    lines = [platform.machine()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        seen = set()
        for line in file:
            key = line.split(":")[0].strip()
            if key in ("model name", "flags", "Features", "CPU part", "CPU implementer") and key not in seen:
                seen.add(key)
                lines.append(line.strip())
    return lines


def _model_digests(cache, model):
    if isinstance(model, bytes):
        if _external_names(model):
            raise _NotCached("a model in bytes has weights in other files")
        return [hashlib.sha256(model).hexdigest()]
    path = os.fspath(model)
    digest, names = _examined(cache, path, with_names=True)
    digests = [digest]
    for name in names:
        file = os.path.join(os.path.dirname(path), name)
        digests.append([name, _examined(cache, file)[0] if os.path.exists(file) else None])
    return digests


def _examined(cache, path, with_names=False):
    """The digest of a file and the names of the files that it refers to; remembered as long as the file is the same."""
    status = os.stat(path)
    identity = [os.path.realpath(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns,
                status.st_ctime_ns, with_names]
    note = os.path.join(cache, "seen", hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32])
    with contextlib.suppress(OSError, ValueError, KeyError):
        with open(note, encoding="utf-8") as file:
            known = json.load(file)
        if known["identity"] == identity:
            return known["digest"], known["names"]
    digest, names = hashlib.sha256(), []
    with open(path, "rb") as file:
        if with_names:
            whole = file.read()
            digest.update(whole)
            names = _external_names(whole)
        else:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    # A file that changed just now may change again within the resolution of its times.
    if time.time() - max(status.st_mtime, status.st_ctime) > 3:
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(note), exist_ok=True)
            _replace_file(note, json.dumps({"identity": identity, "digest": digest.hexdigest(), "names": names}))
    return digest.hexdigest(), names


def _external_names(model):
    """The files that a model refers to: the values of the key "location" of its external data."""
    names = set()
    for found in re.finditer(rb"\n\x08location", model):
        at = found.end()
        if model[at:at + 1] != b"\x12":
            raise _NotCached("the model has external data in an unusual form")
        length = shift = 0
        while True:
            at += 1
            byte = model[at:at + 1]
            if not byte or shift > 28:
                raise _NotCached("the model has external data in an unusual form")
            length |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                break
        names.add(model[at + 1:at + 1 + length].decode("utf-8", "replace"))
    return sorted(names)


def _write(ready, stamp, model, options):
    """Has the engine write the optimised model; it appears complete or not at all."""
    for leftover in os.listdir(os.path.dirname(ready)):
        if leftover.startswith(os.path.basename(ready)) and leftover.endswith(".partial"):
            _remove(os.path.join(os.path.dirname(ready), leftover))
    partial = f"{ready}.{os.getpid()}.partial"
    os.mkdir(partial)
    try:
        writing = _options.copy(options)
        writing.optimized_model_filepath = os.path.join(partial, _MODEL)
        writing.enable_profiling = False
        writing.log_severity_level = max(3, options.log_severity_level)  # it warns that the model is for this processor
        writing.add_session_config_entry(_EXTERNAL + "file_name", _WEIGHTS)
        writing.add_session_config_entry(_EXTERNAL + "min_size_in_bytes", _SMALLEST)
        _StockSession(model, writing, ["CPUExecutionProvider"], enable_fallback=0)
        if not os.path.exists(os.path.join(partial, _WEIGHTS)):
            raise _NotCached(f"the model has no weights of {_SMALLEST} bytes or more")
        manifest = {"stamp": stamp, "files": {}}
        for name in (_MODEL, _WEIGHTS):
            path = os.path.join(partial, name)
            _flush(path)
            os.chmod(path, 0o444)
            manifest["files"][name] = [os.path.getsize(path), _checksum(path)]
        _replace_file(os.path.join(partial, _MANIFEST), json.dumps(manifest), flush=True)
        os.rename(partial, ready)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _remove(path):
    """Deletes what is there, if it can be; not what a link leads to."""
    with contextlib.suppress(OSError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


def _remove_leftovers(cache):
    """Removes what processes that were killed have left half-written."""
    for part in _PARTS:
        with contextlib.suppress(OSError), os.scandir(os.path.join(cache, part)) as entries:
            for entry in entries:
                if entry.name.endswith(".partial") and time.time() - entry.stat().st_mtime > _LEFTOVER_SECONDS:
                    _remove(entry.path)


def _note_use(path):
    """Sets the time of the last access, which says when an entry of the cache was last used."""
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))


def _stay_within(cache, most):
    """Deletes what was used longest ago until the rest is within the bound. Processes that have it mapped keep it."""
    entries = []
    for part, last_use in (("models", _MANIFEST), ("blocks", "")):
        with contextlib.suppress(OSError), os.scandir(os.path.join(cache, part)) as found:
            for entry in found:
                if entry.name.endswith((".partial", ".lock")) or entry.is_symlink():
                    continue
                with contextlib.suppress(OSError):
                    used = os.stat(os.path.join(entry.path, last_use) if last_use else entry.path).st_atime
                    entries.append((used, _bytes_of(entry), entry.path))
    total = sum(size for _, size, _ in entries)
    for used, size, path in sorted(entries):
        if total <= most or time.time() - used < _RECENT_SECONDS:
            break
        # Its manifest first: what has none is written anew and never loaded.
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(path, _MANIFEST))
        _remove(path)
        total -= size


def _bytes_of(entry):
    if not entry.is_dir(follow_symlinks=False):
        return entry.stat(follow_symlinks=False).st_size
    with os.scandir(entry.path) as files:
        return sum(file.stat(follow_symlinks=False).st_size for file in files)


def _is_complete(ready, stamp):
    try:
        for path in (ready, *(os.path.join(ready, name) for name in (_MANIFEST, _MODEL, _WEIGHTS))):
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode) or not _is_ours(status):
                return False
        with open(os.path.join(ready, _MANIFEST), encoding="utf-8") as file:
            manifest = json.load(file)
        return manifest["stamp"] == stamp and all(
            os.path.getsize(os.path.join(ready, name)) == manifest["files"][name][0]
            and _checksum(os.path.join(ready, name)) == manifest["files"][name][1] for name in (_MODEL, _WEIGHTS))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _checksum(path):
    checksum = 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 18):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _flush(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace_file(path, text, flush=False):
    partial = f"{path}.{os.getpid()}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
        if flush:
            file.flush()
            os.fsync(file.fileno())
    os.replace(partial, path)


@contextlib.contextmanager
def _locked(path):
    """One process at a time; the system unlocks for a process that ends."""
    import fcntl
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise _NotCached(f"another process has held {path} for {_WAIT_SECONDS} s") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
