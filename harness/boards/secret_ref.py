"""References to secrets: a board file says where a secret is, never what it is."""

from __future__ import annotations

import logging
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import GetJsonSchemaHandler, model_serializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from harness.boards.base import Section, Text, invalid
from harness.errors import ConfigError

if TYPE_CHECKING:
    from device_agents.secret import Secret

log = logging.getLogger(__name__)

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_SECRET_BYTES = 64 * 1024
_HINT = (
    "secrets are not written into board files: export it (export BOARD_PASSWORD=…) and write "
    '"env:BOARD_PASSWORD", or put it alone into a file only you can read and write "file:~/.secrets/board"'
)


class SecretRef(Section):
    """Where a secret is: ``env:NAME`` (environment variable) or ``file:PATH`` (first line of a file)."""

    kind: Literal["env", "file"]
    name: Text

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: Any) -> Any:
        # No branch here may quote the value: it may be the secret itself.
        if isinstance(value, SecretRef):
            return {"kind": value.kind, "name": value.name}
        if isinstance(value, str):
            kind, colon, name = value.partition(":")
            if not colon or kind not in ("env", "file"):
                raise invalid("inline_secret", "a secret is written here instead of a reference to one", hint=_HINT)
            return cls._checked(kind, name)
        if isinstance(value, dict) and set(value) == {"kind", "name"}:
            return cls._checked(value["kind"], value["name"])
        if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in ("env", "file"):
            kind, name = next(iter(value.items()))
            return cls._checked(kind, name)
        raise invalid("secret_reference", 'not a reference to a secret; expected "env:NAME" or "file:PATH"', hint=_HINT)

    @classmethod
    def _checked(cls, kind: Any, name: Any) -> dict[str, str]:
        if not isinstance(name, str) or not name.strip() or "\n" in name or "\0" in name:
            raise invalid("secret_reference", f"the reference names no {_what(kind)}", hint=_HINT)
        if kind == "env" and not _ENV_NAME.fullmatch(name.strip()):
            raise invalid(
                "secret_reference", "the reference does not hold the name of an environment variable", hint=_HINT
            )
        return {"kind": kind, "name": name.strip()}

    @model_serializer
    def _to_short_form(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            "description": cls.__doc__ or "",
            "anyOf": [
                {"type": "string", "pattern": "^(env|file):.+$", "examples": ["env:BOARD_PASSWORD"]},
                {
                    "type": "object",
                    "properties": {"env": {"type": "string"}, "file": {"type": "string"}},
                    "additionalProperties": False,
                    "minProperties": 1,
                    "maxProperties": 1,
                },
            ],
        }

    def resolve(self, board: str, field: str) -> Secret:
        """The secret itself, read now.

        Raises:
            ConfigError: the variable is not set, or the file is missing, unreadable, empty or too large.
        """
        from device_agents.secret import Secret

        return Secret(self._read_env(board, field) if self.kind == "env" else self._read_file(board, field))

    def _read_env(self, board: str, field: str) -> str:
        value = os.environ.get(self.name)
        if not value:
            raise ConfigError(
                f"board {board!r}: {field} refers to the environment variable {self.name}, which is "
                + ("not set" if value is None else "empty"),
                hint=f"set it before the command: export {self.name}=…",
            )
        return value

    def _read_file(self, board: str, field: str) -> str:
        path = Path(self.name).expanduser()
        try:
            info = path.stat()
            if not stat.S_ISREG(info.st_mode) or info.st_size > _MAX_SECRET_BYTES:
                raise ConfigError(
                    f"board {board!r}: {field} refers to {path}, which is no small regular file",
                    hint="the file holds the secret and nothing else",
                )
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ConfigError(
                f"board {board!r}: {field} refers to the file {path}, which cannot be read: {reason}",
                hint="create it with the secret as its only line, readable by you alone (chmod 600)",
            ) from None
        secret = text.splitlines()[0] if text.strip() else ""
        if not secret:
            raise ConfigError(
                f"board {board!r}: {field} refers to the file {path}, whose first line is empty",
                hint="put the secret on its first line",
            )
        if os.name == "posix" and info.st_mode & 0o077:
            log.warning("%s holds a secret and other users can read it; chmod 600 %s", path, path)
        return secret


def _what(kind: Any) -> str:
    return "environment variable" if kind == "env" else "file"
