"""TLS certificates and keys of nodes: creation, and rotation while a deployment goes on.

Private ones are readable by their owner only; docs/operations.md has the steps of a rotation.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedadmm.core.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509


_DAYS = 365


class Certificates(NamedTuple):
    """The files of a federation's own certificate authority and of its server."""

    authority: Path
    """Public; every site needs it."""
    certificate: Path
    """Public; the server's."""
    key: Path
    """Private; stays on the server."""

    @classmethod
    def in_folder(cls, folder: Path) -> Certificates:
        """Return the files under their usual names in a folder."""
        return cls(folder / "ca.crt", folder / "server.crt", folder / "server.key")


def write_private(path: Path, data: bytes) -> None:
    """Write a file that is readable by its owner only, from the moment it exists."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        os.fchmod(stream.fileno(), 0o600)
        stream.write(data)


def make_certificates(folder: Path, hosts: Sequence[str], days: int = _DAYS) -> Certificates:
    """Create an authority and a server certificate for these host names and addresses.

    The authority's private key is used once and not written anywhere: to change a host, make new
    certificates and hand out the new authority.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    name = _name("fedadmm federation authority")
    issuer = authority_key.public_key()
    authority = (
        _certificate(name, name, issuer, days, authority=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(issuer), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    server = (
        _certificate(_name(hosts[0]), name, server_key.public_key(), days, authority=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    files = Certificates.in_folder(folder)
    files.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    files.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))
    private = server_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(files.key, private)
    return files


def make_operator_key(path: Path) -> str:
    """Create the Ed25519 key that signs an operator's tasks; return its public half in hex."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(path, private)
    public = key.public_key().public_bytes_raw().hex()
    path.with_name(path.name + ".pub").write_text(public + "\n")
    return public


def make_node_key(path: Path) -> Path:
    """Create a node's key pair: `path` is private, `path`.pub is registered by the server."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    path.parent.mkdir(parents=True, exist_ok=True)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    write_private(path, private)
    public = path.with_name(path.name + ".pub")
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return public


def make_identity(site: Path) -> str:
    """Create a site's identity for masked sums unless it has one; return its public half."""
    from fedadmm.core.pairwise_masks import new_identity, public_identity

    path = site / "identity"
    if not path.exists():
        site.mkdir(parents=True, exist_ok=True)
        write_private(path, new_identity().hex().encode())
    return public_identity(bytes.fromhex(path.read_text())).hex()


def make_identities(sites: Sequence[Path]) -> None:
    """Create an identity for every site, and the list of all public ones in each folder."""
    listed = {str(client): make_identity(site) for client, site in enumerate(sites)}
    for site in sites:
        (site / "peers.json").write_text(json.dumps(listed, indent=1))


def add_peer(path: Path, client: int, identity: str) -> None:
    """Add a site's public identity to a list of those that may be in a masked sum."""
    proper = len(identity) == 64 and set(identity) <= set("0123456789abcdef")
    if not proper:
        raise ConfigError(f"--peer: got {identity!r}, expected 64 hexadecimal digits.")
    listed = json.loads(path.read_text()) if path.is_file() else {}
    if listed.get(str(client), identity) != identity:
        raise ConfigError(f"{path.name}: client {client} has another identity already.")
    path.write_text(json.dumps(listed | {str(client): identity}, indent=1))


def _name(text: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: Any, days: int, *, authority: bool
) -> x509.CertificateBuilder:
    """Return the builder of an authority's certificate, or of a server's."""
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    never = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys((*never, "encipher_only", "decipher_only"), False)
    usage |= {"digital_signature": True, "key_cert_sign": authority, "crl_sign": authority}
    constraints = x509.BasicConstraints(ca=authority, path_length=0 if authority else None)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(constraints, critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
    )


NODE_KEY, NEXT, BOTH = "node-key", "next", "ca-both.crt"


class Rotated(NamedTuple):
    """The files that were written."""

    private: Path
    public: Path
    """To be carried to the other side: a node's to the server, an authority to the sites."""


def rotate_node_key(site: Path) -> Rotated:
    """Create a new key pair in a site's folder; the private half is replaced atomically."""
    path = site / NODE_KEY
    if not path.is_file():
        raise ConfigError(f"SITE is '{site}', but there is no {NODE_KEY} in it")
    fresh = site / f".{NODE_KEY}.new"
    public = make_node_key(fresh)
    os.replace(public, site / f"{NODE_KEY}.pub")
    os.replace(fresh, path)
    return Rotated(path, site / f"{NODE_KEY}.pub")


def rotate_certificates(keys: Path) -> Rotated:
    """Create a new authority and certificate for the same hosts, in the subfolder `next`.

    Nothing that is in use changes.  `ca-both.crt` there contains the old authority and the new one,
    so that sites can trust both during the rotation.
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
    """Return the host names and addresses of a certificate."""
    from cryptography import x509

    try:
        read = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        raise ConfigError(f"{certificate}: is no certificate of a server") from None
    return [str(name.value) for name in names]
