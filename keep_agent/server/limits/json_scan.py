"""JSON scan: checks the bytes of a request before they are parsed, in linear time."""

from __future__ import annotations

import re

import numpy as np

from keep_agent.files import counted
from keep_agent.server.error_handlers import Refused

STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
# matches as long as escapes are whole surrogate pairs and no NULs
SOUND = re.compile(
    rb"(?:[^\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u(?:0000|[dD][89a-fA-F])).)*+",
    re.DOTALL,
)
NO_NUMBER = re.compile(rb"NaN|Infinity")
HUGE = re.compile(rb"\d{65}|[eE]\+?0*[1-9]\d\d")  # digits of a number; an exponent of three digits
STEPS = np.zeros(256, np.int8)
STEPS[list(b"[{")] = 1
STEPS[list(b"]}")] = -1


class BadJson(Refused):
    """Bytes that are no JSON, or JSON that this server does not read."""


def check_json(text: bytes, depth: int, values: int) -> None:
    """Raise BadJson for bytes that are no UTF-8, NULs, halves of surrogate pairs, NaN, infinite and huge numbers,
    brackets nested more than ``depth`` deep, and more than ``values`` values (each takes many times its bytes).
    """
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadJson(f"the body is no UTF-8 (byte {error.start}); encode it so") from None
    if b"\0" in text:
        raise BadJson("the body holds a NUL byte; send JSON in UTF-8")
    if b"\\u" in text and SOUND.match(text).end() < len(text):  # type: ignore[union-attr]
        raise BadJson("a string holds a NUL or half of a surrogate pair; leave them out")
    bare = STRINGS.sub(b"", text)
    if NO_NUMBER.search(bare):
        raise BadJson("NaN and Infinity are no numbers of JSON; leave them out")
    if HUGE.search(bare):
        raise BadJson("a number has more than 64 digits, or an exponent of 100 or more; send smaller ones")
    nesting = np.cumsum(STEPS[np.frombuffer(bare, np.uint8)], dtype=np.int32)
    if nesting.max(initial=0) > depth:
        raise BadJson(f"brackets are nested more than {depth} deep; send a flatter body")
    if counted(text) > values and (count := counted(bare)) > values:
        raise BadJson(f"the body holds {count} values, more than {values}; send less at once")
