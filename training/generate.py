"""Conversations written wholly by the target, for training its drafters (Magpie style), thousands at a time.

    python -m training.generate --target FOLDER --out A.npz --seconds 120 --seed 0

The target continues its own chat template: after the default system prompt and `<|im_start|>user` it writes the user's
turn too (sampled; sometimes after one of OPENINGS, to bring variety), then the answer (greedy or at temperature 0.7),
then perhaps the next turn. With `--passages` the user's turn holds a long text that is put together from answers written
before. The default system prompt only, on purpose: the demo shows what happens off it.

Does not know the drafters. Every slot of the batch is a small state machine on the device: tokens that are given (headers,
openings, passages) and tokens that are sampled take the same decode step, so there is no prefill and one CUDA graph does
all. A finished slot starts the next conversation behind the same cached system prompt.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from driftscope.stats.degenerate import is_degenerate
from training.conversations import IM_END, Conversations, response_mask
from training.llama import Llama

OPENINGS = """
Write a short story about|Write a poem about|Write an email to|Write a letter to|Write a blog post about|Write a dialogue
Write a speech about|Write a product description for|Write a news article about|Write a haiku about|Write a song about
Write a Python function that|Write a JavaScript function that|Write a SQL query that|Write a program that|Write code to
Write a bash script that|Write a regular expression that|Write a class in Java that|Write unit tests for|Debug this code:
Explain how|Explain why|Explain the difference between|Explain the concept of|Explain to a child|Explain step by step how
What is|What are|What is the difference between|What are the benefits of|What are some|What happens when|What causes
What would happen if|What is the capital of|What is the best way to|What should I|What does it mean|Which is better,
How do I|How can I|How does|How do you|How many|How much|How would you|How long does it take|How did|Why do|Why is|Why does
Who was|Who is|Who invented|When did|When was|Where is|Is it|Can you explain|Can you help me|Can you write|Could you please
Summarize|Summarize the following text:|Rewrite the following sentence|Translate the following|Correct the grammar
Give me a list of|Give me five|Give me an example of|List three|List ten|Name five|Suggest some|Recommend|Compare
Describe|Describe the process of|Discuss|Analyze|Classify the following|Extract the|Identify the|Calculate|Solve|Find the
Create a|Create a table of|Create a plan for|Design a|Develop a|Draft a|Generate a|Make a list of|Plan a|Outline
Imagine you are|Pretend you are|Act as|You are a|Let's play|Tell me about|Tell me a joke about|Tell me a story about
I want to|I need help with|I have a|I am|I'm trying to|I'm planning|I'm writing|My|Help me|Please|Hi|Hello|Hey,|Thanks
If a train|If I have|If x|A farmer|A store|John has|Mary|Sarah|Tom|In the story|In a|There are|Consider|Suppose|Given
Convert the following|Format the following|Return a JSON|Write a JSON|Make this shorter:|Make this more formal:|Paraphrase
What do you think about|What's|How's|Do you|Are you|Should I|Does|Did|Has|Was|Define|Prove that|Evaluate|Simplify|Complete
""".replace("\n", "|").split("|")
PASSAGE_REQUESTS = (
    "Summarize the following text.",
    "Read the text below and answer: what is it about?",
    "What are the main points of this text?",
    "Rewrite the most important part of this text in simple words.",
    "List five facts from the text below.",
    "Here are my notes. What should I remember from them?",
    "Which parts of the following are about people, and which about things?",
    "Write a title and a short introduction for this text.",
    "Use the text below to write a short story.",
    "Explain the last part of this text.",
)
PURE_SHARE = 0.35  # user turns without an opening
GREEDY_SHARE = 0.65  # of answers
TURNS = (1, 2, 3)
TURN_SHARES = (0.7, 0.2, 0.1)
USER_TEMPERATURE, ANSWER_TEMPERATURE = 1.0, 0.7
MIN_P = 0.05  # tokens less than this share of the best one's probability are not sampled
MAX_USER_TOKENS, MAX_ANSWER_TOKENS, MIN_ANSWER_TOKENS = 160, 512, 8
MIN_CUT_TOKENS = 24  # of an answer cut before it repeats itself
HARVEST_EVERY = 32  # decode steps between two looks at which slots are done
RUNNING, DONE = 0, 1
USER, ANSWER = 0, 1


@dataclass(frozen=True, kw_only=True)
class Script:
    """What one conversation is made of; `given` are the ids after the common start."""

    given: list[int]
    begins_with: int  # USER: the target continues the user's turn; ANSWER: the turn is complete
    temperature: float
    num_turns: int


class Scripts:
    """Draws scripts. `passages`: long texts as ids; empty = the target writes the user's turn."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, passages: list[np.ndarray], seed: int) -> None:
        self.generator = np.random.default_rng(seed)

        def ids(text: str) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False)["input_ids"])

        self.openings = [ids(opening) for opening in OPENINGS if opening]
        self.requests = [ids(request) for request in PASSAGE_REQUESTS]
        self.blank = ids("\n\n")
        self.to_answer = ids("\n<|im_start|>assistant\n")
        self.to_user = ids("\n<|im_start|>user\n")
        rendered = tokenizer.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
        self.start = ids(str(rendered).rsplit("<|im_end|>", 1)[0])  # up to the first token of the user's turn
        self.passages = passages

    def draw(self) -> Script:
        g = self.generator
        temperature = 0.0 if g.random() < GREEDY_SHARE else ANSWER_TEMPERATURE
        if self.passages:
            passage = list(self.passages[g.integers(len(self.passages))])
            request = self.requests[g.integers(len(self.requests))]
            turn = request + self.blank + passage if g.random() < 0.5 else passage + self.blank + request
            return Script(
                given=[*turn, IM_END, *self.to_answer], begins_with=ANSWER, temperature=temperature, num_turns=1
            )
        opening = [] if g.random() < PURE_SHARE else self.openings[g.integers(len(self.openings))]
        num_turns = int(g.choice(TURNS, p=TURN_SHARES))
        return Script(given=opening, begins_with=USER, temperature=temperature, num_turns=num_turns)


class Writers:
    """`num_slots` conversations under way, `num_tokens` of cache each, all state on the device."""

    def __init__(
        self, target: Llama, scripts: Scripts, num_slots: int, num_tokens: int, special_ids: list[int]
    ) -> None:
        self.target, self.scripts = target, scripts
        device, dtype = target.embedding.device, target.embedding.dtype
        self.device, self.num_slots, self.num_tokens = device, num_slots, num_tokens
        shape = (target.num_layers, num_slots, target.num_kv_heads, num_tokens, target.head_dim)
        self.keys, self.values = (
            torch.zeros(shape, device=device, dtype=dtype),
            torch.zeros(shape, device=device, dtype=dtype),
        )

        def integers(*size: int) -> Tensor:
            return torch.zeros(size, device=device, dtype=torch.int64)

        self.tokens = integers(num_slots, num_tokens)
        self.position, self.given_until, self.phase = integers(num_slots), integers(num_slots), integers(num_slots)
        self.turns_left, self.turn_start, self.state = integers(num_slots), integers(num_slots), integers(num_slots)
        self.temperature = torch.zeros(num_slots, device=device)
        self.slot = torch.arange(num_slots, device=device)
        self.column = torch.arange(num_tokens, device=device)
        self.banned = torch.tensor([i for i in special_ids if i != IM_END], device=device)
        width = max(len(scripts.to_answer), len(scripts.to_user))
        headers = [header + [0] * (width - len(header)) for header in (scripts.to_answer, scripts.to_user)]
        self.headers = torch.tensor(headers, device=device)  # [phase that ends, width]
        self.header_sizes = torch.tensor([len(scripts.to_answer), len(scripts.to_user)], device=device)
        self.choose = torch.compile(_choose) if device.type == "cuda" else _choose
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self, seconds: float, max_conversations: int | None = None) -> list[np.ndarray]:
        """Writes for so long, or until there are so many; returns what was finished, unfiltered."""
        self._begin(np.arange(self.num_slots), from_position=0)
        self._advance()  # also compiles and captures
        finished: list[np.ndarray] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and (max_conversations is None or len(finished) < max_conversations):
            for _ in range(HARVEST_EVERY):
                self._advance()
            done = torch.nonzero(self.state == DONE)[:, 0]
            tokens, last = self.tokens[done].cpu().numpy(), self.position[done].cpu().numpy()
            finished += [row[: n + 1].astype(np.uint16) for row, n in zip(tokens, last, strict=True)]
            self._begin(done.cpu().numpy(), from_position=len(self.scripts.start) - 1)
        return finished

    def _begin(self, slots: np.ndarray, *, from_position: int) -> None:
        """New scripts for these slots; `from_position` > 0 when the common start is in their cache already."""
        if len(slots) == 0:
            return
        scripts = [self.scripts.draw() for _ in slots]
        start = self.scripts.start
        tokens = np.zeros((len(slots), self.num_tokens), dtype=np.int64)
        for row, script in zip(tokens, scripts, strict=True):
            given = start + script.given
            row[: len(given)] = given
        given_until = np.array([len(start) + len(script.given) for script in scripts])

        def put(buffer: Tensor, values: np.ndarray) -> None:
            buffer[index] = torch.from_numpy(values).to(self.device, buffer.dtype)

        index = torch.from_numpy(slots).to(self.device)
        put(self.tokens, tokens)
        put(self.given_until, given_until)
        put(self.position, np.full(len(slots), from_position))
        put(self.phase, np.array([script.begins_with for script in scripts]))
        put(self.turns_left, np.array([script.num_turns for script in scripts]))
        put(self.turn_start, given_until)
        put(self.state, np.full(len(slots), RUNNING))
        put(self.temperature, np.array([script.temperature for script in scripts], dtype=np.float32))

    def _advance(self) -> None:
        if self.device.type != "cuda":
            self._step()
            return
        if self.graph is None:
            for _ in range(2):
                self._step()
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._step()
        self.graph.replay()

    @torch.no_grad()
    def _step(self) -> None:
        """One token for every slot: given, or sampled. A slot that is done stands still."""
        position, following = self.position, self.position + 1
        ids = self.tokens.gather(1, position[:, None])[:, 0]
        states, _ = self.target.states(ids, position, self._attend)
        logits = self.target.logits(states)
        logits.index_fill_(1, self.banned, -torch.inf)
        temperature = torch.where(self.phase == USER, USER_TEMPERATURE, self.temperature)
        sampled = self.choose(logits, temperature)
        is_given = following < self.given_until
        running = self.state == RUNNING
        cap = torch.where(self.phase == USER, MAX_USER_TOKENS, MAX_ANSWER_TOKENS)
        is_over = ~is_given & (following - self.turn_start >= cap)  # too long: cut, without an <|im_end|> of its own
        written = torch.where(is_given, self.tokens.gather(1, following[:, None])[:, 0], sampled)
        self._write(following, written, running)
        is_end = ~is_given & (written == IM_END) & running
        turns_left = self.turns_left - (is_end & (self.phase == ANSWER)).long()
        goes_on = is_end & ((self.phase == USER) | (turns_left > 0))
        size = self.header_sizes[self.phase]
        for i in range(self.headers.shape[1]):
            self._write(following + 1 + i, self.headers[self.phase, i], goes_on & (i < size))
        given_until = torch.where(goes_on, following + 1 + size, self.given_until)
        is_full = following + 2 + self.headers.shape[1] >= self.num_tokens
        is_done = running & ((is_end & ~goes_on) | is_over | is_full)
        self.turn_start.copy_(torch.where(goes_on, given_until, self.turn_start))
        self.given_until.copy_(given_until)
        self.phase.copy_(torch.where(goes_on, 1 - self.phase, self.phase))
        self.turns_left.copy_(turns_left)
        self.state.copy_(torch.where(is_done, DONE, self.state))
        self.position.copy_(torch.where(running, following, position))

    def _write(self, column: Tensor, token: Tensor, where: Tensor) -> None:
        column = column.clamp_max(self.num_tokens - 1)[:, None]
        kept = self.tokens.gather(1, column)[:, 0]
        self.tokens.scatter_(1, column, torch.where(where, token, kept)[:, None])

    def _attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.keys[layer], self.values[layer]  # [slot, kv_head, token, head_dim]
        keys[self.slot, :, self.position] = k
        values[self.slot, :, self.position] = v
        grouped = q.unflatten(1, (k.shape[1], -1))  # the query heads of one kv head stand where queries stand
        mask = (self.column <= self.position[:, None])[:, None, None]
        out = F.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=mask.expand(-1, k.shape[1], grouped.shape[2], -1)
        )
        return out.flatten(1, 2)


def _choose(logits: Tensor, temperature: Tensor) -> Tensor:
    """Greedy at temperature 0, else a sample among the tokens with p >= MIN_P * max p (Gumbel's trick)."""
    temperature = temperature[:, None]
    floor = logits.amax(-1, keepdim=True) + temperature * float(np.log(MIN_P))
    noise = torch.empty_like(logits).exponential_().log()
    return (logits - temperature * noise).masked_fill(logits < floor, -torch.inf).argmax(-1)


def trimmed(ids: np.ndarray) -> np.ndarray | None:
    """The conversation as far as it is worth learning, None if it is not.

    An answer that repeats itself ends the conversation, cut where a 4-gram comes for the third time: before that it is
    as good as any other, and greedy answers, which the drafters are for, loop most often.
    """
    mask = response_mask(ids)
    if not mask.any() or not mask[-1]:  # ends inside a user's turn
        return None
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    for begin, end in edges.reshape(-1, 2):
        if is_degenerate(ids[begin:end]):
            length = _before_repetition(ids[begin:end])
            return ids[: begin + length] if length >= MIN_CUT_TOKENS else None
        if end - begin < MIN_ANSWER_TOKENS:
            return None
    return ids


def _before_repetition(answer: np.ndarray) -> int:
    seen: dict[bytes, int] = {}
    for i in range(len(answer) - 3):
        gram = answer[i : i + 4].tobytes()
        seen[gram] = seen.get(gram, 0) + 1
        if seen[gram] == 3:
            return i
    return len(answer)


def passages_from(
    conversations: Conversations, min_tokens: int, max_tokens: int, count: int, seed: int
) -> list[np.ndarray]:
    """Long texts: answers one after the other, each without its `<|im_end|>`, to a length drawn between the bounds."""
    generator = np.random.default_rng(seed)
    answers: list[np.ndarray] = []
    for i in generator.permutation(len(conversations))[: 20 * count]:
        ids = conversations[i]
        answer = ids[response_mask(ids)]
        answers.append(answer[answer != IM_END])
    supply = iter(answers * (1 + count * max_tokens // max(1, sum(map(len, answers)))))
    texts = []
    for _ in range(count):
        length = int(generator.integers(min_tokens, max_tokens))
        pieces: list[np.ndarray] = []
        while sum(map(len, pieces)) < length:
            pieces += [next(supply), np.array([198, 198])]  # a blank line between
        texts.append(np.concatenate(pieces)[:length])
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=1e9, help="how long to write")
    parser.add_argument("--max-conversations", type=int, default=None)
    parser.add_argument("--slots", type=int, default=2048, help="conversations at a time")
    parser.add_argument("--tokens", type=int, default=768, help="room of a conversation")
    parser.add_argument("--passages", type=Path, nargs="*", default=[], help="conversations to take long passages from")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.target)
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    target = Llama(options.target, device=options.device, dtype=dtype)
    passages = []
    if options.passages:
        longest = options.tokens - MAX_ANSWER_TOKENS - 64
        source = Conversations.load(options.passages)
        passages = passages_from(source, longest // 4, longest, 4 * options.slots, options.seed)
    scripts = Scripts(tokenizer, passages, options.seed)
    special_ids = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special]
    writers = Writers(target, scripts, options.slots, options.tokens, special_ids)
    begun = time.monotonic()
    written = writers.run(options.seconds, options.max_conversations)
    seconds = time.monotonic() - begun
    good = [ids for ids in map(trimmed, written) if ids is not None]
    num_tokens, num_good = sum(map(len, written)), sum(map(len, good))
    Conversations.of(good).save(options.out)
    print(
        f"{len(written)} conversations, {num_tokens} tokens in {seconds:.0f} s ({num_tokens / seconds:.0f} tokens/s); "
        f"kept {len(good)} with {num_good} tokens",
        flush=True,
    )


if __name__ == "__main__":
    main()
