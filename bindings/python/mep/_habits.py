"""Habits of mpi4py: what else collectives take than arrays that C can use, prefixes, and other names of calls."""
from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NoReturn, Optional, Tuple, TypeVar, Union, cast

import numpy

from . import _abi
from ._buffers import buffer
from ._group import current_group
from ._objects import ObjectCalls, exchange, is_object, require_alone
from .request import Request

if TYPE_CHECKING:
    from .comm import Comm

_PREFIXES: Dict[str, Any] = {
    "sum": numpy.add, "prod": numpy.multiply, "min": numpy.minimum, "max": numpy.maximum,
    "and": numpy.bitwise_and, "or": numpy.bitwise_or, "xor": numpy.bitwise_xor}
_WORDS = ("sum", "prod", "min", "max", "avg", "and", "or", "xor")
ELSEWHERE = {  # names of mpi4py's module and what to type
    "Waitall": "mep.waitall(requests)", "Waitany": "mep.waitany(requests)", "Wtime": "time.perf_counter()",
    "COMM_WORLD": "mep.init()", "IN_PLACE": "comm.allreduce(x), which works in place without a second array",
    **{word.upper(): repr(word) for word in ("sum", "prod", "min", "max")}, "BAND": "'and'", "BOR": "'or'",
    "BXOR": "'xor'", "LAND": "'and'", "LOR": "'or'", "LXOR": "'xor'"}
_NUMBERS = (numpy.generic, bool, int, float, complex)
# Names of mpi4py. The first have their lower case here.
_SAME_NAMES = (
    "Allgather Allgatherv Allreduce Alltoall Alltoallv Barrier Gather Gatherv Reduce Scatter Scatterv Iallgather Iallgatherv "
    "Iallreduce Ialltoall Ialltoallv Ibarrier Igather Igatherv Ireduce Iscatter Iscatterv Scan Exscan Send Recv Isend Irecv "
    "Sendrecv Probe Iprobe Split Dup Abort").split()
_OTHER_NAMES = {
    "Bcast": "broadcast", "Ibcast": "ibroadcast", "ibcast": "ibroadcast", "Reduce_scatter": "reduce_scatterv",
    "Reduce_scatter_block": "reduce_scatter", "Ireduce_scatter": "ireduce_scatterv",
    "Ireduce_scatter_block": "ireduce_scatter", "Get_rank": "rank", "Get_size": "size", "Get_name": "name",
    "Set_name": "name", "Free": "close", "Clone": "dup", "Create_group": "create_from_ranks"}
_OTHER_ARGUMENTS = {"sendbuf": "send", "sendobj": "send", "recvbuf": "recv", "obj": "buf"}
_Owner = TypeVar("_Owner")


def with_other_names(owner: type[_Owner]) -> type[_Owner]:
    """mpi4py's names of arguments are those of the class's calls too; a call that takes any name is left as it is."""
    for name, call in list(vars(owner).items()):
        if inspect.isfunction(call) and not name.startswith("_"):
            kinds = {each: parameter.kind for each, parameter in inspect.signature(call).parameters.items()}
            own = {other: each for other, each in _OTHER_ARGUMENTS.items() if each in kinds}
            if own and inspect.Parameter.VAR_KEYWORD not in kinds.values():
                setattr(owner, name, _renamed(call, list(kinds), own))
    return owner


def buffers_by_name(call: str, send: Any, recv: Any, named: Dict[str, Any]) -> Tuple[Any, Any]:
    """(send, recv), of which mpi4py's names may have some."""
    given = {name: value for name, value in (("send", send), ("recv", recv)) if value is not None}
    given.update(_own_names(list(given), named, _OTHER_ARGUMENTS))
    for name in given:
        if name not in ("send", "recv"):
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
    return given.get("send"), given.get("recv")


def _own_names(given: List[str], named: Dict[str, Any], own: Dict[str, str]) -> Dict[str, Any]:
    result = dict(named)
    for other in own.keys() & named.keys():
        if own[other] in given or own[other] in result:
            raise TypeError(f"{own[other]} and {other} are names of one argument; give one of them")
        result[own[other]] = result.pop(other)
    return result


def _renamed(call: Callable[..., Any], names: List[str], own: Dict[str, str]) -> Callable[..., Any]:
    """A call more for each call: those that take any name look at it themselves."""
    @functools.wraps(call)
    def renamed(*given: Any, **named: Any) -> Any:
        if not named:
            return call(*given)
        return call(*given, **_own_names(names[:len(given)], named, own))

    return renamed


@with_other_names
class HabitCalls(ObjectCalls):
    """Prefixes, and what attributes of other names are called here."""

    def scan(self, send: Any, recv: Any = None, op: str = "sum", *, out: Any = None) -> Any:
        """recv = op over the send of the live ranks up to this one, item by item; without recv a new array. A number
        gives a number. op: sum, prod, min, max, and, or, xor."""
        return _prefix(cast("Comm", self), "scan", send, recv, op, out)

    def exscan(self, send: Any, recv: Any = None, op: str = "sum", *, out: Any = None) -> Any:
        """Like scan, without this rank's own send. The first live rank gets None, and its recv stays as it is."""
        return _prefix(cast("Comm", self), "exscan", send, recv, op, out)


class Elsewhere:
    """An attribute that says what another one is called, or `text` to type. A __getattr__ of the class would make every
    attribute slower."""

    def __init__(self, name: str, other: str, text: str = "") -> None:
        self._name, self._other, self._text = name, other, text

    def __get__(self, instance: Any, owner: Any) -> NoReturn:
        start = f"{owner.__name__!r} object has no attribute {self._name!r}; type "
        if self._text:
            raise AttributeError(start + self._text)
        found = getattr(owner, self._other, None)
        text = ""
        if inspect.isfunction(found):
            names = [each.name for each in inspect.signature(found).parameters.values()
                     if each.kind is each.POSITIONAL_OR_KEYWORD]
            text = f"({', '.join(names[1:])})"
        raise AttributeError(f"{start}{'request' if issubclass(owner, Request) else 'comm'}.{self._other}{text}")


for _name in _SAME_NAMES:
    setattr(HabitCalls, _name, Elsewhere(_name, _name.lower()))
for _name, _other in _OTHER_NAMES.items():
    setattr(HabitCalls, _name, Elsewhere(_name, _other))
for _name, _other in {"Wait": "wait", "Test": "test", "Cancel": "cancel"}.items():
    setattr(Request, _name, Elsewhere(_name, _other))
for _name in ("Waitall", "waitall", "Waitany", "waitany"):
    setattr(Request, _name, Elsewhere(_name, "", ELSEWHERE[_name.title()]))


def only(recv: Any, out: Any) -> Any:
    """out is another name of recv."""
    if recv is not None:
        raise TypeError("recv and out are names of one argument; give one of them")
    return out


def only_with_op(recv: Any, out: Any, op: Any) -> Any:
    """(recv, op); an operator may stand at the place of recv."""
    return (out, recv) if isinstance(recv, str) and op == "sum" else (only(recv, out), op)


def habit_of(comm: "Comm", name: str, prepare: Any, given: Dict[str, Any], stream: Any,
             problem: Exception) -> Optional[Callable[[], Any]]:
    """The call that a blocking collective stands for, whose arguments `prepare` refused with `problem`; None: there is
    none. `given` has the arguments by name."""

    def again(**changed: Any) -> Any:
        return getattr(comm, name)(**{**given, "stream": stream, **changed})

    send, recv, op = given.get("send", given.get("buf")), given.get("recv"), given.get("op")
    if op is not None:
        root = given.get("root")
        if isinstance(root, str) and root in _WORDS and (recv is None or type(recv) is int):  # mpi4py's order: op, root
            return lambda: again(root=recv or 0, op=root, recv=None)
        if isinstance(recv, str) and op == "sum":
            return lambda: again(recv=None, op=recv)
        no_root = root is not None and not hasattr(root, "__index__")
        if no_root or (recv is not None and is_object(recv) and not isinstance(recv, _NUMBERS)):
            raise TypeError(f"{problem}; an operator is one of the words {', '.join(_WORDS)}") from None
    if comm._on_stream(stream, ()) or current_group.group() is not None:
        return None
    if is_object(send):
        if name == "broadcast":
            raise type(problem)(f"{problem}; comm.bcast(obj, root) returns root's object") from None
        if name in ("allreduce", "reduce") and recv is None and given["dtype"] is None:
            array = as_array(send, given["op"], name)
            return lambda: as_given(send, again(send=array))
    if name in ("gather", "allgather", "scatter", "alltoall"):
        call = exchange(comm, name, given, problem)
        if call is not None:
            return call
    if name == "allgatherv" and given["counts"] is None and send is not None and not is_object(send):
        items = send.size if isinstance(send, numpy.ndarray) else buffer(send, given["dtype"]).count
        return lambda: again(counts=comm.allgather(numpy.array(items, numpy.uint64)))
    return _with_plain_arrays(name, prepare, given, again)


def _with_plain_arrays(name: str, prepare: Any, given: Dict[str, Any], again: Any) -> Optional[Callable[[], Any]]:
    """Strided arrays by copies, complex ones as pairs of floats."""
    arrays = {key: given[key] for key in ("send", "buf", "recv") if isinstance(given.get(key), numpy.ndarray)
              and not isinstance(given[key], numpy.ma.MaskedArray)}
    if any(each.flags.writeable and _overlaps(each) for each in arrays.values()):
        return None
    kinds = {each.dtype for each in arrays.values() if each.dtype.kind == "c"}
    if not kinds:
        if all(each.flags.c_contiguous for each in arrays.values()):
            return None
        copies = {key: _contiguous(each) for key, each in arrays.items()}
        return lambda: _home(again(**copies), copies, arrays)
    kind = kinds.pop()
    real = numpy.dtype(f"f{kind.itemsize // 2}")
    if real.itemsize > 8 or not kind.isnative or given["dtype"] is not None:
        return None
    require_order(kind, given.get("op", "sum"), ("sum", "avg"))
    for key in ("send", "buf", "recv"):
        other = given.get(key)
        if other is not None and getattr(other, "dtype", None) != kind:
            raise ValueError(f"{key} holds {getattr(other, 'dtype', type(other).__name__)}, another buffer {kind}; both "
                             "must hold the same type") from None
    # Arrays of floats of the same shapes tell whether the call is in order, and the shape of what it makes.
    shapes = {key: numpy.empty(each.shape, real) for key, each in arrays.items()}
    _, result, _ = prepare(**{**given, **shapes})
    if result is not None and not any(result is each for each in shapes.values()):
        arrays["recv"] = numpy.zeros(result.shape, kind)
    pairs = {key: _contiguous(each).reshape(-1).view(real) for key, each in arrays.items()}
    counts = {key: [2 * int(each) for each in given[key]] for key in ("counts", "displs", "sendcounts", "recvcounts",
              "senddispls", "recvdispls") if given.get(key) is not None}
    return lambda: _home(again(**pairs, **counts), pairs, arrays)


def _contiguous(array: numpy.ndarray) -> numpy.ndarray:
    if array.flags.c_contiguous:
        return array
    copy = numpy.array(array, order="C", subok=False)
    copy.flags.writeable = array.flags.writeable
    return copy


def _overlaps(array: numpy.ndarray) -> bool:
    """Whether two items may share memory: what is written to one would change the other."""
    end = array.itemsize
    for stride, length in sorted((abs(stride), length) for stride, length in zip(array.strides, array.shape)):
        if length > 1 and stride < end:
            return array.size > 0
        end += stride * (length - 1)
    return False


def _home(result: Any, used: Dict[str, numpy.ndarray], arrays: Dict[str, numpy.ndarray]) -> Any:
    """The caller's array in place of the one that was used for it, with what has arrived."""
    for key, each in used.items():
        if result is each:
            if not arrays[key].flags.c_contiguous:
                arrays[key][...] = each.view(arrays[key].dtype).reshape(arrays[key].shape)
            return arrays[key]
    return result


def as_array(value: Any, op: Union[str, int], name: str) -> numpy.ndarray:
    """A number, or a list or tuple of them, as a new array."""
    try:
        array = numpy.array(value if is_object(value) else None)
    except ValueError:  # ragged
        array = numpy.empty(0, object)
    if array.dtype.kind not in "biufc" and not (array.dtype.kind == "V" and isinstance(value, numpy.generic)):
        raise TypeError(f"{name} takes a number of at most 64 bits, a list or tuple of numbers, or an array; this "
                        f"{type(value).__name__} is none of them")
    if array.dtype == bool and op not in ("and", "or", "xor", _abi.MEP_AND, _abi.MEP_OR, _abi.MEP_XOR):
        array = array.astype(numpy.int64)
    return array


def as_given(value: Any, array: Optional[numpy.ndarray]) -> Any:
    """The array as a number where `value` is one."""
    if array is None or isinstance(value, (list, tuple)):
        return array
    return array[()] if isinstance(value, numpy.generic) else array.item()


def _prefix(comm: "Comm", name: str, send: Any, recv: Any, op: Any, out: Any) -> Any:
    require_alone(comm, name)
    if isinstance(recv, str) or out is not None:
        recv, op = only_with_op(recv, out, op)
    if not isinstance(op, str) or op not in _PREFIXES:
        raise ValueError(f"op is {op!r}, {name} takes one of the words {', '.join(_PREFIXES)}")
    array = send if isinstance(send, numpy.ndarray) else as_array(send, op, name)
    bits = op in ("and", "or", "xor")
    if bits and array.dtype.kind not in "biu":
        raise TypeError(f"{op} takes whole numbers and bool, the array holds {array.dtype}")
    require_order(array.dtype, op, ("sum", "prod"))
    if array.dtype == bool and not bits:
        raise TypeError(f"{op} takes numbers, the array holds bool; array.astype(int) has them")
    if recv is not None and (not isinstance(recv, numpy.ndarray) or (recv.shape, recv.dtype) != (array.shape, array.dtype)):
        raise ValueError(f"the receive buffer must be an array of {array.dtype} and of shape {array.shape}")
    rows = comm.allgather(array).reshape(comm.size, -1)
    ranks = [rank for rank in comm.last_op().contributors if rank < comm.rank + (name == "scan")]
    if not ranks:
        return None
    narrow = array.dtype.itemsize < 4 and array.dtype.kind in "fV"
    total = rows[ranks[0]].astype(numpy.float32 if narrow else array.dtype)  # a copy
    for rank in ranks[1:]:
        total = _PREFIXES[op](total, rows[rank])
    total = total.astype(array.dtype).reshape(array.shape)
    if recv is not None:
        recv[...] = total
        return recv
    return total if isinstance(send, numpy.ndarray) else as_given(send, total)


def require_order(dtype: Any, op: Any, words: tuple[str, ...]) -> None:
    """Complex numbers have no order, and pairs of floats no product of theirs."""
    if dtype.kind == "c" and op not in words and op not in [getattr(_abi, f"MEP_{word.upper()}") for word in words]:
        raise TypeError(f"op is {op!r}, {dtype} takes {' and '.join(words)}; numpy.abs(x), x.real and x.imag are arrays "
                        "of floats") from None
