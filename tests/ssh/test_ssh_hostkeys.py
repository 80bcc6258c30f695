from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from device_agents.ssh.hostkeys import (
    HostKey,
    KnownKey,
    enrol,
    families,
    key_fingerprint,
    lookup_names,
    parse_pin,
    read_known_hosts,
    signature_algorithms,
)
from tests.ssh.openssh import fingerprint, make_key, missing_openssh

pytestmark = pytest.mark.skipif(missing_openssh() is not None, reason=str(missing_openssh()))

OFFERED = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("keys")
    return {kind: Path(f"{make_key(folder / kind, kind)}.pub") for kind in ("ed25519", "ecdsa", "rsa")}


def public(path: Path) -> str:
    return " ".join(path.read_text().split()[:2])


def found(tmp_path: Path, text: str, *names: str) -> list[str]:
    path = tmp_path / "known_hosts"
    path.write_text(text)
    return [key.fingerprint for key in read_known_hosts([path], names)]


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_fingerprint_is_the_one_ssh_keygen_shows(keys: dict[str, Path], kind: str) -> None:
    assert parse_pin(public(keys[kind])).fingerprint == fingerprint(keys[kind])


@pytest.mark.parametrize(
    "form",
    [
        "{fp}",
        "{fp}=",
        "{alg} {fp}",
        "{alg} {b64}",
        "{alg} {b64} root@pi",
        "pi.local {alg} {b64}",
        "[pi]:2222 {alg} {b64} x",
    ],
)
def test_pin_is_read_in_every_form_people_copy(keys: dict[str, Path], form: str) -> None:
    algorithm, encoded = public(keys["ecdsa"]).split()
    shown = fingerprint(keys["ecdsa"])
    pin = parse_pin(form.format(fp=shown, alg=algorithm, b64=encoded))
    assert pin.fingerprint == shown
    assert pin.algorithm == (None if form.startswith("{fp}") else algorithm)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SHA256:short",
        "MD5:aa:bb:cc:dd:ee:ff:00:11:22:33:44:55:66:77:88:99",
        "ssh-ed25519",
        "ssh-ed25519 notbase64!",
        "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIPFR9IMSCUqUyhPt93LktoIuDTrjq5LeiaRqfyyxKz/D",
        "yes",
    ],
)
def test_what_is_no_host_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a host key"):
        parse_pin(text)


def test_names_ports_patterns_and_negation(tmp_path: Path, keys: dict[str, Path]) -> None:
    ed, ec = public(keys["ed25519"]), public(keys["ecdsa"])
    text = f"# comment\n\npi.local,10.0.0.? {ed} x\n[pi.local]:2222 {ec}\n*.lab,!bad.lab {ed}\n"
    shown = {kind: fingerprint(keys[kind]) for kind in keys}
    assert found(tmp_path, text, "pi.local") == [shown["ed25519"]]
    assert found(tmp_path, text, "10.0.0.7") == [shown["ed25519"]]
    assert found(tmp_path, text, "10.0.0.77") == []
    assert found(tmp_path, text, *lookup_names("PI.local", 2222)) == [shown["ecdsa"]]
    assert found(tmp_path, text, "good.lab") == [shown["ed25519"]]
    assert found(tmp_path, text, "bad.lab") == []
    # Brackets are part of a name, not a class of characters.
    assert found(tmp_path, f"[pi]:22? {ed}\n", "p:220") == []


def test_a_port_without_an_entry_of_its_own_falls_back_to_the_host_as_openssh_does(
    tmp_path: Path, keys: dict[str, Path]
) -> None:
    text = f"pi {public(keys['ed25519'])}\n"
    assert found(tmp_path, text, *lookup_names("pi", 2222)) == [fingerprint(keys["ed25519"])]
    assert found(tmp_path, text, *lookup_names("pi", 2222, alias="other")) == []


def test_hashed_names_as_ssh_keygen_hashes_them(tmp_path: Path, keys: dict[str, Path]) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(f"[pi.local]:2222 {public(keys['rsa'])}\nother {public(keys['ecdsa'])}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], check=True, capture_output=True, timeout=20)
    assert "pi.local" not in path.read_text()
    (key,) = read_known_hosts([path], lookup_names("pi.local", 2222))
    assert (key.fingerprint, key.algorithm) == (fingerprint(keys["rsa"]), "ssh-rsa")
    assert key.where == f"{path}:1"


def test_revoked_is_marked_and_authorities_and_rubbish_are_passed_over(tmp_path: Path, keys: dict[str, Path]) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(
        f"@revoked pi {public(keys['rsa'])}\n@cert-authority pi {public(keys['ecdsa'])}\n"
        f"pi ssh-ed25519 ????\npi\npi ssh-ed25519\n\x00\xff\npi {public(keys['ed25519'])}\n"
    )
    shown = [(key.fingerprint, key.revoked) for key in read_known_hosts([path, tmp_path / "missing"], ["pi"])]
    assert shown == [(fingerprint(keys["rsa"]), True), (fingerprint(keys["ed25519"]), False)]


def test_negotiation_asks_first_for_the_kind_that_is_known() -> None:
    known = [KnownKey("SHA256:x", "ssh-rsa", "f:1"), KnownKey("SHA256:y", "ssh-ed25519", "f:2", revoked=True)]
    assert signature_algorithms(known, OFFERED) == (*OFFERED[2:], *OFFERED[:2])
    assert signature_algorithms([], OFFERED) == OFFERED
    assert families(OFFERED) == (("ssh-ed25519",), ("ecdsa-sha2-nistp256",), ("rsa-sha2-512", "rsa-sha2-256"))


def test_enrol_replaces_the_key_of_that_name_only(tmp_path: Path, keys: dict[str, Path]) -> None:
    path = tmp_path / "config" / "known_hosts"
    for kind, name in (("rsa", "pi"), ("ecdsa", "other"), ("ed25519", "pi")):
        algorithm, encoded = public(keys[kind]).split()
        enrol(path, HostKey(algorithm, fingerprint(keys[kind]), f"{name} {algorithm} {encoded}"))
    assert [key.fingerprint for key in read_known_hosts([path], ["pi"])] == [fingerprint(keys["ed25519"])]
    assert [key.fingerprint for key in read_known_hosts([path], ["other"])] == [fingerprint(keys["ecdsa"])]
    assert [entry.name for entry in path.parent.iterdir()] == ["known_hosts"]
    listed = subprocess.run(["ssh-keygen", "-F", "pi", "-f", str(path)], check=True, capture_output=True, text=True)
    assert public(keys["ed25519"]) in listed.stdout


def test_fingerprint_of_known_bytes() -> None:
    # sha256 of the empty string, RFC 6234 test value, in base64 without padding.
    assert key_fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"
