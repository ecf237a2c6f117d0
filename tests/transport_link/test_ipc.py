"""Claims on ipc endpoints, with real files, sockets and processes."""

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import zmq

from triptych.schemas.errors import ConfigError
from triptych.transport.link.ipc import claimed, listens, private_files, socket_path

TAKEN = "allowed: one at which nobody listens; here somebody does"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return an empty folder with a short path."""
    with TemporaryDirectory(prefix="triptych-") as name:
        yield Path(name)


@contextmanager
def listener(path: Path) -> Iterator[None]:
    """Listen at `path` without claiming it, as any other program does."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        yield


@contextmanager
def holder(endpoint: str, then: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that claims `endpoint`, binds it, says so, and does `then`."""
    code = f"""
import os, signal, zmq
from triptych.transport.link.ipc import claimed
with claimed({endpoint!r}), zmq.Context() as context, context.socket(zmq.ROUTER) as router:
    router.bind({endpoint!r})
    print("bound", flush=True)
    {then}
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout
            assert child.stdout.readline() == "bound\n"
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:7700", "ipc://@abstract", "ipc://*", "ipc://", "nonsense"])
def test_what_has_no_file_of_its_own_needs_no_claim(endpoint: str) -> None:
    """Two may claim it; the socket itself says where it is taken."""
    assert socket_path(endpoint) is None
    with claimed(endpoint), claimed(endpoint):
        pass


def test_a_claimed_endpoint_cannot_be_claimed_again_until_it_is_given_up(folder: Path) -> None:
    """Nor bound by those who claim first; afterwards it can, and no file is left."""
    endpoint = f"ipc://{folder / 'a'}"
    with claimed(endpoint), pytest.raises(ConfigError, match=TAKEN), claimed(endpoint):
        pass
    with claimed(endpoint):
        pass
    assert list(folder.iterdir()) == []


def test_an_endpoint_of_another_process_is_taken_as_long_as_that_lives(folder: Path) -> None:
    """And it still answers there after others were refused."""
    path = folder / "a"
    with holder(f"ipc://{path}", "signal.pause()"):
        with pytest.raises(ConfigError, match=TAKEN), claimed(f"ipc://{path}"):
            pass
        assert listens(path)


def test_what_a_killed_process_left_behind_is_taken_over(folder: Path) -> None:
    """Given a socket and a lock file whose owner got SIGKILL, the endpoint is free and can be bound."""
    path = folder / "a"
    with holder(f"ipc://{path}", "os.kill(os.getpid(), signal.SIGKILL)") as child:
        assert child.wait() == -signal.SIGKILL
    assert {file.name for file in folder.iterdir()} == {"a", "a.lock"}
    assert not listens(path)
    with claimed(f"ipc://{path}"), zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(f"ipc://{path}")
        assert listens(path)
    assert list(folder.iterdir()) == []


def test_a_listener_that_claims_nothing_is_not_robbed(folder: Path) -> None:
    """Any other program's socket stays as it is."""
    with listener(folder / "a"):
        with pytest.raises(ConfigError, match=TAKEN), claimed(f"ipc://{folder / 'a'}"):
            pass
        assert listens(folder / "a")


def test_a_file_is_not_overwritten(folder: Path) -> None:
    """Somebody who mistypes the endpoint loses nothing."""
    file = folder / "thesis.tex"
    file.write_text("words")
    with pytest.raises(ConfigError, match="this is something else, and stays"), claimed(f"ipc://{file}"):
        pass
    assert file.read_text() == "words"
    assert list(folder.iterdir()) == [file]


def test_a_folder_that_does_not_exist_is_said(folder: Path) -> None:
    """With the reason."""
    with pytest.raises(ConfigError, match="No such file or directory"), claimed(f"ipc://{folder}/none/a"):
        pass


def test_a_lock_that_is_a_link_is_not_followed(folder: Path) -> None:
    """Nobody can have a broker make files elsewhere."""
    (folder / "a.lock").symlink_to(folder / "elsewhere")
    with pytest.raises(ConfigError, match="one that can be bound"), claimed(f"ipc://{folder / 'a'}"):
        pass
    assert not (folder / "elsewhere").exists()


def test_many_at_once_get_an_endpoint_one_after_another(folder: Path) -> None:
    """Ten processes ask for it again and again until each has had it: no two ever have it at the same time.

    Each makes a file while it holds the endpoint, which fails where there is one.
    """
    code = f"""
import os
from triptych.schemas.errors import ConfigError
from triptych.transport.link.ipc import claimed
had = 0
while had < 20:
    try:
        with claimed("ipc://{folder}/a"):
            os.close(os.open("{folder}/held", os.O_CREAT | os.O_EXCL))
            os.unlink("{folder}/held")
            had += 1
    except ConfigError:
        pass
"""
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(10)]
    assert [child.wait() for child in children] == [0] * 10
    assert list(folder.iterdir()) == []


def test_private_files_are_for_this_user_alone(folder: Path) -> None:
    """Sockets made in the context, whatever the umask; files made afterwards are as before."""
    before = os.umask(0)
    try:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
            with private_files():
                router.bind(f"ipc://{folder / 'private'}")
            router.bind(f"ipc://{folder / 'open'}")
            modes = [stat.S_IMODE((folder / name).stat().st_mode) for name in ("private", "open")]
    finally:
        os.umask(before)
    assert modes == [0o600, 0o777]
