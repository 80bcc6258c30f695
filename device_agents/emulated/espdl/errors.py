"""What can be wrong with an ``.espdl`` file: each error names the place in the file or the node."""

from __future__ import annotations

from device_agents.contract import ModelRejected, UnsupportedOperator


class EspdlError(ModelRejected):
    """The file cannot be used. ``hint`` says what to do."""


class MalformedModel(EspdlError):
    """Truncated, corrupted, or not an ``.espdl``: an offset, a length, a type or a shape makes no sense."""


class EncryptedModel(EspdlError):
    """The container says that its content is encrypted (AES-128-CTR); the key is not ours to have."""


class UnsupportedNode(UnsupportedOperator):
    """A node the interpreter cannot run: the operator, or a way of using it, is not implemented."""
