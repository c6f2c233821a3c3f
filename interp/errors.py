"""The one exception that means "the caller can mend this"."""


class InputError(ValueError):
    """What was asked for cannot be done, and the message says what to change.

    Scripts print it as one line and leave with exit code 2; anything else that
    is raised is a fault of this package and keeps its traceback.
    """
