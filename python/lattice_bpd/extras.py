"""Import of optional dependencies at first use."""

from __future__ import annotations

import importlib
from typing import Any


def require(module: str, extra: str) -> Any:
    """Imports an optional module.

    Args:
        module: Its import name, such as ``"pywrapfst"``.
        extra: What installs it: an extra of lattice-bpd, such as ``"openfst"``, or a distribution
            of an add-on, ``"lattice-bpd-spark"``.

    Returns:
        The module.

    Raises:
        ImportError: It is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        source = extra if extra.startswith("lattice-bpd") else f"'lattice-bpd[{extra}]'"
        raise ImportError(
            f"{module} is required and cannot be imported ({error}); "
            f"install it with: pip install {source}"
        ) from error
