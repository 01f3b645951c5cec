"""Python bindings of NVIDIA's libraries that a machine may do without: cuBLASLt, NCCL."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


class OptionalBindings:
    """A module that is imported when it is first asked for. Tests put stand-ins in its place.

    Args:
        library: what people call it, for the log.
        module: its full name.
        probe: a function of it that is called once, which fails where the library itself is missing.
        instead: gives something with the same functions, where the module cannot be used; fails where that cannot be, either.

    >>> cublaslt = OptionalBindings("cuBLASLt", "nvmath.bindings.cublasLt")
    >>> lt = cublaslt()
    """

    def __init__(self, library: str, module: str, probe: str = "", instead: Callable[[], Any] | None = None) -> None:
        self._library, self._module, self._probe, self._instead = library, module, probe, instead
        self._found: Any = None

    def __call__(self) -> Any:
        """The module, or what a test put in its place; False where it cannot be used."""
        if self._found is None:
            self._found = self._imported() or self._other()
        return self._found

    def _imported(self) -> Any:
        if importlib.util.find_spec(self._module.partition(".")[0]) is None:
            return False
        try:
            found = importlib.import_module(self._module)
            if self._probe:
                getattr(found, self._probe)()
        except (
            Exception
        ) as e:  # bindings have errors of their own for a library that is missing, which have no common class
            logger.info("%s is not used by way of %s: %s", self._library, self._module, e)
            return False
        return found

    def _other(self) -> Any:
        if self._instead is None:
            return False
        try:
            return self._instead()
        except (ImportError, OSError) as e:
            logger.info("%s is not used: %s", self._library, e)
            return False

    def use(self, stand_in: Any) -> Any:
        """Put something in the place of the module (None: the real one, found anew); gives what was there."""
        before, self._found = self._found, stand_in
        return before
