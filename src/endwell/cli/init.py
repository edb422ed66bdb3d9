"""`endwell init`: a starter project that runs as it is."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import click

from endwell.cli.base.commands import EndwellCommand
from endwell.cli.base.options import Options, pass_options
from endwell.cli.base.output import show
from endwell.errors import Refused, UsageError

FILES = ("app.py", "test_app.py", "endwell.toml", "README.md", ".gitignore")


@click.command(cls=EndwellCommand)
@click.argument("directory", metavar="DIR")
@pass_options
def init(options: Options, directory: str) -> None:
    """Create a starter project: an app with an agent, its test, settings.

    Creates the directory if it does not exist. No file is overwritten.

    \b
      endwell init hello
      cd hello && endwell up
    """
    place = Path(directory)
    existing = [name for name in FILES if (place / name).exists()]
    if existing:
        raise Refused(
            f"{place / existing[0]} exists already",
            code="file_exists",
            hint="nothing was written; name another directory",
            field="directory",
        )
    try:
        _write(place)
    except OSError as error:
        raise UsageError(
            f"{directory}: {error.strerror}", hint="check the path", field="directory"
        ) from error
    show(options, {"directory": str(place), "files": list(FILES)}, _created_text)


def _write(place: Path) -> None:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in FILES:
        text = (resources.files("endwell.cli.starter") / _name_in_package(name)).read_text(encoding="utf-8")
        target = place / name
        target.touch(mode=0o600)
        target.write_text(text, encoding="utf-8")


def _name_in_package(name: str) -> str:
    """The file's name in the package, where it must not look like a module or test of Endwell."""
    return f"{name.removeprefix('.')}.txt"


def _created_text(answer: dict[str, Any]) -> str:
    place = answer["directory"]
    return (
        f"{', '.join(answer['files'])} are in {place}\n\n"
        f"  cd {place}\n"
        "  endwell up                              # a worker and a PMO, until you stop it\n"
        '  endwell submit greeter \'{"name": "Ada"}\' --wait    # in another terminal\n'
        "  python -m pytest                        # the agent's test, with pip install pytest"
    )
