"""Fuzzing: whatever reaches a decoder, it is taken or refused in words; nothing crashes and nothing hangs."""
