"""The seam between the runner and the machine: clock, sensors, facts, and how a model is executed.

The runner's own code takes everything that depends on the machine from one :class:`Platform`. The default,
:func:`default_platform`, is the machine itself with ONNX Runtime. Each method is called in the process named in its
description; ``serve`` and each ``child`` hold instances of their own, so what they share (a virtual clock, say) must
live in a file.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Protocol, Sequence, Tuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .pipeline import Work

    Array = npt.NDArray[np.generic]

Process = Callable[["Work", Callable[[], Any]], Any]
"""Does what it is given and returns its result; the time that the work takes passes on the platform's clock."""


class Spec(NamedTuple):
    """An input or output of a model."""

    name: str
    dtype: str
    """numpy name, e.g. ``float32``."""
    shape: Tuple[Any, ...]
    """int for a fixed size; str (maybe ``"?"``) for a free dimension."""


class KernelTime(NamedTuple):
    """One executed node of a profiled inference."""

    node: str
    """Name of the executed (maybe fused) node as the runtime gives it."""
    op_type: str
    provider: str
    duration_ns: int


class ProfileNotes(NamedTuple):
    refusals: Mapping[str, str] = {}
    """Node -> why an accelerator did not take it, in the runtime's words."""
    assignment: Optional[Mapping[str, Sequence[str]]] = None
    """As ``Session.assignment``, with names for nodes that have none in the artifact."""


class Session(Protocol):
    """A loaded model, in a child."""

    inputs: List[Spec]
    outputs: List[Spec]
    compiled_sha256: Optional[str]
    """Digest of what was compiled from the model, where it is kept."""

    def run(self, feeds: Mapping[str, Array]) -> Sequence[Array]:
        """One inference; outputs in the order of ``outputs``. Called inside the timed region, so it may be an
        attribute holding a bound callable. On a platform with a virtual clock it advances ``clock_ns``.

        Raises whatever the runtime raises; ``Platform.classify`` turns it into a typed error."""

    def assignment(self) -> Optional[Dict[str, List[str]]]:
        """Provider -> names of the nodes assigned to it, by the runtime's own word; ``None`` if it has none."""

    def placement_notes(self) -> Dict[str, Any]:
        """Fields of ``contract.Placement`` that this platform knows better than the receipt made from its assignment
        and profile, e.g. ``fallback_reasons``; mostly empty."""


class Plugin(NamedTuple):
    """How a provider that is a library of its own is had; ``contract.ProviderPlugin`` on this side of the wire."""

    provider: str
    library: str
    """Path on the board; empty: its Python package says."""
    device: str
    """``cpu``, ``gpu`` or ``npu``; empty: the first it finds."""


class Options(NamedTuple):
    """``contract.RuntimeOptions`` on this side of the wire."""

    providers: List[Tuple[str, Dict[str, str]]]
    intra_op_threads: int
    inter_op_threads: int
    graph_optimization: str
    """``disabled``, ``basic``, ``extended`` or ``all``."""
    session_config: Dict[str, str]
    plugins: Tuple[Plugin, ...] = ()

    def plugin(self, provider: str) -> Optional[Plugin]:
        return next((plugin for plugin in self.plugins if plugin.provider == provider), None)


class Platform:
    """Base: real time, this interpreter, nothing known. Override what the machine has."""

    def clock_ns(self) -> int:
        """Nanoseconds of a monotonic clock; called around every timed inference (child) and for load times."""
        return time.perf_counter_ns()

    def sleep(self, seconds: float) -> None:
        """Lets ``seconds`` of this platform's time pass."""
        time.sleep(seconds)

    def boot_id(self) -> str:
        """Changes with every boot of the board and only then (serve, once at start and once per reply)."""
        raise NotImplementedError

    def facts(self) -> Dict[str, Any]:
        """The fields of ``contract.BoardFacts`` except ``boot_id`` and ``runner_sha256`` (child).

        Raises:
            RunnerError: kind ``BoardUnfit`` where the runtime is missing or too old.
        """
        raise NotImplementedError

    def state(self) -> Dict[str, Any]:
        """The fields of ``contract.BoardState`` except ``boot_id`` and ``disk_free_bytes``; what is not known is left
        out (serve for ``health``, child before and after each block)."""
        return {"clock_ns": self.clock_ns()}

    def begin_block(self, label: str) -> None:
        """A block of timed inferences comes next (child); ``label`` as in ``contract.BlockRequest``. A machine that is
        there has no use for it."""

    def processing(self) -> Optional[Process]:
        """How pre- and post-processing take time (child); ``None`` where they do so by being done."""
        return None

    def peak_memory_bytes(self) -> Optional[int]:
        """Peak resident memory of this process so far (child)."""
        return None

    def make_session(self, model_path: str, options: Options) -> Session:
        """Loads a model (child); its duration by ``clock_ns`` is the load time.

        Raises whatever the runtime raises; see :meth:`classify`."""
        raise NotImplementedError

    def profile(self, model_path: str, options: Options, folder: str) -> List[KernelTime]:
        """Loads the model once more and runs one profiled inference on zeros: the receipt's second source (child).
        ``folder`` takes temporary files. An empty list: no second source."""
        return []

    def profile_notes(self) -> ProfileNotes:
        """What the runtime said besides, as :meth:`profile` loaded the model (child, after it)."""
        return ProfileNotes()

    def classify(self, error: BaseException, phase: str) -> Tuple[str, str]:
        """(error kind, message) of what ``make_session`` (phase ``load``) or ``run`` (phase ``run``) raised."""
        return ("ModelRejected", "{}: {}".format(type(error).__name__, error))

    def child_command(self) -> List[str]:
        """Argument list that starts ``child`` with this platform (serve)."""
        return [sys.executable, program_path(), "child"]


def program_path() -> str:
    """The ``.pyz`` this code was loaded from, or the package folder when it was not packed."""
    here = os.path.abspath(__file__)
    head = os.path.dirname(here)
    while head and not os.path.exists(head):
        head = os.path.dirname(head)
    return head


def default_platform() -> Platform:
    """This machine, with ONNX Runtime."""
    from .machine import MachinePlatform

    return MachinePlatform()
