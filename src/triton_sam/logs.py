"""Lines of a log that say which request they are about, for people or for machines."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from contextvars import ContextVar
from typing import Any

from triton_sam.settings import Settings

#: The id of the request that is being worked on; None where there is none. Tasks and threads of it inherit it.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
#: The logger with a line for each request to the service, at the level INFO.
REQUESTS_LOG = "triton_sam.service.requests"
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


def set_up(settings: Settings) -> None:
    """Gives the lines of this process the form of the settings, where logging has been set up already."""
    root = logging.getLogger()
    if settings.log_format == "json":
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
        logging.basicConfig(level=root.level, handlers=[handler], force=True)
    else:
        for handler_there in root.handlers:
            handler_there.setFormatter(TextFormatter("%(message)s"))
    wanted = settings.log_requests == "on" or (settings.log_requests == "auto" and settings.log_format == "json")
    logging.getLogger(REQUESTS_LOG).setLevel(logging.INFO if wanted else logging.WARNING)


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


class Sparingly:
    """Lets so many lines a second into the log: a client that asks wrongly in a loop must not fill the disk."""

    def __init__(self, most: int = 10) -> None:
        self._most = most
        self._second = 0
        self._count = 0

    def __bool__(self) -> bool:
        """Whether one more may be written; counts it."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= self._most
