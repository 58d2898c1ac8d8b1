"""TLS for the service: a certificate and its key, checked before anything listens, and read again on request.

TLS 1.2 with forward secrecy and authenticated ciphers, or TLS 1.3. No password is ever asked for: a service starts
without anybody at a terminal.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from cryptography import x509

from airlock.errors import ConfigError

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2; those of 1.3 are all good


def load_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """A context for a server from two PEM files; None if neither is given.

    Args:
        certificate: The server's certificate, followed by those that lead to its authority.
        key: Its private key, without a password.

    Raises:
        ConfigError: One of the two is missing, cannot be read, or they do not belong together.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing = "--tls-cert" if certificate is None else "--tls-key"
        raise ConfigError("--tls-cert and --tls-key together", f"no {missing}", "TLS needs a certificate and its key.")
    _check_certificate(certificate)
    _check_key(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError, OSError) as error:
        raise ConfigError(
            "a certificate and the private key that belongs to it",
            "two files that do not fit together, or an unusable key",
            "No client could connect.",
            "Give the certificate's own key, as PEM and without a password.",
        ) from error
    return context


def _check_certificate(path: Path) -> None:
    try:
        x509.load_pem_x509_certificates(_read(path, "--tls-cert"))
    except ValueError as error:
        raise ConfigError(
            "a certificate as PEM in --tls-cert",
            f"something else in '{path}'",
            "No client could connect.",
            "It begins with -----BEGIN CERTIFICATE-----.",
        ) from error


def _check_key(path: Path) -> None:
    content = _read(path, "--tls-key")
    if b"PRIVATE KEY-----" not in content:
        raise ConfigError("a private key as PEM in --tls-key", f"something else in '{path}'")
    if b"ENCRYPTED" in content:
        raise ConfigError(
            "a private key without a password",
            f"an encrypted one in '{path}'",
            "A service starts without anybody who could type it.",
            "Remove the password with openssl pkey, and keep the file readable by the service alone.",
        )


def _read(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"a file in {option}", f"none that can be read at '{path}'") from error
