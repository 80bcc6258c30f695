"""The one thread that reads a port: frames go to a queue, everything else to the line's log."""

from __future__ import annotations

import queue
import threading

from device_agents.contract import LinkError

from .codes import Type
from .frames import Decoder, Frame
from .linelog import LineLog
from .port import Port


class Reader:
    """Reads from when it is made until :meth:`close` or the port's end, which is the last item of the queue."""

    def __init__(self, port: Port, log: LineLog) -> None:
        self._port = port
        self._log = log
        self._items: queue.SimpleQueue[tuple[Frame, int] | LinkError] = queue.SimpleQueue()
        self.mark = 0
        """Where the log stood when the frame came that :meth:`next` gave last."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reader of {port.name}", daemon=True)
        self.bytes_read = 0
        self._thread.start()

    def next(self, timeout_s: float) -> Frame | None:
        """The next frame; ``None`` if none came in time. Raises :class:`LinkError` once the port is gone."""
        try:
            item = self._items.get(timeout=max(0.0, timeout_s)) if timeout_s > 0 else self._items.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, LinkError):
            self._items.put(item)
            raise LinkError(item.message, hint=item.hint)
        frame, self.mark = item
        return frame

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        decoder = Decoder()
        while not self._closing.is_set():
            try:
                data = self._port.read()
            except LinkError as error:
                self._items.put(error)
                return
            self.bytes_read += len(data)
            if not data:
                continue
            for item in decoder.feed(data):
                if isinstance(item, Frame):
                    if item.type != Type.EVENT_READY:
                        self._log.answered()
                    self._items.put((item, self._log.mark()))
                else:
                    self._log.append(item)
