"""The key that signs certificates, and the secret for their digests: two files with mode 0600, outside the data directory.

    <path>            Ed25519 private key, PKCS #8 in PEM
    <path>.secret     32 random bytes in hexadecimal: needed to compare digests in certificates

Both are created on first use, unless the data directory already has certificates or intents, which depend on an earlier key
(`check_there`). A file that others may read is refused. `cryptography` is not imported before it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from diamant.storage.env.user_directory import user_directory
from diamant.storage.errors import StorageError
from diamant.storage.input_file import read_input, read_input_mode

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MODE = 0o600
SECRET_BYTES = 32
MAX_FILE_BYTES = 64 * 1024


def default_path() -> str:
    """Return the key's path if `diamant.certificate.key.file` is not set. Raises StorageError if the user has no known home."""
    home = user_directory("XDG_CONFIG_HOME", ".config")
    if home is None:
        raise StorageError(
            f"the broker's user {os.getuid()} has no known home directory for the key: "
            "set diamant.certificate.key.file to a path"
        )
    return os.path.join(home, "diamant", "certificate.key")


def check_outside(path: str, directory: str) -> None:
    """Raise StorageError if the key or its secret is, or would be created, in a broker's data directory.

    There, anyone with a copy of the data, such as a backup, could find out whose digests the certificates contain, read the
    intents, and sign certificates. Follows links; does blocking I/O.
    """
    inside = os.path.join(os.path.realpath(directory), "")
    for file in (path, f"{path}.secret"):
        if os.path.realpath(file).startswith(inside):
            raise StorageError(
                f"{file} is inside the data directory {directory}, where neither the key that signs certificates nor the "
                "secret of their digests may lie: move both files elsewhere, and set diamant.certificate.key.file to the new path"
            )


def check_there(path: str) -> None:
    """Raise StorageError if the key or its secret is missing. Call this only if certificates or intents depend on them.

    Does blocking I/O.
    """
    missing = [file for file in (path, f"{path}.secret") if not os.path.exists(file)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise StorageError(
            f"{' and '.join(missing)} {verb} missing, and the data directory has certificates or unfinished erasures of that "
            "key: restore it (is its disk mounted?). If it is lost, move diamant-erasure-* and diamant-redaction-* "
            "out of the data directory; then a new key and secret are made, which cannot continue those erasures or compare "
            "their digests"
        )


class SigningKey:
    """A private key and a secret, in memory."""

    def __init__(self, private: Ed25519PrivateKey, secret: bytes) -> None:
        self._private = private
        self.secret = secret

    @classmethod
    def load(cls, path: str) -> SigningKey:
        """Load the key and its secret, and create those that are missing.

        Does blocking I/O. Raises OSError, and StorageError if a file is unusable.
        """
        from cryptography.hazmat.primitives import serialization as forms
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        pem = _read(path)
        if pem is None:
            made = Ed25519PrivateKey.generate()
            pem = made.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
            pem = _create(path, pem)
        try:
            private = forms.load_pem_private_key(pem, None)
        except (ValueError, TypeError):
            raise StorageError(f"{path}: expected an Ed25519 private key in PEM, without a password") from None
        if not isinstance(private, Ed25519PrivateKey):
            raise StorageError(f"{path}: expected an Ed25519 key, got a key of another kind")
        return cls(private, load_secret(f"{path}.secret", is_made=True))

    def sign(self, data: bytes) -> bytes:
        """Return the 64 bytes of the signature."""
        return self._private.sign(data)

    @property
    def public_bytes(self) -> bytes:
        """The 32 bytes of the public key."""
        return self._private.public_key().public_bytes_raw()

    @property
    def public_pem(self) -> str:
        """The public key as PEM, for verifiers to pin."""
        from cryptography.hazmat.primitives import serialization as forms

        public = self._private.public_key()
        return public.public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo).decode("ascii")

    def encrypt(self, data: bytes) -> bytes:
        """Encrypt `data` with a key derived from the secret (AES-256-GCM); the result begins with the 12-byte nonce."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = os.urandom(12)
        return nonce + AESGCM(self._intent_key()).encrypt(nonce, data, None)

    def decrypt(self, data: bytes) -> bytes:
        """Decrypt the output of `encrypt`. Raises ValueError if it is damaged or was encrypted with another secret."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            return AESGCM(self._intent_key()).decrypt(data[:12], data[12:], None)
        except (InvalidTag, ValueError):
            raise ValueError("it was not encrypted with this secret, or it is damaged") from None

    def _intent_key(self) -> bytes:
        from diamant.cleaner.evidence.search.needles import keyed_digest

        return keyed_digest(self.secret, b"diamant erase intent")


def load_secret(path: str, *, is_made: bool = False) -> bytes:
    """Return the secret in a file; create a missing file if `is_made`.

    Raises OSError, and StorageError if the file does not contain a secret or others may read it.
    """
    text = _read(path, is_private=_is_secret)
    if text is None:
        if not is_made:
            raise FileNotFoundError(2, "No such file", path)
        text = _create(path, os.urandom(SECRET_BYTES).hex().encode())
    if not _is_secret(text):
        what = "a key in PEM" if b"-----BEGIN" in text else "something else"
        raise StorageError(
            f"{path}: expected the secret of the digests, {2 * SECRET_BYTES} hexadecimal digits (the file beside the signing "
            f"key whose name ends with .secret), got {what}"
        )
    return bytes.fromhex(text.decode("ascii").strip())


def _is_secret(text: bytes) -> bool:
    try:
        return len(bytes.fromhex(text.decode("ascii").strip())) == SECRET_BYTES
    except ValueError:
        return False


def read_public_key(path: str) -> bytes:
    """Read an Ed25519 public key in PEM or hexadecimal; return its 32 bytes. Raises OSError, or StorageError if it is not one."""
    text = read_input(path, MAX_FILE_BYTES)
    try:
        if b"BEGIN" not in text:
            found = bytes.fromhex(text.decode("ascii").strip())
            if len(found) == 32:
                return found
            raise ValueError
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        key = load_pem_public_key(text)
        if isinstance(key, Ed25519PublicKey):
            return key.public_bytes_raw()
    except ValueError:
        pass  # not a key; reported below
    raise StorageError(f"{path}: expected an Ed25519 public key, in PEM or as 64 hexadecimal digits")


def _read(path: str, is_private: Callable[[bytes], bool] = bool) -> bytes | None:
    """Return a file's content; None if it does not exist. Raises StorageError if others may read content that `is_private`."""
    try:
        content, mode = read_input_mode(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    if mode & 0o077 and is_private(content):
        raise StorageError(f"{path}: its mode is {mode:04o}, expected {MODE:04o}: others may read it. chmod 600 it")
    return content


def _create(path: str, content: bytes) -> bytes:
    """Create a file and return its content. If another process creates the file first, return that process's content."""
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, mode=0o700, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            # Unlike a rename, a link never replaces a file that another process has just created.
            os.link(temporary, path)
        except FileExistsError:
            return _read(path) or content
    finally:
        os.unlink(temporary)
    return content
