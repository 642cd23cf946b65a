"""Lines of a log that say which request they are about, for people or for machines."""

from __future__ import annotations

import json
import logging
import re
import time
from contextvars import ContextVar
from typing import Any

#: The id of the request that is being worked on; None where there is none. Tasks and threads of it inherit it.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
_LONGEST_ID = 128
_ODD = re.compile(r"[^A-Za-z0-9._,/:-]")


def about(*request_ids: str | None) -> dict[str, Any]:
    """``extra`` of a line about requests whose ids are known otherwise: ``log.error("...", extra=about(job.id))``."""
    known = [request_id for request_id in request_ids if request_id]
    return {"request_id": ",".join(known)} if known else {}


def request_id_of(record: logging.LogRecord) -> str | None:
    """Looked up when a line is written, and only then. Whoever calls Triton directly chooses any id: a sane form."""
    found = getattr(record, "request_id", None) or REQUEST_ID.get()
    return None if found is None else ",".join(_ODD.sub("_", part)[:_LONGEST_ID] for part in str(found).split(",")[:64])


class TextFormatter(logging.Formatter):
    """The usual line, and after its message the request's id."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        line = super().formatMessage(record)
        request_id = request_id_of(record)
        return line if request_id is None else f"{line} [request {request_id}]"


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time`` (UTC), ``level``, ``logger``, ``message``, ``request_id`` (null where there is
    none), what was given as ``extra={"fields": {...}}``, and ``exception``."""

    def __init__(self, **fixed: str) -> None:
        """
        Args:
            fixed: stands in every line, for example which model this process is of.
        """
        super().__init__()
        self._fixed = fixed

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": request_id_of(record),
            **self._fixed,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
