"""Certificates that tests make up, each by an authority that nobody else knows."""

import ssl
from pathlib import Path
from typing import NamedTuple

import trustme


class Papers(NamedTuple):
    """PEM files: a certificate with its key, and whom to trust so as to trust it."""

    authority: Path
    certificate: Path
    key: Path

    def shown(self, *, to: Path | None = None) -> ssl.SSLContext:
        """What a server shows them with; clients must show one that *to* vouches for, if that is given."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=to)
        context.load_cert_chain(self.certificate, self.key)
        if to is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def papers_for(folder: Path, *names: str) -> Papers:
    """Write a certificate for host *names* into a new *folder*, by an authority of its own."""
    folder.mkdir()
    papers = Papers(*(folder / name for name in ("authority.pem", "certificate.pem", "key.pem")))
    authority = trustme.CA()
    made = authority.issue_cert(*names)
    authority.cert_pem.write_to_path(str(papers.authority))
    made.private_key_pem.write_to_path(str(papers.key))
    for number, pem in enumerate(made.cert_chain_pems):
        pem.write_to_path(str(papers.certificate), append=number > 0)
    return papers
