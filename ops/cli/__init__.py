"""The command line. Commands import what they need when they run, so that it starts fast and without torch."""
