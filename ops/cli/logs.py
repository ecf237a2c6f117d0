"""The lines of several processes on one terminal, each with the name of who said it."""

from rich.console import Console
from rich.text import Text

_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta")


class LogPrinter:
    """Prints lines as they come, where they are to be `shown`; each name has its own colour."""

    def __init__(self, console: Console, *, shown: bool = True) -> None:
        self._console = console
        self._shown = shown
        self._styles: dict[str, str] = {}

    @property
    def colours(self) -> bool:
        """Whether the processes are to colour their lines."""
        return self._console.is_terminal and not self._console.no_color

    def show(self, name: str, line: str) -> None:
        """Print one line of `name`."""
        if not self._shown:
            return
        style = self._styles.setdefault(name, _COLOURS[len(self._styles) % len(_COLOURS)])
        prefix = Text(f"{name:<11} │ ", style=style)
        self._console.print(prefix + Text.from_ansi(line), soft_wrap=True)
