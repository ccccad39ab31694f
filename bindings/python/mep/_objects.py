"""Objects as pickles: what Comm has bcast from, and what other collectives and messages do with objects.

An exchange of objects is two collectives: records of fixed size, then bytes. A rank that cannot take part after all says so
in its record, so that no other waits for its bytes.
"""
from __future__ import annotations

import ctypes
import io
import pickle
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, cast

import numpy

from . import _abi
from ._call import int32
from ._group import current_group
from .errors import Error, MismatchError, error

if TYPE_CHECKING:
    from .comm import Comm

# The mark makes a count that arrays seldom have.
_RECORD = numpy.dtype([("size", "<u8"), ("mark", "S6")])
_MARK = b"pickle"
_REFUSED = 2**64 - 1  # in place of a size
_ALONE = ("of objects, numbers and prefixes is a call of host communicators, outside mep.group(); give arrays to a "
          "collective, and to a message")
# The type and the first bytes of a message with an object. No array begins with these: they are NaNs of several kinds.
MESSAGE_TYPE = _abi.MEP_FLOAT8_E5M2
_MESSAGE_MARK = bytes((0x7D, 0xFE, 0x7F, 0xFD, 0xFF, 0x7E, 0xFD, 0x7F))


class ObjectCalls:
    """Calls that return objects."""

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Returns root's object on all ranks, an array too; obj of the others is not looked at. broadcast() is the
        call for arrays of known shape: it copies less.

        Objects travel as pickles, here, in gather, allgather, scatter and alltoall, and as messages. Loading a pickle runs code that
        the sender chose: the ranks of a communicator trust each other (docs/design/security.md)."""
        comm = cast("Comm", self)
        require_alone(comm, "bcast")
        number = int32("root", root)
        return _Exchange(comm, "bcast", number).bcast([obj] if comm.rank == number else [], number)


def is_object(value: Any) -> bool:
    """Whether it has no memory that a call could use."""
    if isinstance(value, (numpy.generic, bool, int, float, complex)):
        return True
    for name in ("__array_interface__", "__dlpack__", "__cuda_array_interface__"):
        if hasattr(type(value), name) or name in getattr(value, "__dict__", ()):
            return False
    try:
        memoryview(value)
        return False
    except TypeError:
        return True


def exchange(comm: "Comm", name: str, given: Dict[str, Any], problem: Exception) -> Optional[Callable[[], Any]]:
    """The exchange of objects that a collective was asked for; None: it was not."""
    send = given["send"]
    if given["recv"] is not None or given["dtype"] is not None or isinstance(problem, Error):
        return None
    try:
        root = int32("root", given.get("root", 0))
    except (TypeError, ValueError):
        return None
    at_root = comm.rank == root
    if not (is_object(send) or (name == "scatter" and not at_root)):
        return None
    calls = _Exchange(comm, name, root)
    if name == "scatter":
        return lambda: calls.scatter(send if at_root else None, root, problem)
    if name == "alltoall":
        return lambda: calls.alltoall(send, problem)
    return lambda: calls.gather(send, root if name == "gather" else None)


def require_alone(comm: "Comm", name: str) -> None:
    require_host(comm, name)
    if current_group.group() is not None:
        raise error(_abi.MEP_ERR_UNSUPPORTED, f"{name} {_ALONE}")


def require_host(comm: "Comm", name: str) -> None:
    if comm._on_gpu:
        raise error(_abi.MEP_ERR_UNSUPPORTED, f"{name} {_ALONE}")


def to_message(value: Any) -> numpy.ndarray:
    """The bytes of a message that has the object."""
    file = io.BytesIO()
    file.write(_MESSAGE_MARK)
    pickle.dump(value, file, 5)
    return numpy.frombuffer(file.getbuffer(), numpy.uint8)


def begins_object(address: int, size: int) -> bool:
    return size > len(_MESSAGE_MARK) and ctypes.string_at(address, len(_MESSAGE_MARK)) == _MESSAGE_MARK


def from_message(data: numpy.ndarray, source: int, tag: int) -> Any:
    """The object of a message; the bytes of another one of the same type are lost."""
    if not begins_object(data.ctypes.data, data.size):
        raise error(_abi.MEP_ERR_MISMATCH, f"the message of rank {source} with tag {tag} has {data.size} numbers of "
                    "float8_e5m2 and no object; receive such messages with comm.recv(buf, source, tag). It is lost")
    return pickle.loads(data.data[len(_MESSAGE_MARK):])


class _Exchange:
    """One exchange of objects."""

    def __init__(self, comm: "Comm", name: str, root: int = 0) -> None:
        if not 0 <= root < comm.size:
            raise error(_abi.MEP_ERR_INVALID_ARGUMENT, f"{name}: root is {root}, the communicator has {comm.size} ranks")
        self._comm, self._name = comm, name
        self._problem: Optional[Exception] = None

    # Root takes part in each exchange of records as the others do: it learns of those that called something else.

    def bcast(self, objects: List[Any], root: int) -> Any:
        parts = self._pickles(objects, len(objects))
        sizes = self._exchanged("allgather", parts, 1)
        data = numpy.array(parts[0]) if objects else numpy.zeros(sizes[root], numpy.uint8)  # bytes are read-only
        self._call("broadcast", data, root)
        return objects[0] if objects else _load(data)

    def gather(self, obj: Any, root: Optional[int]) -> Optional[List[Any]]:
        parts = self._pickles([obj], 1)
        sizes = self._exchanged("allgather", parts, 1)
        if root is None:
            return _split(self._call("allgatherv", parts[0], sizes), sizes)
        data = self._call("gatherv", parts[0], root, sizes)
        return None if data is None else _split(data, sizes)

    def scatter(self, objects: Any, root: int, problem: Exception) -> Any:
        comm = self._comm
        at_root = comm.rank == root
        parts = self._pickles(objects, comm.size, problem) if at_root else []
        try:
            size = self._exchanged("alltoall", parts, comm.size)[root]
        except MismatchError as mismatch:
            if not at_root:
                mismatch.advise(f"if rank {root} gave an array, give each other rank memory for its block, comm.scatter(None, {root}, "
                                f"recv), or let rank {root} give a list of rows")
            raise
        block = numpy.zeros(size, numpy.uint8)
        own = [each.size for each in parts]
        self._call("scatterv", numpy.concatenate(parts) if at_root else None, root, own if at_root else None, block)
        return _load(block)

    def alltoall(self, objects: Any, problem: Exception) -> List[Any]:
        parts = self._pickles(objects, self._comm.size, problem)
        sizes = self._exchanged("alltoall", parts, self._comm.size)
        data = self._call("alltoallv", numpy.concatenate(parts), [each.size for each in parts], sizes)
        return _split(data, sizes)

    def _pickles(self, objects: Any, count: int, problem: Optional[Exception] = None) -> List[numpy.ndarray]:
        """The objects' bytes; none where they are refused."""
        if not isinstance(objects, (list, tuple)) or len(objects) != count:
            kind = ValueError if isinstance(objects, (list, tuple)) else TypeError
            number = f", not {len(objects)}" if kind is ValueError else ""
            self._problem = kind(f"{problem}; or give a list of {count} objects{number}, one for each rank")
            return []
        try:
            return [numpy.frombuffer(pickle.dumps(each, 5), numpy.uint8) for each in objects]
        except Exception as refusal:
            self._problem = refusal
            return []

    def _exchanged(self, name: str, parts: Sequence[numpy.ndarray], count: int) -> List[int]:
        """The sizes of the bytes that come from each rank; 0: none, or the rank is absent."""
        records = numpy.zeros(count, _RECORD)
        records["mark"] = _MARK
        problem, self._problem = self._problem, None
        records["size"] = _REFUSED if problem is not None else [each.size for each in parts] or 0
        records = self._call(name, records.view(numpy.int8)).reshape(-1).view(_RECORD)
        if problem is not None:
            raise problem
        sizes: List[int] = records["size"].tolist()
        for rank, (mark, size) in enumerate(zip(records["mark"].tolist(), sizes)):
            if size == _REFUSED:
                raise error(_abi.MEP_ERR_INVALID_ARGUMENT, f"{self._name}: rank {rank} has called it with an object that "
                            "cannot be sent; its own error says why")
            if mark != _MARK and rank in self._comm.last_op().contributors:
                raise error(_abi.MEP_ERR_MISMATCH, f"{self._name} of an object met an array of another rank")
        return sizes

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._comm, name)(*arguments)
        except MismatchError as problem:
            raise error(problem.code, f"{problem.text}; this rank called {self._name} of an object: give either all ranks "
                        "arrays, or all of them objects", problem.info) from None


def _load(data: numpy.ndarray) -> Any:
    """None: of a rank that is absent."""
    return pickle.loads(data.data) if data.size and data[0] != 0 else None  # a pickle begins with 0x80


def _split(data: numpy.ndarray, sizes: Sequence[int]) -> List[Any]:
    ends = numpy.cumsum(sizes).tolist()
    return [_load(data[end - size:end]) for size, end in zip(sizes, ends)]
