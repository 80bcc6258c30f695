"""The one command line that is sent to a board, and how its paths are written.

An SSH server hands ``exec`` to the user's login shell, so this is the only place where text meets a shell. It is
built from the interpreter and the work folder of the board file (whitelisted by :mod:`device_agents.ssh.target`) and
from arguments of our own (whitelisted here); nothing a device, a model or a recipe says gets in.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from device_agents.ssh.target import board_path_problem

_ARGUMENT = re.compile(r"[A-Za-z0-9_./=:,@+-]+")
_DRIVE = re.compile(r"[A-Za-z]:([/\\]|$)")


def sftp_path(path: str) -> str:
    """A work folder as SFTP wants it: relative ones start at the home folder, as a login does."""
    path = path.removeprefix("~/")
    if _DRIVE.match(path):
        path = "/" + path.replace("\\", "/")
    return path.rstrip("/") or "/"


def is_windows(home: str) -> bool:
    """Whether the SFTP server's real path of the home folder (``/C:/Users/…``) is a Windows one."""
    return _DRIVE.match(home.removeprefix("/")) is not None


def command_line(python: str, workdir: str, args: Sequence[str], *, windows: bool = False) -> str:
    """Runs ``python`` with ``args`` in ``workdir``.

    POSIX shells (sh, bash, zsh, fish 3, csh, busybox) understand ``cd X && exec Y``. On Windows the line is given to
    ``cmd``, whatever the default shell; there nothing is quoted, so blanks are refused. The Windows form has been run
    on no real machine.

    Raises:
        ValueError: an argument or path is outside the whitelist.
    """
    for path in (python, workdir):
        problem = board_path_problem(path)
        if problem is not None:
            raise ValueError(problem)
    for argument in args:
        if not _ARGUMENT.fullmatch(argument):
            raise ValueError(f"not an argument for a board: {argument!r}")
    if windows:
        return _windows_line(python, workdir, args)
    words = " ".join((_posix_word(_program(python)), *map(shlex.quote, args)))
    return f"cd {_posix_word(workdir)} && exec {words}"


def _program(python: str) -> str:
    # After the cd a relative path would be looked up in the work folder; it is meant from the home folder.
    relative = "/" in python and not python.startswith(("/", "~/"))
    return f"~/{python}" if relative else python


def _posix_word(path: str) -> str:
    # A tilde is only expanded by the shell outside quotes.
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def _windows_line(python: str, workdir: str, args: Sequence[str]) -> str:
    words = [part.removeprefix("~/").replace("/", "\\") for part in (workdir, python)]
    if any(" " in word for word in words):
        raise ValueError(f"python {python!r} and workdir {workdir!r} must not contain blanks on a Windows board")
    folder, program = words
    if "\\" in program and not _DRIVE.match(program):
        program = f"%USERPROFILE%\\{program}"
    return f'cmd /c "cd /d {folder} && {" ".join((program, *args))}"'
