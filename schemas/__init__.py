"""Every message and value that crosses a process, as msgspec Structs, and the one tree of errors."""
