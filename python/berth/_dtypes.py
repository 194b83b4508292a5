"""Between Berth's dtype names and NumPy's dtypes, ml_dtypes' among them."""

from __future__ import annotations

_NUMPY = {
    "bool": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "f16": "float16", "f32": "float32", "f64": "float64", "c64": "complex64",
}
_ML_DTYPES = {
    "bf16": "bfloat16", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2", "f8_e4m3fnuz": "float8_e4m3fnuz",
    "f8_e5m2fnuz": "float8_e5m2fnuz", "f8_e8m0": "float8_e8m0fnu",
}
_NAMES = {theirs: ours for ours, theirs in {**_NUMPY, **_ML_DTYPES}.items()}


def name_of(dtype) -> str:
    """Berth's name for a NumPy dtype, class or name; the text itself when there is none."""
    if isinstance(dtype, str):
        return _NAMES.get(dtype, dtype)
    import numpy

    try:
        text = numpy.dtype(dtype).name
    except TypeError:
        raise TypeError(f"{dtype!r} is no dtype: give a name such as 'f32' or a NumPy dtype") from None
    return _NAMES.get(text, text)


def numpy_dtype(name: str):
    """NumPy's dtype for one of Berth's names; TypeError for types that NumPy cannot hold."""
    import numpy

    if name in _NUMPY:
        return numpy.dtype(_NUMPY[name])
    if name in _ML_DTYPES:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(f"NumPy has no {name}; install ml_dtypes, or use view_as('u8', ...)") from None
        return numpy.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
    raise TypeError(f"NumPy cannot hold {name} elements; use view_as('u8', (buffer.nbytes,)).numpy() for their bytes")


def quick_import():
    """numpy.from_dlpack, or None for a NumPy that would make every array read-only."""
    import numpy

    return numpy.from_dlpack if numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0" else None


def array_of(buffer, dtype=None, copy=None):
    """A NumPy array over a buffer's memory."""
    import numpy

    own = numpy_dtype(buffer.dtype)
    array = numpy.asarray(memoryview(buffer))
    if array.dtype != own:
        array = array.view(own).reshape(buffer.shape)
    if dtype is not None and array.dtype != dtype:
        return array.astype(dtype)
    return array.copy() if copy else array
