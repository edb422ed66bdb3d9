"""Agents that are programs."""

from __future__ import annotations

import sys

from tests.support.outside.app import app

PATIENT = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
path = sys.stdin.read().strip('"')
same = subprocess.Popen(["sleep", "3600"])
away = subprocess.Popen(["sleep", "3600"], start_new_session=True)
with open(path + ".new", "w") as file:
    file.write(f"{os.getpid()}\\n{same.pid}\\n{away.pid}\\n")
os.rename(path + ".new", path)
time.sleep(3600)
"""
"""A program that ignores SIGTERM and has started two others, one of them in another group."""

app.command_agent("patient", [sys.executable, "-I", "-S", "-c", PATIENT], retries=0)
CHATTY = """
import os, sys, time
path = sys.stdin.read().strip('"')
with open(path + ".new", "w") as file:
    file.write(f"{os.getpid()}\\n")
os.rename(path + ".new", path)
while True:
    print('{"progress": "still here"}', flush=True)
    time.sleep(0.05)
"""

app.command_agent("chatty-program", [sys.executable, "-I", "-S", "-c", CHATTY], retries=0)
app.command_agent("short", [sys.executable, "-I", "-S", "-c", PATIENT], retries=0, timeout=3.0)
