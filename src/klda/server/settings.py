"""Settings of the service, and the limits of a request."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from klda.errors import KldaError

# Limits of one request. They are part of the API: the OpenAPI document states them.
MAX_ITEMS = 1000
MAX_COMPARED = 10_000  # inputs that are compared with each other, and rows of a file
MAX_TEXT_LENGTH = 20_000
MAX_FEATURES = 65_536
MAX_TOP = 100
MAX_KEY_LENGTH = 200

MIN_API_KEY_LENGTH = 16
BURST = 200  # requests that a client may send at once before its rate counts
MAX_WAITING = 2000  # requests of a kind; more get status 503
STOP_SECONDS = 30  # for requests and tables under way when the service stops


@dataclass(frozen=True)
class ApiKey:
    """A key, and the role that it allows: ``"ask"``, or ``"teach"``, which may also ask."""

    role: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class ServiceSettings:
    """How the service runs."""

    model: Path  # the model folder
    new: str | None = None  # foundation model of a new model, if there is none
    device: str = "auto"  # of the foundation model and the classifier
    workers: int = 1  # processes that encode inputs; 1 encodes in the service itself
    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[ApiKey, ...] = ()  # without any, everyone who reaches the service may teach
    rate: float = 0.0  # requests per second of one client (a key, or an address); 0 is no limit
    max_body: int = 16 << 20  # bytes of the largest request
    max_batch: int = 64  # inputs encoded together; 1 turns micro-batching off
    checkpoint_interval: float = 30.0  # seconds between saves of the model
    discard_journal: bool = False  # go on without the changes that only the journal has
    # Host names that requests may be addressed to. Empty: loopback names if it listens there
    # without keys, any otherwise.
    allowed_hosts: tuple[str, ...] = ()
    quiet: bool = False  # log warnings and errors only

    @property
    def device_options(self) -> dict[str, Any]:
        """What a learner is told about the device."""
        return {} if self.device == "auto" else {"device": self.device}

    def check(self) -> None:
        """Raise if the service would be open to everyone."""
        if not self.keys and not is_loopback(self.host):
            raise KldaError(
                f"host={self.host!r} can be reached from other computers, and there is no API key. "
                "Give keys with --keys FILE (lines such as 'teach KEY' and 'ask KEY') or in "
                "KLDA_TEACH_KEYS and KLDA_ASK_KEYS, or listen on 127.0.0.1."
            )


def is_loopback(host: str) -> bool:
    """Return whether only this computer can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_keys(lines: Sequence[str], source: str) -> tuple[ApiKey, ...]:
    """Read keys from lines such as ``"teach KEY"`` and ``"ask KEY"``.

    Empty lines and those that start with # are left out. Errors name the source and the line, but
    never repeat a key.
    """
    keys = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in ("ask", "teach"):
            raise KldaError(f"{source}, line {number}: give a role (ask or teach) and a key.")
        if len(words[1]) < MIN_API_KEY_LENGTH:
            raise KldaError(
                f"{source}, line {number}: the key has {len(words[1])} characters; give at least "
                f"{MIN_API_KEY_LENGTH}, for instance from: openssl rand -hex 32"
            )
        keys.append(ApiKey(words[0], words[1]))
    return tuple(keys)


def find_keys(file: Path | None) -> tuple[ApiKey, ...]:
    """Read the keys of a file, and those in KLDA_TEACH_KEYS and KLDA_ASK_KEYS."""
    found: tuple[ApiKey, ...] = ()
    if file is not None:
        try:
            found = read_keys(file.read_text(encoding="utf-8").splitlines(), str(file))
        except OSError as error:
            raise KldaError(f"--keys {file}: {error.strerror or error}.") from error
        if not found:
            raise KldaError(f"--keys {file} has no key: give lines such as 'teach KEY'.")
    for role in ("teach", "ask"):
        name = f"KLDA_{role.upper()}_KEYS"
        values = [key.strip() for key in os.environ.get(name, "").split(",") if key.strip()]
        found += read_keys([f"{role} {value}" for value in values], name)
    return found
