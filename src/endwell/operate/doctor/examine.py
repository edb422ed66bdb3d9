"""Run all checks in their order; a check that fails itself is a finding, and the next one runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from endwell.errors import EndwellError
from endwell.operate.doctor import processes, record, storage, streams
from endwell.operate.doctor.finding import Finding, Patient, error

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
    "streams": streams.find_stream_problems,
    "relay": processes.relay,
    "hash_chains": record.hash_chains,
    "conservation": record.conservation,
    "for_people": record.for_people,
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
    return error(problem.code, f"{what}{problem.message}", remedy)
