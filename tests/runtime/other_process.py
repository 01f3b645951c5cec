"""Another process, which works on a task's memory while a test looks."""

from __future__ import annotations

import subprocess
import sys


class OtherProcess:
    """A process that runs a program, says `up`, and then does what each line tells it and says `done`.

    Args:
        program: its text. given: its arguments.
    """

    def __init__(self, program: str, *given: str) -> None:
        command = [sys.executable, "-c", program, *given]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "up\n"

    def begin(self, *words: object) -> None:
        """Tell it to do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Wait until it has done that."""
        assert self._line() == "done\n"

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.communicate(timeout=60)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()
