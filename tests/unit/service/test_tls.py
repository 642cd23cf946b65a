from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.integration.test_service_secured import throw_away_certificate
from triton_sam.errors import SetupError
from triton_sam.service.admission.tls import tls_files
from triton_sam.settings import Settings


def refused(**files: Path | None) -> str:
    with pytest.raises(SetupError) as caught:
        tls_files(Settings(**files))  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_none_and_both(tmp_path: Path) -> None:
    assert tls_files(Settings()) is None
    certificate, key = throw_away_certificate(tmp_path)
    assert tls_files(Settings(tls_certificate=certificate, tls_key=key)) == (certificate, key)


def test_one_without_the_other(tmp_path: Path) -> None:
    certificate, key = throw_away_certificate(tmp_path)
    assert "TLS_CERTIFICATE is set without TRITON_SAM_TLS_KEY" in refused(tls_certificate=certificate)
    assert "TLS_KEY is set without TRITON_SAM_TLS_CERTIFICATE" in refused(tls_key=key)


def test_files_that_are_none(tmp_path: Path) -> None:
    certificate, key = throw_away_certificate(tmp_path)
    missing = tmp_path / "missing.pem"
    assert "TRITON_SAM_TLS_KEY" in refused(tls_certificate=certificate, tls_key=missing)
    assert f"{missing} cannot be read: No such file" in refused(tls_certificate=missing, tls_key=key)
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    assert "not a certificate and a key in PEM format" in refused(tls_certificate=junk, tls_key=key)
    assert "not a certificate and a key in PEM format" in refused(tls_certificate=certificate, tls_key=junk)


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    certificate, _ = throw_away_certificate(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    _, key = throw_away_certificate(other)
    assert "does not belong to the certificate" in refused(tls_certificate=certificate, tls_key=key)


def test_a_key_with_a_password_does_not_prompt(tmp_path: Path) -> None:
    certificate, key = throw_away_certificate(tmp_path)
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"word"),
        )
    )
    assert "has a password" in refused(tls_certificate=certificate, tls_key=key)
