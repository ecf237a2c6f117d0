"""The broker's machine: pure. `handle(event, now)` returns commands, `next_deadline()` says when time matters again."""
