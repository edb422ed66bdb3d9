"""Recognise Ctrl-C. Imports nothing, because it is needed while everything else is being imported."""


def is_interruption(error: BaseException) -> bool:
    """Whether the error is a KeyboardInterrupt or was caused by one.

    Python 3.11 turns an error in `__set_name__` into a RuntimeError; a failed import becomes a UsageError.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None
