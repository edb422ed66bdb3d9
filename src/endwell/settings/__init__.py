"""Settings: every value, its default, and its source.

Later sources win: defaults, `endwell.toml`, the environment (`ENDWELL__SECTION__KEY`, `ENDWELL_STORE`), and
what a caller passes to `override`. An impossible value is refused with its key, its source and the reason;
`check` refuses combinations that could not work.
"""

from endwell.settings.check import as_queued, check
from endwell.settings.sections import (
    ApprovalSettings,
    AppSettings,
    DoorbellSettings,
    HumanSettings,
    NatsSettings,
    PmoSettings,
    ProgressSettings,
    QueueSettings,
    RedisSettings,
    RelaySettings,
    RetrySettings,
    Settings,
    TaskSettings,
    WorkerSettings,
)
from endwell.settings.show import Described, describe, each_url, mask_url
from endwell.settings.sources import FILE_NAME, load, override

__all__ = [
    "FILE_NAME",
    "AppSettings",
    "ApprovalSettings",
    "Described",
    "DoorbellSettings",
    "HumanSettings",
    "NatsSettings",
    "PmoSettings",
    "ProgressSettings",
    "QueueSettings",
    "RedisSettings",
    "RelaySettings",
    "RetrySettings",
    "Settings",
    "TaskSettings",
    "WorkerSettings",
    "as_queued",
    "check",
    "describe",
    "each_url",
    "load",
    "mask_url",
    "override",
]
