"""Prompts of mixed kinds and lengths for the identity tests."""

_CODE = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from empty stack")
        return self.items.pop()

    def peek(self):
        if not self.items:
            raise IndexError("peek at empty stack")
        return self.items[-1]
"""
_TABLE = "\n".join(f"{name},{age},{city}" for name, age, city in [
    ("Ada", 36, "London"), ("Grace", 45, "New York"), ("Alan", 41, "Manchester"), ("Edsger", 50, "Austin"),
    ("Barbara", 39, "Boston"), ("Donald", 44, "Stanford"), ("Tony", 47, "Oxford"), ("Leslie", 52, "Paris"),
])  # fmt: skip
_STORY = (
    "The old lighthouse stood at the end of the pier. Every evening the keeper climbed the one hundred and twelve "
    "steps, lit the lamp, and wrote the weather in his book. "
)

CHAT = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child in three sentences.",
    "List five fruits and their colours.",
    "Give me a short recipe for pancakes.",
    "Why is the sky blue?",
    "Translate to French: good morning, my friend.",
    "Count from one to twenty in words.",
]
EDIT = [
    f"Return this file with `peek` renamed to `top`:\n```python\n{_CODE}```",
    f"Add a docstring to every method and return the whole file:\n```python\n{_CODE}```",
    f"Return this file unchanged:\n```python\n{_CODE}```",
    f"Rename the class Stack to Pile and return the file:\n```python\n{_CODE}```",
]
DATA = [
    f"Convert these rows to a JSON list with keys name, age, city:\n{_TABLE}",
    f"Repeat these rows, sorted by age:\n{_TABLE}",
    f"Write an SQL INSERT statement for each row (table people):\n{_TABLE}",
    f"Who lives in Boston?\n{_TABLE}",
]
LONG = [
    _STORY * 4 + "Summarize the text above.",
    _STORY * 6 + "Continue the story.",
    _STORY * 2 + "Repeat the text.",
]
RAW = [
    "1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7, 1, 2,",
    "a b a b a b a b",
    "def f(x):\n    return x",
    "A",
    "\n",
]

MESSAGES = [[{"role": "user", "content": text}] for text in CHAT + EDIT + DATA + LONG]
NUM_PROMPTS = len(MESSAGES) + len(RAW)


def token_prompts(llm) -> list[dict]:
    """All prompts as token ids: chat prompts through the model's template, the raw ones as they are."""
    tokenizer = llm.get_tokenizer()
    ids = [tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False) for m in MESSAGES]
    ids += [tokenizer.encode(text) for text in RAW]
    return [{"prompt_token_ids": list(i)} for i in ids]
