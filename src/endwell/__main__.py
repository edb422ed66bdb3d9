"""The entry points of the command line: `endwell`, `dlq_replay` and `python -m endwell`.

Imports nothing before it can answer Ctrl-C: an interruption during the imports below exits with 130 as well.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    _run_and_exit(sys.argv[1:])


def dlq_replay() -> NoReturn:
    """Run `endwell dlq replay`, or with --abandon as the first argument, `endwell dlq abandon`."""
    words = sys.argv[1:]
    is_abandoning = words[:1] == ["--abandon"]
    _run_and_exit(["dlq", "abandon", *words[1:]] if is_abandoning else ["dlq", "replay", *words])


def _run_and_exit(arguments: list[str]) -> NoReturn:
    try:
        from endwell.cli.base.interruption import is_interruption
    except KeyboardInterrupt:
        _exit_interrupted()
    try:
        from endwell.cli.base.whole_output import replace_standard_streams
        from endwell.cli.main import run

        replace_standard_streams()
        code = run(arguments)
    except BaseException as error:
        if is_interruption(error):
            _exit_interrupted()
        raise
    sys.exit(code)


def _exit_interrupted() -> NoReturn:
    sys.stderr.write("interrupted\n")
    sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
