"""Several requests in flight: what makes a line with latency as fast as one without.

Lines keep the order of frames, so a reply to a later request tells that an earlier one, or its reply, was lost, and the
board's word that a frame came damaged is about the oldest one; it is sent again at once. The rest is found out by a
timeout of three round trips.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from device_agents.contract import DeviceTimeout
from device_agents.transport import Deadline

from .codes import WINDOW, Type
from .link import Reply, SerialLink

K = TypeVar("K", bound=Hashable)

_LEAST_RTO_S, _LAST_RTO_S = 0.2, 5.0
_FRAME_BYTES = 4300


@dataclass(frozen=True)
class _Sent:
    request: int
    order: int
    at: float


class Pipeline(Generic[K]):
    """Sends one request of ``type_`` for each key, at most ``WINDOW`` at a time.

    ``payload(key, attempt)`` gives its payload, ``done(key, reply)`` takes each reply and returns the other keys that
    it settles (a selective acknowledgement may tell of several), or raises.
    """

    def __init__(
        self,
        link: SerialLink,
        type_: Type,
        payload: Callable[[K, int], bytes],
        done: Callable[[K, Reply], Iterable[K]],
    ) -> None:
        self._link = link
        self._type = type_
        self._payload = payload
        self._done = done
        self._todo: deque[K] = deque()
        self._flying: dict[K, _Sent] = {}
        self._attempts: dict[K, int] = {}
        self._order = 0
        self.sent_bytes = 0
        """Bytes of payloads, those sent again included."""
        self.frames = 0

    def run(self, keys: Iterable[K], deadline: Deadline) -> None:
        """Until every key is settled.

        Raises:
            DeviceTimeout: not before the deadline.
            LinkError: the line ended; what was settled is.
            Others: what the board went down with, and what ``done`` raises.
        """
        self._todo = deque(keys)
        self._flying.clear()
        rto = least = self._least_rto()
        progress = time.monotonic()
        while self._todo or self._flying:
            while self._todo and len(self._flying) < WINDOW:
                self._send(self._todo.popleft())
            oldest = min(sent.at for sent in self._flying.values())
            wait = min(max(0.0, max(oldest, progress) + rto - time.monotonic()), deadline.remaining())
            reply = self._link.receive(wait, self._type.name)
            if reply is not None and reply.type == Type.EVENT_DAMAGED:
                self._again([min(self._flying, key=lambda key: self._flying[key].order)])
            elif reply is not None and self._settle(reply):
                rto, progress = least, time.monotonic()
            elif time.monotonic() - max(oldest, progress) >= rto:
                self._again(list(self._flying))
                rto, progress = min(2 * rto, _LAST_RTO_S), time.monotonic()
            if deadline.passed and (self._todo or self._flying):
                raise DeviceTimeout(
                    f"the board did not take all of {self._type.name} within {deadline.seconds:g} s",
                    hint="a higher baud rate, or a longer deadline",
                )

    def _least_rto(self) -> float:
        on_the_line = WINDOW * _FRAME_BYTES * 10 / self._link.baud
        return max(_LEAST_RTO_S, 3 * self._link.round_trip_s) + on_the_line

    def _send(self, key: K) -> None:
        attempt = self._attempts.get(key, 0)
        self._attempts[key] = attempt + 1
        payload = self._payload(key, attempt)
        self._order += 1
        sent = _Sent(self._link.new_request(), self._order, time.monotonic())
        self._flying[key] = sent
        self._link.send(self._type, sent.request, payload)
        self.sent_bytes += len(payload)
        self.frames += 1
        self._link.resent += attempt > 0

    def _settle(self, reply: Reply) -> bool:
        """Whether the reply is one of ours."""
        found = next((item for item in self._flying.items() if item[1].request == reply.request), None)
        if found is None or reply.type != self._type:
            return False
        key, sent = found
        settled = {key, *self._done(key, reply)}
        for other in settled:
            self._flying.pop(other, None)
        if any(other in settled for other in self._todo):
            self._todo = deque(other for other in self._todo if other not in settled)
        self._again([other for other, its in self._flying.items() if its.order < sent.order])
        return True

    def _again(self, keys: list[K]) -> None:
        for key in reversed(keys):
            self._flying.pop(key)
            self._todo.appendleft(key)
