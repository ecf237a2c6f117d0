"""Media put together from pieces."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triptych.client.assembly import Assembly
from triptych.schemas.errors import MalformedMessage
from triptych.schemas.transfer import Piece, ResultTicket


def ticket_of(*files: bytes) -> ResultTicket:
    return ResultTicket("decoder-0", "", b"t" * 16, tuple(map(len, files)), tuple(map(zlib.crc32, files)))


@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(1, 17), st.integers(1, 5), st.data())
def test_the_media_are_the_same_however_the_pieces_come(
    files: list[bytes], length: int, credit: int, data: st.DataObject
) -> None:
    """In any order, refused now and then, and begun anew: each byte is in its place, and asked for under credit."""
    assembly = Assembly(ticket_of(*files))
    asked: list[Piece] = []
    rewinds = 3
    while not assembly.complete:
        while assembly.outstanding < credit and (piece := assembly.next_piece(length)) is not None:
            asked.append(piece)
        assert 0 < len(asked) == assembly.outstanding <= credit
        piece = asked.pop(data.draw(st.integers(0, len(asked) - 1)))
        what = data.draw(st.sampled_from(["take", "take", "take", "refuse", "rewind"]))
        if what == "refuse":
            assembly.refuse(piece)
        elif what == "rewind" and rewinds:
            rewinds -= 1
            assembly.rewind()
            asked.clear()
        else:
            assembly.take(piece, files[piece.medium][piece.offset : piece.offset + piece.length])
    assert assembly.media() == tuple(files)
    assert assembly.next_piece(length) is None


def test_nothing_to_fetch_is_complete() -> None:
    """Media of no bytes are there at once."""
    assembly = Assembly(ticket_of(b"", b""))
    assert (assembly.complete, assembly.media()) == (True, (b"", b""))


@pytest.mark.parametrize(
    ("piece", "data"),
    [(Piece(0, 1, 2), b"bc"), (Piece(0, 0, 3), b"abc"), (Piece(0, 0, 2), b"a"), (Piece(0, 0, 2), b"abc")],
    ids=["not asked for", "another length", "too short", "too long"],
)
def test_a_piece_that_was_not_asked_for_is_refused(piece: Piece, data: bytes) -> None:
    """Nothing is put where it does not belong."""
    assembly = Assembly(ticket_of(b"abcdef"))
    assembly.next_piece(2)
    with pytest.raises(MalformedMessage):
        assembly.take(piece, data)
    assert assembly.written == 0


def test_a_piece_comes_once() -> None:
    """A repeated one is refused, before it is in its place and afterwards."""
    assembly = Assembly(ticket_of(b"abcdef"))
    first, second = assembly.next_piece(2), assembly.next_piece(2)
    assert first is not None
    assert second is not None
    for piece in (second, first):
        assembly.take(piece, b"xx")
        with pytest.raises(MalformedMessage):
            assembly.take(piece, b"xx")


def test_a_changed_byte_is_noticed() -> None:
    """The checksum is that of the ticket, or the result is refused."""
    assembly = Assembly(ticket_of(b"abcd"))
    piece = assembly.next_piece(4)
    assert piece is not None
    assembly.take(piece, b"abcx")
    with pytest.raises(MalformedMessage, match="medium 0 has the checksum"):
        assembly.media()
