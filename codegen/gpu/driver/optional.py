"""Python bindings of NVIDIA's libraries that a machine may do without: cuBLASLt, NCCL."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from typing import Any

logger = logging.getLogger(__name__)


class OptionalBindings:
    """A module that is imported at its first use. Tests replace it by stand-ins.

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
        """The module, or a test's stand-in; False if it cannot be used."""
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
        """Replace the module (None: import the real one again); returns the previous one."""
        before, self._found = self._found, stand_in
        return before
