"""Constants of networks in a file beside their library: mapped, and shared by all processes."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np

from amos.network.external.straight_line import ALIGNMENT_BYTES

#: Hexadecimal digits of the digest in the names of file and domain.
_DIGITS = 16


class Constants:
    """Collects constants, equal ones once.

    The file ends with the digest of all of them, which the library compares with its own.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._offsets: dict[bytes, int] = {}
        self._size = 0

    def offset_of(self, array: np.ndarray) -> int:
        """Return the first byte of an array in the file, which holds it from now on."""
        values = array.tobytes()
        key = sha256(values).digest()
        if key not in self._offsets:
            self._offsets[key] = self._size
            padded = values + bytes(-len(values) % ALIGNMENT_BYTES)
            self._parts.append(padded)
            self._size += len(padded)
        return self._offsets[key]

    @property
    def digest(self) -> str:
        """Digest of all constants and their order."""
        return sha256(b"".join(self._offsets)).hexdigest()

    @property
    def file_name(self) -> str:
        """Name of the file, with digits of its digest."""
        return f"constants-{self.digest[:_DIGITS]}.bin"

    @property
    def file_bytes(self) -> int:
        """Size of the file in bytes."""
        return self._size + len(self.digest)

    def write(self, folder: Path) -> Path:
        """Write the file into a folder; returns its path."""
        path = folder / self.file_name
        with path.open("wb") as file:
            file.writelines(self._parts)
            file.write(self.digest.encode())
        return path
