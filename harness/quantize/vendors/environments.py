"""Environments of vendors' quantizers: which there are, where they live, how they are made.

Their pins conflict with each other and with boardtune's own (ESP-PPQ wants onnx < 1.20 and Python < 3.13), and they
bring PyTorch; each has a virtual environment of its own under the user's data folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.boards.folders import data_folder
from harness.errors import ConfigError
from harness.suggest import did_you_mean

INSTALL_S = 3600.0
"""PyTorch over a slow line takes its time."""
_PROGRAMS = Path(__file__).parent / "programs"
_ASK_S = 30.0
_CHECK_S = 300.0


@dataclass(frozen=True)
class Vendor:
    """One vendor's quantizer and what its environment must hold."""

    name: str
    title: str
    requirements: tuple[str, ...]
    """For pip."""
    lowest: tuple[int, int]
    """First Python it runs on."""
    beyond: tuple[int, int]
    """First Python it does not run on."""
    distribution: str
    """Whose version stands for the backend's."""
    wheel: str = ""
    """What file the user has to bring, and what else is to do; empty where pip finds the package itself."""

    @property
    def program(self) -> Path:
        return _PROGRAMS / f"{self.name}.py"

    @property
    def variable(self) -> str:
        """Environment variable that names an interpreter to use instead of our own environment's."""
        return f"BOARDTUNE_BACKEND_{self.name.upper()}"


VENDORS: Mapping[str, Vendor] = {
    vendor.name: vendor
    for vendor in (
        Vendor(
            "esp_ppq",
            "Espressif's ESP-PPQ, for .espdl models",
            # Its own pins: https://pypi.org/pypi/esp-ppq/1.3.12/json
            ("esp-ppq==1.3.12", "onnx>=1.17,<1.20", "torch==2.13.0"),
            (3, 10),
            (3, 13),
            "esp-ppq",
        ),
        Vendor(
            "quark",
            "AMD's Quark, for Ryzen AI and other boards that run ONNX models",
            # Its own pins (https://pypi.org/pypi/amd-quark/0.13/json), ONNX Runtime's from its extra ``cli``. It needs
            # torch without naming it, and a C++ compiler: it builds its operators when first imported.
            ("amd-quark==0.13", "onnx>=1.21,<=1.22.0", "onnxruntime>=1.22.2,<=1.28.0", "torch==2.13.0"),
            (3, 11),
            (3, 14),
            "amd-quark",
        ),
        Vendor(
            "amct",
            "Huawei's AMCT, for Ascend",
            # https://www.hiascend.com: AMCT (ONNX), dependencies.
            ("onnx==1.18.0", "onnxruntime==1.20.0", "numpy<2.3", "protobuf"),
            (3, 9),
            (3, 14),
            "amct_onnx",
            "AMCT is in no index: download Ascend-cann-amct for your CANN version from https://www.hiascend.com (an "
            "account is needed), unpack it, and give its amct_onnx-*.whl: --wheel FILE. Its operators have to be built "
            "(amct_onnx_op.tar.gz, “python setup.py build”, headers of the same ONNX Runtime); where it cannot be "
            "imported without, make an environment by Huawei's guide and name it in BOARDTUNE_BACKEND_AMCT",
        ),
    )
}


class NotInstalled(ConfigError):
    """The vendor's environment is not there."""


@dataclass(frozen=True)
class Environment:
    vendor: Vendor
    python: Path
    versions: Mapping[str, str]
    """Distribution -> version, as they were when the environment was made; empty for one that the user named."""

    @property
    def version(self) -> str:
        return self.versions.get(self.vendor.distribution, "")


def vendor(name: str) -> Vendor:
    """Raises :class:`ConfigError` if there is none of this name."""
    if name not in VENDORS:
        raise ConfigError(f"there is no backend {name!r}", hint=did_you_mean(name, VENDORS, what="backends"))
    return VENDORS[name]


def folder_of(name: str) -> Path:
    return data_folder() / "backends" / name


def find_environment(name: str) -> Environment:
    """The environment to use: the user's, named in an environment variable, or the one that was installed.

    Raises :class:`NotInstalled` with what to do about it, :class:`ConfigError` for a variable that names no program.
    """
    wanted = vendor(name)
    given = os.environ.get(wanted.variable)
    if given:
        python = Path(given).expanduser()
        if not python.is_file() or not os.access(python, os.X_OK):
            raise ConfigError(
                f"{wanted.variable} names {given!r}, which is no interpreter", hint="unset it, or mend it"
            )
        return Environment(wanted, python, {})
    record = folder_of(name) / "installed.json"
    try:
        kept = json.loads(record.read_text(encoding="utf-8"))
        python, versions = Path(kept["python"]), dict(kept["versions"])
    except FileNotFoundError:
        command = f"boardtune backends install {name}" + (" --wheel FILE" if wanted.wheel else "")
        raise NotInstalled(f"the {name} backend ({wanted.title}) is not installed", hint=command) from None
    except (ValueError, KeyError, TypeError) as error:
        hint = f"boardtune backends install {name} makes it anew"
        raise NotInstalled(f"cannot read what was installed: {error}", where=record, hint=hint) from None
    if not python.exists():
        hint = f"boardtune backends install {name} makes it anew"
        raise NotInstalled(f"the {name} backend's interpreter is gone", where=python, hint=hint)
    return Environment(wanted, python, versions)


def is_installed(name: str) -> bool:
    """Whether :func:`find_environment` has one. Raises :class:`ConfigError` if there is no backend of this name."""
    vendor(name)
    try:
        find_environment(name)
    except ConfigError:
        return False
    return True


def interpreters() -> Iterator[tuple[Path, tuple[int, int]]]:
    """Python interpreters on this machine with their versions, this one first."""
    yield Path(sys.executable), (sys.version_info[0], sys.version_info[1])
    seen = {Path(sys.executable).resolve()}
    for minor in range(20, 7, -1):
        found = shutil.which(f"python3.{minor}")
        if found and Path(found).resolve() not in seen:
            seen.add(Path(found).resolve())
            version = _version(Path(found))
            if version is not None:
                yield Path(found), version


def _version(python: Path) -> tuple[int, int] | None:
    program = "import sys; print(*sys.version_info[:2])"
    try:
        ran = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, timeout=_ASK_S, check=True)
        major, minor = ran.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def fitting(wanted: Vendor, found: Sequence[tuple[Path, tuple[int, int]]]) -> Path:
    """The first interpreter the vendor's package runs on. Raises :class:`ConfigError` naming those there are."""
    for python, version in found:
        if wanted.lowest <= version < wanted.beyond:
            return python
    last = f"{wanted.beyond[0]}.{wanted.beyond[1] - 1}"
    there = ", ".join(f"{major}.{minor}" for _, (major, minor) in found) or "none"
    raise ConfigError(
        f"the {wanted.name} backend needs Python {wanted.lowest[0]}.{wanted.lowest[1]} to {last}; here is {there}",
        hint=f"install python{last} (with venv), or name an interpreter with --python",
    )


def install(
    name: str,
    *,
    python: Path | None = None,
    pip_arguments: Sequence[str] = (),
    wheel: Path | None = None,
    tell: Callable[[str], None] = print,
) -> Environment:
    """Makes the vendor's environment anew; the old one stays until the new one works.

    Args:
        python: Interpreter to make it with; one that fits is looked for if it is not given.
        pip_arguments: For pip, for instance ``--index-url``.
        wheel: The vendor's package as a file, where no index has it.
        tell: Told what is being done.

    Raises:
        ConfigError: no interpreter fits, a wheel is missing or not wanted, pip failed, or the package cannot be
            imported afterwards.
    """
    wanted = vendor(name)
    requirements = _with_wheel(wanted, wheel)
    if python is not None:
        version = _version(python)
        if version is None:
            raise ConfigError("this is no Python interpreter", where=python)
        found = [(python, version)]
    else:
        found = list(interpreters())
    chosen = fitting(wanted, found)
    folder = folder_of(name)
    fresh = folder.with_name(f"{name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.parent.mkdir(parents=True, exist_ok=True)
    try:
        tell(f"making an environment with {chosen}")
        _run([str(chosen), "-m", "venv", str(fresh / "venv")], "cannot make a virtual environment")
        inside = fresh / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        tell(f"installing {', '.join(requirements)}")
        pip = [str(inside), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *pip_arguments, *requirements], f"pip cannot install the {name} backend")
        tell("trying it")
        versions = check(wanted, inside)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    # Scripts in a moved environment name the old place; its interpreter does not mind.
    kept = folder / inside.relative_to(fresh)
    record = {"python": str(kept), "versions": versions, "requirements": list(requirements)}
    (folder / "installed.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    return Environment(wanted, kept, versions)


def _with_wheel(wanted: Vendor, wheel: Path | None) -> tuple[str, ...]:
    """For pip; raises :class:`ConfigError`."""
    if wheel is None:
        if wanted.wheel:
            raise ConfigError(f"the {wanted.name} backend needs a file of yours", hint=wanted.wheel)
        return wanted.requirements
    if not wanted.wheel:
        raise ConfigError(f"the {wanted.name} backend comes from pip's index", where=wheel, hint="leave --wheel out")
    if wheel.suffix != ".whl" or not wheel.is_file():
        raise ConfigError("this is no wheel (a file named *.whl)", where=wheel, hint=wanted.wheel)
    return (*wanted.requirements, str(wheel.absolute()))


def remove(name: str) -> bool:
    """Removes the vendor's environment; ``False`` if there was none."""
    folder = folder_of(vendor(name).name)
    if not folder.exists():
        return False
    shutil.rmtree(folder)
    return True


def check(wanted: Vendor, python: Path) -> dict[str, str]:
    """Imports the vendor's package in its interpreter; versions by distribution. Raises :class:`ConfigError`."""
    program = (
        "import importlib.util, json, sys\n"
        "s = importlib.util.spec_from_file_location('p', sys.argv[1]); m = importlib.util.module_from_spec(s)\n"
        "s.loader.exec_module(m); versions = m.warm(); print('\\n' + json.dumps(versions))"
    )
    command = [str(python), "-I", "-c", program, str(wanted.program)]
    output = _run(command, f"the {wanted.name} backend is installed, but cannot be imported", _CHECK_S)
    versions: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return {str(key): str(value) for key, value in versions.items()}


def _run(command: Sequence[str], what: str, timeout_s: float = INSTALL_S) -> str:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{what}: no end after {timeout_s:g} s", hint="try it again") from None
    except OSError as error:
        raise ConfigError(f"{what}: {error.strerror or error}", where=command[0]) from None
    if ran.returncode:
        lines = [line for line in ran.stderr.strip().splitlines() if line.strip()]
        raise ConfigError(f"{what}: {lines[-1] if lines else 'no reason given'}", hint="\n".join(lines[-12:-1]))
    return ran.stdout
