"""Calls libpg_query, which is PostgreSQL's own scanner and grammar as a C library.

Comes in: a text without NUL, in UTF-8. Goes out: the bytes of the tree (``messages`` reads them),
or a ``Refusal``. Called by ``strings`` alone.

The package postgast is needed only for the shared library that it ships. Its Python modules are
never imported, so protobuf is not needed either.

The calls run in a few threads of their own, for two reasons:

    stack   The library writes its tree by recursion, without PostgreSQL's check of the stack. A
            stack of known size is large enough for all that ``depth`` lets pass.
    keys    In each thread that calls it, the library takes one of the 1,024 thread keys of the
            process and never returns it. A node has a thread for each client, so after some
            days no other library could get one.

Source: pg_query.h.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeAlias

STACK_BYTES: Final = 32 * 1024 * 1024
"""Stack of a parser's thread; a page of it takes memory when it is first used. The deepest text
that ``depth`` lets pass took 2.6 MB."""

_THREADS: Final = 4
"""The parser's threads: more than one, as a text of 100 MB takes a thread for seconds. A guess."""

_SHORT_BYTES: Final = 2_000
"""Longest text that is parsed without a release of Python's lock. It takes less than a millisecond;
the lock, once released, may be had again only after the 5 ms of each busy thread."""

_NAMES: Final = {"darwin": "libpg_query.dylib", "win32": "pg_query.dll"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error of the scanner or the grammar."""

    message: str
    position: int
    """In characters from 1; 0: unknown."""
    function: str
    """The C function that reports it."""


class _Error(ctypes.Structure):
    """PgQueryError."""

    _fields_ = (
        ("message", ctypes.c_char_p),
        ("funcname", ctypes.c_char_p),
        ("filename", ctypes.c_char_p),
        ("lineno", ctypes.c_int),
        ("cursorpos", ctypes.c_int),
        ("context", ctypes.c_char_p),
    )


class _Bytes(ctypes.Structure):
    """PgQueryProtobuf."""

    _fields_ = (("len", ctypes.c_size_t), ("data", ctypes.c_void_p))


class _Result(ctypes.Structure):
    """PgQueryProtobufParseResult."""

    _fields_ = (
        ("parse_tree", _Bytes),
        ("stderr_buffer", ctypes.c_char_p),
        ("error", ctypes.POINTER(_Error)),
    )


_Answer: TypeAlias = "bytes | Refusal | BaseException"
_Request: TypeAlias = "tuple[bytes, SimpleQueue[_Answer]]"


def parse_bytes(text: bytes) -> bytes | Refusal:
    """Return the tree of a text, as a protobuf message ParseResult. Thread-safe."""
    answers: SimpleQueue[_Answer] = SimpleQueue()
    _parsers().put((text, answers))
    answer = answers.get()
    if isinstance(answer, BaseException):
        raise answer
    return answer


_starting: Final = threading.Lock()


def _parsers() -> SimpleQueue[_Request]:
    """The queue of the parser's threads, which the first call starts."""
    with _starting:
        return _started()


@cache
def _started() -> SimpleQueue[_Request]:
    path = _library_path()
    libraries = _declared(ctypes.PyDLL(path)), _declared(ctypes.CDLL(path))
    requests: SimpleQueue[_Request] = SimpleQueue()
    usual = threading.stack_size(STACK_BYTES)
    try:
        for _ in range(_THREADS):
            threading.Thread(
                target=_serve, args=(*libraries, requests), name="parser", daemon=True
            ).start()
    finally:
        threading.stack_size(usual)
    return requests


def _forget_threads() -> None:
    """Let a forked process, which has none of the threads, start its own."""
    _started.cache_clear()
    _starting.release()


# A process must not be forked while another thread holds the lock.
os.register_at_fork(
    before=_starting.acquire,
    after_in_parent=_starting.release,
    after_in_child=_forget_threads,
)


def _serve(
    locked: ctypes.CDLL, unlocked: ctypes.CDLL, requests: SimpleQueue[_Request]
) -> None:
    while True:
        text, answers = requests.get()
        library = locked if len(text) <= _SHORT_BYTES else unlocked
        try:
            answers.put(_parse(library, text))
        except Exception as error:
            answers.put(error)


def _parse(library: ctypes.CDLL, text: bytes) -> bytes | Refusal:
    result = library.pg_query_parse_protobuf(text)
    try:
        if result.error:
            error = result.error.contents
            # The words may quote the text, cut within a character.
            message = (error.message or b"").decode(errors="replace")
            function = (error.funcname or b"").decode(errors="replace")
            return Refusal(message, max(error.cursorpos, 0), function)
        return ctypes.string_at(result.parse_tree.data, result.parse_tree.len)
    finally:
        library.pg_query_free_protobuf_parse_result(result)


def _library_path() -> str:
    package = find_spec("postgast")
    folders = (package and package.submodule_search_locations) or ()
    name = _NAMES.get(sys.platform, "libpg_query.so")
    for path in (Path(folder) / name for folder in folders):
        if path.is_file():
            return str(path)
    raise ImportError(f"{name} of the package postgast is missing")


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the functions of a library."""
    library.pg_query_parse_protobuf.argtypes = [ctypes.c_char_p]
    library.pg_query_parse_protobuf.restype = _Result
    library.pg_query_free_protobuf_parse_result.argtypes = [_Result]
    library.pg_query_free_protobuf_parse_result.restype = None
    return library
