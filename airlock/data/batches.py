"""The CIFAR "python version" batches, read without executing them.

They are pickles, and unpickling can run arbitrary code. Here `pickletools` only parses the opcodes, which are
interpreted on plain values; the few names a batch needs (numpy's array and dtype reconstruction, the latin-1 encoding
of bytes, empty builtins) map to inert functions in this file. Any other name, and any opcode that would create or call
an object, is refused. Nothing is imported.

In: the bytes of a batch. Out: dicts, lists, numbers, strings, bytes and numpy arrays of plain numbers.
"""

from __future__ import annotations

import codecs
import io
import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from airlock.data.limits import check_bytes, damaged, reading
from airlock.errors import FormatError

_OPCODES = {code.code: code for code in pickletools.opcodes}
_DTYPES = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"f4", "f8", "b1"}


@dataclass
class _Dtype:
    """Stands in for a numpy dtype under construction."""

    code: str
    order: str = "|"

    def build(self, state: Any) -> None:
        self.order = _text(state[1])


@dataclass
class _Array:
    """Stands in for a numpy array under construction."""

    value: Any = None

    def build(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.value = _array(data, dtype, shape, "F" if fortran else "C")


@dataclass(frozen=True)
class _Name:
    """Stands in for a class that only ever appears as an argument."""

    name: str


class _Mark:
    """Marks where a group of arguments begins on the stack."""


def loads(data: bytes, path: Path) -> Any:
    """The value in a batch's bytes; `path` is named in errors."""
    check_bytes(path, len(data))
    with reading(path, "a batch of plain arrays"):
        return _resolve(_Machine(path, io.BytesIO(data), budget=2 * len(data)).run())


@dataclass
class _Machine:
    """A pickle interpreter that knows only a table of inert names."""

    path: Path
    stream: io.BytesIO
    budget: int  # bytes that constructors may still create, so that a small file cannot expand by repetition
    stack: list[Any] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self) -> Any:
        while True:
            code = self.stream.read(1).decode("latin-1")
            if code not in _OPCODES:
                raise damaged(self.path, "a pickle", "an unknown opcode or the end of the file")
            info = _OPCODES[code]
            argument = None
            if info.name == "STRING":  # pickletools decodes it as ASCII; Python 2 wrote any byte
                argument = codecs.escape_decode(self.stream.readline().strip()[1:-1])[0].decode("latin-1")
            elif info.arg is not None:
                argument = info.arg.reader(self.stream)
            if info.name == "STOP":
                return self.stack.pop()
            self.step(info.name, argument)

    def step(self, name: str, argument: Any) -> None:
        if name in _PUSHES:
            self.stack.append(argument)
        elif name in _MAKES:
            self.stack.append(_MAKES[name]())
        elif name in _IGNORED:
            pass
        elif name in _TUPLES:
            self.stack.append(tuple(self.pop(_TUPLES[name])))
        elif name in _ACTS:
            _ACTS[name](self, argument)
        else:
            raise _refusal(self.path, f"opcode {name}")

    def above_mark(self) -> list[Any]:
        at = next(i for i in range(len(self.stack) - 1, -1, -1) if self.stack[i] is _Mark)
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def find(self, module: str, name: str) -> None:
        if (module, name) not in _NAMES:
            raise _refusal(self.path, ascii(f"{module}.{name}"[:100]))
        self.stack.append(_NAMES[module, name])

    def stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.find(_text(module), _text(name))

    def reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not any(function is known for known in _NAMES.values()) or isinstance(function, _Name):
            raise _refusal(self.path, "a call of something that is not a constructor")
        if not isinstance(arguments, tuple):
            raise damaged(self.path, "a constructor's arguments", "something else")
        self.stack.append(function(*arguments))
        self.charge(self.stack[-1])

    def build(self, _: Any) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Array | _Dtype):
            raise _refusal(self.path, "a state for something that is not an array")
        self.stack[-1].build(state)
        self.charge(self.stack[-1])

    def charge(self, made: Any) -> None:
        if isinstance(made, _Array) and made.value is not None:
            self.budget -= made.value.nbytes
        elif isinstance(made, bytes):
            self.budget -= len(made)
        if self.budget < 0:
            raise damaged(self.path, "values no larger than the file", "more")

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise damaged(self.path, "a list to append to", "something else")
        target.extend(values)

    def set_items(self, values: list[Any]) -> None:
        target, keys = self.stack[-1], values[::2]
        if not isinstance(target, dict) or not all(isinstance(key, str | bytes | int) for key in keys):
            raise damaged(self.path, "a dict with plain keys", "something else")
        target.update(zip(keys, values[1::2], strict=True))

    def make_dict(self, values: list[Any]) -> None:
        self.stack.append({})
        self.set_items(values)

    def pop(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise damaged(self.path, "a value on the stack", "none")
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return values

    def put(self, at: int) -> None:
        self.memo[at] = self.stack[-1]


def _array(data: Any, dtype: Any, shape: Any, order: str) -> Any:
    """A numpy array over bytes of exactly the right length."""
    if isinstance(data, str):
        data = data.encode("latin-1")
    if not isinstance(data, bytes | bytearray) or not isinstance(dtype, _Dtype) or order not in ("C", "F"):
        raise ValueError("not an array of plain numbers")
    if len(shape) > 4 or not all(0 <= n < 2**40 for n in shape):
        raise ValueError("not a shape")
    kind = np.dtype((dtype.order if dtype.order in "<>|=" else "") + dtype.code)
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError("data and shape differ")
    return np.frombuffer(data, kind).reshape(shape, order=order)  # type: ignore[call-overload]


def _make_dtype(code: Any, *_: Any) -> _Dtype:
    if _text(code) not in _DTYPES:
        raise ValueError("not a plain number's type")
    return _Dtype(_text(code))


def _make_array(*_: Any) -> _Array:
    return _Array()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    return _Array(_array(data, dtype, shape, _text(order)))


def _encode(text: str, encoding: Any) -> bytes:
    if _text(encoding) not in ("latin1", "latin-1"):
        raise ValueError("another encoding")
    return text.encode("latin-1")


def _text(value: Any) -> str:
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        raise ValueError("not a name")
    return text


def _refusal(path: Path, what: str) -> FormatError:
    return FormatError(
        f"nothing but numbers, text and arrays in {path}",
        what,
        "A pickle can run any code; nothing in this file was run.",
        "Use the binary version of the data set, or download the file again from its official page.",
    )


def _resolve(value: Any) -> Any:
    """Replace the stand-ins in the outermost dict with their arrays."""
    if isinstance(value, dict):
        return {key: item.value if isinstance(item, _Array) else item for key, item in value.items()}
    return value.value if isinstance(value, _Array) else value


_PUSHES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_IGNORED = {"PROTO", "FRAME"}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MAKES: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "MARK": lambda: _Mark,
}
_ACTS: dict[str, Callable[[_Machine, Any], None]] = {
    "TUPLE": lambda m, _: m.stack.append(tuple(m.above_mark())),
    "LIST": lambda m, _: m.stack.append(m.above_mark()),
    "DICT": lambda m, _: m.make_dict(m.above_mark()),
    "APPEND": lambda m, _: m.append(m.pop(1)),
    "APPENDS": lambda m, _: m.append(m.above_mark()),
    "SETITEM": lambda m, _: m.set_items(m.pop(2)),
    "SETITEMS": lambda m, _: m.set_items(m.above_mark()),
    "POP": lambda m, _: m.pop(1).clear(),
    "POP_MARK": lambda m, _: m.above_mark().clear(),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    "PUT": lambda m, at: m.put(at),
    "BINPUT": lambda m, at: m.put(at),
    "LONG_BINPUT": lambda m, at: m.put(at),
    "MEMOIZE": lambda m, _: m.put(len(m.memo)),
    "GET": lambda m, at: m.stack.append(m.memo[at]),
    "BINGET": lambda m, at: m.stack.append(m.memo[at]),
    "LONG_BINGET": lambda m, at: m.stack.append(m.memo[at]),
    "GLOBAL": lambda m, names: m.find(*names.split(" ", 1)),
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}
_NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Name("ndarray"),
    ("numpy", "dtype"): _make_dtype,
    ("_codecs", "encode"): _encode,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _make_array for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
    # without arguments, the form in which empty ones are written; bytes(n) would create n bytes
    **{(module, "bytes"): lambda: b"" for module in ("__builtin__", "builtins")},
    **{(module, "list"): lambda: [] for module in ("__builtin__", "builtins")},
    **{(module, "dict"): lambda: {} for module in ("__builtin__", "builtins")},
}
