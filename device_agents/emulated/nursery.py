"""Where the processes of an emulated board are born: ``nursery.py open MACHINE`` or ``nursery.py direct …``.

Importing ONNX, ONNX Runtime and the cost model takes most of a second, and the runner starts a process for every
model. The nursery imports them once and forks. Single-threaded, so that forking is safe; the *uploaded* runner is
imported after the fork only.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_HERE = Path(__file__).resolve()
_HEAVY = (
    "device_agents.emulated.spec",
    "onnxruntime",
    "onnx.shape_inference",
    "device_agents.emulated.cost_model",
    "device_agents.emulated.noise",
    "device_agents.host_lock",
)
"""In the order in which they are wanted after the board is switched on."""


def die_with_parent() -> None:
    """The parent's starting thread lives as long as the parent, so its end is the parent's."""
    if sys.platform.startswith("linux"):
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def run_runner(machine: str, pyz: str, life: str, command: str) -> int:
    """The uploaded runner in this process, on the emulated platform."""
    sys.path.insert(0, pyz)
    runner = importlib.import_module("runner")
    del sys.path[0]
    # What the platform imports from device_agents.runner is what was uploaded.
    sys.modules["device_agents.runner"] = runner
    for name in ("errors", "platform", "ort"):
        sys.modules[f"device_agents.runner.{name}"] = importlib.import_module(f"runner.{name}")
    platform = importlib.import_module("device_agents.emulated.platform")
    script = str(_HERE.with_name("board_process.py"))
    here = [sys.executable, "-I", "-S", script, machine, pyz, life, "child"]
    status: int = runner.main([command], platform=platform.EmulatedPlatform(Path(machine), life, here))
    return status


class Nursery:
    def __init__(self, machine: Path) -> None:
        os.chdir(machine)
        name = "nursery"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(name)
        self._listener.listen(16)
        self._children: dict[int, socket.socket] = {}
        self._woken, waker = socket.socketpair()
        waker.setblocking(False)
        self._woken.setblocking(False)
        self._waker = waker
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ)
        selector.register(self._woken, selectors.EVENT_READ)
        to_import = [*_HEAVY]
        while True:
            events = selector.select(0 if to_import else None)
            if not events:
                # Whoever cannot wait for the rest is born without it and imports it himself.
                importlib.import_module(to_import.pop(0))
            for key, _ in events:
                if key.fileobj is self._listener:
                    self._bear()
                else:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
            self._bury()

    def _bear(self) -> None:
        connection, _ = self._listener.accept()
        try:
            request, streams = _request(connection)
        except (OSError, ValueError):
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            self._grow_up(connection, request, streams)
        for descriptor in streams:
            os.close(descriptor)
        self._children[pid] = connection

    def _bury(self) -> None:
        while self._children:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            connection = self._children.pop(pid, None)
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                connection.close()

    def _grow_up(self, connection: socket.socket, request: dict[str, object], streams: list[int]) -> None:
        status = 70
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for stream, descriptor in enumerate(streams):
                os.dup2(descriptor, stream)
                os.close(descriptor)
            for other in (self._listener, self._woken, self._waker, *self._children.values()):
                other.close()
            die_with_parent()
            os.chdir(str(request["cwd"]))
            environ = request["environ"]
            os.environ.update(environ if isinstance(environ, dict) else {})
            threading.Thread(target=_die_with_caller, args=(connection,), daemon=True).start()
            argv = request["argv"]
            status = run_runner(*(str(word) for word in argv)) if isinstance(argv, list) else 2
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)


def _die_with_caller(connection: socket.socket) -> None:
    """The process that asked for this one was killed: so must this one be."""
    with contextlib.suppress(OSError):
        while connection.recv(64):
            pass
    os.kill(os.getpid(), signal.SIGKILL)


def _request(connection: socket.socket) -> tuple[dict[str, object], list[int]]:
    connection.settimeout(5.0)
    head, streams, _, _ = socket.recv_fds(connection, 4, 3)
    size = int.from_bytes(head, "big")
    text = b""
    while len(text) < size:
        chunk = connection.recv(size - len(text))
        if not chunk:
            raise ValueError("the request ended early")
        text += chunk
    connection.settimeout(None)
    if len(streams) != 3:
        raise ValueError("the request came without its streams")
    request: dict[str, object] = json.loads(text)
    return request, streams


def main(argv: list[str]) -> int:
    sys.path.insert(0, str(_HERE.parents[2]))
    die_with_parent()
    if argv[0] == "direct":
        return run_runner(*argv[1:])
    Nursery(Path(argv[1])).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
