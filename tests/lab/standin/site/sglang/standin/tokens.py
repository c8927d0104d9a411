"""Token ids and text: every answer can be worked out from the prompt's last token."""

import re
import zlib

VOCABULARY = 32000
FIRST_WORD = 3  # 0, 1 and 2 are what broken output is made of
BROKEN = {0: "!", 1: "�", 2: ""}
BROKEN_BY_NAME = {"repeat": 0, "replacement": 1, "empty": 2}


def following(token):
    """Return the token that comes after this one."""
    found = (token * 17 + 3) % VOCABULARY
    return found if found >= FIRST_WORD else found + FIRST_WORD


def encode(text):
    """Return ids: ``t5`` is 5, any other word gets a fixed one."""
    ids = []
    for word in text.split():
        known = re.match(r"t(\d+)$", word)
        number = int(known.group(1)) if known else zlib.crc32(word.encode("utf-8", "replace"))
        ids.append(number % VOCABULARY)
    return ids or [FIRST_WORD]


def decode(ids):
    """Return the text of these ids, each word with a space before it."""
    return "".join(BROKEN.get(token, " t%d" % token) for token in ids)


def expected(prompt_ids, count):
    """Return the tokens that a healthy server answers with."""
    found = []
    token = prompt_ids[-1]
    for _ in range(count):
        token = following(token)
        found.append(token)
    return found
