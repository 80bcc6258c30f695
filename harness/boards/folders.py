"""Where boardtune looks for board files and keeps what it knows about boards."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigError

CONFIG_VARIABLE = "BOARDTUNE_CONFIG_HOME"
RUNTIME_VARIABLE = "BOARDTUNE_RUNTIME_DIR"
CACHE_VARIABLE = "BOARDTUNE_CACHE_HOME"
DATA_VARIABLE = "BOARDTUNE_DATA_HOME"


@dataclass(frozen=True)
class BoardFolder:
    path: Path
    origin: str
    """Shown to people: where boards from here come from."""


def config_folder() -> Path:
    """The user's configuration folder: ``BOARDTUNE_CONFIG_HOME``, or the platform's usual place."""
    given = os.environ.get(CONFIG_VARIABLE)
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming") / "boardtune"
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "boardtune"


def cache_folder() -> Path:
    """Where what can be computed again is kept: ``BOARDTUNE_CACHE_HOME``, or the platform's usual place.

    It may be removed at any time, and need not exist yet.
    """
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "boardtune" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "boardtune"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "boardtune"


def data_folder() -> Path:
    """Where what was installed for boardtune is kept: ``BOARDTUNE_DATA_HOME``, or the platform's usual place."""
    given = os.environ.get(DATA_VARIABLE)
    if given:
        return Path(given).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "boardtune"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "boardtune"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "boardtune"


def packaged_folder() -> Path:
    """Board files that come with boardtune: inside the wheel, or the repository's own in an editable install."""
    builtin = Path(__file__).parent / "builtin"
    return builtin if builtin.is_dir() else Path(__file__).parents[2] / "boards"


def search_folders() -> tuple[BoardFolder, ...]:
    """Folders in the order in which they are searched; a folder that is reached twice is searched once."""
    wanted = (
        BoardFolder(Path("boards"), "./boards"),
        BoardFolder(config_folder() / "boards", "user"),
        BoardFolder(packaged_folder(), "packaged"),
    )
    seen: set[Path] = set()
    folders = []
    for folder in wanted:
        resolved = folder.path.resolve()
        if resolved not in seen:
            seen.add(resolved)
            folders.append(folder)
    return tuple(folders)


def templates_folder() -> Path:
    return packaged_folder() / "templates"


def runtime_folder() -> Path:
    """A folder for locks, private to the user, the same for every process of that user on this machine.

    Not ``XDG_RUNTIME_DIR``, which is missing in cron jobs and over some SSH logins: two processes that lock in
    different folders do not see each other. ``BOARDTUNE_RUNTIME_DIR`` overrides it.

    Raises:
        ConfigError: the folder exists and is not the user's own.
    """
    given = os.environ.get(RUNTIME_VARIABLE)
    if given:
        folder = Path(given).expanduser()
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or tempfile.gettempdir()) / "boardtune" / "locks"
    elif sys.platform == "linux":
        folder = Path("/tmp") / f"boardtune-{os.getuid()}"
    else:
        folder = Path(tempfile.gettempdir()) / f"boardtune-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
    except OSError as error:
        raise ConfigError(
            f"the folder for locks cannot be made: {error.strerror or error}",
            where=folder,
            hint=f"set {RUNTIME_VARIABLE} to a folder you can write to",
        ) from None
    if sys.platform != "win32" and not given and (not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid()):
        # In a folder open to all, somebody else may have been there first.
        raise ConfigError(
            "the folder for locks is not yours",
            where=folder,
            hint=f"remove it, or set {RUNTIME_VARIABLE} to a folder of your own",
        )
    return folder
