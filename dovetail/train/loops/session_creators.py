"""Creators of the sessions of a monitored session: the chief's initialises or restores, a worker's waits for the chief."""

from __future__ import annotations

from typing import Protocol

from ...graph.core.default_graph import get_default_graph
from ...runtime.config import ConfigProto
from ...runtime.session.session import Session
from .scaffold import Scaffold
from .session_manager import SessionManager


class SessionCreator(Protocol):
    """What makes a session that is ready."""

    def create_session(self) -> Session:
        """A new session."""


class ChiefSessionCreator:
    """Makes the chief's sessions: restores the latest checkpoint, or initialises.

    Args:
        scaffold: a `Scaffold`; None: one of defaults. master: the target. config: a `ConfigProto`.
        checkpoint_dir: the folder of checkpoints. checkpoint_filename_with_path: or one checkpoint.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        self._scaffold = scaffold or Scaffold()
        self._master, self._config = master, config
        self._folder, self._path = checkpoint_dir, checkpoint_filename_with_path

    def create_session(self) -> Session:
        """A session whose variables are restored or initialised."""
        s = self._scaffold.finalize()
        return _manager(s).prepare_session(
            self._master, s.init_op, s.saver, self._folder, self._path, config=self._config,
            init_feed_dict=s.init_feed_dict, init_fn=s.init_fn,
        )  # fmt: skip


class WorkerSessionCreator:
    """Makes the other workers' sessions: waits until the chief has initialised the variables.

    Args:
        scaffold, master, config: as of `ChiefSessionCreator`. max_wait_secs: how long to wait.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        max_wait_secs: float = 30 * 60,
    ) -> None:
        self._scaffold = scaffold or Scaffold()
        self._master, self._config, self._max_wait_s = master, config, max_wait_secs

    def create_session(self) -> Session:
        """A session whose variables the chief has initialised."""
        s = self._scaffold.finalize()
        return _manager(s).wait_for_session(self._master, self._config, self._max_wait_s)


def _manager(s: Scaffold) -> SessionManager:
    return SessionManager(
        s.local_init_op, s.ready_op, s.ready_for_local_init_op, get_default_graph(),
        local_init_feed_dict=s.local_init_feed_dict,
    )  # fmt: skip
