"""The models an agent has loaded, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass

from device_agents.contract import BadData, LinkError, Pipeline, RuntimeOptions


@dataclass
class Loaded:
    """One session: what was loaded, and under which name the runner knows it now."""

    sha256: str
    options: RuntimeOptions
    pipeline: Pipeline | None
    handle: str = ""
    """What the caller knows it by; stays."""
    remote: str | None = None
    """The runner's name of it; ``None`` while it is not in the board's memory."""
    measured: bool = False
    """Whether a block was timed: its first inference is reported once."""


class Sessions:
    """By handle. ``exclusive``: only one may be in the board's memory."""

    def __init__(self, exclusive: bool) -> None:
        self.exclusive = exclusive
        self._live: dict[str, Loaded] = {}
        self._lost: dict[str, str] = {}

    def add(self, loaded: Loaded) -> None:
        self._live[loaded.handle] = loaded

    def get(self, handle: str) -> Loaded:
        """Raises :class:`LinkError` if the session was lost, :class:`BadData` if there never was one."""
        if handle in self._live:
            return self._live[handle]
        if handle in self._lost:
            raise LinkError(f"the loaded model is gone: {self._lost[handle]}", hint="load it again")
        raise BadData(f"no session {handle!r} was loaded, or it was unloaded")

    def peek(self, handle: str) -> Loaded | None:
        """Like :meth:`get`, for after the fact."""
        return self._live.get(handle)

    def remove(self, handle: str) -> Loaded | None:
        self._lost.pop(handle, None)
        return self._live.pop(handle, None)

    def lose(self, handle: str, why: str) -> None:
        """The session's process is dead."""
        if self._live.pop(handle, None) is not None:
            self._lost[handle] = why

    def lose_all(self, why: str) -> None:
        for handle in list(self._live):
            self.lose(handle, why)

    def resident(self) -> list[Loaded]:
        """Those in the board's memory."""
        return [loaded for loaded in self._live.values() if loaded.remote is not None]

    def digests(self) -> set[str]:
        """Of the files that must stay on the board."""
        return {loaded.sha256 for loaded in self._live.values()}
