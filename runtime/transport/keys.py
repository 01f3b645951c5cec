"""Keys that authenticate clients and servers, as files. No sockets.

A key pair is a secret number and the public number that follows from it (Curve25519). A server admits a client that proves an allowed
key, and a client talks only to a server that proves the expected key. Everything between the two
is encrypted. Public keys are no secret: they may be mailed. Secret keys never leave their folder.

A folder of keys belongs to one process, or to several processes with the same identity:

    own.key            the process's key pair; only its owner may read the file
    allowed/NAME.pub   keys of clients that this server admits, in addition to its own
    servers/NAME.pub   the key of a server, for the addresses in the file; without addresses, for all other servers

A cluster's folder has such a folder for each task and for each client, `worker-0/`, `client/`. Each machine needs only its own
parts. Deleting a file revokes a key. Servers reload their folders once a second, without a restart.

A key file has lines `word: value`; `#` begins a comment.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...graph.core.settings import setting

OWN = "own.key"
ALLOWED = "allowed"
SERVERS = "servers"
CLIENT = "client"  # the part of a cluster's folder for clients

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"[0-9a-f]{64}")
_MAX_FILE = 64 * 1024

_PRIVATE_HEAD = "# Dovetail: a PRIVATE key. Any process that has it can run programs on every server that allows it.\n"
_PUBLIC_HEAD = "# Dovetail: a public key. It is no secret. Allow it on a server: dovetail keys allow THIS_FILE\n"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key and its owner.

    Attributes:
        name: the owner's name.
        key: 64 hexadecimal digits.
        addresses: of a server: where it listens, `host:port`; empty: any address.
    """

    name: str
    key: str
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A public key and its secret, 64 hexadecimal digits each."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one process: its own, and the paths of the other keys.

    >>> keys = Keys.load("keys")              # doctest: +SKIP
    >>> keys.server("localhost:2222").name    # doctest: +SKIP
    'worker-0'
    """

    folder: Path
    name: str
    pair: KeyPair

    @classmethod
    def load(cls, folder: str | Path, part: str = CLIENT) -> Keys:
        """The keys in a folder; in a cluster's folder, those of one part: a task (`worker-0`), or a client.

        Raises:
            FileNotFoundError: there are none. PermissionError: others may read the private key. ValueError: a file is malformed.
        """
        folder = Path(folder).expanduser()
        if not (folder / OWN).exists() and (folder / part / OWN).exists():
            folder = folder / part
        if not (own := folder / OWN).exists():
            parts = ", ".join(sorted(f.name for f in parts_of(folder)))
            raise FileNotFoundError(
                f"There is no key in {folder}: neither {OWN} nor {part}/{OWN}"
                + (f"; it has {parts}" if parts else ". Make keys with `dovetail keys new`")
            )
        mode = own.stat().st_mode
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise PermissionError(
                f"{own} is a private key, and others may read it (its mode is {stat.S_IMODE(mode):o}): chmod 600 {own}. If "
                "somebody did, make new keys"
            )
        words = _read(own)
        if not _KEY.fullmatch(words.get("secret", [""])[0]):
            raise ValueError(f"{own} holds no private key: there is no line `secret:` with 64 hexadecimal digits")
        public = _public(own, words)
        return cls(folder, public.name, KeyPair(public.key, words["secret"][0]))

    def allowed(self) -> dict[str, str]:
        """Public key -> name of all that may connect to this server, including its own key."""
        return {self.pair.public: self.name, **{k.key: k.name for k in public_keys(self.folder / ALLOWED)}}

    def server(self, address: str) -> PublicKey:
        """The key that the server at an address must have.

        Raises:
            PermissionError: the key is not known.
        """
        known = list(public_keys(self.folder / SERVERS))
        if not known:
            return PublicKey(self.name, self.pair.public)  # one key for all tasks
        anywhere = [k for k in known if not k.addresses]
        for key in known:
            if _same(address) in map(_same, key.addresses):
                return key
        if len(anywhere) == 1:
            return anywhere[0]
        where = ", ".join(f"{k.name} at {' and '.join(k.addresses) or 'any address'}" for k in known)
        raise PermissionError(
            f"Which key must the server at {address} have? {self.folder / SERVERS} knows {where}. Use one of these addresses, or add "
            f"a line `at: {address}` to the right file"
        )


def server_keys(folder: str | Path | None, part: str) -> Keys | None:
    """The keys of a task: from a folder; without one, from that of `DOVETAIL_KEYS`, or none. Raises as `Keys.load` does."""
    folder = folder or setting("DOVETAIL_KEYS")
    return Keys.load(folder, part) if folder else None


def client_keys(folder: str | Path | None = None) -> Keys | None:
    """The keys of a client, as `server_keys`. Without a folder, a client in a server's process uses the server's keys."""
    if folder:
        return Keys.load(folder)
    return keys_of_servers[0] if keys_of_servers else server_keys(None, CLIENT)


keys_of_servers: list[Keys] = []  # of the servers that this process runs


def part_of(job: str, task_index: int) -> str:
    """The name of a task's part of a cluster's folder."""
    return f"{job}-{task_index}"


# --- creating and changing ---------------------------------------------------------------------------------------------


def write_keys(folder: Path, name: str, pair: KeyPair, addresses: Iterable[str] = ()) -> PublicKey:
    """Write a new key pair into a folder, and its public key as a separate file to hand out.

    Raises:
        FileExistsError: the folder has a key already, or is a cluster's. ValueError: the name cannot be a file name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a key: use letters, digits, '.', '_' and '-'")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (folder / OWN).exists():
        raise FileExistsError(f"{folder / OWN} exists: it is not overwritten. Delete it to make another key")
    if parts := list(parts_of(folder)):
        raise FileExistsError(
            f"{folder} has the keys of a cluster ({', '.join(p.name for p in parts)}), and its own would take the place of all of them: "
            f"name another folder, such as {folder / name}"
        )
    public = PublicKey(name, pair.public, tuple(addresses))
    text = f"{_PRIVATE_HEAD}name: {name}\npublic: {pair.public}\nsecret: {pair.secret}\n"
    descriptor = os.open(folder / OWN, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
    _write_public(folder, public)
    return public


def write_cluster(
    folder: Path, tasks: Iterable[tuple[str, str]], clients: Iterable[str], pairs: Iterator[KeyPair]
) -> list[PublicKey]:
    """Create a folder of keys for all tasks of a cluster and its clients: all may connect to all tasks.

    Args:
        folder: must not have keys yet.
        tasks: part (`worker-0`) and address of each task.
        clients: names of clients.
        pairs: new key pairs.

    Raises:
        FileExistsError: the folder has keys already. ValueError: names are invalid, or tasks are not distinct.
    """
    addresses = dict(tasks)
    clients = list(clients)
    if sum(map(_is_open, addresses.values())) > 1:
        raise ValueError(
            "A client must know which key to expect at which address: give the address of each task, host:port, as others reach it. For "
            "tasks of one machine one key is enough: make it without a cluster, and let all tasks use its folder"
        )
    if any(True for _ in parts_of(folder)) or (folder / OWN).exists():
        raise FileExistsError(f"There are keys in {folder} already: they are not overwritten. Choose another folder")
    double = [name for name in clients if name in addresses or clients.count(name) > 1]
    if double:
        raise ValueError(f"Two parts cannot both be called {double[0]!r}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A server with port 0 listens on another port.
    made = [
        write_keys(folder / name, name, next(pairs), () if _is_open(address) else (address,))
        for name, address in (*addresses.items(), *((c, "") for c in clients))
    ]
    for part in made:
        for key in made:
            if part.name in addresses:
                _write_public(folder / part.name / ALLOWED, key)
            if key.name in addresses:
                _write_public(folder / part.name / SERVERS, key)
    return made


def allow(folder: Path, key: PublicKey) -> list[Path]:
    """Allow a key at the server of a folder, or at all servers of a cluster's folder. Returns the written files.

    Raises:
        FileNotFoundError: the folder has no keys.
    """
    return [_write_public(part / ALLOWED, key) for part in _server_folders(folder)]


def revoke(folder: Path, name: str) -> list[Path]:
    """Revoke a key, given by its name or its first digits (at least 8). Running servers end its connections.

    Raises:
        FileNotFoundError: the folder has no keys. LookupError: no such key is allowed there.
    """
    deleted: list[Path] = []
    known: set[str] = set()
    for part in _server_folders(folder):
        for path in sorted((part / ALLOWED).glob("*.pub")):
            key = read_public(path)
            known.add(key.name)
            if key.name == name or (len(name) >= 8 and key.key.startswith(name)):
                path.unlink()
                deleted.append(path)
    if not deleted:
        raise LookupError(
            f"No key named {name!r} is allowed in {folder}; allowed: {', '.join(sorted(known)) or 'none'}"
        )
    return deleted


def parts_of(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(f for f in folder.iterdir() if (f / OWN).is_file())


def public_keys(folder: Path) -> Iterator[PublicKey]:
    """The public keys in a folder, by name. Raises as `read_public` does."""
    return map(read_public, sorted(folder.glob("*.pub")))


def read_public(path: Path) -> PublicKey:
    """Read a public key from a file.

    Raises:
        ValueError: it has no key, or a private one. OSError: it cannot be read.
    """
    words = _read(path)
    if "secret" in words:
        raise ValueError(
            f"{path} is a private key, which stays where it is: hand out the file ending in .pub beside it"
        )
    return _public(path, words)


def _server_folders(folder: Path) -> list[Path]:
    if (folder / OWN).exists():
        return [folder]
    tasks = [part for part in parts_of(folder) if (part / ALLOWED).is_dir()]
    if not tasks:
        raise FileNotFoundError(f"There is no server's key in {folder}. Make keys with `dovetail keys new`")
    return tasks


def _public(path: Path, words: dict[str, list[str]]) -> PublicKey:
    name, key = words.get("name", [""])[0], words.get("public", [""])[0]
    if not _KEY.fullmatch(key):
        raise ValueError(f"{path} holds no key: there is no line `public:` with 64 hexadecimal digits")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{path}: the line `name:` is missing, or holds more than letters, digits, '.', '_' and '-'")
    return PublicKey(name, key, tuple(words.get("at", ())))


def _read(path: Path) -> dict[str, list[str]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(_MAX_FILE + 1)
    if len(text) > _MAX_FILE:
        raise ValueError(f"{path} is no key file: it is too large")
    words: dict[str, list[str]] = {}
    for line in text.splitlines():
        word, colon, value = line.partition(":")
        if colon and not line.startswith("#"):
            words.setdefault(word.strip(), []).append(value.strip())
    return words


def _write_public(folder: Path, key: PublicKey) -> Path:
    """Write a public key's file atomically: a server may read it at any time."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{key.name}.pub"
    lines = [f"name: {key.name}", f"public: {key.key}", *(f"at: {a}" for a in key.addresses)]
    draft = folder / f".{key.name}.{os.getpid()}"
    draft.write_text(_PUBLIC_HEAD + "\n".join(lines) + "\n", encoding="ascii")
    draft.replace(path)
    return path


def _same(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{'127.0.0.1' if host == 'localhost' else host.lower()}:{port}"


def _is_open(address: str) -> bool:
    return not address or address.endswith(":0") or address.startswith(("*:", "0.0.0.0:", "[::]:"))
