"""Who asks: tokens with names, from the settings and from a file that may change while the service runs."""

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
from triton_sam.service.rates import Clock, Rate
from triton_sam.settings import Settings

log = logging.getLogger(__name__)

#: The name of whoever has TRITON_SAM_TOKEN.
SINGLE = "default"
ANONYMOUS = "anonymous"
_LOOK_SECONDS = 1.0
#: Each is compared with what every request brings.
_MOST_TOKENS = 1000
_MOST_BYTES = 1024 * 1024
_SHORTEST = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASHED = "sha256:"
_LINE = "`name token [requests per minute [burst]]`"


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a token stands for.

    Attributes:
        name: for logs and metrics, where a token never stands.
        digest: SHA-256 of the token.
        rate: None for any number of requests.
    """

    name: str
    digest: bytes
    rate: Rate | None = None


class Keyring:
    """All tokens of a service. Belongs to the event loop."""

    def __init__(self, settings: Settings, clock: Clock = time.monotonic) -> None:
        """SetupError where the file cannot be used."""
        token = settings.token
        self._own = () if token is None else (Caller(SINGLE, digest_of(token.get_secret_value())),)
        self._path = settings.tokens_file
        self._clock = clock
        self._look_at = -math.inf
        self._mark: tuple[int, ...] | None = None
        self._callers: dict[str, Caller] = {caller.name: caller for caller in self._own}
        if self._path is not None:
            self._mark = _mark_of(self._path)
            self._callers = self._with(read_tokens(self._path))
            warn_of_readers(self._path)

    @property
    def needs_token(self) -> bool:
        """Whether nobody comes in without one: also with a file that is empty."""
        return bool(self._own) or self._path is not None

    def find(self, offered: str) -> Caller | None:
        """The caller of a token. Compares with all of them, so that the time tells nothing."""
        self._look()
        digest = digest_of(offered)
        found = None
        for caller in self._callers.values():
            if hmac.compare_digest(caller.digest, digest):
                found = caller
        return found

    def still(self, caller: Caller) -> Caller | None:
        """A caller of before as the file has him now; None where his token was taken away or changed."""
        self._look()
        now = self._callers.get(caller.name)
        return now if now is not None and now.digest == caller.digest else None

    def _with(self, listed: list[Caller]) -> dict[str, Caller]:
        callers = {caller.name: caller for caller in (*self._own, *listed)}
        if self._own and any(caller.name == SINGLE for caller in listed):
            raise SetupError(f"TRITON_SAM_TOKENS_FILE has a token named {SINGLE!r}, as TRITON_SAM_TOKEN is: rename it")
        return callers

    def _look(self) -> None:
        """Reads the file again where it has changed; one that is wrong now changes nothing, and is told of once."""
        now = self._clock()
        if self._path is None or now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        mark = _mark_of(self._path)
        if mark == self._mark:
            return
        self._mark = mark
        try:
            self._callers = self._with(read_tokens(self._path))
        except SetupError as error:
            log.error("the tokens stay as they were: %s", error)
        else:
            log.warning("TRITON_SAM_TOKENS_FILE has changed: %d tokens are known now", len(self._callers))
            warn_of_readers(self._path)


def digest_of(token: str) -> bytes:
    """SHA-256 of a token; tokens are long and random, so that nothing slower is needed."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def read_tokens(path: Path) -> list[Caller]:
    """The callers of a file; SetupError with the line that is wrong, and nothing of what stands in it."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise SetupError(f"TRITON_SAM_TOKENS_FILE {path} has over {_MOST_BYTES:,} bytes: is it the right file?")
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise SetupError(f"TRITON_SAM_TOKENS_FILE {path} is no text: write lines of {_LINE}") from None
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
                raise ValueError("the name stands there twice: give each token its own")
            if any(hmac.compare_digest(caller.digest, other.digest) for other in callers.values()):
                raise ValueError("the token stands there twice: give each name its own")
            if len(callers) == _MOST_TOKENS:
                raise ValueError(f"there are more than {_MOST_TOKENS:,} tokens: take those out that nobody uses")
        except ValueError as error:
            raise SetupError(f"TRITON_SAM_TOKENS_FILE {path}, line {number}: {error}") from None
        callers[caller.name] = caller
    return list(callers.values())


def _caller(words: list[str]) -> Caller:
    """ValueError says what is wrong, without the words themselves: one of them is a secret."""
    if not 2 <= len(words) <= 4:
        raise ValueError(f"it has {len(words)} words: write {_LINE}")
    name, token, *numbers = words
    if not _NAME.fullmatch(name) or name == ANONYMOUS:
        raise ValueError(f"a name has up to 64 letters, digits, dots, dashes or underscores, and is not {ANONYMOUS!r}")
    if token.startswith(_HASHED):
        try:
            digest = bytes.fromhex(token.removeprefix(_HASHED))
        except ValueError:
            digest = b""
        if len(digest) != hashlib.sha256().digest_size:
            raise ValueError("sha256: is followed by 64 hexadecimal digits: `printf %s TOKEN | sha256sum` prints them")
    else:
        if not (token.isascii() and token.isprintable()):
            raise ValueError("a token has printable ASCII characters only, because a header carries it")
        if len(token) < _SHORTEST:
            raise ValueError(f"a token has at least {_SHORTEST} characters: `openssl rand -hex 24` makes one")
        digest = digest_of(token)
    return Caller(name, digest, _rate(numbers))


def _rate(numbers: list[str]) -> Rate | None:
    if not numbers or numbers == ["-"]:
        return None
    try:
        per_minute, burst = float(numbers[0]), float(numbers[1]) if len(numbers) > 1 else 0.0
    except ValueError:
        raise ValueError("requests per minute and burst are numbers") from None
    if not (0 < per_minute < math.inf and (len(numbers) == 1 or 1 <= burst < math.inf)):
        raise ValueError("requests per minute are above 0 (or `-` for any number) and a burst is at least 1")
    return Rate.of(per_minute, burst)


def _mark_of(path: Path) -> tuple[int, ...] | None:
    """What changes with a file; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    # The last one changes with the rights too: a file that could not be read is tried again when it may be.
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns


def warn_of_readers(path: Path) -> None:
    """A word where others than the owner and the group may read a file of secrets."""
    try:
        is_open = bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return
    if is_open:
        log.warning("every user of this machine may read %s, which holds secrets: chmod o-r %s", path, path)
