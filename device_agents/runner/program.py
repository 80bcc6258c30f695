"""The command line of the packed runner: ``serve`` or ``child``."""

from __future__ import annotations

import sys
from typing import Optional, Sequence

from .platform import Platform, default_platform


def run(argv: Sequence[str], platform: Optional[Platform] = None) -> int:
    """Returns the exit status; 2 for a command it does not know."""
    command = argv[0] if argv else ""
    if command == "serve":
        from .server import serve

        return serve(platform or default_platform())
    if command == "child":
        from .child import run_child

        return run_child(platform or default_platform())
    sys.stderr.write("boardtune-runner: serve or child, not {!r}\n".format(command))
    return 2
