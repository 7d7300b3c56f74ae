"""Encryption: whoever cannot be verified gets nothing; an authority of one's own may be added."""

import ssl
import subprocess
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from runstream_client import Client, ClientError, Unreachable
from runstream_client.conformance.peer import DEADLINE_S, Peer, peer

from .conftest import TOKEN, Either
from .telling import REQUEST, RUN, stream


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    named = ["-subj", "/CN=someone", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run([*made, *named, "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    return cert, key


@pytest.fixture
def safe(certificate: tuple[Path, Path]) -> Generator[Peer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with peer(context) as made:
        yield made


def test_an_authority_of_ones_own_is_trusted_where_it_was_named(
    either: Either, safe: Peer, certificate: tuple[Path, Path]
) -> None:
    safe.answering(stream(RUN), stream(RUN[:2], ending="hold"))
    with either.client(safe.url, tls=ssl.create_default_context(cafile=str(certificate[0]))) as client:
        assert either.done(client.stream(REQUEST).result).text == "teal"
        reading = client.stream(REQUEST)
        either.step(reading)
        either.done(reading.close)
        assert safe.left.wait(DEADLINE_S)


def test_a_read_of_what_is_encrypted_is_ended_from_another_thread(safe: Peer, certificate: tuple[Path, Path]) -> None:
    safe.answering(stream(RUN[:1], ending="hold"))
    errors: list[ClientError] = []
    tls = ssl.create_default_context(cafile=str(certificate[0]))
    with Client(safe.url, token=TOKEN, tls=tls) as client, client.stream(REQUEST) as reading:
        next(reading)

        def read() -> None:
            try:
                next(reading)
            except ClientError as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        reading.close()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert [error.code for error in errors] == ["STREAM_CLOSED"]
    assert safe.left.wait(DEADLINE_S)


def test_a_certificate_that_nobody_vouches_for_is_refused(either: Either, safe: Peer) -> None:
    with either.client(safe.url) as client, pytest.raises(Unreachable, match="certificate"):
        either.done(client.protocol)
    assert safe.asked == []


def test_a_certificate_of_another_name_is_refused(either: Either, safe: Peer, certificate: tuple[Path, Path]) -> None:
    url, trusted = safe.url.replace("127.0.0.1", "localhost"), ssl.create_default_context(cafile=str(certificate[0]))
    with either.client(url, tls=trusted) as client, pytest.raises(Unreachable):
        either.done(client.protocol)
    assert safe.asked == []
