"""The machine on which a time was measured: times of different machines do not compare."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass
from importlib import metadata

from amos.machine.cpu import cpu

#: Packages whose version determines the generated code.
_COMPILERS = ("apache-tvm", "apache-tvm-ffi")


@dataclass(frozen=True)
class Identity:
    """A kind of machine.

    Attributes:
        name: ``"host"``, or the name of a described machine.
        model: CPU model; of a described machine a digest of its figures.
        system: operating system and architecture.
        compilers: name and version of each package that generates code.
    """

    name: str
    model: str
    cores: int
    system: str = ""
    compilers: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """Digest of everything above: equal for machines of one kind."""
        return hashlib.sha256(json.dumps(self.to_dict()).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, object]:
        """Convert to plain values for records and JSON."""
        return asdict(self) | {"compilers": dict(self.compilers)}

    def __str__(self) -> str:
        if self.name != "host":
            return f"{self.name} (described, {self.model})"
        versions = ", ".join(f"{name} {version}" for name, version in self.compilers)
        return f"{self.model}, {self.cores} cores, {versions or 'no compiler'}"


def identify_host() -> Identity:
    """Identify the machine of this process."""
    versions = []
    for package in _COMPILERS:
        try:
            versions.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            continue
    where = f"{platform.system()} {platform.machine()}"
    return Identity("host", cpu().model, cpu().cores, where, tuple(versions))
