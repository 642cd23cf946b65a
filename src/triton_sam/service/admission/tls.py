"""The service's certificate, looked at before anything is started."""

from __future__ import annotations

import ssl
from pathlib import Path

from triton_sam.errors import SetupError
from triton_sam.settings import Settings


def tls_files(settings: Settings) -> tuple[Path, Path] | None:
    """(certificate, key), or None where the service speaks plain HTTP; SetupError where they cannot be used."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        there, missing = ("CERTIFICATE", "KEY") if key is None else ("KEY", "CERTIFICATE")
        raise SetupError(f"TRITON_SAM_TLS_{there} is set without TRITON_SAM_TLS_{missing}: TLS needs both")
    for name, path in (("CERTIFICATE", certificate), ("KEY", key)):
        try:
            path.read_bytes()
        except OSError as error:
            raise SetupError(f"TRITON_SAM_TLS_{name} {path} cannot be read: {error.strerror or error}") from None
    _load(certificate, key)
    return certificate, key


def _load(certificate: Path, key: Path) -> None:
    asked = False

    def password() -> str:
        """Instead of a question on the terminal, where nobody may sit."""
        nonlocal asked
        asked = True
        return ""

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or ""
        if asked:
            mend = f"the key {key} has a password: `openssl pkey -in {key} -out OTHER` writes it without one"
        elif reason == "KEY_VALUES_MISMATCH":
            mend = f"the key {key} belongs to another certificate than {certificate}: take the one it was made with"
        else:
            mend = f"{certificate} and {key} are no certificate and key in PEM form ({reason or error})"
        raise SetupError(f"the service cannot speak TLS: {mend}") from None
