"""A discrete-event simulator of a whole cluster, around the very machine that a broker runs."""
