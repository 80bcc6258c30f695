"""A stand-in for MLPerf Tiny firmware: a process on a pty that speaks the protocol and runs a small integer model.

Written from the messages of mlcommons/tiny, ``benchmark/api``. Its model is ``y = (W x + b) / 8`` for int8 [16],
in plain Python; its clock is its own: an inference takes 2500, 2517 or 2534 µs of it, in turn, whatever it takes
here.
"""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INPUTS, OUTPUTS = 16, 4
WEIGHTS = [[(7 * i * i + 11 * i * j + 3 * j) % 23 - 11 for i in range(INPUTS)] for j in range(OUTPUTS)]
BIASES = [5, -40, 17, 80]
TIMES_US = (2500, 2517, 2534)
BOOT = "m-timestamp-mode-performance\r\nm-lap-us-{}\r\nm-init-done\r\nm-ready\r\n"
MOST_BYTES = 4096
COMMAND_CHARACTERS = 80


def computed(x: list[int]) -> list[float]:
    return [(sum(w * v for w, v in zip(row, x, strict=True)) + b) / 8 for row, b in zip(WEIGHTS, BIASES, strict=True)]


class Firmware:
    """``fault`` strikes at the second ``infer`` unless it is one of the whole time."""

    def __init__(self, line: int, fault: str, start_us: int) -> None:
        self.line, self.fault = line, fault
        self.offset_us = start_us - time.monotonic_ns() // 1000
        self.buffer, self.expected = b"", 0
        self.inferred = self.inferences = 0
        self.x = [0] * INPUTS

    def now_us(self) -> int:
        now = time.monotonic_ns() // 1000 + self.offset_us
        step = {"still": 10_000_000, "coarse": 1000}.get(self.fault, 1)
        return now // step * step

    def say(self, text: str) -> None:
        os.write(self.line, text.encode("latin-1"))

    def stamp(self, at_us: int) -> None:
        if self.fault != "energy":
            self.say(f"m-lap-us-{at_us % 2**32}\r\n")

    def run(self) -> None:
        held = b"db 00ff" if self.fault == "half a command" else b""
        if self.fault not in ("silent", "other firmware", "noise"):
            self.say(BOOT.format(self.now_us() % 2**32))
        while True:
            wait = 0.05 if self.fault in ("other firmware", "noise") else None
            if not select.select([self.line], [], [], wait)[0]:
                self.say("hello, world\r\n" if self.fault == "other firmware" else "\xff\x00\x81\x9a" * 20)
                continue
            held += os.read(self.line, 4096)
            *commands, held = held.split(b"%")
            for command in commands:
                if self.fault not in ("silent", "other firmware", "noise"):
                    self.obey(command.decode("latin-1")[-COMMAND_CHARACTERS:].split(" "))

    def obey(self, words: list[str]) -> None:
        if words[0] == "name":
            self.say("m-name-dut-[stand-in]\r\n")
        elif words[0] == "profile":
            self.say("m-profile-[ULPMark for tinyML Firmware V0.0.1]\r\nm-model-[tiny01]\r\n")
        elif words[0] == "timestamp":
            self.stamp(self.now_us())
        elif words[0] == "db":
            self.db(words[1:])
        elif words[0] == "infer":
            self.infer(int(words[1]), int(words[2]) if len(words) > 2 else 10)
        elif words[0] == "results":
            self.results()
        else:
            self.say(f"e-[Unknown command: {words[0]}]\r\n")
        if self.fault == "chatter":
            self.say("I (1234) sensors: 41.5 C\r\n\x1b[0m\xff\x00")
        self.say("m-ready\r\n")
        if self.fault == "reset in a pause" and words[0] == "infer" and self.inferred == 2:
            self.say(BOOT.format(3))

    def db(self, words: list[str]) -> None:
        if words[0] == "load":
            self.expected, self.buffer = int(words[1]), b""
            if self.expected > MOST_BYTES:
                self.say(f"Supplied buffer size {self.expected} exceeds maximum of {MOST_BYTES}\n")
            else:
                self.say(f"m-[Expecting {self.expected} bytes]\r\n")
            return
        if self.fault == "reset while loading" and self.inferred > 0:
            self.fault = ""
            self.buffer = b""
            self.say(BOOT.format(3))
            return
        digits = words[0][:-2] if self.fault == "a lost byte" else words[0]
        try:
            self.buffer += bytes.fromhex(digits)
        except ValueError:
            self.say("e-[Invalid hex digit]\r\n")
            return
        if len(self.buffer) >= self.expected:
            self.say("m-load-done\r\n")

    def infer(self, count: int, warmup: int) -> None:
        self.inferred += 1
        strikes = self.fault if self.inferred == 2 else ""
        if strikes == "refusal":
            self.say("e-[Inference warmup must be >=0]\r\n")
            return
        if len(self.buffer) == INPUTS:
            self.x = [value - 256 if value > 127 else value for value in self.buffer]
        else:
            text = f"Input db has {len(self.buffer)} elemented, expected {INPUTS}"
            self.say(f"e-[{text}]\r\n" if self.fault == "misfits are errors" else f"{text}\r\n")
        self.say(f"m-warmup-start-{warmup}\r\nm-warmup-done\r\nm-infer-start-{count}\r\n")
        begun = self.now_us()
        self.stamp(begun)
        if strikes == "hang":
            time.sleep(3600)
        if strikes == "unplugged":
            sys.exit()
        if strikes == "endless":
            while True:
                self.say("m-infer-start-1\r\n")
        if strikes == "panic":
            self.say("Guru Meditation Error: Core  0 panic'ed (LoadProhibited). Exception was unhandled.\r\n")
        if strikes in ("reset", "panic"):
            self.say(BOOT.format(3))
            return
        took = TIMES_US[self.inferences % 3] * count
        self.inferences += 1
        self.outputs = computed(self.x)
        self.offset_us += begun + took - self.now_us()
        if self.fault == "still":
            took = 0
        if self.fault == "coarse":
            took = self.now_us() - begun
        if strikes == "a wild stamp":
            took = 10**9
        if strikes == "back in time":
            took = -begun + 1
        if strikes != "one stamp":
            self.stamp(begun + took)
        self.say("m-infer-done\r\n")
        if strikes == "half results":
            self.say("m-results-[1.000,2.0\r\n")
        elif self.fault != "results on request":
            self.results()

    def results(self) -> None:
        self.say(f"m-results-[{','.join(f'{value:0.3f}' for value in self.outputs)}]\r\n")


@contextmanager
def running(fault: str = "", start_us: int = 1_000_000) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """(its port, its process)."""
    command = [sys.executable, str(Path(__file__)), "--fault", fault, "--start-us", str(start_us)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--start-us", type=int, default=1_000_000)
    given = parser.parse_args()
    board, host = os.openpty()
    tty.setraw(board)
    tty.setraw(host)
    name = os.ttyname(host)
    print(name, flush=True)
    Firmware(board, given.fault, given.start_us).run()


if __name__ == "__main__":
    main()
