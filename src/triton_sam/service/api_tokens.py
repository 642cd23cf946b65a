"""API tokens with names, from the settings and from a file that may change while the service runs."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from triton_sam.errors import SetupError
from triton_sam.service.rate_limits import Clock, Rate
from triton_sam.settings import Settings, check_token

log = logging.getLogger(__name__)

#: The caller's name for TRITON_SAM_TOKEN.
SINGLE = "default"
ANONYMOUS = "anonymous"
_CHECK_SECONDS = 1.0
#: Each request's token is compared with all of them.
_MAX_TOKENS = 1000
_MAX_BYTES = 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASHED = "sha256:"
_LINE = "`name token [requests per minute [burst]]`"


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of an API token.

    Attributes:
        name: for logs and metrics, which never contain the token.
        digest: SHA-256 of the token.
        rate: None for no rate limit.
    """

    name: str
    digest: bytes
    rate: Rate | None = None


class TokenStore:
    """All API tokens of a service. Belongs to the event loop."""

    def __init__(self, settings: Settings, clock: Clock = time.monotonic) -> None:
        """Raises SetupError if the tokens file cannot be used."""
        token = settings.token
        self._single = () if token is None else (Caller(SINGLE, digest_of(token.get_secret_value())),)
        self._path = settings.tokens_file
        self._clock = clock
        self._check_at = -math.inf
        self._file_stamp: tuple[int, ...] | None = None
        self._callers: dict[str, Caller] = {caller.name: caller for caller in self._single}
        if self._path is not None:
            self._file_stamp = _file_stamp_of(self._path)
            self._callers = self._merged(read_tokens(self._path))
            warn_if_world_readable(self._path)

    @property
    def needs_token(self) -> bool:
        """Whether a token is required; also with an empty tokens file."""
        return bool(self._single) or self._path is not None

    def find(self, offered: str) -> Caller | None:
        """The caller of a token, or None. Compares with all of them, so that timing reveals nothing."""
        self._reload_if_changed()
        digest = digest_of(offered)
        found = None
        for caller in self._callers.values():
            if hmac.compare_digest(caller.digest, digest):
                found = caller
        return found

    def revalidate(self, caller: Caller) -> Caller | None:
        """The caller as the file has it now; None if its token was removed or changed."""
        self._reload_if_changed()
        now = self._callers.get(caller.name)
        return now if now is not None and now.digest == caller.digest else None

    def _merged(self, listed: list[Caller]) -> dict[str, Caller]:
        callers = {caller.name: caller for caller in (*self._single, *listed)}
        if self._single and any(caller.name == SINGLE for caller in listed):
            raise SetupError(
                f"TRITON_SAM_TOKENS_FILE has a token named {SINGLE!r}, the name of TRITON_SAM_TOKEN: rename it"
            )
        return callers

    def _reload_if_changed(self) -> None:
        """Reads the file again if it has changed. An invalid file changes nothing and is logged once."""
        now = self._clock()
        if self._path is None or now < self._check_at:
            return
        self._check_at = now + _CHECK_SECONDS
        stamp = _file_stamp_of(self._path)
        if stamp == self._file_stamp:
            return
        self._file_stamp = stamp
        try:
            self._callers = self._merged(read_tokens(self._path))
        except SetupError as error:
            log.error("the API tokens are unchanged: %s", error)
        else:
            log.warning("TRITON_SAM_TOKENS_FILE was read again: %d tokens are valid now", len(self._callers))
            warn_if_world_readable(self._path)


def digest_of(token: str) -> bytes:
    """SHA-256 of a token; tokens are long and random, so no slower hash is needed."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def read_tokens(path: Path) -> list[Caller]:
    """The callers in a tokens file; SetupError gives the number of an invalid line, but not its content."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise SetupError(f"TRITON_SAM_TOKENS_FILE {path} has more than {_MAX_BYTES:,} bytes: is it the right file?")
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise SetupError(f"TRITON_SAM_TOKENS_FILE {path} is not a UTF-8 text file: write lines of {_LINE}") from None
    except OSError as error:
        raise SetupError(f"TRITON_SAM_TOKENS_FILE {path} cannot be read: {error.strerror or error}") from None
    callers: dict[str, Caller] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            caller = _caller(words)
            if caller.name in callers:
                raise ValueError("the name appears twice: give each token its own")
            if any(hmac.compare_digest(caller.digest, other.digest) for other in callers.values()):
                raise ValueError("the token appears twice: give each name its own")
            if len(callers) == _MAX_TOKENS:
                raise ValueError(f"there are more than {_MAX_TOKENS:,} tokens: remove unused ones")
        except ValueError as error:
            raise SetupError(f"TRITON_SAM_TOKENS_FILE {path}, line {number}: {error}") from None
        callers[caller.name] = caller
    return list(callers.values())


def _caller(words: list[str]) -> Caller:
    """Parses one line; a ValueError does not quote the words, because one of them is a secret."""
    if not 2 <= len(words) <= 4:
        raise ValueError(f"the line has {len(words)} words: write {_LINE}")
    name, token, *numbers = words
    if not _NAME.fullmatch(name) or name == ANONYMOUS:
        raise ValueError(f"a name has up to 64 letters, digits, dots, dashes or underscores, and is not {ANONYMOUS!r}")
    if token.startswith(_HASHED):
        try:
            digest = bytes.fromhex(token.removeprefix(_HASHED))
        except ValueError:
            digest = b""
        if len(digest) != hashlib.sha256().digest_size:
            raise ValueError(
                "sha256: must be followed by 64 hexadecimal digits: `printf %s TOKEN | sha256sum` prints them"
            )
    else:
        check_token(token)
        digest = digest_of(token)
    return Caller(name, digest, _rate(numbers))


def _rate(numbers: list[str]) -> Rate | None:
    if not numbers or numbers == ["-"]:
        return None
    try:
        per_minute, burst = float(numbers[0]), float(numbers[1]) if len(numbers) > 1 else 0.0
    except ValueError:
        raise ValueError("requests per minute and burst must be numbers") from None
    if not (0 < per_minute < math.inf and (len(numbers) == 1 or 1 <= burst < math.inf)):
        raise ValueError("requests per minute must be above 0 (or `-` for no limit) and burst at least 1")
    return Rate.of(per_minute, burst)


def _file_stamp_of(path: Path) -> tuple[int, ...] | None:
    """Values that change when the file changes; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    # st_ctime changes with the permissions too: an unreadable file is tried again when it becomes readable.
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns


def warn_if_world_readable(path: Path) -> None:
    """Logs a warning if every user may read a file of secrets."""
    try:
        is_open = bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return
    if is_open:
        log.warning("every user of this machine can read %s, which has secrets: run `chmod o-r %s`", path, path)
