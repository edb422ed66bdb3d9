"""The orchestrator's end of the streams, a service of the PMO that leads.

- `service`: leadership and loops.
- `publisher`, `free_slots`, `early_offers`: which offers to publish next, and when to look again.
- `reports`, `foreign`: what foreign workers report, and their sessions, leases and grants.
- `reclaim`: entries that were left alone.
- `dead_letter_publisher`, `result_publisher`: what other programs may read.
"""
