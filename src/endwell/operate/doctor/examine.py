"""All checks in their order; a check that itself fails is a finding, and the others go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from endwell.errors import EndwellError
from endwell.operate.doctor import processes, record, storage, streams
from endwell.operate.doctor.finding import Finding, Patient

Check = Callable[[Patient], Awaitable[list[Finding]]]

CHECKS: Final[dict[str, Check]] = {
    "settings": processes.settings,
    "schema": storage.schema,
    "database": storage.database,
    "integrity": storage.integrity,
    "disk": storage.disk,
    "clock": storage.clock,
    "supervisors": processes.supervisors,
    "workers": processes.workers,
    "bounds": processes.bounds,
    "doorbells": processes.doorbells,
    "streams": streams.streams,
    "relay": processes.relay,
    "hash_chains": record.hash_chains,
    "conservation": record.conservation,
    "for_people": record.for_people,
}


async def examine(patient: Patient) -> dict[str, Any]:
    """The report: what was checked, what was found; `ok` unless something is an error."""
    found: list[Finding] = []
    checks: list[dict[str, str]] = []
    for name, check in CHECKS.items():
        findings = await _checked(name, check, patient)
        found += findings
        severities = {finding.severity for finding in findings}
        worst = "error" if "error" in severities else "warning" if severities else "ok"
        checks.append({"name": name, "status": worst})
    return report(found, checks)


def report(found: list[Finding], checks: list[dict[str, str]]) -> dict[str, Any]:
    """Errors first."""
    ordered = sorted(found, key=lambda finding: finding.severity != "error")
    return {
        "ok": not any(finding.severity == "error" for finding in found),
        "checks": checks,
        "findings": [msgspec.to_builtins(finding) for finding in ordered],
    }


async def _checked(name: str, check: Check, patient: Patient) -> list[Finding]:
    try:
        return await check(patient)
    except EndwellError as error:
        return [of_error(error, f"the check of {name} failed: ")]


def of_error(error: EndwellError, what: str = "") -> Finding:
    """An error as a finding: its code, and its hint as the remedy."""
    return Finding(
        code=error.code,
        severity="error",
        message=f"{what}{error.message}",
        remedy=error.hint or "see the log of whoever uses the store",
    )
