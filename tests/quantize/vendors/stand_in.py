"""A made-up vendor's program: its options say what it does. Run by the warm process under test."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

STARTED = time.time()


class Unsupported(Exception):
    boardtune_cause = "unsupported"


def warm() -> dict[str, str]:
    return {"stand-in": "1.0", "pid": str(os.getpid())}


def quantize(job: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    tell("working")
    print("what the vendor prints")
    options = job["options"]
    if options.get("do") == "raise":
        raise ValueError("a bad value\nand more")
    if options.get("do") == "unsupported":
        raise Unsupported("no such layer")
    if options.get("do") == "crash":
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if options.get("do") == "exit":
        os._exit(7)
    if options.get("do") == "memory":
        held = [bytearray(b"x" * (32 << 20)) for _ in range(64)]
        time.sleep(60 + len(held))
    if options.get("do") == "hang":
        with open(job["out"] + ".pid", "w") as stream:
            stream.write(str(os.getpid()))
        time.sleep(600)
    with open(job["out"], "w") as stream:
        stream.write(f"made in {os.getpid()}")
    return {"notices": ["a notice"], "settings": {"hash": hash("fixed"), "path": sys.path, "started": STARTED}}
