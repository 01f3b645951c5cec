"""Key files and the gate: who is let in, and when a change of the files counts."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.runtime.transport import keys as files
from dovetail.runtime.transport.access_control import LOG_EVERY_S, LOOK_EVERY_S, AccessControl
from dovetail.runtime.transport.keys import KeyPair, Keys, PublicKey


def pairs() -> Iterator[KeyPair]:
    """Numbers that are no real keys: files do not mind."""
    for i in itertools.count(1):
        yield KeyPair(f"{i:064x}", f"{i + 1000:064x}")


class TestFiles:
    def test_a_folder_of_one_key_is_server_and_client_at_once(self, tmp_path: Path) -> None:
        files.write_keys(tmp_path / "k", "me", next(pairs()))
        keys = Keys.load(tmp_path / "k")
        assert (keys.name, keys.pair.secret[-3:]) == ("me", "3e9")
        assert keys.allowed() == {keys.pair.public: "me"}
        assert keys.server("anywhere:1").key == keys.pair.public

    def test_private_keys_are_private(self, tmp_path: Path) -> None:
        files.write_keys(tmp_path / "k", "me", next(pairs()))
        own = tmp_path / "k" / files.OWN
        assert own.stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "k").stat().st_mode & 0o077 == 0
        assert "secret:" not in (tmp_path / "k" / "me.pub").read_text()
        assert Keys.load(tmp_path / "k").pair.secret not in repr(Keys.load(tmp_path / "k"))
        own.chmod(0o640)
        with pytest.raises(PermissionError, match="others may read it .*640.*chmod 600"):
            Keys.load(tmp_path / "k")

    def test_keys_are_not_overwritten(self, tmp_path: Path) -> None:
        files.write_keys(tmp_path, "me", next(pairs()))
        with pytest.raises(FileExistsError, match="not overwritten"):
            files.write_keys(tmp_path, "me", next(pairs()))
        with pytest.raises(FileExistsError, match="not overwritten"):
            files.write_cluster(tmp_path, [("a-0", "h:1")], ["c"], pairs())

    def test_a_cluster_s_folder_gets_no_key_of_its_own(self, tmp_path: Path) -> None:
        files.write_cluster(tmp_path, [("a-0", "h:1")], ["c"], pairs())
        with pytest.raises(FileExistsError, match=r"keys of a cluster \(a-0, c\).*such as .*alice"):
            files.write_keys(tmp_path, "alice", next(pairs()))
        assert Keys.load(tmp_path, "a-0").name == "a-0"

    def test_a_cluster_knows_itself(self, tmp_path: Path) -> None:
        tasks = [("ps-0", "10.0.0.1:2222"), ("worker-0", "localhost:2223"), ("worker-1", "localhost:0")]
        files.write_cluster(tmp_path, tasks, ["client", "alice"], pairs())
        worker = Keys.load(tmp_path, "worker-0")
        assert sorted(worker.allowed().values()) == ["alice", "client", "ps-0", "worker-0", "worker-1"]
        client = Keys.load(tmp_path)
        assert client.name == "client"
        assert client.server("10.0.0.1:2222").name == "ps-0"
        assert client.server("127.0.0.1:2223").name == "worker-0"  # the same address as localhost
        assert client.server("localhost:4242").name == "worker-1"  # the only one that may be anywhere
        assert not (tmp_path / "client" / files.ALLOWED).exists()

    def test_a_server_at_an_unknown_address_is_refused(self, tmp_path: Path) -> None:
        files.write_cluster(tmp_path, [("a-0", "h:1"), ("b-0", "h:2")], ["client"], pairs())
        with pytest.raises(PermissionError, match=r"at h:3 have\? .*a-0 at h:1, b-0 at h:2.*at: h:3"):
            Keys.load(tmp_path).server("h:3")

    def test_allow_then_revoke(self, tmp_path: Path) -> None:
        files.write_cluster(tmp_path / "c", [("a-0", "h:1"), ("b-0", "h:2")], ["client"], pairs())
        bob = PublicKey("bob", "ab" * 32)
        assert len(files.allow(tmp_path / "c", bob)) == 2
        keys = Keys.load(tmp_path / "c", "b-0")
        assert keys.allowed()[bob.key] == "bob"
        assert len(files.revoke(tmp_path / "c", "abababab")) == 2
        assert bob.key not in keys.allowed()
        with pytest.raises(LookupError, match="No key named 'bob'.*allowed: a-0, b-0, client"):
            files.revoke(tmp_path / "c", "bob")

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("", "no line `public:`"),
            ("name: x\npublic: 12\n", "no line `public:`"),
            (f"name: ../x\npublic: {'a' * 64}\n", "`name:`"),
            (f"name: x\npublic: {'a' * 64}\nsecret: {'b' * 64}\n", "private key, which stays"),
            ("x" * 100_000, "too large"),
        ],
    )
    def test_what_is_no_public_key(self, tmp_path: Path, text: str, says: str) -> None:
        path = tmp_path / "x.pub"
        path.write_text(text)
        with pytest.raises(ValueError, match=says):
            files.read_public(path)

    @pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 65])
    def test_names_are_names_of_files(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ValueError, match="cannot name a key"):
            files.write_keys(tmp_path, name, next(pairs()))

    def test_no_keys_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="dovetail keys new"):
            Keys.load(tmp_path)
        files.write_cluster(tmp_path, [("a-0", "h:1")], ["alice"], pairs())
        with pytest.raises(FileNotFoundError, match="neither own.key nor client/own.key; it has a-0, alice"):
            Keys.load(tmp_path)


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TestGate:
    @pytest.fixture
    def keys(self, tmp_path: Path) -> Keys:
        files.write_cluster(tmp_path, [("a-0", "h:1")], ["client"], pairs())
        return Keys.load(tmp_path, "a-0")

    def ask(self, gate: AccessControl, key: str) -> bytes:
        reply = gate.answer([b"1.0", b"7", b"dovetail", b"10.0.0.9", b"", b"CURVE", bytes.fromhex(key)])
        assert reply[:2] == [b"1.0", b"7"] and len(reply) == 6
        assert reply[4] == (key.encode() if reply[2] == b"200" else b"")
        return reply[2]

    def test_who_is_allowed(self, keys: Keys) -> None:
        gate = AccessControl(keys, "h:1", Clock())
        client = Keys.load(keys.folder.parent).pair.public
        assert self.ask(gate, client) == b"200"
        assert self.ask(gate, "ee" * 32) == b"300"
        assert gate.refused == 1

    def test_whom_is_told_at_once_and_then_seldom(self, keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
        clock = Clock()
        gate = AccessControl(keys, "h:1", clock)
        for _ in range(50):
            self.ask(gate, "ee" * 32)
        clock.now += LOG_EVERY_S + 1
        self.ask(gate, "ee" * 32)
        told = [r.getMessage() for r in caplog.records]
        assert len(told) == 2
        assert (
            told[0]
            == f"h:1: refused a connection from 10.0.0.9: the key {'ee' * 32} is not allowed: `dovetail keys allow` allows it"
        )
        assert told[1].endswith("(and 49 more like it)")

    def test_who_comes_with_a_wrong_key_after_one_without_is_told_too(
        self, keys: Keys, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dovetail.runtime.transport.access_control._host_of", lambda descriptor: "10.0.0.9")
        gate = AccessControl(keys, "h:1", Clock())
        for event in ("ACCEPTED", "HANDSHAKE_FAILED_PROTOCOL", "DISCONNECTED"):
            gate.happened(event, 5)
        self.ask(gate, "ee" * 32)
        told = [r.getMessage() for r in caplog.records]
        assert ["it has no key" in told[0], "is not allowed" in told[1]] == [True, True]

    def test_changes_are_noticed_and_end_connections(self, keys: Keys) -> None:
        clock = Clock()
        gate = AccessControl(keys, "h:1", clock)
        client = Keys.load(keys.folder.parent).pair.public
        listener = socket.create_server(("127.0.0.1", 0))
        with listener, socket.create_connection(listener.getsockname()) as theirs, listener.accept()[0] as ours:
            assert gate.enter(b"peer", client, ours.fileno())
            assert gate.owner(b"peer") == client
            assert gate.expel() == []
            files.revoke(keys.folder, "client")
            gate.look()
            assert gate.expel() == []  # not time to look yet
            clock.now += LOOK_EVERY_S
            gate.look()
            assert gate.expel() == [b"peer"]
            assert not gate.owner(b"peer")
            theirs.settimeout(15.0)
            assert theirs.recv(1) == b""  # it has been ended
            assert not gate.enter(b"peer", client, ours.fileno())

    def test_a_descriptor_that_leads_elsewhere_by_now_is_left_alone(self, keys: Keys) -> None:
        clock = Clock()
        gate = AccessControl(keys, "h:1", clock)
        client = Keys.load(keys.folder.parent).pair.public
        with socket.create_server(("127.0.0.1", 0)) as listener:
            first = socket.create_connection(listener.getsockname())
            ours = listener.accept()[0]
            number = ours.fileno()
            assert gate.enter(b"peer", client, number)
            ours.close()
            first.close()
            with socket.create_connection(listener.getsockname()) as second, listener.accept()[0] as other:
                assert number in (second.fileno(), other.fileno())  # the kernel gives the lowest free number
                files.revoke(keys.folder, "client")
                clock.now += LOOK_EVERY_S
                gate.look()
                assert gate.expel() == [b"peer"]
                second.sendall(b"x")
                assert other.recv(1) == b"x"

    def test_files_that_cannot_be_read_change_nothing(self, keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
        clock = Clock()
        gate = AccessControl(keys, "h:1", clock)
        client = Keys.load(keys.folder.parent).pair.public
        (keys.folder / files.ALLOWED / "broken.pub").write_text("nonsense")
        clock.now += LOOK_EVERY_S
        gate.look()
        assert "the old ones still hold" in caplog.text
        assert self.ask(gate, client) == b"200"
