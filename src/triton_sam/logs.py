"""Log formats, as text or JSON, with the id of the request."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from contextvars import ContextVar
from typing import Any

from triton_sam.settings import Settings

#: The id of the current request; None outside of one. Its tasks and threads inherit it.
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
#: The logger with a line for each request to the service, at the level INFO.
REQUESTS_LOG = "triton_sam.service.requests"
_LONGEST_ID = 128
_ODD = re.compile(r"[^A-Za-z0-9._,/:-]")


def about(*request_ids: str | None) -> dict[str, Any]:
    """``extra`` of a line about requests other than the current one: ``log.error("...", extra=about(job.id))``."""
    known = [request_id for request_id in request_ids if request_id]
    return {"request_id": ",".join(known)} if known else {}


def request_id_of(record: logging.LogRecord) -> str | None:
    """The request's id of a log line, with odd characters replaced: clients of Triton may choose any id."""
    found = getattr(record, "request_id", None) or REQUEST_ID.get()
    return None if found is None else ",".join(_ODD.sub("_", part)[:_LONGEST_ID] for part in str(found).split(",")[:64])


def set_up(settings: Settings) -> None:
    """Sets this process's log format and level from the settings, after logging has been configured."""
    root = logging.getLogger()
    if settings.log_format == "json":
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter())
        logging.basicConfig(level=root.level, handlers=[handler], force=True)
    else:
        for existing in root.handlers:
            existing.setFormatter(TextFormatter("%(message)s"))
    wanted = settings.log_requests == "on" or (settings.log_requests == "auto" and settings.log_format == "json")
    logging.getLogger(REQUESTS_LOG).setLevel(logging.INFO if wanted else logging.WARNING)


def set_up_model_log(model: str, settings: Settings) -> None:
    """Logs of a model's process go to stderr, which is the server's log, in the format of the settings."""
    handler = logging.StreamHandler(sys.stderr)
    text = TextFormatter("%(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter(model=model) if settings.log_format == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class TextFormatter(logging.Formatter):
    """A plain line with the request's id at its end."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        line = super().formatMessage(record)
        request_id = request_id_of(record)
        return line if request_id is None else f"{line} [request {request_id}]"


class JsonFormatter(logging.Formatter):
    """One JSON object per line.

    Its fields: ``time`` (UTC), ``level``, ``logger``, ``message``, ``request_id`` (null if there is none), those of
    ``extra={"fields": {...}}``, and ``exception``.
    """

    def __init__(self, **fixed: str) -> None:
        """
        Args:
            fixed: fields of every line, for example the model of this process.
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


class LogRateLimit:
    """Limits log lines per second: a client that sends invalid requests in a loop must not fill the disk."""

    def __init__(self, per_second: int = 10) -> None:
        self._per_second = per_second
        self._second = 0
        self._count = 0

    def allow(self) -> bool:
        """Whether another line may be written now. Counts it."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= self._per_second
