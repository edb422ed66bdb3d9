// A worker in Node without any package: node worker.mjs redis://[user:password@]127.0.0.1:6379 [prefix]
// It serves the tool `slugify`: {"title": "Every task ends"} becomes "every-task-ends".
import { isUtf8 } from "node:buffer";
import net from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

const url = new URL(process.argv[2] ?? "redis://127.0.0.1:6379");
const prefix = process.argv[3] ?? "";
const me = `node-${process.pid}`;
const TASK = `${prefix}stream:task`, RESULT = `${prefix}stream:result`, GROUP = "cg:workers";
const GRANT_SECONDS = 10;

const tools = {
  async slugify(payload, signal) {
    // `delay_ms` lets you watch heartbeats; a tool that takes long looks at `signal` and stops.
    if (payload.delay_ms) await sleep(payload.delay_ms, undefined, { signal });
    if (typeof payload.title !== "string") throw new TypeError("title must be text");
    return payload.title.trim().toLowerCase().replace(/[^a-z0-9]+/g, "-");
  },
};

class Lost extends Error {} // the connection is closed, or there is none

class Redis { // one connection; replies come in the order of the commands
  waiting = [];

  open() { return this.opening ??= this.#connect().finally(() => { this.opening = null; }); }

  async #connect() {
    this.buffer = Buffer.alloc(0);
    this.socket = net.connect(Number(url.port || 6379), url.hostname);
    this.socket.on("data", (data) => this.#read(data));
    this.socket.on("close", () => {
      for (const { reject } of this.waiting.splice(0)) reject(new Lost("the connection is closed"));
    });
    this.socket.on("error", () => {});
    await new Promise((resolve, reject) =>
      this.socket.once("connect", resolve).once("close", () => reject(new Lost("the server is away"))));
    const words = [url.username, url.password].map(decodeURIComponent).filter(Boolean);
    if (words.length) await this.#send("AUTH", ...words);
    return this;
  }

  async ask(...words) { // once; a lost connection is opened again by the next command
    if (this.socket.destroyed) await this.open();
    return this.#send(...words);
  }

  async insist(...words) { // until the server has answered: it may be away for a while
    for (;;) {
      try { return await this.ask(...words); } catch (error) {
        if (!(error instanceof Lost)) throw error;
        await sleep(500);
      }
    }
  }

  #send(...words) {
    const parts = words.map((word) => `$${Buffer.byteLength(String(word))}\r\n${word}\r\n`);
    return new Promise((resolve, reject) => {
      if (this.socket.destroyed) return reject(new Lost("the connection is closed"));
      this.waiting.push({ resolve, reject });
      this.socket.write(`*${parts.length}\r\n${parts.join("")}`);
    });
  }

  #read(data) {
    this.buffer = Buffer.concat([this.buffer, data]);
    for (;;) {
      const found = parse(this.buffer, 0);
      if (found === null) return;
      this.buffer = this.buffer.subarray(found.end);
      const { resolve, reject } = this.waiting.shift();
      if (found.value instanceof Error) reject(found.value);
      else resolve(found.value);
    }
  }
}

function parse(buffer, start) { // {value, end} of one RESP2 reply, or null if it has not all arrived
  const line = buffer.indexOf("\r\n", start);
  if (line < 0) return null;
  const kind = String.fromCharCode(buffer[start]), text = buffer.toString("utf8", start + 1, line);
  let end = line + 2;
  if (kind === "+") return { value: text, end };
  if (kind === "-") return { value: new Error(text), end };
  if (kind === ":") return { value: Number(text), end };
  const size = Number(text);
  if (size < 0) return { value: null, end };
  if (kind === "$") {
    if (buffer.length < end + size + 2) return null;
    const bytes = buffer.subarray(end, end + size); // what is not UTF-8 cannot be read
    return { value: isUtf8(bytes) ? bytes.toString() : null, end: end + size + 2 };
  }
  const value = [];
  for (let n = 0; n < size; n++) {
    const part = parse(buffer, end);
    if (part === null) return null;
    value.push(part.value);
    end = part.end;
  }
  return { value, end };
}

const pairs = (flat) => Object.fromEntries(flat.flatMap((_, n) => (n % 2 ? [] : [[flat[n], flat[n + 1]]])));
const add = (server, fields) => server.insist("XADD", RESULT, "*", ...Object.entries(fields).flat());

async function waitForGrant(server, grant) {
  for (let n = 0; n < GRANT_SECONDS * 20; n++) {
    const answer = await server.insist("GET", grant);
    if (answer !== null) return answer;
    await sleep(50);
  }
  return null;
}

async function execute(server, id, task, grant, attempt) {
  const stop = new AbortController();
  const settings = pairs(await server.insist("HGETALL", `${prefix}settings`));
  const beat = setInterval(async () => {
    try {
      await server.ask("XCLAIM", TASK, GROUP, me, 0, id, "JUSTID");
      if ((await server.ask("GET", grant)) !== attempt) stop.abort();
    } catch { /* NOGROUP, or the server is away: carry on, the attempt decides whether the result counts */ }
  }, 1000 * Number(settings.HEARTBEAT_INTERVAL_S ?? 30));
  try {
    const output = await tools[task.tool_name](JSON.parse(task.payload), stop.signal);
    return { status: "succeeded", output: JSON.stringify(output ?? null) };
  } catch (error) {
    if (stop.signal.aborted) return { status: "returned" };
    const retryable = !(error instanceof TypeError);
    return { status: "failed", error: JSON.stringify({ message: String(error), code: "exception", retryable }) };
  } finally {
    clearInterval(beat);
  }
}

const isName = (word) => typeof word === "string" && word !== "";

function isReadable({ task_id, tool_name, turn, epoch, payload }) {
  if (![task_id, tool_name, turn, payload].every(isName) || !/^[0-9]+$/.test(epoch)) return false;
  try { JSON.parse(payload); return true; } catch { return false; }
}

async function work(server, id, task) {
  if (!isReadable(task)) return; // leave it alone: the orchestrator makes it a dead letter
  const said = { task_id: task.task_id, turn: task.turn, epoch: task.epoch, worker_id: me, message_id: id };
  if (!(task.tool_name in tools)) {
    await add(server, { ...said, status: "passed", tool_name: task.tool_name });
  } else {
    const attempt = `${me}:${await add(server, { ...said, status: "claimed" })}`;
    const grant = `${prefix}grant:${task.turn}:${task.epoch}`;
    const answer = await waitForGrant(server, grant);
    if (answer === null) return; // no answer: leave the entry alone
    if (answer === attempt) await add(server, { ...said, ...(await execute(server, id, task, grant, attempt)), attempt });
  }
  await server.insist("XACK", TASK, GROUP, id);
}

async function main() {
  const server = await new Redis().open(), reader = await new Redis().open();
  process.on("SIGTERM", async () => { // a turn at work is handed back, which counts as no failure
    await add(server, { status: "leaving", worker_id: me });
    process.exit(0);
  });
  const announce = async () => {
    await server.ask("SADD", `${prefix}workers`, me);
    await server.ask("SET", `${prefix}worker:${me}`, JSON.stringify({ tools: Object.keys(tools), slots: 1 }), "EX", 60);
  };
  await announce();
  setInterval(() => announce().catch(() => {}), 20_000);
  for (;;) {
    let found;
    try {
      found = await reader.insist("XREADGROUP", "GROUP", GROUP, me, "COUNT", 1, "BLOCK", 2000, "STREAMS", TASK, ">");
    } catch (error) {
      if (!String(error).includes("NOGROUP")) throw error;
      await sleep(1000); // the orchestrator makes the group
      continue;
    }
    for (const [, entries] of found ?? []) for (const [id, fields] of entries) await work(server, id, pairs(fields));
  }
}

main().catch((error) => { console.error(error); process.exit(1); });
