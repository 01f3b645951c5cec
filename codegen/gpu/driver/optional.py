"""Python bindings of NVIDIA's libraries that a machine may do without: cuBLASLt, NCCL."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import Any

logger = logging.getLogger(__name__)


class OptionalBindings:
    """A module that is imported when it is first asked for. Tests put stand-ins in its place.

    Args:
        library: what people call it, for the log.
        module: its full name.
        probe: a function of it that is called once, which fails where the library itself is missing.

    >>> cublaslt = OptionalBindings("cuBLASLt", "nvmath.bindings.cublasLt")
    >>> lt = cublaslt()
    """

    def __init__(self, library: str, module: str, probe: str = "") -> None:
        self._library, self._module, self._probe = library, module, probe
        self._found: Any = None

    def __call__(self) -> Any:
        """The module, or what a test put in its place; False where it cannot be used."""
        if self._found is None:
            self._found = self._imported()
        return self._found

    def _imported(self) -> Any:
        if importlib.util.find_spec(self._module.partition(".")[0]) is None:
            return False
        try:
            found = importlib.import_module(self._module)
            if self._probe:
                getattr(found, self._probe)()
        except Exception as e:  # the bindings' own errors for a missing library have no common class
            logger.info("%s is not used through %s: %s", self._library, self._module, e)
            return False
        return found

    def use(self, stand_in: Any) -> Any:
        """Put something in the place of the module (None: the real one, found anew); gives what was there."""
        before, self._found = self._found, stand_in
        return before
