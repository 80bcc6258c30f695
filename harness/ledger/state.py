"""What a run's events amount to. Pure: no files, no clock.

A trial goes ``proposed -> quantized -> gated``, then on each board ``deployed -> measured -> evaluated``, and ends as
``done``, ``failed``, ``pruned`` or ``duplicate``. A board may drop out (``failed``/``pruned`` with a board) while the
trial goes on elsewhere. After ``done`` only ``final`` may follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from harness.errors import BoardtuneError
from harness.results import ArtifactInfo, BoardResult, Candidate

Stage = Literal[
    "proposed", "quantized", "gated", "deployed", "measured", "evaluated", "done", "failed", "pruned", "duplicate"
]  # fmt: skip
BoardStage = Literal["deployed", "measured", "evaluated", "failed", "pruned"]

TERMINAL: frozenset[str] = frozenset({"done", "failed", "pruned", "duplicate"})

# Board stage -> board stages (or None: nothing yet) it may follow. A reboot makes a second deployment normal.
_BOARD_AFTER: Mapping[str, frozenset[str | None]] = {
    "deployed": frozenset({None, "deployed"}),
    "measured": frozenset({"deployed"}),
    "evaluated": frozenset({"measured"}),
    "failed": frozenset({None, "deployed", "measured"}),
    "pruned": frozenset({None, "deployed", "measured", "evaluated"}),
}


class IllegalTransition(BoardtuneError):
    """An event that cannot follow what is recorded: a bug of the caller, or a ledger put together by hand."""


@dataclass(frozen=True)
class BoardProgress:
    """One trial on one board."""

    status: BoardStage
    result: BoardResult | None = None
    """Of the search phase."""
    cause: str = ""
    message: str = ""
    final: BoardResult | None = None
    """Re-measured as a finalist."""
    final_cause: str = ""
    final_message: str = ""
    final_tried: bool = False

    @property
    def best(self) -> BoardResult | None:
        """The final result where there is one, else the search's."""
        return self.final or self.result


@dataclass(frozen=True)
class TrialState:
    number: int
    recipe: Mapping[str, Any]
    label: str
    params: Mapping[str, Any]
    """The sampler's own parameters, to rebuild it on resume."""
    recipe_digest: str
    status: Stage
    started: str
    """UTC time of the proposal, ISO 8601."""
    ended: str | None = None
    order: int | None = None
    """``seq`` of the event that ended it: sorts trials as they finished."""
    artifact: ArtifactInfo | None = None
    snr_db: float | None = None
    quantized_operators: int | None = None
    backend: str = ""
    quantize_seconds: float = 0.0
    notices: tuple[str, ...] = ()
    gate: Mapping[str, Any] = field(default_factory=dict)
    boards: Mapping[str, BoardProgress] = field(default_factory=dict)
    cause: str = ""
    message: str = ""
    duplicate_of: int | None = None
    device_seconds: Mapping[str, float] = field(default_factory=dict)
    """By board: all that the search spent on it, failures and earlier tries included; finals are apart."""

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL


@dataclass(frozen=True)
class Suggestion:
    """A recipe that somebody (a diagnosis) put into the search."""

    number: int
    """The trial it is, or will be."""
    recipe: Mapping[str, Any]
    label: str
    recipe_digest: str
    reason: str


@dataclass
class LedgerState:
    """Grown event by event with :meth:`apply`; the values in it are frozen."""

    header: Mapping[str, Any] = field(default_factory=dict)
    boards: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Board -> ``{"facts": …, "options": …}`` as last recorded."""
    trials: dict[int, TrialState] = field(default_factory=dict)
    device_seconds: dict[str, float] = field(default_factory=dict)
    """By board: of search and finals."""
    finals_seconds: dict[str, float] = field(default_factory=dict)
    """By board: of the finals alone."""
    active_s: float = 0.0
    """Wall time from the first event to the last, without the pauses before a resume or a suggestion."""
    notices: list[str] = field(default_factory=list)
    started: str | None = None
    last_time: str | None = None
    resumed: int = 0
    """How many times."""
    stop_reason: str | None = None
    stop_kind: str = ""
    finished: str | None = None
    """UTC time, once the run is complete."""
    picks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    suggestions: tuple[Suggestion, ...] = ()
    """In the order of their numbers."""
    seq: int = 0
    """Events applied."""

    @classmethod
    def from_events(cls, events: Iterable[Mapping[str, Any]]) -> LedgerState:
        state = cls()
        for event in events:
            state.apply(event)
        return state

    def apply(self, event: Mapping[str, Any]) -> None:
        """Takes the next event (``time`` may be missing). Raises :class:`IllegalTransition`, changing nothing."""
        kind = event.get("event")
        handler = _HANDLERS.get(str(kind))
        if handler is None:
            raise self._illegal(event, f"unknown event {kind!r}")
        if (kind == "run") != (self.seq == 0):
            raise self._illegal(event, "a ledger begins with one 'run' event and has no other")
        try:
            handler(self, event)
        except (KeyError, TypeError, ValueError) as error:  # pydantic's ValidationError is a ValueError
            raise self._illegal(event, f"{type(error).__name__}: {error}") from error
        self._charge(event)
        if kind not in ("resumed", "suggested"):
            self.active_s += _seconds_between(self.last_time, event.get("time"))
        self.last_time = event.get("time") or self.last_time
        self.seq += 1

    def unfinished(self) -> tuple[TrialState, ...]:
        """Trials to take up again on resume, by number."""
        return tuple(t for _, t in sorted(self.trials.items()) if not t.terminal)

    def ended(self) -> tuple[TrialState, ...]:
        """Trials in the order in which they ended."""
        return tuple(sorted((t for t in self.trials.values() if t.order is not None), key=lambda t: t.order or 0))

    def done(self) -> tuple[TrialState, ...]:
        """By number."""
        return tuple(t for _, t in sorted(self.trials.items()) if t.status == "done")

    @property
    def next_trial(self) -> int:
        return max(self.trials, default=-1) + 1

    def counts(self) -> dict[str, int]:
        """Ended trials by status, every status present."""
        counts = {"done": 0, "failed": 0, "pruned": 0, "duplicate": 0}
        for trial in self.trials.values():
            if trial.status in counts:
                counts[trial.status] += 1
        return counts

    def candidates(self) -> tuple[Candidate, ...]:
        """Done trials with their results, the final ones where there are any."""
        return tuple(
            Candidate(t.number, t.recipe, t.label, {n: b.best for n, b in t.boards.items() if b.best is not None})
            for t in self.done()
        )

    def find_identity(self, identity: str) -> int | None:
        """Number of the first trial, not a duplicate itself, whose artifact has this identity."""
        for number, trial in sorted(self.trials.items()):
            if trial.artifact is not None and trial.artifact.identity == identity and trial.duplicate_of is None:
                return number
        return None

    # -- one method per event kind --------------------------------------------------------------------------

    def _run(self, event: Mapping[str, Any]) -> None:
        self.header, self.started = event["header"], event.get("time")

    def _resumed(self, event: Mapping[str, Any]) -> None:
        self.resumed += 1
        self.stop_reason, self.stop_kind, self.finished = None, "", None
        self.notices.extend(f"on resume: {change}" for change in event.get("changes", ()))

    def _board(self, event: Mapping[str, Any]) -> None:
        self.boards[event["board"]] = {"facts": event["facts"], "options": event.get("options", {})}

    def _notice(self, event: Mapping[str, Any]) -> None:
        board = event.get("board")
        self.notices.append(f"{board}: {event['message']}" if board else event["message"])

    def _proposed(self, event: Mapping[str, Any]) -> None:
        number = event["trial"]
        if not isinstance(number, int) or number < 0:
            raise self._illegal(event, f"trial number {number!r} is not 0 or more")
        if number in self.trials:
            raise self._illegal(event, "it was proposed before")
        self.trials[number] = TrialState(
            number=number,
            recipe=event["recipe"],
            label=event["label"],
            params=event.get("params", {}),
            recipe_digest=event.get("digest", ""),
            status="proposed",
            started=event.get("time", ""),
        )

    def _quantized(self, event: Mapping[str, Any]) -> None:
        trial = self._trial(event, "proposed")
        artifact = event["artifact"]
        self._put(
            trial,
            status="quantized",
            artifact=ArtifactInfo(artifact["sha256"], artifact["identity"], artifact["size_bytes"]),
            snr_db=event.get("snr_db"),
            quantized_operators=event.get("quantized_operators"),
            notices=tuple(event.get("notices", ())),
            backend=event.get("backend", ""),
            quantize_seconds=event.get("seconds", 0.0),
        )

    def _gated(self, event: Mapping[str, Any]) -> None:
        self._put(self._trial(event, "quantized"), status="gated", gate=event.get("facts", {}))

    def _on_board(self, event: Mapping[str, Any]) -> None:
        stage: BoardStage = event["event"]
        trial = self._trial(event, "gated", "deployed", "measured", "evaluated")
        board = trial.boards.get(event["board"])
        before = board.status if board else None
        if before not in _BOARD_AFTER[stage]:
            raise self._illegal(event, f"on board {event['board']!r} it is {before or 'not deployed'}")
        result = event.get("result")
        progress = BoardProgress(
            stage,
            BoardResult.from_json(result) if result else (board.result if board else None),
            event.get("cause", ""),
            event.get("message", ""),
        )
        status: Stage = stage if stage in ("deployed", "measured", "evaluated") else trial.status
        order = ("gated", "deployed", "measured", "evaluated")
        status = max(status, trial.status, key=order.index)
        self._put(trial, status=status, boards={**trial.boards, event["board"]: progress})

    def _ended(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if event.get("board") is not None and kind in ("failed", "pruned"):
            self._on_board(event)
            return
        trial = self._trial(event, "proposed", "quantized", "gated", "deployed", "measured", "evaluated")
        changes: dict[str, Any] = {"cause": event.get("cause", ""), "message": event.get("message", "")}
        if kind == "done":
            waiting = [name for name, b in trial.boards.items() if b.status == "deployed"]
            if waiting or not any(b.status in ("measured", "evaluated") for b in trial.boards.values()):
                raise self._illegal(event, f"not measured on {', '.join(waiting) or 'any board'}")
        elif kind == "duplicate":
            changes["duplicate_of"] = self._original(event)
        self._put(trial, status=kind, order=self.seq, ended=event.get("time"), **changes)

    def _retried(self, event: Mapping[str, Any]) -> None:
        trial = self._trial(event, "proposed", "quantized", "gated", "deployed", "measured", "evaluated", "failed")
        self.notices.append(f"trial {trial.number:04d} starts over: {event.get('reason', '')}")
        self.trials[trial.number] = TrialState(
            trial.number,
            trial.recipe,
            trial.label,
            trial.params,
            trial.recipe_digest,
            "proposed",
            trial.started,
            device_seconds=trial.device_seconds,
        )

    def _final(self, event: Mapping[str, Any]) -> None:
        trial = self._trial(event, "done")
        board = trial.boards.get(event["board"])
        if board is None or board.result is None:
            raise self._illegal(event, f"it has no result on board {event['board']!r} to confirm")
        result = event.get("result")
        progress = replace(
            board,
            final=BoardResult.from_json(result) if result else None,
            final_cause=event.get("cause", ""),
            final_message=event.get("message", ""),
            final_tried=True,
        )
        self._put(trial, boards={**trial.boards, event["board"]: progress})

    def _suggested(self, event: Mapping[str, Any]) -> None:
        taken = (self.next_trial, *(suggestion.number + 1 for suggestion in self.suggestions))
        made = Suggestion(max(taken), event["recipe"], event["label"], event["digest"], event.get("reason", ""))
        self.suggestions = (*self.suggestions, made)

    def _stopped(self, event: Mapping[str, Any]) -> None:
        self.stop_reason, self.stop_kind = event["reason"], event.get("kind", "")

    def _finished(self, event: Mapping[str, Any]) -> None:
        self.finished = event.get("time") or "?"
        self.picks = {name: tuple(trials) for name, trials in event.get("picks", {}).items()}

    # -- helpers --------------------------------------------------------------------------------------------

    def _charge(self, event: Mapping[str, Any]) -> None:
        board, seconds = event.get("board"), event.get("device_seconds") or 0.0
        if not board or not seconds:
            return
        self.device_seconds[board] = self.device_seconds.get(board, 0.0) + seconds
        if event["event"] == "final":
            self.finals_seconds[board] = self.finals_seconds.get(board, 0.0) + seconds
        elif "trial" in event:
            trial = self.trials[event["trial"]]
            total = trial.device_seconds.get(board, 0.0) + seconds
            self._put(trial, device_seconds={**trial.device_seconds, board: total})

    def _trial(self, event: Mapping[str, Any], *allowed: str) -> TrialState:
        trial = self.trials.get(event["trial"])
        if trial is None:
            raise self._illegal(event, "it was never proposed")
        if trial.status not in allowed:
            raise self._illegal(event, f"it is {trial.status}")
        return trial

    def _original(self, event: Mapping[str, Any]) -> int:
        of = event["duplicate_of"]
        if of == event["trial"] or of not in self.trials or self.trials[of].duplicate_of is not None:
            raise self._illegal(event, f"trial {of!r} cannot be its original")
        return int(of)

    def _put(self, trial: TrialState, **changes: Any) -> None:
        self.trials[trial.number] = replace(trial, **changes)

    def _illegal(self, event: Mapping[str, Any], why: str) -> IllegalTransition:
        about = f" for trial {event['trial']}" if "trial" in event else ""
        return IllegalTransition(f"ledger event {event.get('event')!r}{about} (seq {self.seq}) cannot be: {why}")


def _seconds_between(earlier: str | None, later: str | None) -> float:
    """Of two times of the ledger; 0 where one is missing or no time, or the clock was set back."""
    try:
        passed = datetime.fromisoformat(later or "") - datetime.fromisoformat(earlier or "")
    except ValueError:
        return 0.0
    return max(0.0, passed.total_seconds())


_HANDLERS: Mapping[str, Callable[[LedgerState, Mapping[str, Any]], None]] = {
    "run": LedgerState._run,
    "resumed": LedgerState._resumed,
    "board": LedgerState._board,
    "notice": LedgerState._notice,
    "proposed": LedgerState._proposed,
    "quantized": LedgerState._quantized,
    "gated": LedgerState._gated,
    "deployed": LedgerState._on_board,
    "measured": LedgerState._on_board,
    "evaluated": LedgerState._on_board,
    "done": LedgerState._ended,
    "failed": LedgerState._ended,
    "pruned": LedgerState._ended,
    "duplicate": LedgerState._ended,
    "retried": LedgerState._retried,
    "final": LedgerState._final,
    "suggested": LedgerState._suggested,
    "stopped": LedgerState._stopped,
    "finished": LedgerState._finished,
}
