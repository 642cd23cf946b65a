"""The service's TLS certificate and key, checked before anything starts."""

from __future__ import annotations

import ssl
from pathlib import Path

from triton_sam.errors import SetupError
from triton_sam.settings import Settings


def tls_files(settings: Settings) -> tuple[Path, Path] | None:
    """(certificate, key), or None for plain HTTP; raises SetupError if they cannot be used."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        given, missing = ("CERTIFICATE", "KEY") if key is None else ("KEY", "CERTIFICATE")
        raise SetupError(f"TRITON_SAM_TLS_{given} is set without TRITON_SAM_TLS_{missing}: TLS needs both")
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
        """Replaces OpenSSL's prompt on the terminal, which would block the start."""
        nonlocal asked
        asked = True
        return ""

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or ""
        if asked:
            problem = f"the key {key} has a password: `openssl pkey -in {key} -out OTHER` writes it without one"
        elif reason == "KEY_VALUES_MISMATCH":
            problem = f"the key {key} does not belong to the certificate {certificate}: set the key it was made with"
        else:
            problem = f"{certificate} and {key} are not a certificate and a key in PEM format ({reason or error})"
        raise SetupError(f"TLS cannot be set up: {problem}") from None
