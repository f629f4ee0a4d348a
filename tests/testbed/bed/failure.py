"""The one exception that the command line prints without a traceback."""


class Failed(Exception):
    """Says what failed and what to do next, in words for the person at the terminal."""
