"""New keys and certificates for a deployment that goes on; docs/deployment.md says the steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedadmm.core.errors import ConfigError
from fedadmm.flower.local.keys import Certificates, make_certificates, make_node_key

NODE_KEY, NEXT, BOTH = "node-key", "next", "ca-both.crt"


class Rotated(NamedTuple):
    """What was written."""

    private: Path
    public: Path
    """To be carried to the other side: a node's to the server, an authority to the sites."""


def rotate_node_key(site: Path) -> Rotated:
    """A new key pair in a site's folder; the private half replaces the old one in one step."""
    path = site / NODE_KEY
    if not path.is_file():
        raise ConfigError(f"SITE is '{site}', but there is no {NODE_KEY} in it")
    fresh = site / f".{NODE_KEY}.new"
    public = make_node_key(fresh)
    os.replace(public, site / f"{NODE_KEY}.pub")
    os.replace(fresh, path)
    return Rotated(path, site / f"{NODE_KEY}.pub")


def rotate_certificates(keys: Path) -> Rotated:
    """A new authority and a new certificate for the same hosts, in the folder `next` below.

    Nothing that is in use changes.  `ca-both.crt` there trusts the old authority and the new one,
    for sites that are to notice nothing.
    """
    now = Certificates.in_folder(keys)
    for path in now:
        if not path.is_file():
            raise ConfigError(f"KEYS is '{keys}', but there is no {path.name} in it")
    if (keys / NEXT).exists():
        raise ConfigError(
            f"{keys / NEXT} is there already; finish that rotation first (mv), or remove it"
        )
    made = make_certificates(keys / NEXT, _hosts(now.certificate))
    both = keys / NEXT / BOTH
    both.write_bytes(made.authority.read_bytes() + now.authority.read_bytes())
    return Rotated(made.key, both)


def _hosts(certificate: Path) -> Sequence[str]:
    """The names and addresses that a certificate is for."""
    from cryptography import x509

    try:
        read = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        raise ConfigError(f"{certificate}: is no certificate of a server") from None
    return [str(name.value) for name in names]
