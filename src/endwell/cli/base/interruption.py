"""Whether an error is Ctrl-C. Imports nothing: it is needed while everything else is still being imported."""


def is_interruption(error: BaseException) -> bool:
    """Whether it is a KeyboardInterrupt or was caused by one.

    Python 3.11 turns what `__set_name__` raises into a RuntimeError; an import that fails is a UsageError.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause is not None
