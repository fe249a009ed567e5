"""Errors and their messages."""


class InputError(ValueError):
    """Invalid input: a file, an option, a structure, a configuration.

    The message says what was given, what was expected and what to do. On the command line it is printed without a
    traceback and the exit code is 2.
    """


def message_of(error: BaseException) -> str:
    """The message of an exception, with its type unless it is an `InputError`; never the type alone."""
    if isinstance(error, InputError):
        return str(error)
    return f"{str(error) or 'no message'} ({type(error).__name__})"
