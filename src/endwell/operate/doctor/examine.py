"""Run all checks in their order; a check that fails itself is a finding, and the next one runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from endwell.errors import EndwellError
from endwell.operate.doctor import processes, record, storage, streams
from endwell.operate.doctor.finding import Finding, Patient, error_of

Check = Callable[[Patient], Awaitable[list[Finding]]]

CHECKS: Final[dict[str, Check]] = {
    "settings": processes.check_settings,
    "schema": storage.check_schema,
    "database": storage.check_database,
    "integrity": storage.check_integrity,
    "disk": storage.check_disk,
    "clock": storage.check_clock,
    "supervisors": processes.check_supervisors,
    "workers": processes.check_workers,
    "bounds": processes.check_bounds,
    "doorbells": processes.check_doorbells,
    "streams": streams.find_stream_problems,
    "relay": processes.check_relay,
    "hash_chains": record.check_hash_chains,
    "conservation": record.check_conservation,
    "for_people": record.check_for_people,
}


async def examine(patient: Patient) -> dict[str, Any]:
    """The report: what was checked and what was found; `ok` unless a finding is an error."""
    found: list[Finding] = []
    checks: list[dict[str, str]] = []
    for name, check in CHECKS.items():
        findings = await _run_check(name, check, patient)
        found += findings
        severities = {finding.severity for finding in findings}
        worst = "error" if "error" in severities else "warning" if severities else "ok"
        checks.append({"name": name, "status": worst})
    return report(found, checks)


def report(found: list[Finding], checks: list[dict[str, str]]) -> dict[str, Any]:
    """The report for outside programs: errors first."""
    ordered = sorted(found, key=lambda finding: finding.severity != "error")
    return {
        "ok": not any(finding.severity == "error" for finding in found),
        "checks": checks,
        "findings": [msgspec.to_builtins(finding) for finding in ordered],
    }


async def _run_check(name: str, check: Check, patient: Patient) -> list[Finding]:
    try:
        return await check(patient)
    except EndwellError as problem:
        return [of_error(problem, f"the check of {name} failed: ")]


def of_error(problem: EndwellError, what: str = "") -> Finding:
    """An error as a finding: its code, and its hint as the remedy."""
    remedy = problem.hint or "see the logs of the processes that use the store"
    return error_of(problem.code, f"{what}{problem.message}", remedy)
