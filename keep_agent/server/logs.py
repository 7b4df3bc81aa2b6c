"""Log of the server: one line an event on standard error, without tokens."""

from __future__ import annotations

import logging
import re

TOKEN = re.compile(r"(token=)[^&\s\"']+", re.IGNORECASE)
QUERY = re.compile(r"(/[^\s?]*\?)\S+?(?=[\"']?(?:\s|$))")  # of an address, whatever its keys are called
FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class WithoutTokens(logging.Filter):
    """Hides the queries of addresses, as uvicorn logs them, and what stands behind ``token=`` anywhere."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        shown = TOKEN.sub(r"\1***", QUERY.sub(r"\1***", text))
        if shown != text:
            record.msg, record.args = shown, ()
        return True


def set_up() -> None:
    """Log from level INFO on, whoever logs it. A process calls it once."""
    handler = logging.StreamHandler()
    handler.addFilter(WithoutTokens())
    logging.basicConfig(level=logging.INFO, format=FORM, handlers=[handler])
