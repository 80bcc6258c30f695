"""``module:function`` names that a user gives on the command line or in a plan."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.suggest import did_you_mean

_SPEC = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def is_callable_spec(text: str) -> bool:
    """Whether ``text`` has the form ``package.module:name``."""
    return _SPEC.fullmatch(text) is not None


def load_callable(spec: str) -> Any:
    """Imports the object ``module:name`` names; the working folder is searched first, as ``python -m`` does.

    Only for names from the command line or the user's own plan: importing runs code. Raises :class:`ConfigError`.
    """
    if not is_callable_spec(spec):
        raise ConfigError(f"{spec!r} is not of the form module:function")
    module_name, _, attribute = spec.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.split(".")[0] == error.name.split(".")[0]:
            raise ConfigError(
                f"no module {error.name!r} for {spec!r}",
                hint=f"It is looked for in {here} and in the installed packages.",
            ) from None
        raise ConfigError(f"importing {module_name!r} failed: {error}") from error
    except Exception as error:
        raise ConfigError(f"importing {module_name!r} failed: {type(error).__name__}: {error}") from error
    finally:
        if added and here in sys.path:
            sys.path.remove(here)
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in dir(found) if not name.startswith("_")]
            raise ConfigError(f"{module_name!r} has no {attribute!r}", hint=did_you_mean(part, names))
        found = getattr(found, part)
    return found
