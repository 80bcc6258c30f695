"""Board files that are right: what they come to, and that nothing is lost on the way through YAML and JSON."""

from __future__ import annotations

import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from device_agents.contract import RuntimeOptions
from harness.boards.options import runtime_options
from harness.boards.registry import load_board_file
from harness.boards.schema import KNOWN_PROVIDERS, Board
from harness.boards.units import Seconds, SizeBytes, format_size

MINIMAL = {"apiVersion": "boardtune/v1", "kind": "Board", "metadata": {"name": "a"}, "transport": {"kind": "local"}}


def board(**sections: Any) -> Board:
    return Board.model_validate({**MINIMAL, **sections})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8MB", 8_000_000),
        ("200MiB", 209_715_200),
        ("1.5 kB", 1_500),
        ("1GiB", 1_073_741_824),
        ("4KiB", 4_096),
        ("7 B", 7),
        ("123", 123),
        (456, 456),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert TypeAdapter(SizeBytes).validate_python(text) == size


@pytest.mark.parametrize(
    "text", ["", "MB", "-1MB", "1e3", "8Mb", "8 M B", "1_000", "٣MB", "9" * 400, True, 1.5, None, [1]]
)
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(SizeBytes).validate_python(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("2m", 120), ("1.5h", 5400), (3, 3), ("3", 3)]
)
def test_durations(text: str | int, seconds: float) -> None:
    assert TypeAdapter(Seconds).validate_python(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "nan", "inf", float("nan"), float("inf"), True, "1 day"])
def test_what_is_no_duration(text: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Seconds).validate_python(text)


@pytest.mark.parametrize(
    ("size", "text"), [(7, "7 B"), (2048, "2.0 KiB"), (209_715_200, "200.0 MiB"), (2**41, "2.0 TiB")]
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


def test_runtime_options_of_a_plain_board_are_the_contract_defaults() -> None:
    assert runtime_options(board()) == RuntimeOptions()


def test_runtime_options_carry_everything_in_a_canonical_order() -> None:
    runtime = {
        "providers": [
            {"name": "VitisAIExecutionProvider", "options": {"target": "X2", "cache": 1}},
            "CPUExecutionProvider",
        ],
        "threads": {"intra": 4, "inter": 2},
        "graph_optimization": "basic",
        "session_config": {"z": "1", "a": 0.5},
    }
    assert runtime_options(board(runtime=runtime)) == RuntimeOptions(
        providers=(("VitisAIExecutionProvider", (("cache", "1"), ("target", "X2"))), ("CPUExecutionProvider", ())),
        intra_op_threads=4,
        inter_op_threads=2,
        graph_optimization="basic",
        session_config=(("a", "0.5"), ("z", "1")),
    )


def test_providers_of_plugins_are_let_through() -> None:
    runtime = {"providers": ["AcmeNpuExecutionProvider"]}
    assert board(runtime=runtime).runtime.providers[0].name == "AcmeNpuExecutionProvider"


def test_board_is_frozen_and_crosses_processes() -> None:
    value = board(noise="shared")
    with pytest.raises(ValidationError):
        value.noise = "dedicated"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(value)) == value


names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
words = st.text(
    min_size=1, max_size=12, alphabet=st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff")
)
texts = st.dictionaries(words, words, max_size=3)
references = st.one_of(
    st.from_regex(r"env:[A-Z_][A-Z0-9_]{0,10}", fullmatch=True),
    st.fixed_dictionaries({"env": st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True)}),
    st.just({"file": "/run/secrets/board"}),
)
local = st.fixed_dictionaries({"kind": st.just("local")}, optional={"workdir": st.just("/var/tmp/bt"), "python": words})
ssh = st.fixed_dictionaries(
    {"kind": st.just("ssh"), "host": st.from_regex(r"[a-z0-9][a-z0-9.]{0,10}", fullmatch=True)},
    optional={
        "port": st.integers(1, 65535),
        "user": st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True),
        "key": st.just("/home/me/.ssh/id_ed25519"),
        "password": references,
        "passphrase": references,
        "host_key": st.just("SHA256:" + "A" * 43),
        "proxy_jump": st.just("me@gateway:22"),
        "use_agent": st.booleans(),
        "python": st.just("/opt/venv/bin/python"),
        "workdir": st.just("/data/boardtune"),
        "keepalive_s": st.one_of(st.just("30s"), st.integers(1, 100)),
    },
)
provider_names = st.sampled_from(KNOWN_PROVIDERS)
provider = st.one_of(provider_names, st.fixed_dictionaries({"name": provider_names}, optional={"options": texts}))
boards = st.fixed_dictionaries(
    {
        "apiVersion": st.just("boardtune/v1"),
        "kind": st.just("Board"),
        "metadata": st.fixed_dictionaries({"name": names}, optional={"sku": words, "labels": texts}),
        "transport": st.one_of(local, ssh),
    },
    optional={
        "runtime": st.fixed_dictionaries(
            {},
            optional={
                "providers": st.lists(
                    provider,
                    min_size=1,
                    max_size=3,
                    unique_by=lambda item: item if isinstance(item, str) else item["name"],
                ),
                "threads": st.fixed_dictionaries({"intra": st.integers(1, 64)}, optional={"inter": st.integers(1, 8)}),
                "graph_optimization": st.sampled_from(["disabled", "basic", "extended", "all"]),
                "session_config": texts,
                "exclusive_session": st.booleans(),
            },
        ),
        "noise": st.sampled_from(["dedicated", "shared"]),
        "state": st.fixed_dictionaries({}, optional={"governor": words, "max_temperature_c": st.floats(1, 150)}),
        "limits": st.fixed_dictionaries(
            {},
            optional={
                "max_model_bytes": st.one_of(st.just("8MB"), st.integers(1, 2**50)),
                "data_types": st.lists(st.sampled_from(["float32", "int8"]), max_size=2),
                "operators": st.just(["Conv", "com.microsoft:QGemm"]),
                "min_offload": st.floats(0, 1),
            },
        ),
        "recovery": st.fixed_dictionaries(
            {}, optional={"retries": st.integers(0, 20), "cool_down_s": st.floats(0, 100)}
        ),
        "cache_bytes": st.one_of(st.just("1GiB"), st.integers(1, 2**50)),
    },
)


@settings(max_examples=60, deadline=None)
@given(boards)
def test_round_trip_through_json_and_yaml(content: dict[str, Any]) -> None:
    value = Board.model_validate(content)
    dumped = value.model_dump(mode="json", exclude_none=True)
    assert Board.model_validate(json.loads(json.dumps(dumped))) == value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.yaml"
        for document in (content, dumped):
            path.write_text(yaml.safe_dump(document, allow_unicode=True, sort_keys=False), encoding="utf-8")
            assert load_board_file(path) == value
