"""How large masks come to a client on the same machine: through memory that it offers, not through its connection.

The client makes a file in memory, without a name in any folder, and tells its place with the request. A server that can
open it writes the masks there and sends a receipt in their stead. One that cannot, on another machine, in another
container or of another user, sends the masks as always. So the place is a hint that changes no answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: The request parameter.
PARAMETER = "masks_memory"
#: Smaller masks are sent: a packet takes no longer.
LEAST_BYTES = 2**18
_PLACE = re.compile(r"([1-9][0-9]{0,9})/([0-9]{1,7})/([0-9a-f]{32})")
_SIZES = np.dtype("<i8")
_RECEIPT = (1, 1, 40)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the memory of one client is.

    Attributes:
        process: the client's.
        descriptor: of the file there.
        token: 32 random hexadecimal digits in the file's name, so that no other file is ever written to.
    """

    process: int
    descriptor: int
    token: str

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """Of ``process/descriptor/token``; None if it is something else."""
        found = _PLACE.fullmatch(text)
        return None if found is None else cls(int(found[1]), int(found[2]), found[3])

    def __str__(self) -> str:
        return f"{self.process}/{self.descriptor}/{self.token}"

    @property
    def name(self) -> str:
        """The file's."""
        return f"triton-sam-{self.token}"

    @property
    def path(self) -> str:
        """Under which other processes of the machine can open the file."""
        return f"/proc/{self.process}/fd/{self.descriptor}"


def receipt(place: Place, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """[1,1,40] uint8, instead of masks [K,H,ceil(W/8)] that are in memory: the token and the three sizes."""
    sizes = np.array(shape, _SIZES).tobytes()
    return np.frombuffer(bytes.fromhex(place.token) + sizes, np.uint8)[None, None]


def received_shape(masks: npt.NDArray[np.uint8], place: Place) -> tuple[int, ...] | None:
    """The shape of masks that are in memory; None if these are the masks themselves."""
    token, data = bytes.fromhex(place.token), masks.tobytes() if masks.shape == _RECEIPT else b""
    return tuple(np.frombuffer(data[len(token) :], _SIZES).tolist()) if data.startswith(token) and data else None
