import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from triptych.schemas.errors import ConfigError, TransferError
from triptych.transport.tensors.shared_memory import (
    DIRECTORY,
    attach,
    create,
    host_id,
    segment_name,
    sweep_dead_segments,
)

from .conftest import descriptors, maps
from .conftest import segment_exists as exists

OWNER = Path(__file__).with_name("segment_owner.py")
NAME = f"test-{os.getpid()}"


@pytest.fixture
def owner():
    """Start a process that owns a segment, and yield it with the name of the segment."""
    with subprocess.Popen(
        [sys.executable, OWNER, NAME], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as it:
        yield it, it.stdout.readline().strip()
        it.kill()


def test_both_sides_see_the_same_bytes():
    """What is written through one mapping is read through the other, which found the size by itself."""
    mine = create(segment_name(NAME, 1), 8192)
    theirs = attach(mine.name)
    mine.mapping[8000] = 42
    assert (theirs.size, theirs.mapping[8000], theirs.owner_lives()) == (8192, 42, True)
    theirs.close()
    mine.close()


def test_segment_is_for_its_user_alone():
    """Nobody else can open a segment, and its pages are reserved from the start."""
    mine = create(segment_name(NAME, 2), 8192)
    found = Path(DIRECTORY, mine.name).stat()
    assert (stat.S_IMODE(found.st_mode), found.st_blocks * 512) == (0o600, 8192)
    mine.close()


def test_closing_leaves_nothing_and_may_be_repeated():
    """After closing on both sides there is no name, no mapping, no descriptor."""
    before = descriptors()
    mine = create(segment_name(NAME, 3), 4096)
    theirs = attach(mine.name)
    for segment in (theirs, mine, theirs, mine):
        segment.close()
    assert (exists(mine.name), maps(), descriptors()) == (False, "", before)
    with pytest.raises(TransferError, match="is closed"):
        _ = mine.mapping


def test_memory_lives_as_long_as_a_view_of_it():
    """A view that outlives its segment still reads what was there; the mapping goes with it."""
    mine = create(segment_name(NAME, 4), 4096)
    mine.mapping[7] = 9
    view = memoryview(mine.mapping)
    mine.close()
    assert (view[7], exists(mine.name), maps().count("\n")) == (9, False, 1)
    view.release()
    del view
    assert maps() == ""


def test_attached_side_learns_that_the_owner_closed():
    """Once the owner has closed its segment, those who are attached see that it is gone."""
    mine = create(segment_name(NAME, 5), 4096)
    theirs = attach(mine.name)
    mine.close()
    assert not theirs.owner_lives()
    theirs.close()


def test_one_name_has_one_segment():
    """A second segment of the same incarnation is refused and leaves no descriptor; the first one stays."""
    mine = create(segment_name(NAME, 6), 4096)
    before = descriptors()
    with pytest.raises(TransferError, match="exists already"):
        create(mine.name, 4096)
    assert (exists(mine.name), descriptors()) == (True, before)
    mine.close()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "triptych-a",
        "triptych--1",
        "triptych-../x-1",
        "/etc/passwd",
        "triptych-a/b-1",
        "triptych-a-1\n",
        "other-a-1",
    ],
)
def test_peer_cannot_name_what_is_no_segment(name):
    """Only names of the one pattern are opened, and no path among them."""
    with pytest.raises(TransferError, match="is not the name of a segment"):
        attach(name)


def test_missing_segment_is_a_transfer_error():
    """A segment that is gone is said to be so."""
    with pytest.raises(TransferError, match="No such file"):
        attach("triptych-never-1")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(OWNER),
        lambda path: path.touch(),
        os.mkfifo,
    ],
)
def test_what_only_has_the_name_is_not_mapped(make):
    """A link, an empty file or a pipe with the name of a segment is refused, and does not block."""
    path = Path(DIRECTORY, segment_name(NAME, 7))
    before = descriptors()
    make(path)
    try:
        with pytest.raises(TransferError):
            attach(path.name)
    finally:
        path.unlink()
    assert descriptors() == before


def test_more_than_there_is_room_for_names_the_way_out():
    """A pool larger than /dev/shm fails at once, with what is free and how to get more."""
    before = descriptors()
    with pytest.raises(ConfigError, match=r"pool_bytes is 1125899906842624; allowed: \d+ bytes are free.*shm-size"):
        create(segment_name(NAME, 8), 2**50)
    assert descriptors() == before


def test_names_carry_the_instance_and_its_incarnation():
    """The name of a segment says whose it is; letters that no file should have are replaced."""
    assert segment_name("denoiser-0@host:1", 255) == "triptych-denoiser-0@host:1-ff"
    assert segment_name("../a b/ü", 2**62 - 1) == "triptych-.._a_b__-3fffffffffffffff"


def test_host_id_is_the_same_in_every_process_of_this_user(owner):
    """Two processes that can map each other's segments have one host id."""
    process, name = owner
    process.stdin.write("host\n")
    process.stdin.flush()
    assert process.stdout.readline().strip() == host_id()
    attach(name).close()


def test_killed_owner_is_swept_and_a_living_one_is_not(owner):
    """A segment goes with the next sweep after its owner was killed, and not before."""
    process, name = owner
    mine = create(segment_name(NAME, 9), 4096)
    theirs = attach(name)
    assert name not in sweep_dead_segments()
    assert (exists(name), theirs.owner_lives()) == (True, True)
    process.kill()
    process.wait()
    assert not theirs.owner_lives()
    sweep_dead_segments()
    assert (exists(name), exists(mine.name), mine.owner_lives()) == (False, True, True)
    theirs.close()
    mine.close()


def test_sweeping_touches_nothing_else():
    """Other people's files in /dev/shm stay, whatever they are called."""
    others = [Path(DIRECTORY, f"{prefix}{NAME}-z") for prefix in ("triptych-", "triptych-semaphore.", "psm_")]
    others.append(Path(DIRECTORY, f"triptych-{NAME}-a"))
    for path in others[:-1]:
        path.touch()
    others[-1].mkdir()
    try:
        assert not {path.name for path in others} & set(sweep_dead_segments())
        assert all(path.exists() for path in others)
    finally:
        others[-1].rmdir()
        for path in others[:-1]:
            path.unlink()


def test_sweeping_needs_no_torch():
    """A supervisor sweeps segments in an installation that has no torch."""
    code = "import sys; from triptych.transport.tensors import shared_memory as it; it.sweep_dead_segments()"
    code += "; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
