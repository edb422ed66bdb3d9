"""Verify the record: logs, rows, cards and effects must agree."""
