"""Where an object's memory is: NumPy arrays, __cuda_array_interface__, __array_interface__, DLPack, buffer
protocol; never a copy. And which CUDA stream an object is."""
from __future__ import annotations

import ctypes
import math
import sys
from typing import Any, Callable, Dict, Optional, Tuple

import numpy

from . import _abi
from ._call import address_argument, lib, size_argument, uint32_argument
from ._type_numbers import DLPACK, NUMBERS, RAW, SIZES

try:  # bfloat16 and 8-bit floats as NumPy types; without it they are uint16 and uint8
    import ml_dtypes as _ml_dtypes  # pyright: ignore[reportMissingImports] - it may be missing
except ImportError:
    _ml_dtypes = None

TYPE_ARGUMENTS = {number: uint32_argument(number) for number in SIZES}


# Types of the other byte order are other keys.
_OF_NUMPY: "Dict[numpy.dtype, int]" = {
    numpy.dtype(name): number for name, number in NUMBERS.items() if number not in RAW}
_OF_NUMPY.update({numpy.dtype(getattr(_ml_dtypes, name)): number for number, (name, _) in RAW.items()
                  if hasattr(_ml_dtypes, name)})


def dtype_number(dtype: Any) -> int:
    """The MEP type of a name, a number, or a NumPy, ml_dtypes or PyTorch dtype."""
    if isinstance(dtype, int):
        if isinstance(dtype, bool) or dtype not in SIZES:
            raise ValueError(f"{dtype} is no type of MEP")
        return dtype
    if isinstance(dtype, type):
        dtype = numpy.dtype(dtype)
    if isinstance(dtype, numpy.dtype) and dtype in _OF_NUMPY:
        return _OF_NUMPY[dtype]
    if isinstance(dtype, numpy.dtype) and not dtype.isnative:
        raise ValueError(f"{dtype.str} has the other byte order than this machine; "
                         "array.astype(array.dtype.newbyteorder('=')) converts it")
    name = getattr(dtype, "name", None) or str(dtype).replace("torch.", "", 1)
    number = NUMBERS.get(name)
    if number is None:
        parts = f"; array.view('float{int(name[7:]) // 2}') has its parts" if name in ("complex64", "complex128") else ""
        raise ValueError(f"{name!r} is no type of MEP; it has {', '.join(NUMBERS)}{parts}")
    return number


def dtype_name(number: int) -> str:
    """The name of a MEP type, as dtype_number() takes it."""
    return next((name for name, value in NUMBERS.items() if value == number), f"type {number}")


def numpy_dtype(number: int) -> numpy.dtype:
    """The NumPy type for a MEP type; what NumPy lacks is ml_dtypes' type or an unsigned integer."""
    if number in RAW:
        name, raw = RAW[number]
        return numpy.dtype(getattr(_ml_dtypes, name, raw))
    return numpy.dtype(next(name for name, value in NUMBERS.items() if value == number))


def maker(like: Any, zeroed: bool = False) -> "Callable[[tuple[int, ...], int], Any]":
    """A function that makes new arrays of the kind of `like`, of a shape and a MEP type: tensors of PyTorch where it
    is one, and types that NumPy lacks as unsigned integers where `like` has them so. It does not keep `like`.
    zeroed: not on a GPU, where PyTorch's stream may do it after the collective's has written."""
    torch: Any = sys.modules.get("torch")  # nobody has a tensor without it
    kind: Any = getattr(torch, "Tensor", ())
    if isinstance(like, kind):
        device = like.device
        tensor = torch.zeros if zeroed and device.type == "cpu" else torch.empty
        return lambda shape, number: tensor(shape, dtype=getattr(torch, RAW[number][0] if number in RAW
                                                                 else dtype_name(number)), device=device)
    bits = isinstance(like, numpy.ndarray) and like.dtype.kind == "u"
    array = numpy.zeros if zeroed else numpy.empty
    return lambda shape, number: array(shape, RAW[number][1] if bits and number in RAW else numpy_dtype(number))


class Memory:
    """Memory of the library. Its arrays hold it, and the object that it is part of; the library keeps it as `kept` once
    that object has been freed, and the last holder releases it."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = _abi.mep_memory_t()

    def __del__(self, release: Any = lib.mep_memory_release) -> None:
        release(self.kept)


def array_at(address: Optional[int], shape: tuple[int, ...], dtype: Any, writable: bool = False,
             owner: Any = None) -> numpy.ndarray:
    """An array over memory that `owner` keeps; the array and all that is made from it hold the owner."""
    dtype = numpy.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if not address or size == 0:
        return numpy.empty(shape, dtype)
    memory = (ctypes.c_char * size).from_address(address)
    memory.owner = owner
    array = numpy.frombuffer(memory, dtype).reshape(shape)
    array.flags.writeable = writable
    return array


class _ArrayFields(ctypes.Structure):
    """The first fields of a NumPy array in memory, a part of NumPy's ABI: an array's address and flags in a fifth of
    the time that its attributes take."""

    _fields_ = [("head", ctypes.c_char * object.__basicsize__), ("data", ctypes.c_size_t), ("ndim", ctypes.c_int),
                ("dimensions", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("base", ctypes.c_void_p),
                ("descr", ctypes.c_void_p), ("flags", ctypes.c_int)]


_C_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400  # NPY_ARRAY_*
_READABLE = _C_CONTIGUOUS | _ALIGNED
_USABLE = _READABLE | _WRITEABLE
_fields_at = _ArrayFields.from_address


def _knows_fields() -> bool:
    """Whether arrays of this NumPy and this interpreter are as _ArrayFields says."""
    if sys.implementation.name != "cpython" or numpy.ndarray.__basicsize__ < ctypes.sizeof(_ArrayFields):
        return False
    matrix = numpy.zeros((3, 4), numpy.int16)
    for array in (matrix, matrix[1:, 1:], matrix.T, numpy.zeros(9, numpy.uint8)[1:].view(numpy.int64),
                  numpy.broadcast_to(numpy.float64(1), (2, 2)), numpy.zeros(())):
        fields, flags = _fields_at(id(array)), array.flags
        if (fields.data, fields.ndim) != (array.ctypes.data, array.ndim):
            return False
        if [bool(fields.flags & bit) for bit in (_C_CONTIGUOUS, _ALIGNED, _WRITEABLE)] != [
                flags.c_contiguous, flags.aligned, flags.writeable]:
            return False
    return True




_FEW = 256
_KINDS = {dtype: TYPE_ARGUMENTS[number] for dtype, number in _OF_NUMPY.items()}
_COUNTS = tuple(size_argument(count) for count in range(_FEW))
_ARRAY = numpy.ndarray if _knows_fields() else ()  # () is no object's type


# An array that in_place() has seen: where the array was, the caller's key, the arguments of C, and what these come from: the array's fields,
# address, items and type. No reference leads to the array: numpy.ndarray.resize refuses arrays that have one, even a weak one.
InPlace = Tuple[int, Any, Tuple[Any, ...], Any, int, int, Any]
NEVER: InPlace = (0, None, (), None, 0, 0, None)


def in_place(array: Any, key: Any, word: Any) -> Optional[InPlace]:
    """A NumPy array that is read and written, for C: address, address, items, type, and `word`. None: it is another object or
    has something wrong with it, and buffer() finds out what."""
    if type(array) is _ARRAY:
        place, dtype, count = id(array), array.dtype, array.size
        kind, fields = _KINDS.get(dtype), _fields_at(place)
        if kind is not None and fields.flags & _USABLE == _USABLE:
            data = fields.data
            address = address_argument(data)
            arguments = (address, address, _COUNTS[count] if count < _FEW else size_argument(count), kind, word)
            return place, key, arguments, fields, data, count, dtype
    return None


def is_as_before(array: Any, before: InPlace) -> bool:
    """Whether the arguments hold for the object that is now where the array was; it may be another one."""
    _, _, _, fields, data, count, dtype = before
    return bool(type(array) is _ARRAY and fields.data == data and fields.flags & _USABLE == _USABLE
                and array.size == count and array.dtype is dtype)


class Buffer:
    """A typed piece of memory; `owner` keeps it alive. strides: bytes, one an axis; None: contiguous in
    C order."""

    __slots__ = ("address", "count", "dtype", "shape", "strides", "writable", "owner", "on_gpu")

    def __init__(self, address: int, shape: tuple[int, ...], strides: Optional[tuple[int, ...]], dtype: int,
                 writable: bool, owner: Any, on_gpu: bool = False):
        self.on_gpu = on_gpu
        self.address = address
        self.shape = tuple(shape)
        self.dtype = dtype
        self.writable = writable
        self.owner = owner
        self.count = math.prod(self.shape)
        if strides is not None and len(strides) != len(self.shape):
            raise ValueError(f"{len(self.shape)} axes have {len(strides)} strides")
        contiguous = _is_contiguous(self.shape, strides, SIZES[dtype])
        self.strides = None if contiguous else tuple(strides or ())

    @property
    def itemsize(self) -> int:
        return SIZES[self.dtype]

    # The arguments that functions of bare() take.

    @property
    def address_argument(self) -> Any:
        return address_argument(self.address)

    @property
    def count_argument(self) -> Any:
        return size_argument(self.count)

    @property
    def dtype_argument(self) -> Any:
        return TYPE_ARGUMENTS[self.dtype]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _is_contiguous(shape: tuple[int, ...], strides: Optional[tuple[int, ...]], item: int) -> bool:
    """Whether C order without gaps; strides count units of `item`, None means contiguous."""
    if strides is None or 0 in shape:
        return True
    expected = item
    for length, stride in zip(reversed(shape), reversed(strides)):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


_CUDA_DEVICES = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged
_HOST_DEVICES = (1, 3)  # kDLCPU and kDLCUDAHost
_NO_SYNCHRONISATION = -1  # as a stream of __dlpack__: what runs on the tensor is the caller's to order


def _from_dlpack(obj: Any) -> Buffer:
    # The capsule is looked into, not consumed: it frees the tensor when `owner` is dropped.
    on_gpu = hasattr(obj, "__dlpack_device__") and obj.__dlpack_device__()[0] in _CUDA_DEVICES
    try:
        capsule = obj.__dlpack__(stream=_NO_SYNCHRONISATION) if on_gpu else obj.__dlpack__()
    except (BufferError, RuntimeError, TypeError, ValueError) as problem:
        raise ValueError(f"the {type(obj).__name__} does not show its memory: {problem}") from problem
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if tensor.device_type not in _CUDA_DEVICES + _HOST_DEVICES:
        raise TypeError(f"the tensor is on a device of DLPack's type {tensor.device_type}; MEP works on "
                        "host and CUDA memory")
    number = DLPACK.get((tensor.code, tensor.bits))
    if number is None or tensor.lanes != 1:
        raise TypeError(f"DLPack type (code {tensor.code}, {tensor.bits} bits) is no type of MEP")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = None
    if tensor.strides:  # DLPack counts items
        strides = tuple(tensor.strides[i] * SIZES[number] for i in range(tensor.ndim))
    return Buffer((tensor.data or 0) + tensor.byte_offset, shape, strides, number, True,
                  (obj, capsule), tensor.device_type in _CUDA_DEVICES)


def _cuda_interface(obj: Any) -> Optional[dict[str, Any]]:
    """PyTorch's tensors raise for CPU memory and for types that the protocol lacks (bfloat16)."""
    try:
        interface: Optional[dict[str, Any]] = obj.__cuda_array_interface__
        return interface
    except (AttributeError, TypeError, RuntimeError):
        return None


def _from_tensor(tensor: Any) -> Buffer:
    """A tensor of PyTorch on a GPU; __cuda_array_interface__ has no name for all of its types."""
    number = dtype_number(tensor.dtype)
    strides = tuple(step * SIZES[number] for step in tensor.stride())
    return Buffer(tensor.data_ptr(), tensor.shape, strides, number, True, tensor, on_gpu=True)


def _from_interface(obj: Any, interface: dict[str, Any], on_gpu: bool = False) -> Buffer:
    shape, strides = interface["shape"], interface.get("strides")
    dtype = numpy.dtype(interface["typestr"])
    if interface.get("mask") is not None:
        raise ValueError("the array has a mask, which MEP does not look at")
    if not isinstance(interface["data"], tuple):
        raise TypeError("the array interface gives no address of its data")
    address, read_only = interface["data"]
    number = None
    if dtype.kind == "V":  # bfloat16 of PyTorch: the protocol has no name for it, the object has
        try:
            number = dtype_number(obj.dtype)
        except (AttributeError, ValueError):
            pass
        if number is not None and SIZES[number] != dtype.itemsize:
            number = None
    if number is None:
        number = dtype_number(dtype)
    return Buffer(address or 0, shape, strides, number, not read_only, obj, on_gpu)


def _from_numpy(array: numpy.ndarray) -> Buffer:
    if isinstance(array, numpy.ma.MaskedArray):
        raise ValueError("the array has a mask, which MEP does not look at")
    if type(array) is _ARRAY:
        known, fields = _OF_NUMPY.get(array.dtype), _fields_at(id(array))
        if known is not None and fields.flags & _READABLE == _READABLE:
            return Buffer(fields.data, array.shape, None, known, bool(fields.flags & _WRITEABLE), array)
    return Buffer(array.ctypes.data, array.shape, array.strides, dtype_number(array.dtype),
                  array.flags.writeable, array)


def stream_address(stream: Any) -> int:
    """The cudaStream_t of a number, or of a stream object of CuPy, PyTorch or cuda.core."""
    if isinstance(stream, int):
        return stream
    if stream is None:
        return 0
    protocol: Any = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair: Any = protocol() if callable(protocol) else protocol
        return int(pair[1])
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None)
        if value is not None:
            return int(value)
    raise TypeError(f"{type(stream).__name__} is no CUDA stream: it has no __cuda_stream__, cuda_stream "
                    "or ptr")


def buffer(obj: Any, dtype: Any = None, writable: bool = False) -> Buffer:
    """The memory of obj, contiguous in C order; no other is taken. dtype: what its items are, where the
    object cannot say it (uint16 that are bfloat16); it must have the size of the object's own type."""
    found = _memory(obj, dtype, writable)
    if found.strides is not None:
        raise ValueError("the array is not contiguous in C order; numpy.ascontiguousarray copies it")
    return found


def rows_buffer(obj: Any, name: str, writable: bool = False) -> "tuple[Buffer, int]":
    """The memory of a matrix whose rows are contiguous and do not overlap, and the bytes from one row to
    the next; 0: dense."""
    found = _memory(obj, None, writable)
    if found.strides is None:
        return found, 0
    if len(found.shape) != 2:
        raise ValueError(f"{name} has shape {found.shape}, it must be a matrix")
    row = found.shape[1] * found.itemsize
    if found.shape[1] > 1 and found.strides[1] != found.itemsize:
        raise ValueError(f"the rows of {name} must be contiguous; numpy.ascontiguousarray copies it")
    if found.shape[0] > 1 and found.strides[0] < row:
        raise ValueError(f"the rows of {name} are {found.strides[0]} bytes apart and {row} long; "
                         "numpy.ascontiguousarray copies it")
    return found, found.strides[0] if found.shape[0] > 1 else 0


def _memory(obj: Any, dtype: Any, writable: bool) -> Buffer:
    interface = None
    if isinstance(obj, numpy.ndarray):
        found = _from_numpy(obj)
    elif isinstance(obj, (numpy.generic, bool, int, float, complex)):
        # Scalars of NumPy show memory, which is that of a temporary.
        raise TypeError(f"{type(obj).__name__} is a single value and no buffer; give an array, such as "
                        "numpy.array(value)")
    elif getattr(obj, "requires_grad", False) is True:  # PyTorch shows no memory of these
        raise ValueError(f"the {type(obj).__name__} requires grad; give its detach(), which has the same memory")
    elif getattr(obj, "is_cuda", False) is True:
        found = _from_tensor(obj)
    elif (interface := _cuda_interface(obj)) is not None:
        found = _from_interface(obj, interface, on_gpu=True)
    elif getattr(obj, "__array_interface__", None) is not None and "data" in obj.__array_interface__:
        found = _from_interface(obj, obj.__array_interface__)
    elif hasattr(obj, "__dlpack__"):
        found = _from_dlpack(obj)
    else:
        try:
            found = _from_numpy(numpy.asarray(memoryview(obj)))
        except TypeError:
            raise TypeError(f"{type(obj).__name__} is no buffer: it has no __array_interface__, "
                            "__dlpack__ or buffer protocol") from None
    if dtype is not None:
        number = dtype_number(dtype)
        if SIZES[number] != found.itemsize:
            raise ValueError(f"dtype {dtype!r} has {SIZES[number]} bytes, the items have "
                             f"{found.itemsize}")
        found.dtype = number
    if writable and not found.writable:
        raise ValueError("the receive buffer is read-only")
    if found.count != 0 and found.address % found.itemsize != 0:
        raise ValueError(f"the array begins at {found.address:#x}, which is no multiple of the "
                         f"{found.itemsize} bytes of its items")
    if found.strides is not None and any(step % found.itemsize for step in found.strides):
        raise ValueError("the array's strides are no multiples of its items' size")
    return found
