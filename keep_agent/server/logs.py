"""Log of the server: one line an event on standard error, without tokens."""

from __future__ import annotations

import logging
import re

TOKEN = re.compile(r"(token=)[^&\s\"']+", re.IGNORECASE)
FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class WithoutTokens(logging.Filter):
    """Hides what stands behind ``token=`` in addresses, as uvicorn logs them."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if TOKEN.search(text):
            record.msg, record.args = TOKEN.sub(r"\1***", text), ()
        return True


def set_up() -> None:
    """Log from level INFO on, whoever logs it. A process calls it once."""
    handler = logging.StreamHandler()
    handler.addFilter(WithoutTokens())
    logging.basicConfig(level=logging.INFO, format=FORM, handlers=[handler])
