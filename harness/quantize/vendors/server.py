"""The warm process in a vendor's environment: imports the vendor's package once, forks one child per job.

Run by that environment's interpreter as a file, ``python -s server.py SOCKET PROGRAM LOG``; it needs nothing but the
standard library. It serves one connection at a time on a Unix socket; a request is a line of JSON, replies are lines of
JSON: ``{"pid": …}``, ``{"phase": …}``, then ``{"done": …}`` or ``{"failed": …, "cause": …, "detail": …}``. The job's
child is killed when whoever asked hangs up. The process ends when its standard input is closed, that is with whoever
started it.

Packages of vendors keep their state in globals and leak memory from one quantization to the next, which is why each
job has a process of its own; this one starts no thread, so that forking it is safe.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any

LOOK_S = 0.1
"""Between looks at a child's memory and at whoever asked."""
TAIL_BYTES = 8192


class Gone(Exception):
    """Whoever started this process has ended."""


def main() -> int:
    path, program_path, log_path = sys.argv[1:4]
    # This folder's modules are none that the vendor's package means.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != os.path.dirname(os.path.abspath(__file__))]
    listener = socket.socket(socket.AF_UNIX)
    # Bound before the imports: a request waits in the backlog instead of being refused.
    listener.bind(path)
    listener.listen(4)
    log = os.open(log_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    program = load(program_path)
    versions = program.warm()
    try:
        while True:
            readable, _, _ = select.select([listener.fileno(), 0], [], [])
            if 0 in readable and not os.read(0, 1):
                raise Gone
            if listener.fileno() in readable:
                connection, _ = listener.accept()
                with connection:
                    serve(connection, listener, program, versions, log)
    except Gone:
        return 0
    finally:
        listener.close()


def load(path: str) -> Any:
    specification = importlib.util.spec_from_file_location("boardtune_program", path)
    if specification is None or specification.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def serve(connection: socket.socket, listener: socket.socket, program: Any, versions: Any, log: int) -> None:
    request = read_line(connection)
    if request is None:
        return
    start = os.lseek(log, 0, os.SEEK_END)
    pid = os.fork()
    if pid == 0:
        listener.close()
        # A group of its own: what it starts dies with it.
        os.setpgid(0, 0)
        # Its own first words: sent from here they could come after its last.
        send(connection, {"pid": os.getpid(), "versions": versions})
        os._exit(run(connection, program, request))
    with contextlib.suppress(OSError):  # it did so itself, or is over
        os.setpgid(pid, pid)
    watch(connection, pid, request.get("memory_bytes"), log, start)


def run(connection: socket.socket, program: Any, job: dict[str, Any]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    try:
        done = program.quantize(job, lambda phase: send(connection, {"phase": phase}))
    except MemoryError:
        return fail(connection, "out_of_memory", "ran out of memory")
    except BaseException as error:
        first = (str(error).strip().splitlines() or [""])[0]
        cause = getattr(error, "boardtune_cause", "failed")
        return fail(connection, cause, first if cause != "failed" else f"{type(error).__name__}: {first}")
    send(connection, {"done": done})
    flush()
    return 0


def fail(connection: socket.socket, cause: str, message: str) -> int:
    traceback.print_exc()
    flush()
    send(connection, {"failed": message, "cause": cause, "detail": traceback.format_exc()[-TAIL_BYTES:]})
    return 1


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def watch(connection: socket.socket, pid: int, limit: int | None, log: int, start: int) -> None:
    """Until the child is over, or is over its memory, or whoever asked has hung up."""
    while True:
        over, status = os.waitpid(pid, os.WNOHANG)
        if over:
            ended(connection, status, log, start)
            return
        readable, _, _ = select.select([connection.fileno(), 0], [], [], LOOK_S)
        if 0 in readable and not os.read(0, 1):
            end(pid)
            raise Gone
        if connection.fileno() in readable and hung_up(connection):
            end(pid)
            return
        held = resident_bytes(pid)
        if limit and held > limit:
            end(pid)
            message = f"held {held >> 20} MiB, over its limit of {limit >> 20} MiB"
            send(connection, {"failed": message, "cause": "out_of_memory", "detail": tail(log, start)})
            return


def hung_up(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1)
    except OSError:
        # With messages left unread, the kernel makes a reset of it.
        return True


def ended(connection: socket.socket, status: int, log: int, start: int) -> None:
    # What it sent itself came before this, and is what is read.
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        message, cause = f"died of {signal.Signals(number).name}", "crashed"
        if number == signal.SIGKILL:
            message += " (the system does that when memory runs out)"
            cause = "out_of_memory"
    else:
        message, cause = f"ended without a result (exit code {os.WEXITSTATUS(status)})", "crashed"
    send(connection, {"failed": message, "cause": cause, "detail": tail(log, start)})


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    until = time.monotonic() + 10.0
    while time.monotonic() < until:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        time.sleep(0.01)


def resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def tail(log: int, start: int) -> str:
    size = os.lseek(log, 0, os.SEEK_END)
    begin = max(start, size - TAIL_BYTES)
    return os.pread(log, size - begin, begin).decode("utf-8", "replace")


def read_line(connection: socket.socket) -> Any:
    data = b""
    while not data.endswith(b"\n"):
        try:
            part = connection.recv(1 << 16)
        except OSError:
            return None
        if not part:
            return None
        data += part
    return json.loads(data)


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # whoever asked has hung up; the watch sees it
        connection.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
