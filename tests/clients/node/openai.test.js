// openai for Node.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

import { apiKey, baseURL, collect, engineSaw, forbidden, real, requestId, until } from "./support.js";

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const chat = client.chat.completions;
const hi = [{ role: "user", content: "hi" }];

const play = (script) => ({ headers: { "X-Request-Id": requestId(script) } });

async function* contents(stream) {
  for await (const chunk of stream) yield chunk.choices[0]?.delta.content;
}

test("the real model streams what it says in one piece", async () => {
  const ask = { model: real.model, messages: real.messages, temperature: 0, max_tokens: 30 };
  const whole = await chat.create(ask);
  const { text, pieces } = await collect(contents(await chat.create({ ...ask, stream: true })));
  assert.equal(whole.choices[0].message.content, real.answer);
  assert.equal(text, real.answer);
  assert.ok(pieces.length > 3);
});

test("the streaming helper assembles the answer with its usage", async () => {
  const stream = chat.stream(
    { model: "m-text", messages: hi, stream_options: { include_usage: true } },
    play("hello"),
  );
  const deltas = [];
  stream.on("content", (delta) => deltas.push(delta));
  const final = await stream.finalChatCompletion();
  assert.deepEqual(deltas.filter(Boolean), ["Hel", "lo"]);
  assert.equal(final.choices[0].message.content, "Hello");
  assert.equal(final.choices[0].finish_reason, "stop");
  assert.equal(final.usage.prompt_tokens, 5);
  assert.equal(final.usage.completion_tokens, 3);
});

test("logprobs come streamed and in one piece", async () => {
  const ask = { model: "m-text", messages: hi, logprobs: true, top_logprobs: 2 };
  const whole = await chat.create(ask, play("scored"));
  const [token] = whole.choices[0].logprobs.content;
  assert.equal(token.token, "Hi");
  assert.equal(token.logprob, -0.25);
  assert.deepEqual(token.top_logprobs.map((top) => top.token), ["Hi", "Ho"]);
  const streamed = [];
  for await (const chunk of await chat.create({ ...ask, stream: true }, play("scored"))) {
    streamed.push(...(chunk.choices[0]?.logprobs?.content ?? []));
  }
  assert.deepEqual(streamed, [token]);
});

test("n gives several choices", async () => {
  const answer = await chat.create({ model: "m-text", messages: hi, n: 2 }, play("pair"));
  assert.deepEqual(answer.choices.map((choice) => choice.message.content), ["left", "right"]);
});

test("completions and the list of models", async () => {
  const answer = await client.completions.create({ model: "m-text", prompt: "one two", max_tokens: 50 });
  assert.equal(answer.choices[0].text, "one two");
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.ok(names.includes("m-think"));
});

test("embeddings are the same packed and plain", async () => {
  const ask = { model: "m-embed", input: ["one", "two"] };
  const packed = await client.embeddings.create(ask);
  const plain = await client.embeddings.create({ ...ask, encoding_format: "float" });
  assert.equal(packed.data.length, 2);
  packed.data.forEach((item, place) => {
    item.embedding.forEach((value, i) => assert.ok(Math.abs(value - plain.data[place].embedding[i]) < 1e-6));
    assert.equal(item.embedding.length, plain.data[place].embedding.length);
  });
  assert.notDeepEqual(packed.data[0].embedding, packed.data[1].embedding);
});

test("max_tokens, seed and stop reach the engine", async () => {
  const id = requestId("echo");
  const messages = [{ role: "user", content: "one two three four" }];
  const answer = await chat.create(
    { model: "m-text", messages, max_tokens: 40, seed: 7, temperature: 0.5, stop: [" three"] },
    { headers: { "X-Request-Id": id } },
  );
  assert.equal(answer.choices[0].message.content, "one two");
  assert.deepEqual(engineSaw(id).map((record) => record.sampling), [{ max_tokens: 40, seed: 7, temperature: 0.5 }]);
  const short = await chat.create({ model: "m-text", messages, max_completion_tokens: 1 }, play("echo"));
  assert.equal(short.choices[0].finish_reason, "length");
});

test("thoughts are apart from the answer", async () => {
  const ask = { model: "m-think", messages: hi };
  const { message } = (await chat.create(ask, play("thought"))).choices[0];
  assert.equal(message.reasoning_content, "Be kind.");
  assert.equal(message.content, "Hello!");
  let thoughts = "";
  let text = "";
  for await (const chunk of await chat.create({ ...ask, stream: true }, play("thought"))) {
    thoughts += chunk.choices[0]?.delta.reasoning_content ?? "";
    text += chunk.choices[0]?.delta.content ?? "";
  }
  assert.equal(thoughts, "Be kind.");
  assert.equal(text, "Hello!");
});

test("heartbeats are no chunks", async () => {
  const stream = await chat.create({ model: "m-text", messages: hi, stream: true }, play("quiet"));
  assert.deepEqual((await collect(contents(stream))).pieces, ["Hel", "lo"]);
});

test("the request id is on answers and on errors", async () => {
  const id = requestId("hello");
  const answer = await chat.create({ model: "m-text", messages: hi }, { headers: { "X-Request-Id": id } });
  assert.equal(answer._request_id, id);
  const error = await chat.create({ model: "nobody", messages: hi }).catch((caught) => caught);
  assert.ok(error.requestID);
});

const { BadRequestError, InternalServerError, NotFoundError, PermissionDeniedError } = OpenAI;
const failures = [
  ["a field out of range is a BadRequestError", "echo", { temperature: 9 }, BadRequestError, null],
  ["an unknown model is a NotFoundError", "echo", { model: "nobody" }, NotFoundError, "model_not_found"],
  ["another's model is a PermissionDeniedError", "echo", { model: forbidden }, PermissionDeniedError, "model_not_allowed"],
  ["a failed engine is an InternalServerError", "fails", {}, InternalServerError, "worker_failed"],
  ["a full engine is an InternalServerError", "full", {}, InternalServerError, "overloaded"],
];
for (const [name, script, fields, expected, code] of failures) {
  test(name, async () => {
    for (const stream of [false, true]) {
      const ask = chat.create({ model: "m-text", messages: hi, ...fields, stream }, play(script));
      await assert.rejects(ask, (error) => error instanceof expected && error.code === code);
    }
  });
}

test("a wrong key is an AuthenticationError", async () => {
  const stranger = client.withOptions({ apiKey: "sk-wrong" });
  const expected = (error) => error instanceof OpenAI.AuthenticationError && error.code === "invalid_api_key";
  await assert.rejects(stranger.chat.completions.create({ model: "m-text", messages: hi }), expected);
  await assert.rejects(async () => await stranger.models.list(), expected);
});

test("an error within a stream is thrown after the text that came", async () => {
  let text = "";
  await assert.rejects(
    async () => {
      const stream = await chat.create({ model: "m-text", messages: hi, stream: true }, play("breaks"));
      for await (const piece of contents(stream)) text += piece ?? "";
    },
    (error) => error instanceof OpenAI.APIError && error.code === "worker_failed",
  );
  assert.equal(text, "partial");
});

test("it retries what may succeed later", async () => {
  const id = requestId("full");
  const ask = chat.create({ model: "m-text", messages: hi }, { headers: { "X-Request-Id": id }, maxRetries: 1 });
  await assert.rejects(ask, OpenAI.InternalServerError);
  // One try of the client asks a full worker three times at most.
  assert.ok(engineSaw(id).length > 3);
});

test("a client that runs out of patience stops the engine", async () => {
  const id = requestId("silent");
  const ask = chat.create({ model: "m-text", messages: hi }, { headers: { "X-Request-Id": id }, timeout: 500 });
  await assert.rejects(ask, OpenAI.APIConnectionTimeoutError);
  await until(() => engineSaw(id, "abort").length === 1, "the engine is told");
});

test("an aborted stream stops the engine", async () => {
  const id = requestId("slow");
  const stream = await chat.create(
    { model: "m-text", messages: hi, stream: true },
    { headers: { "X-Request-Id": id } },
  );
  for await (const piece of contents(stream)) if (piece) break;
  await until(() => engineSaw(id, "abort").length === 1, "the engine is told");
});

test("an aborted call stops the engine", async () => {
  const id = requestId("slow");
  const leaving = new AbortController();
  const ask = chat.create(
    { model: "m-text", messages: hi },
    { headers: { "X-Request-Id": id }, signal: leaving.signal },
  );
  const rejected = assert.rejects(ask, OpenAI.APIUserAbortError);
  await until(() => engineSaw(id).length === 1, "the engine has it");
  leaving.abort();
  await rejected;
  await until(() => engineSaw(id, "abort").length === 1, "the engine is told");
});
