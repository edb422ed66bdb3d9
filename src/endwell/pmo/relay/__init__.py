"""What leaves the process: the log, told to the outside as CloudEvents by one relay at a time.

Nothing waits for it. It follows the log from a stored cursor, so a crash delays what it tells and loses
nothing.
"""
