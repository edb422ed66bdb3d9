"""The shared options of one command line."""

from __future__ import annotations

from dataclasses import dataclass

import click


@dataclass(kw_only=True)
class Options:
    """The shared options of one invocation."""

    store: str | None = None
    namespace: str | None = None
    app: str | None = None
    json: bool = False
    log_format: str = "text"
    verbose: int = 0
    debug: bool = False


pass_options = click.make_pass_decorator(Options, ensure=True)
