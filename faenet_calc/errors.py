"""The error that means "your input", as opposed to a failure of ours."""


class InputError(ValueError):
    """Input that cannot be used as given: a file, an option, a structure, a configuration.

    The message says what came, what was expected and what to do. On the command line it is printed without a traceback
    and the exit code is 2.
    """
