"""The relay: publishes the log outside as CloudEvents, one relay at a time.

It follows the log from a stored cursor. A crash delays messages and loses none; no task waits for it.
"""
