"""All boards that can be named, from all folders; a broken file hurts nobody but itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.boards.extends import resolve
from harness.boards.folders import BoardFolder, search_folders
from harness.boards.schema import Board
from harness.boards.source import BoardSource, read_source
from harness.errors import ConfigError
from harness.suggest import did_you_mean

_MAX_FILES = 1_000


@dataclass(frozen=True)
class BoardEntry:
    """A board file: a usable board, a family, or the error that keeps it from being one."""

    name: str
    """``metadata.name``, or the file's stem where the name cannot be read."""
    path: Path
    origin: str
    """``./boards``, ``user``, ``packaged``, or the folder's path."""
    board: Board | None
    error: ConfigError | None


@dataclass(frozen=True)
class Registry:
    entries: tuple[BoardEntry, ...]
    """By folder in the order of search, then by name."""
    notices: tuple[str, ...] = ()
    folders: tuple[BoardFolder, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Names of the usable boards."""
        return tuple(entry.name for entry in self.entries if entry.board is not None)

    def boards(self) -> tuple[Board, ...]:
        return tuple(entry.board for entry in self.entries if entry.board is not None)

    def entry(self, name: str) -> BoardEntry:
        """The file that has the name, broken or not; raises ConfigError with a suggestion."""
        for entry in self.entries:
            if entry.name == name:
                return entry
        looked = ", ".join(str(folder.path) for folder in self.folders)
        hint = did_you_mean(name, self.names(), what="known boards")
        raise ConfigError(f"unknown board {name!r}", hint=f"{hint}\n  boards are looked for in: {looked}")

    def get(self, name: str) -> Board:
        """The board of that name.

        Raises:
            ConfigError: there is none (with a suggestion), or its file is broken (with ``file:line``).
        """
        entry = self.entry(name)
        if entry.error is not None:
            raise entry.error
        if entry.board is None:
            raise ConfigError(
                f"{name!r} is a family, not a board", where=entry.path, hint="name a board that extends it"
            )
        return entry.board


@dataclass
class _Loaded:
    """What was read, before ``extends:`` is resolved."""

    sources: dict[str, BoardSource] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """Every name that is taken, by a usable file or a broken one -> where from. The first folder wins."""
    broken: list[BoardEntry] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def errors(self) -> dict[str, ConfigError]:
        return {entry.name: entry.error for entry in self.broken if entry.error is not None}

    def add_folder(self, folder: BoardFolder) -> None:
        claims: dict[str, list[BoardSource | BoardEntry]] = defaultdict(list)
        for path in _board_files(folder, self.notices):
            claim = _read(path, folder.origin)
            claims[claim.name].append(claim)
        for name, found in claims.items():
            if name in self.origins:
                for other in found:
                    self.notices.append(f"board {name!r} comes from {self.origins[name]}; {other.path} is not used")
                continue
            self.origins[name] = folder.origin
            self._take(found, folder.origin)

    def _take(self, found: Sequence[BoardSource | BoardEntry], origin: str) -> None:
        sources = [item for item in found if isinstance(item, BoardSource)]
        self.broken.extend(item for item in found if isinstance(item, BoardEntry))
        if len(found) == 1:
            self.sources.update({source.name: source for source in sources})
            return
        # No file may win by the order of file names: that would change with a rename.
        for source in sources:
            self.broken.append(BoardEntry(source.name, source.path, origin, None, _clash(source, found)))


def load_registry(dirs: Sequence[Path] | None = None) -> Registry:
    """Reads all board files of the folders, or of the usual ones: ``./boards``, the user's, the packaged ones.

    Never raises for what is in a file: that is kept with the file's entry and raised by :meth:`Registry.get`.
    """
    folders = search_folders() if dirs is None else tuple(BoardFolder(Path(path), str(path)) for path in dirs)
    loaded = _Loaded()
    for folder in folders:
        loaded.add_folder(folder)
    entries = [*loaded.broken]
    for name, source in loaded.sources.items():
        entries.append(_entry(source, loaded.origins[name], loaded.sources, loaded.errors()))
    rank = {folder.origin: index for index, folder in enumerate(folders)}
    entries.sort(key=lambda entry: (rank[entry.origin], entry.name, str(entry.path)))
    return Registry(tuple(entries), tuple(loaded.notices), folders)


def load_board_file(path: Path) -> Board:
    """One board file by its path; families it extends are looked for beside it, then in the usual folders.

    Raises:
        ConfigError: the file is not a usable board, with ``file:line``.
    """
    source = read_source(path)
    loaded = _Loaded()
    if source.extends is not None:
        for folder in (BoardFolder(path.parent, str(path.parent)), *search_folders()):
            loaded.add_folder(folder)
    sources = {**loaded.sources, source.name: source}
    entry = _entry(source, str(path.parent), sources, loaded.errors())
    if entry.board is None:
        raise entry.error or ConfigError(
            "this is a family, not a board", where=path, hint="name a board that extends it"
        )
    return entry.board


def _entry(
    source: BoardSource, origin: str, sources: Mapping[str, BoardSource], errors: Mapping[str, ConfigError]
) -> BoardEntry:
    try:
        return BoardEntry(source.name, source.path, origin, resolve(source, sources, errors), None)
    except ConfigError as error:
        return BoardEntry(source.name, source.path, origin, None, error)


def _read(path: Path, origin: str) -> BoardSource | BoardEntry:
    try:
        return read_source(path)
    except ConfigError as error:
        return BoardEntry(path.stem, path, origin, None, error)


def _board_files(folder: BoardFolder, notices: list[str]) -> list[Path]:
    """The folder's ``*.yaml`` and ``*.yml``, not those of folders below (templates, say)."""
    try:
        names = sorted(
            path for path in folder.path.iterdir() if path.suffix in (".yaml", ".yml") and path.name[0] != "."
        )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        notices.append(f"{folder.path} cannot be listed: {error.strerror or error}")
        return []
    if len(names) > _MAX_FILES:
        notices.append(f"{folder.path} holds {len(names)} files; only the first {_MAX_FILES} are read")
    return [path for path in names[:_MAX_FILES] if path.is_symlink() or not path.is_dir()]


def _clash(source: BoardSource, found: Sequence[BoardSource | BoardEntry]) -> ConfigError:
    others = " and ".join(
        f"{other.path}:{other.name_line}" if isinstance(other, BoardSource) else str(other.path)
        for other in found
        if other.path != source.path
    )
    return ConfigError(
        f"the name {source.name!r} is also used by {others}",
        where=f"{source.path}:{source.name_line}",
        hint="give one of them another metadata.name",
    )
