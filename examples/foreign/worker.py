"""A worker that knows only Redis and docs/protocol.md: python worker.py redis://127.0.0.1:6379 [prefix]."""

import json
import os
import signal
import sys
import threading
import time

import redis

url, prefix = sys.argv[1], (sys.argv[2] if len(sys.argv) > 2 else "")
me = f"python-{os.getpid()}"
options = {"decode_responses": True, "encoding_errors": "surrogateescape"}  # an entry may be any bytes
server = redis.Redis.from_url(url, **options)
reader = redis.Redis.from_url(url, **options, socket_timeout=None)  # it blocks
TASK, RESULT, GROUP = prefix + "stream:task", prefix + "stream:result", "cg:workers"


def resize(payload):  # the tool itself
    return {"width": payload["width"] // 2}


def insist(command, *words, **more):  # the server may be away for a while
    while True:
        try:
            return command(*words, **more)
        except (redis.ConnectionError, redis.TimeoutError):
            time.sleep(0.5)


def granted(grant, attempt):
    for _ in range(200):
        if (answer := insist(server.get, grant)) is not None:
            return answer == attempt
        time.sleep(0.05)
    return None  # no answer: leave the entry alone, the orchestrator puts the turn on the stream again


def is_readable(task):
    names = [task.get(key) for key in ("task_id", "tool_name", "turn", "epoch")]
    try:
        json.loads(task.get("payload", "").encode())  # refuses what is not UTF-8, too
    except ValueError:
        return False
    return all(names) and names[-1].isdecimal()


def work(message_id, task):
    if not is_readable(task):
        return  # leave it alone: the orchestrator makes it a dead letter
    said = {key: task[key] for key in ("task_id", "turn", "epoch")}
    said |= {"worker_id": me, "message_id": message_id}
    if task["tool_name"] != "resize":
        insist(server.xadd, RESULT, {**said, "status": "passed", "tool_name": task["tool_name"]})
    else:
        attempt = f"{me}:{insist(server.xadd, RESULT, {**said, 'status': 'claimed'})}"
        grant = f"{prefix}grant:{task['turn']}:{task['epoch']}"
        if (answer := granted(grant, attempt)) is None:
            return
        if answer:
            done, lost = threading.Event(), threading.Event()
            threading.Thread(target=beat, args=(message_id, grant, attempt, done, lost), daemon=True).start()
            try:
                ending = {"status": "succeeded", "output": json.dumps(resize(json.loads(task["payload"])))}
            except Exception as error:
                ending = {"status": "failed", "error": json.dumps({"message": repr(error)})}
            done.set()
            if lost.is_set():  # a tool that takes long looks at `lost` itself, and stops
                ending = {"status": "returned"}
            insist(server.xadd, RESULT, {**said, **ending, "attempt": attempt})
    insist(server.xack, TASK, GROUP, message_id)


def beat(message_id, grant, attempt, done, lost):
    interval = float(insist(server.hget, prefix + "settings", "HEARTBEAT_INTERVAL_S") or 30)
    while not done.wait(interval):
        try:
            server.xclaim(TASK, GROUP, me, 0, [message_id], justid=True)
            if server.get(grant) != attempt:
                lost.set()
                return
        except redis.RedisError:
            pass  # NOGROUP, or the server is away: carry on, the attempt decides whether the result counts


def leave(*_):  # a turn at work is handed back, which counts as no failure
    server.xadd(RESULT, {"status": "leaving", "worker_id": me})
    os._exit(0)


signal.signal(signal.SIGTERM, leave)
while True:
    insist(server.sadd, prefix + "workers", me)
    insist(server.set, f"{prefix}worker:{me}", json.dumps({"tools": ["resize"], "slots": 1}), ex=60)
    try:
        found = insist(reader.xreadgroup, GROUP, me, {TASK: ">"}, count=1, block=2000) or []
    except redis.ResponseError:  # NOGROUP: the orchestrator makes the group
        time.sleep(1)
        continue
    for _, entries in found:
        for message_id, task in entries:
            work(message_id, task)
