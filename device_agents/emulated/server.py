"""The emulated board's SSH server, a process of its own: ``server.py ROOT``.

Listens on a free loopback port, says where in one line of JSON on its standard output, and ends with whoever started
it: when its standard input ends or its parent changes. Serves one user with one key, SFTP in ``ROOT/home`` and one
command: the uploaded runner.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import select
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import paramiko
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_SUCCEEDED,
)

from device_agents.emulated.files import Files, Folder
from device_agents.emulated.link import Link
from device_agents.emulated.machine import Machine

logger = logging.getLogger("boardtune.emulated")

USER = "emulated"
WORK_FOLDER = ".boardtune"
TEMPORARY = "temporary"
"""Marks a board's folder that goes with its server."""
PYTHON = "python3"
_COMMAND = re.compile(r"runner/([0-9a-f]{64})\.pyz")
_PARENT_POLL_S = 0.5
_BOOT_POLL_S = 0.05
_REPLY_GOES_FIRST_S = 0.3
_HERE = Path(__file__).resolve()
_CHUNK = 1 << 16


def main(root: Path) -> int:
    logging.basicConfig(stream=sys.stderr, format="emulated board: %(message)s", level=logging.WARNING)
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    _end_with_launcher(root)
    board = BoardServer(root)
    board.announce()
    board.run()
    return 0


def _end_with_launcher(root: Path) -> None:
    """Ends this process when the launcher ends, and removes a temporary board, which nobody else would.

    Not by PR_SET_PDEATHSIG: that fires when the launching *thread* ends, and agents live longer than threads.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            readable, _, _ = select.select([0], [], [], _PARENT_POLL_S)
            if readable and not os.read(0, 1024):
                break
        if (root / TEMPORARY).exists():
            shutil.rmtree(root, ignore_errors=True)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


class BoardServer:
    def __init__(self, root: Path) -> None:
        self._home = root / "home"
        self.machine = Machine(root / "machine")
        self._machine_folder = root / "machine"
        self._host_key = paramiko.ECDSAKey.generate()
        self._client_key = paramiko.ECDSAKey.from_private_key_file(str(root / "client_key")).asbytes()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")
        self._links: set[Link] = set()
        self._nursery = self._spawner.submit(self._open_nursery).result()
        threading.Thread(target=self._watch_boot, daemon=True).start()

    def announce(self) -> None:
        key = self._host_key
        if self.machine.strike("changed_host_key"):
            key = paramiko.ECDSAKey.generate()
        line = {"port": self._listener.getsockname()[1], "host_key": f"{key.get_name()} {key.get_base64()}"}
        print(json.dumps(line), flush=True)

    def run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self.machine.strike("refuse"):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                connection.close()
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        link = Link(connection, self.machine)
        self._links.add(link)
        transport = paramiko.Transport(link)  # type: ignore[arg-type]
        try:
            transport.add_server_key(self._host_key)
            transport.set_subsystem_handler("sftp", Files, Folder, self._home, self.machine)
            transport.start_server(server=Gate(self, self._client_key))
            while transport.is_active():
                transport.join(1.0)
        except (paramiko.SSHException, EOFError, OSError) as error:
            logger.info("connection ended: %s", error)
        finally:
            transport.close()
            self._links.discard(link)

    # ---- commands ------------------------------------------------------------------------------------------------

    def arguments(self, command: str) -> list[str] | None:
        """The uploaded zipapp to run, or ``None`` for anything but the one command the agent sends."""
        try:
            words = shlex.split(command)
        except ValueError:
            return None
        if len(words) != 7 or words[:5] != ["cd", WORK_FOLDER, "&&", "exec", PYTHON] or words[6] != "serve":
            return None
        return [words[5]] if _COMMAND.fullmatch(words[5]) else None

    def execute(self, channel: paramiko.Channel, relpath: str) -> None:
        """Runs the uploaded runner on a channel, to its end."""
        try:
            if self.machine.strike("no_python"):
                # Paramiko says that the command was accepted only after it has started this thread.
                time.sleep(_REPLY_GOES_FIRST_S)
                channel.sendall_stderr(f"sh: 1: exec: {PYTHON}: not found\n".encode())
                channel.send_exit_status(127)
                return
            process = self._spawner.submit(self._start, self._home / WORK_FOLDER, relpath).result()
            if process is None:
                channel.sendall_stderr(f"{PYTHON}: can't find '__main__' module in {relpath!r}\n".encode())
                channel.send_exit_status(1)
                return
            channel.send_exit_status(_pump(channel, process) & 0xFF)
        except (OSError, EOFError, paramiko.SSHException) as error:
            logger.info("command ended: %s", error)
        finally:
            channel.close()

    def _start(self, folder: Path, relpath: str) -> subprocess.Popen[bytes] | None:
        # In the one spawner thread, which lives as long as the server: the child asks to die with it.
        pyz = (folder / relpath).resolve()
        expected = Path(relpath).stem
        if not pyz.is_file() or hashlib.sha256(pyz.read_bytes()).hexdigest() != expected:
            return None
        script = str(_HERE.with_name("board_process.py"))
        life = uuid.uuid4().hex
        words = [script, str(self._machine_folder), str(pyz), life, "serve"]
        # Isolated and without site-packages: it only hands over to the nursery.
        return self._spawn(["-I", "-S", *words], folder)

    def _open_nursery(self) -> subprocess.Popen[bytes]:
        return self._spawn(["-P", str(_HERE.with_name("nursery.py")), "open", str(self._machine_folder)], self._home)

    def _spawn(self, words: list[str], folder: Path) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE if words[0] == "-I" else None
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            stdin=pipe if pipe is not None else subprocess.DEVNULL,
            stdout=pipe if pipe is not None else sys.stderr,
            stderr=pipe,
            bufsize=0,
            # One thread each: numpy's own would not survive a fork.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )

    # ---- boots ---------------------------------------------------------------------------------------------------

    def _watch_boot(self) -> None:
        """A new boot id means that the board lost its power: every process and every connection is gone."""
        boot = self.machine.boot_id()
        while True:
            time.sleep(_BOOT_POLL_S)
            if self._nursery.poll() is not None:
                logger.warning("the nursery ended with status %s", self._nursery.returncode)
                (self._machine_folder / "no-nursery").touch()
                return
            if self.machine.boot_id() != boot:
                boot = self.machine.boot_id()
                self._nursery.kill()
                self._nursery.wait()
                for link in tuple(self._links):
                    link.close()
                self._nursery = self._spawner.submit(self._open_nursery).result()


class Gate(paramiko.ServerInterface):
    """Who may come in, and for what."""

    def __init__(self, board: BoardServer, client_key: bytes) -> None:
        self._board = board
        self._client_key = client_key

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        good = username == USER and key.asbytes() == self._client_key
        if not good or self._board.machine.planted("reject_login"):
            return AUTH_FAILED
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED if kind == "session" else OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        found = self._board.arguments(command.decode("utf-8", "replace"))
        if found is None:
            logger.warning("refused to run %r", command[:200])
            return False
        threading.Thread(target=self._board.execute, args=(channel, found[0]), daemon=True).start()
        return True


def _pump(channel: paramiko.Channel, process: subprocess.Popen[bytes]) -> int:
    """Carries bytes both ways until the process ends; returns its status.

    A channel that closes ends the process's input and no more, as with a real sshd: it finishes what it is at.
    """
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    if stdin is None or stdout is None or stderr is None:
        raise OSError("the runner has no pipes")

    def forward() -> None:
        with contextlib.suppress(OSError, EOFError):
            while data := channel.recv(_CHUNK):
                view = memoryview(data)
                while view:
                    view = view[os.write(stdin.fileno(), view) :]
        with contextlib.suppress(OSError):
            stdin.close()

    def back(source: int, send: object) -> None:
        alive = True
        while data := os.read(source, _CHUNK):
            if alive and callable(send):
                try:
                    send(data)
                except (OSError, EOFError):
                    alive = False  # keep reading: the process must not block on a link that is gone

    threads = [
        threading.Thread(target=forward, daemon=True),
        threading.Thread(target=back, args=(stderr.fileno(), channel.sendall_stderr), daemon=True),
    ]
    for thread in threads:
        thread.start()
    back(stdout.fileno(), channel.sendall)
    threads[1].join()
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
