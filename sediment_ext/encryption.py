"""Encrypt exports and backups, and open them again: age files (age-encryption.org).

The library is loaded when it is first used. Only with recipients it can encrypt a file piece by
piece: with a passphrase, all of it is in memory.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import click

import sediment as core

BY_PASSPHRASE_MAX = 2**30  # bytes, which take three times as much memory
_VERSION = b"age-encryption.org/"
_ARMOR = b"-----BEGIN AGE ENCRYPTED FILE-----"
_HEAD = 128  # bytes that tell what a file is and what opens it

# A passphrase, or else a list: to encrypt, recipients or SSH public keys; to open, the texts of
# identities or SSH private keys.
Key = str | Sequence[str]


def is_encrypted(head: bytes) -> bool:
    """Whether a file that begins so is an age file."""
    return head.startswith((_VERSION, _ARMOR))


def is_encrypted_file(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return path.is_file() and is_encrypted(file.read(_HEAD))
    return False


def _takes_passphrase(head: bytes) -> bool:
    """Whether it is a passphrase that opens an age file."""
    if head.startswith(_ARMOR):
        line = re.sub(rb"\s+", b"", head.removeprefix(_ARMOR))
        head = base64.b64decode(line[: len(line) // 4 * 4])
    return b"\n-> scrypt " in head


# Files


def seal(source: IO[bytes], target: Any, key: Key) -> None:
    """Encrypt a file into another."""
    with _age(key) as age:
        if isinstance(key, str):
            target.write(age.passphrase.encrypt(_whole(source), key))
        else:
            age.encrypt_io(source, target, [_recipient(age, one) for one in key])


def unseal(source: IO[bytes], target: Any, key: Key) -> None:
    """Open an age file into another; InvalidInput where the key is wrong or the file damaged. What
    it wrote before an error counts for nothing."""
    with _age(key) as age:
        if isinstance(key, str):
            target.write(age.passphrase.decrypt(_whole(source), key))
        else:
            age.decrypt_io(source, target, [_identity(age, one) for one in key])


def seal_file(path: Path, target: Path, key: Key) -> None:
    """Encrypt a file to a name that is free, whole or not at all."""
    try:
        with path.open("rb") as source, core.replacing(target, 0o600, new=True) as draft:
            seal(source, draft.buffer, key)
    except OSError as error:
        raise core.DatabaseError(f"{target} cannot be written ({error.strerror})") from None


def open_file(path: Path, target: Path, key: Key | None) -> None:
    """Open an age file to another, which only this user may read."""
    if key is None:
        raise core.InvalidInput(f"{path} is encrypted: give its passphrase or an identity")
    try:
        with path.open("rb") as source, core.replacing(target, 0o600) as draft:
            unseal(source, draft.buffer, key)
    except OSError as error:
        raise core.DatabaseError(f"{path} cannot be opened ({error.strerror})") from None


def _whole(file: IO[bytes]) -> bytes:
    data = file.read(BY_PASSPHRASE_MAX + 1)
    if len(data) > BY_PASSPHRASE_MAX:
        limit = f"{BY_PASSPHRASE_MAX / 1e9:.1f} GB"
        raise core.InvalidInput(f"a passphrase is for files up to {limit}: use --recipient")
    return data


@contextlib.contextmanager
def _age(key: Key) -> Iterator[Any]:
    """The library, for a key; what it raises is told in one line."""
    if not key:
        raise core.InvalidInput("a key is a passphrase, or a list of recipients or identities")
    with core.loading("pyrage"):
        import pyrage
    age: Any = pyrage
    try:
        yield age
    except age.EncryptError as error:  # such as a full disk
        reason = core.one_line(re.sub(r"^\w+: (\[Errno \d+\] )?", "", str(error)), core.PREVIEW)
        raise core.InvalidInput(f"the encrypted file cannot be written ({reason})") from None
    except age.DecryptError as error:
        raise core.InvalidInput(_REASONS.get(str(error), _DAMAGED)) from None
    except OSError as error:
        if error.errno:
            raise
        raise core.InvalidInput(_DAMAGED) from None


_DAMAGED = "the encrypted file is damaged or cut short: take another copy of it"
_REASONS = {  # as the library words them
    "Decryption failed": "the passphrase is wrong, or the encrypted file is damaged",
    "No matching keys found": "no identity given opens the encrypted file, or it is damaged",
}


# Keys


def _recipient(age: Any, text: str) -> Any:
    kind = age.ssh if text.startswith("ssh-") else age.x25519
    with contextlib.suppress(age.RecipientError):
        return kind.Recipient.from_str(text)
    form = "an age recipient (age1...), an SSH public key (RSA or Ed25519), or a file of these"
    raise core.InvalidInput(f"a recipient is {form}")  # it may be a secret key: it is not shown


def _identity(age: Any, text: str) -> Any:
    with contextlib.suppress(age.IdentityError):
        if text.startswith("-----BEGIN"):
            return age.ssh.Identity.from_buffer(text.encode())
        return age.x25519.Identity.from_str(text)
    form = "AGE-SECRET-KEY-1..., or an SSH private key without a passphrase"
    raise core.InvalidInput(f"an identity file has {form}")


def _lines(path: str) -> list[str]:
    """The lines of a file of keys that are no comments; an SSH private key is one whole."""
    text = _read(path).decode("utf-8", "replace")
    if text.lstrip().startswith("-----BEGIN"):
        return [text.lstrip()]
    lines = [line.strip() for line in text.splitlines()]
    if found := [line for line in lines if line and not line.startswith("#")]:
        return found
    raise core.InvalidInput(f"{path} has no keys")


def _read(path: str | int) -> bytes:
    """What a small file has, or a file descriptor that this process was given."""
    name = f"file descriptor {path}" if isinstance(path, int) else path
    try:
        with open(path if isinstance(path, int) else core.expand_home(path), "rb") as file:
            return file.read(core.PLAIN_MAX)
    except OSError as error:
        raise core.InvalidInput(f"{name} cannot be read ({error.strerror})") from None


# The command line


def sealing_key(recipient: Sequence[str] = (), **secret: Any) -> Key:
    """The key to encrypt with, by the options given."""
    _check_one(recipient=recipient, **secret)
    named = [[one] if one.startswith(("age1", "ssh-")) else _lines(one) for one in recipient]
    return [key for keys in named for key in keys] or _passphrase(new=True, **secret)


def opening_key(head: bytes, identity: Sequence[str] = (), **secret: Any) -> Key:
    """The key to open a file that begins so, by the options given."""
    _check_one(identity=identity, **secret)
    if _takes_passphrase(head):
        if identity:
            raise core.InvalidInput("a passphrase opens this file: leave --identity out")
        return _passphrase(**secret)
    if not identity:
        raise core.InvalidInput("this file is encrypted for recipients: give --identity FILE")
    return [key for path in identity for key in _lines(path)]


def _check_one(**given: Any) -> None:
    """UsageError for two ways to give a key."""
    names = [name.replace("_", "-") for name, value in given.items() if value not in (None, ())]
    if len(names) > 1:
        raise click.UsageError(f"--{names[1]} has no effect with --{names[0]}")


def _passphrase(
    new: bool = False, passphrase_file: str | None = None, passphrase_fd: int | None = None
) -> str:
    """The first line of the file or descriptor given, else what a person types."""
    given = passphrase_file if passphrase_fd is None else passphrase_fd
    if given is None:
        if not sys.stdin.isatty():
            ways = f"--passphrase-file FILE{' or --recipient' if new else ''}"
            raise core.InvalidInput(f"no terminal to ask for the passphrase: give {ways}")
        text = click.prompt("Passphrase", hide_input=True, confirmation_prompt=new, err=True)
    else:
        text = (_read(given).decode("utf-8", "surrogateescape").splitlines() or [""])[0]
    if not text.isprintable() or not text:
        raise core.InvalidInput("a passphrase is one line of text, and not empty")
    return text


def run_backup(shared: core.Context, path: str, encrypt: bool = False, **given: Any) -> None:
    if not encrypt:
        core.refuse_unused(click.get_current_context(), plain=True)
    key = sealing_key(**given) if encrypt else None
    with shared.memory() as memory:
        shared.show(memory.backup(path, key=key), core.render_message)


def run_restore(shared: core.Context, path: str, **given: Any) -> None:
    source, key = core.absolute_path(path), None
    if is_encrypted_file(source):
        with source.open("rb") as file:
            key = opening_key(file.read(_HEAD), **given)
    else:
        core.refuse_unused(click.get_current_context(), plain=True)
    with shared.memory() as memory:
        shared.show(memory.restore(path, key=key), core.render_message)


def opened(file: IO[bytes], **given: Any) -> io.BytesIO | None:
    """What an age file holds, once all of it is known to be sound; None of another file, of which
    nothing is read."""
    head = file.peek(_HEAD)[:_HEAD] if isinstance(file, io.BufferedReader) else b""
    if not is_encrypted(head):
        return None
    plain = io.BytesIO()
    unseal(file, plain, opening_key(head, **given))
    plain.seek(0)
    return plain
