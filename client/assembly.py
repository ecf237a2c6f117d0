"""Media put together from their pieces."""

import io
import zlib
from collections import deque

from ..schemas.errors import MalformedMessage
from ..schemas.transfer import Piece, ResultTicket
from ..transport.link.codec import Frame


class Assembly:
    """What a ticket is for, as far as it has come. Pieces are asked for in order and may come in any."""

    def __init__(self, ticket: ResultTicket) -> None:
        self._ticket = ticket
        self._files = [io.BytesIO() for _ in ticket.sizes]
        self._checksums = [0] * len(ticket.sizes)
        #: asked for, the first one first, until it is written
        self._asked = deque[Piece]()
        #: those of `_asked` that have come
        self._come: dict[Piece, Frame] = {}
        #: to be asked for again
        self._again = deque[Piece]()
        #: what is asked for next: a medium, and from where
        self._medium, self._offset = 0, 0
        self._skip_done()
        self.size = sum(ticket.sizes)
        #: bytes that have come and are in their place
        self.written = 0

    @property
    def complete(self) -> bool:
        """Whether all is there."""
        return self.written == self.size

    @property
    def outstanding(self) -> int:
        """How many pieces are asked for and have not come."""
        return len(self._asked) - len(self._come) - len(self._again)

    def next_piece(self, length: int) -> Piece | None:
        """Return what to ask for next, `length` bytes at most, or None where all is asked for."""
        if self._again:
            return self._again.popleft()
        if self._medium == len(self._files):
            return None
        length = min(length, self._ticket.sizes[self._medium] - self._offset)
        piece = Piece(self._medium, self._offset, length)
        self._offset += length
        self._skip_done()
        self._asked.append(piece)
        return piece

    def refuse(self, piece: Piece) -> None:
        """Note that `piece` must be asked for again."""
        self._check_asked(piece)
        self._again.append(piece)

    def rewind(self) -> None:
        """Forget all that was asked for and has not been put in its place."""
        if self._asked:
            first = self._asked[0]
            self._medium, self._offset = first.medium, first.offset
        self._asked.clear()
        self._come.clear()
        self._again.clear()

    def take(self, piece: Piece, data: Frame) -> None:
        """Put a piece in its place. Raises `MalformedMessage` for one that was not asked for, or is not that long."""
        self._check_asked(piece)
        if len(data) != piece.length:
            raise MalformedMessage(f"a piece of {piece.length} bytes has {len(data)}")
        self._come[piece] = data
        while self._asked and self._asked[0] in self._come:
            first = self._asked.popleft()
            self._write(first.medium, self._come.pop(first))

    def media(self) -> tuple[bytes, ...]:
        """Return the media, which are complete. Raises `MalformedMessage` where one is not what the ticket says."""
        for index, (is_, ought) in enumerate(zip(self._checksums, self._ticket.checksums, strict=True)):
            if is_ != ought:
                raise MalformedMessage(f"medium {index} has the checksum {is_:08x}, its ticket says {ought:08x}")
        return tuple(file.getvalue() for file in self._files)

    def _check_asked(self, piece: Piece) -> None:
        if piece not in self._asked or piece in self._come or piece in self._again:
            raise MalformedMessage(f"{piece} came and was not asked for")

    def _write(self, medium: int, data: Frame) -> None:
        self._files[medium].write(data)
        self._checksums[medium] = zlib.crc32(data, self._checksums[medium])
        self.written += len(data)

    def _skip_done(self) -> None:
        """Go to the next medium that has bytes to be asked for."""
        sizes = self._ticket.sizes
        while self._medium < len(sizes) and self._offset == sizes[self._medium]:
            self._medium, self._offset = self._medium + 1, 0
