"""A look at the bytes of a JSON text before it is parsed: what would harm the parser, or those behind it."""

from __future__ import annotations

import re

import numpy as np

from keep_agent.files import count_values
from keep_agent.server.error_handlers import Refused

STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
# as far as escapes are no halves of surrogate pairs, and none is a NUL
SOUND = re.compile(
    rb"(?:[^\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u(?:0000|[dD][89a-fA-F])).)*+",
    re.DOTALL,
)
NO_NUMBER = re.compile(rb"NaN|Infinity")
HUGE = re.compile(rb"\d{65}|[eE]\+?0*[1-9]\d\d")  # digits of a number; an exponent of three
STEPS = np.zeros(256, np.int8)
STEPS[list(b"[{")] = 1
STEPS[list(b"]}")] = -1


class BadJson(Refused):
    """Bytes that are no JSON text that this server reads."""


def check_json(text: bytes, depth: int, values: int) -> None:
    """Raises BadJson for bytes that are no UTF-8, NULs, halves of surrogate pairs, NaN and infinities, numbers that
    become one, brackets within more than ``depth`` others, and more than ``values`` values: each takes many times its
    bytes. Linear in the size of ``text``.
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
    if deepest(bare) > depth:
        raise BadJson(f"brackets stand more than {depth} deep; send a flatter body")
    if count_values(text) > values and (found := count_values(bare)) > values:
        raise BadJson(f"the body holds {found} values, more than {values}; send less at once")


def deepest(bare: bytes) -> int:
    """How deep brackets stand in JSON without strings."""
    steps = STEPS[np.frombuffer(bare, np.uint8)]
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))
