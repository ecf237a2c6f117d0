"""The command line, configuration, the local launcher and logging."""
