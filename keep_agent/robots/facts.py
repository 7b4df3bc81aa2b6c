"""Facts as robots send them: JSON, with the fields of `envs.fact.Fact` that say something."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keep_agent.agent.fact_validation import checked_facts
from keep_agent.errors import DataError

if TYPE_CHECKING:
    from envs.fact import Fact


def read_facts(text: str) -> list[Fact]:
    """Of a JSON array of objects, or of one object. Raises DataError for anything else.

    What has no ``category`` is an object; what has no ``type`` is what its id says: "mug" for "mug_1".
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"facts are a JSON array of objects, not {text[:80]!r} ({error})") from None
    return checked_facts(map(_filled, rows if isinstance(rows, list) else [rows]), lambda id: None)


def _filled(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        raise DataError(f"a fact is an object with an id such as 'mug_1', not {row!r:.80}")
    return {"category": "object", "type": row["id"].rpartition("_")[0] or row["id"]} | row
