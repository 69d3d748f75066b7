"""The two ways in which a bench can fail: its input is wrong, or an engine died."""


class BenchError(ValueError):
    """Bad input. The message is one line that says what was wrong and what is allowed."""


class EngineFailed(RuntimeError):
    """A worker could not start, raised, or went away. The message names the method and the log file."""
