"""The program that runs *on* a board, uploaded as one zipapp by content hash.

Needs only Python >= 3.8, numpy and ONNX Runtime >= 1.16 there. Two processes: ``serve`` speaks the wire protocol on
its standard streams (docs/wire-protocol-runner.md) and never imports numpy or a runtime; every model executes in a
``child`` of its own, so that a native crash or a hang is a typed error and ``serve`` lives.

The seam for boards with another clock, other sensors or another way to execute a model is
:class:`~device_agents.runner.platform.Platform`. A launcher puts the uploaded ``.pyz`` on ``sys.path`` (inside it the
package is called ``runner``) and starts both processes with a platform of its own::

    sys.path.insert(0, pyz_path)
    import runner
    raise SystemExit(runner.main(["serve"], platform=MyPlatform(...)))    # or ["child"]

``Platform.child_command()`` says how ``serve`` starts a child with the same platform: override it to start the
launcher again with ``child``. ``serve`` is started with the board's work folder as its current folder. The runner
itself never asks whether it is emulated.

Modules use relative imports only, so that they work as ``device_agents.runner`` here and as ``runner`` there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence

if TYPE_CHECKING:
    from .platform import Platform


def main(argv: Sequence[str], platform: Optional[Platform] = None) -> int:
    """``serve`` or ``child``; returns the exit status."""
    from . import program

    return program.run(argv, platform)
