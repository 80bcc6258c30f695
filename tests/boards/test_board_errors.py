"""Every kind of mistake in a board file: told with file:line, the value and the way out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.boards.registry import load_board_file
from harness.errors import ConfigError, ExitCode

Write = Callable[..., Path]

# Each text follows two header lines, so its first line is line 3 of the file.
LOCAL = "metadata: {name: a}\ntransport: {kind: local}\n"
SSH = "metadata: {name: a}\ntransport:\n  kind: ssh\n  host: pi\n"

MISTAKES = [
    # unknown keys, with the nearest known one
    (LOCAL + "noize: shared\n", 5, "unknown key 'noize'", "did you mean 'noise'?"),
    (SSH + "  usr: me\n", 7, "unknown key 'usr' in transport", "did you mean 'user'?"),
    (
        LOCAL + "limits:\n  max_model_mb: 3\n",
        6,
        "unknown key 'max_model_mb' in limits",
        "did you mean 'max_model_bytes'?",
    ),
    (
        LOCAL + "runtime:\n  threads:\n    inta: 2\n",
        7,
        "unknown key 'inta' in runtime.threads",
        "did you mean 'intra'?",
    ),
    (
        LOCAL + "runtime:\n  providers:\n    - name: CPUExecutionProvider\n      optons: {}\n",
        8,
        "'optons'",
        "'options'",
    ),
    # a known key in the wrong place
    (LOCAL + "governor: performance\n", 5, "unknown key 'governor'", "did you mean 'state.governor'?"),
    (LOCAL + "zzz: 1\n", 5, "unknown key 'zzz'", "known keys: "),
    # a key of another transport
    ("metadata: {name: a}\ntransport:\n  kind: local\n  hosts: pi\n", 6, "unknown key 'hosts' in transport", ""),
    # unknown values
    (LOCAL + "noise: dedicate\n", 5, "noise cannot be 'dedicate'", "did you mean 'dedicated'?"),
    ("metadata: {name: a}\ntransport:\n  kind: shh\n", 5, "transport.kind cannot be 'shh'", "did you mean 'ssh'?"),
    (LOCAL + "runtime:\n  graph_optimization: al\n", 6, "graph_optimization cannot be 'al'", "did you mean 'all'?"),
    (LOCAL + "runtime: {name: onnxruntim}\n", 5, "cannot be 'onnxruntim'", "'onnxruntime'"),
    (
        LOCAL + "limits:\n  data_types:\n    - float32\n    - int9\n",
        8,
        "limits.data_types[1] cannot be 'int9'",
        "'int8'",
    ),
    (LOCAL + "noise: off\n", 5, "noise is a yes/no value", "without quotes"),
    (LOCAL + "runtime: {providers: [CPUExecutionProvdier]}\n", 5, "'CPUExecutionProvdier'", "'CPUExecutionProvider'"),
    (LOCAL + "runtime: {providers: [cpu]}\n", 5, "unknown execution provider 'cpu'", "'CPUExecutionProvider'"),
    (LOCAL + "runtime: {providers: []}\n", 5, "no provider is listed", "CPUExecutionProvider"),
    (
        LOCAL + "runtime: {providers: [CPUExecutionProvider, CPUExecutionProvider]}\n",
        5,
        "provider 'CPUExecutionProvider' is listed twice",
        "list it once",
    ),
    # wrong types
    (SSH + '  port: "22"\n', 7, "transport.port must be a whole number, not text", "without quotes"),
    (SSH + "  user: 5\n", 7, "transport.user must be text, not the number 5", "quotes"),
    (SSH + "  use_agent: 1\n", 7, "transport.use_agent must be true or false", ""),
    (
        "metadata: {name: a, labels: {shelf: 3}}\ntransport: {kind: local}\n",
        3,
        "metadata.labels.shelf must be text",
        "quotes",
    ),
    (LOCAL + "runtime: {providers: CPUExecutionProvider}\n", 5, "runtime.providers must be a list", "- ITEM"),
    (LOCAL + "limits: [1]\n", 5, "limits must be a mapping", ""),
    (LOCAL + "runtime:\n  session_config: {session.x: true}\n", 6, "yes/no value, and options are text", "quotes"),
    ("metadata:\n  name: [a]\ntransport: {kind: local}\n", 4, "metadata.name must be text", "name"),
    # values out of range or of another form
    (SSH + "  port: 99999\n", 7, "transport.port must be at most 65535", "99999"),
    (LOCAL + "limits: {min_offload: 80}\n", 5, "limits.min_offload must be at most 1", "80"),
    (LOCAL + "limits:\n  max_model_bytes: 8mb\n", 6, "unknown unit 'mb' in size '8mb'", 'did you mean "8MB"?'),
    (LOCAL + "limits:\n  max_model_bytes: many\n", 6, "not a size: 'many'", '"8MB"'),
    (LOCAL + "limits: {max_model_bytes: 0}\n", 5, "must be at least 1", "0"),
    (LOCAL + "recovery: {cool_down_s: 5 fortnights}\n", 5, "unknown unit 'fortnights'", '"30s"'),
    (LOCAL + "recovery: {cool_down_s: [5]}\n", 5, "a duration cannot be a list", '"30s"'),
    (LOCAL + "canary: {sha256: abc}\n", 5, "canary.sha256 is not of the form", ""),
    (LOCAL + "canary:\n  model: own.onnx\n", 6, "needs its sha256", "sha256sum"),
    ("metadata: {name: My Pi}\ntransport: {kind: local}\n", 3, "not a board name: 'My Pi'", "did you mean 'my-pi'?"),
    (
        "metadata: {name: a}\ntransport: {kind: ssh, host: pi@10.0.0.7}\n",
        4,
        "transport.host",
        "host: 10.0.0.7 and user: pi",
    ),
    ("metadata: {name: a}\ntransport: {kind: ssh, host: -oProxyCommand=x}\n", 4, "starts with '-'", ""),
    (SSH + "  user: -x\n", 7, "transport.user", ""),
    (SSH + '  proxy_jump: "a b"\n', 7, "not a jump host: 'a b'", "ssh -J"),
    (SSH + "  host_key: abc\n", 7, "not a host key", "boards trust"),
    (SSH + "  python: python3;reboot\n", 7, "transport.python", "path on the board"),
    (SSH + "  workdir: ../other\n", 7, "transport.workdir", ""),
    (SSH + "  workdir: /\n", 7, "workdir cannot be '/'", "boardtune alone"),
    (SSH + "  workdir: .ssh/\n", 7, "workdir cannot be '.ssh/'", "boardtune alone"),
    ("metadata: {name: a}\ntransport: {kind: local, workdir: ~/}\n", 4, "workdir cannot be", "boardtune alone"),
    # missing things
    ("metadata: {name: a}\ntransport: {kind: ssh}\n", 4, "transport.host is missing", "add host: … under transport:"),
    ("metadata: {name: a}\ntransport:\n  kind: ssh\n  host:\n", 6, "transport.host is empty", "value after host:"),
    ("metadata: {name: a}\ntransport: {host: pi}\n", 4, "transport has no kind", "ssh"),
    ("metadata: {name: a}\n", 1, "transport is missing", "add transport: … at the top level"),
    ("metadata: {sku: x}\ntransport: {kind: local}\n", 3, "metadata.name is missing", "name: a"),
    ("transport: {kind: local}\n", 1, "metadata.name is missing", "name: a"),
    # things that go together
    ("metadata: {name: a}\ntransport: {kind: emulated_ssh}\n", 4, "go together", "add the other"),
    # secrets
    (SSH + "  password: hunter2\n", 7, "a secret is written here", "env:BOARD_PASSWORD"),
    (SSH + "  password: {value: hunter2}\n", 7, "not a reference to a secret", "env:BOARD_PASSWORD"),
    (SSH + "  password: 'env:hunter2!'\n", 7, "name of an environment variable", ""),
    (SSH + "  passphrase: 12345678\n", 7, "not a reference to a secret", ""),
    (
        SSH + "  key: |\n    -----BEGIN OPENSSH PRIVATE KEY-----\n    hunter2\n",
        7,
        "private key is written here",
        "key: ~/",
    ),
    # YAML
    (LOCAL + "noise: shared\nnoise: shared\n", 6, "'noise' is written twice; the first is on line 5", "keep one"),
    ("metadata: {name: a, name: b}\ntransport: {kind: local}\n", 3, "'name' is written twice", ""),
    (LOCAL + "limits:\n\tmax_model_bytes: 3\n", 6, "not valid YAML", "tabs"),
    (LOCAL + "noise: [shared\n", 6, "not valid YAML", ""),
    (LOCAL + "noise: *shared\n", 5, "found undefined alias", "quotes"),
    (LOCAL + "noise: !!python/object/apply:os.system [id]\n", 5, "noise", ""),
    (LOCAL + "noise: !run id\n", 5, "constructor for the tag", "tags"),
    (LOCAL + "<<: {noise: shared}\n", 5, "merge keys", "extends"),
    (LOCAL + "? [a]\n: b\n", 5, "a key must be plain text", ""),
    (LOCAL + "---\n", 5, "another document", "one board per file"),
    (LOCAL + "noise: \x07\n", 5, "control character", ""),
    (LOCAL + "noise: 2024-13-45\n", 5, "a value that cannot be read", "quotes"),
    (LOCAL + "extends: [a, b]\n", 5, "extends must be the name of one family", "extends: NAME"),
]


@pytest.mark.parametrize(("text", "line", "message", "hint"), MISTAKES, ids=[m[2][:40] for m in MISTAKES])
def test_mistake_is_told_with_its_line_and_the_way_out(
    write: Write, text: str, line: int, message: str, hint: str
) -> None:
    path = write("a.yaml", text)
    with pytest.raises(ConfigError) as caught:
        load_board_file(path)
    error = caught.value
    assert error.where == f"{path}:{line}"
    assert message in error.message
    assert hint in error.hint
    assert error.exit_code == ExitCode.USAGE
    assert "hunter2" not in str(error)


HEADERS = [
    ("", "", "the file is empty", "boards init"),
    ("# only a comment\n", "", "the file is empty", "boards init"),
    ("- a\n- b\n", ":1", "a board file is a mapping", "apiVersion"),
    ("kind: Board\n", ":1", "apiVersion is missing", "add apiVersion: boardtune/v1"),
    ("apiversion: boardtune/v1\nkind: Board\n", ":1", "apiVersion is missing", "did you mean 'apiVersion'"),
    (
        "apiVersion: boardtune/v2\nkind: Board\n",
        ":1",
        "apiVersion cannot be 'boardtune/v2'",
        "did you mean 'boardtune/v1'?",
    ),
    ("apiVersion: boardtune/v1\nkind: Bord\n", ":2", "kind cannot be 'Bord'", "did you mean 'Board'?"),
    ("apiVersion: boardtune/v1\n", ":1", "kind is missing", "add kind: Board"),
]


@pytest.mark.parametrize(("text", "suffix", "message", "hint"), HEADERS)
def test_header_is_checked_first(write: Write, text: str, suffix: str, message: str, hint: str) -> None:
    path = write("a.yaml", text, header=False)
    with pytest.raises(ConfigError) as caught:
        load_board_file(path)
    assert caught.value.where == f"{path}{suffix}"
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_all_mistakes_of_a_file_are_told_at_once_in_its_order(write: Write) -> None:
    path = write("a.yaml", LOCAL + "noise: dedicate\nlimits: {min_offload: 3}\ncanaries: {}\n")
    with pytest.raises(ConfigError) as caught:
        load_board_file(path)
    text = str(caught.value)
    assert caught.value.where == f"{path}:5"
    assert text.index(f"{path}:5") < text.index(f"{path}:6") < text.index(f"{path}:7")


def test_mistyped_required_key_is_told_once(write: Write) -> None:
    path = write("a.yaml", "metadata: {name: a}\ntransport:\n  kind: ssh\n  hots: pi\n")
    with pytest.raises(ConfigError) as caught:
        load_board_file(path)
    assert "unknown key 'hots'" in caught.value.message
    assert "missing" not in str(caught.value)


def test_line_of_a_value_far_down_is_right(write: Write) -> None:
    path = write("a.yaml", LOCAL + "# comment\n" * 100 + "noise: quiet\n")
    with pytest.raises(ConfigError) as caught:
        load_board_file(path)
    assert caught.value.where == f"{path}:105"


def test_emulated_section_of_a_real_board(write: Write) -> None:
    with pytest.raises(ConfigError, match="unknown key 'sped' in emulated"):
        load_board_file(write("a.yaml", LOCAL + "emulated: {sped: 3}\n"))


BILLION_LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BILLION_LAUGHS.encode(), "anchors are expanded"),
        (b"a: &a [*a]\n", "nested too deeply"),
        (b"a: " + b"[" * 1_000, "nested too deeply"),
        (b"a: " + b"x" * 100_000, "larger than 64 KiB"),
        (b"a: \xff\xfe\n", "not UTF-8"),
        ("a: ä\n".encode("utf-16"), "not UTF-8"),
    ],
    ids=["alias bomb", "alias loop", "deep", "huge", "not utf-8", "utf-16"],
)
def test_hostile_file_is_refused_quickly(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"apiVersion: boardtune/v1\nkind: Board\n" + content if b"\xff" not in content[:1] else content)
    with pytest.raises(ConfigError) as caught:
        load_board_file(path)
    assert message in caught.value.message
    assert caught.value.where.startswith(str(path))


def test_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("\ufeffapiVersion: boardtune/v1\nkind: Board\n" + LOCAL, encoding="utf-8")
    assert load_board_file(path).name == "a"


def test_what_is_no_regular_file_is_refused_without_hanging(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    with pytest.raises(ConfigError, match="not a regular file"):
        load_board_file(fifo)


def test_symbolic_links(tmp_path: Path, write: Write) -> None:
    target = write("a.yaml", LOCAL)
    link, dangling, loop = tmp_path / "link.yaml", tmp_path / "dangling.yaml", tmp_path / "loop.yaml"
    link.symlink_to(target)
    dangling.symlink_to(tmp_path / "nowhere")
    loop.symlink_to(loop)
    assert load_board_file(link).name == "a"
    for path in (dangling, loop):
        with pytest.raises(ConfigError) as caught:
            load_board_file(path)
        assert "leads nowhere" in caught.value.hint
