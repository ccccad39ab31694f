"""Memory of the library on a GPU, for PyTorch, CuPy and others that take DLPack or __cuda_array_interface__."""
from __future__ import annotations

import ctypes
import importlib
from typing import Any, Optional

import numpy

from . import _abi
from ._buffers import _DLTensor, array_at, dtype_name, numpy_dtype
from ._type_numbers import DLPACK, RAW, SIZES

_KDL_CUDA = 2
_DLPACK_TYPE = {number: code_and_bits for code_and_bits, number in DLPACK.items()}
# Types that the protocol of __cuda_array_interface__ has no name for.
_UNNAMED = tuple(RAW)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

# Descriptions of arrays, by address, shape, type and device. A consumer reads its description for as long as its
# tensor lives, and nothing says how long that is: the tensors have no deleter, since the memory is the library's.
_described: dict[Any, Any] = {}


class DeviceArray:
    """An array on a GPU over memory of the library; its lifetime is the library's, and what runs on it is the
    caller's to order. torch.from_dlpack(array), cupy.from_dlpack(array) and, for the types that the protocol
    names, everything that takes __cuda_array_interface__ see it without a copy.

    shape, dtype (the name of MEP's type), device (CUDA's number).
    """

    def __init__(self, address: Optional[int], shape: tuple[int, ...], number: int, device: int):
        self.shape, self.dtype, self.device = tuple(shape), dtype_name(number), device
        self._address, self._number = address or 0, number

    def __repr__(self) -> str:
        return f"<mep.DeviceArray {list(self.shape)} {self.dtype} on GPU {self.device}>"

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, _: Any) -> Any:
        raise TypeError("the array is on a GPU; torch.from_dlpack(array) or cupy.from_dlpack(array) gives one "
                        "that can be indexed, without a copy")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("the array is on a GPU; torch.from_dlpack(array).cpu() copies it to the host")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self._number in _UNNAMED:
            raise AttributeError(f"__cuda_array_interface__ has no name for {self.dtype}; use DLPack")
        return {"shape": self.shape, "typestr": numpy_dtype(self._number).str, "data": (self._address, False),
                "strides": None, "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return _KDL_CUDA, self.device

    def __dlpack__(self, **_: Any) -> Any:
        key = self._address, self.shape, self._number, self.device
        if key not in _described:
            code, bits = _DLPACK_TYPE[self._number]
            shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
            tensor = _DLTensor(self._address, _KDL_CUDA, self.device, len(self.shape), code, bits, 1, shape, None, 0)
            _described[key] = _DLManagedTensor(tensor, None, None), shape
        return _new_capsule(ctypes.addressof(_described[key][0]), b"dltensor", None)


def tensor_at(address: Optional[int], shape: tuple[int, ...], number: int, device: Optional[int], owner: Any) -> Any:
    """A tensor of PyTorch over memory of the library, on hosts (device None) memory that `owner` keeps: the tensor and all
    that is made from it hold the owner. It can be written."""
    torch: Any = importlib.import_module("torch")
    octets = *shape[:-1], shape[-1] * SIZES[number]
    if device is None:
        raw = torch.from_numpy(array_at(address, octets, numpy.uint8, writable=True, owner=owner))
    else:
        raw = torch.from_dlpack(DeviceArray(address, octets, _abi.MEP_UINT8, device))
    return raw.view(getattr(torch, RAW[number][0] if number in RAW else dtype_name(number)))
