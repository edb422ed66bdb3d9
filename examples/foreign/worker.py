"""A worker that knows only Redis and docs/protocol.md: python worker.py redis://127.0.0.1:6379 [prefix]."""

import json
import os
import sys
import threading
import time

import redis

url, prefix = sys.argv[1], (sys.argv[2] if len(sys.argv) > 2 else "")
me = f"python-{os.getpid()}"
server = redis.Redis.from_url(url, decode_responses=True)
reader = redis.Redis.from_url(url, decode_responses=True, socket_timeout=None)  # it blocks
TASK, RESULT, GROUP = prefix + "stream:task", prefix + "stream:result", "cg:workers"
BEAT_SECONDS = float(os.environ.get("HEARTBEAT_INTERVAL_S", "30"))


def resize(payload):  # the tool itself
    return {"width": payload["width"] // 2}


def granted(task, attempt):
    key = f"{prefix}grant:{task['turn']}:{task['epoch']}"
    for _ in range(200):
        if (answer := server.get(key)) is not None:
            return answer == attempt
        time.sleep(0.05)
    return None  # nobody answered: leave the entry alone


def work(message_id, task):
    said = {key: task[key] for key in ("task_id", "turn", "epoch")} | {
        "worker_id": me,
        "message_id": message_id,
    }
    if task["tool_name"] != "resize":
        server.xadd(RESULT, {**said, "status": "passed", "tool_name": task["tool_name"]})
    else:
        attempt = f"{me}:{server.xadd(RESULT, {**said, 'status': 'claimed'})}"
        answer = granted(task, attempt)
        if answer is None:
            return
        if answer:
            done = threading.Event()
            threading.Thread(target=beat, args=(message_id, done), daemon=True).start()
            try:
                ending = {"status": "succeeded", "output": json.dumps(resize(json.loads(task["payload"])))}
            except Exception as error:
                ending = {"status": "failed", "error": json.dumps({"message": repr(error)})}
            done.set()
            server.xadd(RESULT, {**said, **ending, "attempt": attempt})
    server.xack(TASK, GROUP, message_id)


def beat(message_id, done):
    while not done.wait(BEAT_SECONDS):
        server.xclaim(TASK, GROUP, me, 0, [message_id], justid=True)


while True:
    server.sadd(prefix + "workers", me)
    server.set(f"{prefix}worker:{me}", json.dumps({"tools": ["resize"], "slots": 1}), ex=60)
    for _, entries in reader.xreadgroup(GROUP, me, {TASK: ">"}, count=1, block=2000) or []:
        for message_id, task in entries:
            work(message_id, task)
