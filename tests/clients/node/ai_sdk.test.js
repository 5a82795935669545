// The AI SDK with its two providers: openai-compatible, and openai by way of .chat().

import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embedMany, generateText, streamText } from "ai";

import { apiKey, baseURL, collect, engineSaw, forbidden, real, requestId, until } from "./support.js";

const compatible = createOpenAICompatible({ name: "inferway", baseURL, apiKey, includeUsage: true });
const openai = createOpenAI({ baseURL, apiKey });
const stranger = { name: "inferway", baseURL, apiKey: "sk-wrong" };
const providers = [
  ["openai-compatible", (name) => compatible(name), compatible, createOpenAICompatible(stranger)("m-text")],
  ["openai.chat", (name) => openai.chat(name), openai, createOpenAI(stranger).chat("m-text")],
];

const play = (script) => ({ headers: { "X-Request-Id": requestId(script) }, maxRetries: 0 });
// By default errors of streams are written to the console.
const quiet = { onError: () => {} };

for (const [provider, model, embeddings, strange] of providers) {
  test(`${provider}: the real model streams what it says in one piece`, async () => {
    const [system, user] = real.messages;
    const ask = {
      model: model(real.model),
      system: system.content,
      prompt: user.content,
      temperature: 0,
      maxOutputTokens: 30,
    };
    const whole = await generateText(ask);
    const { text, pieces } = await collect(streamText({ ...ask, ...quiet }).textStream);
    assert.equal(whole.text, real.answer);
    assert.equal(text, real.answer);
    assert.ok(pieces.length > 3);
  });

  test(`${provider}: text, usage and why it ended, streamed and not`, async () => {
    const whole = await generateText({ model: model("m-text"), prompt: "hi", ...play("hello") });
    const streamed = streamText({ model: model("m-text"), prompt: "hi", ...play("hello"), ...quiet });
    await streamed.consumeStream();
    for (const answer of [whole, streamed]) {
      assert.equal(await answer.text, "Hello");
      assert.equal(await answer.finishReason, "stop");
      const usage = await answer.usage;
      assert.equal(usage.inputTokens, 5);
      assert.equal(usage.outputTokens, 3);
    }
  });

  test(`${provider}: maxOutputTokens, seed and stopSequences reach the engine`, async () => {
    const id = requestId("echo");
    const answer = await generateText({
      model: model("m-text"),
      prompt: "one two three four",
      maxOutputTokens: 40,
      seed: 7,
      temperature: 0.5,
      stopSequences: [" three"],
      headers: { "X-Request-Id": id },
    });
    assert.equal(answer.text, "one two");
    assert.deepEqual(engineSaw(id).map((record) => record.sampling), [{ max_tokens: 40, seed: 7, temperature: 0.5 }]);
  });

  test(`${provider}: embeddings come in the order of their texts`, async () => {
    const both = await embedMany({ model: embeddings.embeddingModel("m-embed"), values: ["one", "two"] });
    const other = await embedMany({ model: embeddings.embeddingModel("m-embed"), values: ["two"] });
    assert.equal(both.embeddings.length, 2);
    assert.deepEqual(both.embeddings[1], other.embeddings[0]);
    assert.notDeepEqual(both.embeddings[0], both.embeddings[1]);
    assert.ok(both.usage.tokens > 0);
  });

  test(`${provider}: the request id is among the response's headers`, async () => {
    const asked = play("hello");
    const answer = await generateText({ model: model("m-text"), prompt: "hi", ...asked });
    assert.equal(answer.response.headers["x-request-id"], asked.headers["X-Request-Id"]);
  });

  test(`${provider}: heartbeats are no parts`, async () => {
    const streamed = streamText({ model: model("m-text"), prompt: "hi", ...play("quiet"), ...quiet });
    assert.deepEqual((await collect(streamed.textStream)).pieces, ["Hel", "lo"]);
  });

  test(`${provider}: a conversation goes on with what was thought and said`, async () => {
    const first = await generateText({ model: model("m-think"), prompt: "hi", ...play("thought") });
    const asked = play("echo");
    const answer = await generateText({
      model: model("m-think"),
      system: "be brief",
      messages: [
        { role: "user", content: [{ type: "text", text: "one" }, { type: "text", text: "two" }] },
        ...first.response.messages,
        { role: "user", content: "three" },
      ],
      ...asked,
    });
    assert.equal(answer.text, "three");
    const [{ prompt }] = engineSaw(asked.headers["X-Request-Id"]);
    const places = ["be brief", "one", "two", "Hello!", "three"].map((text) => prompt.indexOf(text));
    assert.ok(!places.includes(-1), prompt);
    assert.deepEqual(places, places.toSorted((a, b) => a - b));
  });

  const failures = [
    ["a field out of range", "echo", { temperature: 9 }, 400, false],
    ["an unknown model", "echo", { model: model("nobody") }, 404, false],
    ["a wrong key", "echo", { model: strange }, 401, false],
    ["another's model", "echo", { model: model(forbidden) }, 403, false],
    ["a failed engine", "fails", {}, 500, true],
    ["a full engine", "full", {}, 503, true],
  ];
  for (const [name, script, fields, status, isRetryable] of failures) {
    test(`${provider}: ${name} is an APICallError with status ${status}`, async () => {
      const ask = { model: model("m-text"), prompt: "hi", ...fields };
      const thrown = await generateText({ ...ask, ...play(script) }).catch((error) => error);
      const parts = [];
      const streamed = streamText({ ...ask, ...play(script), ...quiet });
      for await (const part of streamed.fullStream) if (part.type === "error") parts.push(part.error);
      assert.equal(parts.length, 1);
      for (const error of [thrown, ...parts]) {
        assert.ok(APICallError.isInstance(error), String(error));
        assert.equal(error.statusCode, status);
        assert.equal(error.isRetryable, isRetryable);
        assert.equal(error.message, JSON.parse(error.responseBody).error.message);
      }
    });
  }

  test(`${provider}: an error within a stream is a part of it, after the text that came`, async () => {
    const streamed = streamText({ model: model("m-text"), prompt: "hi", ...play("breaks"), ...quiet });
    let text = "";
    const errors = [];
    for await (const part of streamed.fullStream) {
      if (part.type === "text-delta") text += part.text;
      if (part.type === "error") errors.push(part.error);
    }
    assert.equal(text, "partial");
    assert.equal(errors.length, 1);
    assert.equal(errors[0].code, "worker_failed");
  });

  test(`${provider}: it retries what may succeed later`, async () => {
    const id = requestId("full");
    const ask = { model: model("m-text"), prompt: "hi", headers: { "X-Request-Id": id }, maxRetries: 1 };
    await assert.rejects(generateText(ask));
    // One try of the client asks a full worker three times at most.
    assert.ok(engineSaw(id).length > 3);
  });

  test(`${provider}: an aborted stream stops the engine`, async () => {
    const asked = play("slow");
    const id = asked.headers["X-Request-Id"];
    const leaving = new AbortController();
    const streamed = streamText({
      model: model("m-text"),
      prompt: "hi",
      abortSignal: leaving.signal,
      ...asked,
      ...quiet,
    });
    for await (const part of streamed.fullStream) if (part.type === "text-delta") leaving.abort();
    await until(() => engineSaw(id, "abort").length === 1, "the engine is told");
  });

  test(`${provider}: an aborted call stops the engine`, async () => {
    const asked = play("slow");
    const id = asked.headers["X-Request-Id"];
    const leaving = new AbortController();
    const ask = generateText({ model: model("m-text"), prompt: "hi", abortSignal: leaving.signal, ...asked });
    const rejected = assert.rejects(ask, { name: "AbortError" });
    await until(() => engineSaw(id).length === 1, "the engine has it");
    leaving.abort();
    await rejected;
    await until(() => engineSaw(id, "abort").length === 1, "the engine is told");
  });
}

test("openai-compatible: thoughts are reasoning, streamed and not", async () => {
  const ask = { model: compatible("m-think"), prompt: "hi" };
  const whole = await generateText({ ...ask, ...play("thought") });
  const streamed = streamText({ ...ask, ...play("thought"), ...quiet });
  await streamed.consumeStream();
  for (const answer of [whole, streamed]) {
    assert.equal(await answer.reasoningText, "Be kind.");
    assert.equal(await answer.text, "Hello!");
  }
});

test("openai.chat: thoughts do not end up in the answer", async () => {
  const ask = { model: openai.chat("m-think"), prompt: "hi" };
  assert.equal((await generateText({ ...ask, ...play("thought") })).text, "Hello!");
});

test("openai.chat: logprobs are provider metadata", async () => {
  const answer = await generateText({
    model: openai.chat("m-text"),
    prompt: "hi",
    providerOptions: { openai: { logprobs: 2 } },
    ...play("scored"),
  });
  const [token] = answer.providerMetadata.openai.logprobs;
  assert.equal(token.token, "Hi");
  assert.deepEqual(token.top_logprobs.map((top) => top.token), ["Hi", "Ho"]);
});
