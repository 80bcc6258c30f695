"""Ray's calls as plain threads of this process, so that the search runs whole without Ray.

:func:`installed` puts it in place of Ray in the controller. A killed process then is recorder, boards and controller
at once, and a whole search takes a fraction of a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ray.exceptions import RayActorError


class Handle:
    """An actor: every call runs in a thread of its own, as with a high ``max_concurrency``."""

    def __init__(self, instance: object) -> None:
        self._instance = instance
        self._pool = ThreadPoolExecutor(64)
        self._dead = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._instance, name)

        def remote(*values: Any, **named: Any) -> Future[Any]:
            if self._dead:
                gone: Future[Any] = Future()
                gone.set_exception(RayActorError())
                return gone
            return self._pool.submit(method, *values, **named)

        return SimpleNamespace(remote=remote)

    def die(self) -> None:
        """Answers nothing any more."""
        self._dead = True

    def revive(self) -> Handle:
        """To let go of what a dead process would have let go of."""
        self._dead = False
        return self


class _Made:
    def __init__(self, cls: Callable[..., object]) -> None:
        self._cls = cls

    def options(self, **_: Any) -> _Made:
        return self

    def remote(self, *values: Any) -> Handle:
        return Handle(self._cls(*(v.result() if isinstance(v, Future) else v for v in values)))


def _put(value: Any) -> Future[Any]:
    held: Future[Any] = Future()
    held.set_result(value)
    return held


def _get(reference: Future[Any] | Sequence[Future[Any]], timeout: float | None = 60.0) -> Any:
    return reference.result(timeout) if isinstance(reference, Future) else [_get(one, timeout) for one in reference]


def _wait(calls: list[Future[Any]], num_returns: int = 1, timeout: float | None = None) -> None:
    wait(calls, timeout)


RAY = SimpleNamespace(remote=_Made, put=_put, get=_get, wait=_wait, kill=lambda handle: handle.die())


def _with_parameters(trainable: type, **parameters: Any) -> tuple[type, dict[str, Any]]:
    return trainable, parameters


def _run(made: tuple[type, dict[str, Any]], *, search_alg: Any, max_concurrent_trials: int, **_: Any) -> None:
    """As Tune: asks while slots are free, tells each result, ends when told that all is finished and has ended."""
    trainable, parameters = made

    def step(config: dict[str, Any]) -> dict[str, Any]:
        runner = trainable.__new__(trainable)
        runner.config = config
        runner.setup(config, **parameters)
        return runner.step()  # type: ignore[no-any-return]

    running: dict[Future[dict[str, Any]], str] = {}
    finished = False
    count = 0
    with ThreadPoolExecutor(max_concurrent_trials) as pool:
        while not finished or running:
            while not finished and len(running) < max_concurrent_trials:
                config = search_alg.suggest(f"t{count}")
                if config == search_alg.FINISHED:
                    finished = True
                elif config is None:
                    break
                else:
                    running[pool.submit(step, config)] = f"t{count}"
                    count += 1
            if not running:
                if not finished:
                    raise RuntimeError("nothing runs, and the searcher waits")
                return
            done, _rest = wait(running, timeout=60, return_when=FIRST_COMPLETED)
            if not done:
                raise RuntimeError(f"the trials hang: {sorted(running.values())}")
            for future in done:
                search_alg.on_trial_complete(running.pop(future), future.result())


@contextlib.contextmanager
def _session(slots: int, logs: object, address: str | None = None) -> Iterator[str]:
    yield "node"


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """While entered, ``harness.controller`` runs on threads."""
    with contextlib.ExitStack() as stack:
        for module in ("actors", "crew", "trial_runner"):
            stack.enter_context(mock.patch(f"harness.controller.{module}.ray", RAY))
        tune = SimpleNamespace(run=_run, with_parameters=_with_parameters)
        stack.enter_context(mock.patch("harness.controller.crew.tune", tune))
        stack.enter_context(mock.patch("harness.controller.crew.NodeAffinitySchedulingStrategy", mock.Mock()))
        stack.enter_context(mock.patch("harness.controller.ray_session.ray_session", _session))
        yield
