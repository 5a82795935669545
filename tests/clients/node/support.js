// What the tests share: where the product is, ids that play scripts, and what the engine saw of them.

import { readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";

export const baseURL = process.env.INFERWAY_BASE_URL;
export const apiKey = process.env.INFERWAY_KEY;
export const forbidden = process.env.INFERWAY_FORBIDDEN;
export const real = JSON.parse(process.env.INFERWAY_REAL);

let requests = 0;

/** An id that plays `script` (installation.py has them) and that no other request has. */
export function requestId(script) {
  requests += 1;
  return `${script}.node-${process.pid}-${requests}`;
}

/** The engine's records of a request: its "generate" or its "abort" events. */
export function engineSaw(id, event = "generate") {
  const lines = readFileSync(process.env.INFERWAY_RECORD, "utf8").split("\n").slice(0, -1);
  return lines.map((line) => JSON.parse(line)).filter((line) => line.request_id === id && line.event === event);
}

/** Returns once `condition()` holds. */
export async function until(condition, what) {
  const deadline = performance.now() + 20_000;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error(`not within 20 s: ${what}`);
    await pause(10);
  }
}

/** What an iterator of texts gave, and those pieces of it that are not empty. */
export async function collect(texts) {
  const pieces = [];
  for await (const text of texts) if (text) pieces.push(text);
  return { text: pieces.join(""), pieces };
}
