"""Numba kernels of the Lookahead drafter: pools of n-grams, the drafts read from them, and what fills them.

A *pool* is a table of buckets with room for a few n-grams each, `table[pool]`: int32 (buckets, candidates,
RECORD + n-1). An n-gram is found by its first tokens, one to ORDERS of them, by which its bucket is chosen; the fields
of its record are the order (0: none), a check of the key, when it was last written, how often the target wrote it (0:
it comes from the branch after a rejection only), how many tokens follow the key, and these. Who is written last stays,
so a bucket is an LRU list. All kernels take flat arrays and scalars and write into caller-owned buffers. Every value is
int64 unless said.
"""

import numpy as np
from numba import njit

from drafters._reach_kernels import NUM_TOKEN_BUCKETS, _bucket, _chance, _judge, _token_bucket

ORDERS = 3  # longest key, in tokens
RECORD = 5  # fields of a record before its tokens
_ORDER, _CHECK, _STAMP, _COUNT, _LENGTH = range(RECORD)
_MULTIPLIER = 0x9E3779B97F4A7C1  # odd, below 2**63
_MASK31 = 0x7FFFFFFF
_MASK32 = 0xFFFFFFFF

# Features of a draft token, one of each group (see `calibration`).
PLACE_EDGES = np.array([1, 2, 4], dtype=np.int64)  # in its n-gram
COUNT_EDGES = np.array([1, 2, 3, 5], dtype=np.int64)
POSITION_EDGES = np.array([1, 2, 4, 8], dtype=np.int64)  # in the draft
LUCK_EDGES = np.array([0.1, 0.25, 0.4, 0.55, 0.7, 0.85], dtype=np.float64)
NUM_PLACES = len(PLACE_EDGES) + 1
NUM_COUNTS = len(COUNT_EDGES) + 1
GROUP_SIZES = (
    (ORDERS + 1) * NUM_COUNTS,  # length of the key, 0 for a Jacobi guess, and how often the target wrote it
    (ORDERS + 1) * NUM_PLACES,  # and place in the n-gram
    (ORDERS + 1)
    * 3,  # and whether other n-grams of the key say the same, say something else, or there is none
    len(POSITION_EDGES) + 1,
    (len(LUCK_EDGES) + 1) * 2,  # how often its drafts began rightly of late; whether it is the first token
    NUM_TOKEN_BUCKETS + 1,  # the token before it
    NUM_TOKEN_BUCKETS + 1,  # the token itself
)
NUM_GROUPS = len(GROUP_SIZES)
NUM_FITTED = NUM_GROUPS - 2  # groups with a prior; token ids mean something else for every tokenizer
OFFSETS = np.concatenate(([0], np.cumsum(GROUP_SIZES)[:-1])).astype(np.int64)
NUM_FEATURES = int(sum(GROUP_SIZES))


@njit(cache=True)
def _hash(tokens, end, order, seed):
    """Hash of the `order` tokens before index `end`."""
    h = seed + order
    for i in range(end - order, end):
        h = (h ^ np.int64(tokens[i])) * _MULTIPLIER
        h ^= (h >> 29) & _MASK31
    return h


@njit(cache=True)
def _find(pool, tokens, end, order, seed):
    """Return (bucket, candidate, agreement) of the n-gram to go on with after tokens[:end]; candidate -1: none.

    What the target wrote goes before what only a rejected branch said, then the newest. agreement: 0 if it is alone
    with its key, 1 if others say the same next token, 2 if one says another.
    """
    table, now = pool
    h = _hash(tokens, end, order, seed)
    b = (h >> 32) & (table.shape[0] - 1)
    check = h & _MASK31
    best = np.int64(-1)
    best_age = np.int64(0)
    others = np.int64(0)
    for g in range(table.shape[1]):
        if table[b, g, _ORDER] != order or table[b, g, _CHECK] != check:
            continue
        age = (now - np.int64(table[b, g, _STAMP])) & _MASK32
        if table[b, g, _COUNT] == 0:
            age += _MASK32
        if best < 0 or age < best_age:
            best, best_age = np.int64(g), age
    if best >= 0:
        for g in range(table.shape[1]):
            if g != best and table[b, g, _ORDER] == order and table[b, g, _CHECK] == check:
                same = table[b, g, RECORD] == table[b, best, RECORD]
                others = max(others, 1 if same else 2)
    return b, best, others


@njit(cache=True)
def _put(table, now, tokens, key_end, end, order, seed, counts):
    """Write the n-gram whose key ends before key_end and whose tokens are tokens[key_end:end].

    One that begins like it, or as which it begins, is made the longer of the two; else the oldest one goes.
    counts: whether the target has just written its first token.
    """
    h = _hash(tokens, key_end, order, seed)
    b = (h >> 32) & (table.shape[0] - 1)
    check = h & _MASK31
    length = min(end - key_end, table.shape[2] - RECORD)
    at = np.int64(0)
    oldest = np.int64(-1)
    for g in range(table.shape[1]):
        if table[b, g, _ORDER] == order and table[b, g, _CHECK] == check:
            known = np.int64(table[b, g, _LENGTH])
            k = 0
            while k < known and k < length and table[b, g, RECORD + k] == tokens[key_end + k]:
                k += 1
            if k in (known, length):
                for k in range(known, length):
                    table[b, g, RECORD + k] = tokens[key_end + k]
                table[b, g, _LENGTH] = max(known, length)
                table[b, g, _STAMP] = now
                if counts:
                    table[b, g, _COUNT] = min(np.int64(table[b, g, _COUNT]) + 1, _MASK31)
                return
        age = (now - np.int64(table[b, g, _STAMP])) & _MASK32
        if table[b, g, _ORDER] == 0:
            age = _MASK32 + 1
        if age > oldest:
            at, oldest = np.int64(g), age
    table[b, at, _ORDER] = order
    table[b, at, _CHECK] = check
    table[b, at, _STAMP] = now
    table[b, at, _COUNT] = 1 if counts else 0
    table[b, at, _LENGTH] = length
    for k in range(length):
        table[b, at, RECORD + k] = tokens[key_end + k]


@njit(cache=True)
def _put_all(table, clock, tokens, start, end, seed, counts):
    """Write every n-gram of tokens[start:end] that ends with its last token; a new one is a key and that token."""
    most = table.shape[2] - RECORD
    now = clock + 1
    for length in range(1, most + 1):
        key_end = end - length
        for order in range(1, ORDERS + 1):
            if key_end - order >= start:
                _put(table, now, tokens, key_end, end, order, seed, counts and length == 1)
    return now


@njit(cache=True)
def _describe(f, order, count, place, others, position, luck, previous, token, tag, seed):
    """Set the features of a draft token."""
    f[0] = OFFSETS[0] + order * NUM_COUNTS + _bucket(COUNT_EDGES, count)
    f[1] = OFFSETS[1] + order * NUM_PLACES + _bucket(PLACE_EDGES, place)
    f[2] = OFFSETS[2] + order * 3 + others
    f[3] = OFFSETS[3] + _bucket(POSITION_EDGES, position)
    f[4] = OFFSETS[4] + 2 * _bucket(LUCK_EDGES, luck) + (1 if position == 0 else 0)
    f[5] = OFFSETS[5] + _token_bucket(previous, tag, seed)
    f[6] = OFFSETS[6] + _token_bucket(token, tag, seed)


@njit(cache=True)
def _propose_batch(rows, max_n, pools, tail, tail_length, luck, namespace, guesses, model, min_reach, drafts):
    """Draft for every slot in `rows` into drafts[slot]; max_n has one entry per row.

    pools: (tables, clocks, pool of each slot); tail: int32 (slots, width), the last tokens of each text, right-aligned,
    tail_length of them; namespace: (tag, seed) per slot; guesses: (length, token_ids, trails), the next tokens by the
    last Jacobi iterate and what iterates before said in their places; drafts: (length, token_ids, reach, features,
    trails), indexed by slot.
    """
    tables, clocks, pool_of = pools
    tag, seed = namespace
    guess_length, guess_ids, guess_trails = guesses
    length, token_ids, reach, features, trails = drafts
    width = tail.shape[1]
    text = np.empty(width + token_ids.shape[1], dtype=np.int32)
    for r in range(rows.shape[0]):
        s = rows[r]
        pool = (tables[pool_of[s]], clocks[pool_of[s]])
        text[:width] = tail[s]
        n = np.int64(0)
        so_far = 1.0
        going = True
        while going and n < max_n[r]:
            g = np.int64(-1)
            b = others = np.int64(0)
            order = min(np.int64(ORDERS), tail_length[s] + n)
            while order > 0:
                b, g, others = _find(pool, text, width + n, order, seed[s])
                if g >= 0:
                    break
                order -= 1
            if g < 0:
                break
            record = pool[0][b, g]
            count = np.int64(record[_COUNT])
            for place in range(record[_LENGTH]):
                if n == max_n[r]:
                    break
                token = np.int64(record[RECORD + place])
                f = features[s, n]
                previous = np.int64(text[width + n - 1])
                _describe(f, order, count, place, others, n, luck[s], previous, token, tag[s], seed[s])
                so_far *= _chance(f, model)
                if so_far < min_reach:
                    going = False
                    break
                # What was said before it, in the text that it is verified in.
                trails[s, n] = text[width + n - trails.shape[2] : width + n]
                text[width + n] = token
                token_ids[s, n] = token
                reach[s, n] = so_far
                n += 1
        while going and n < max_n[r] and n < guess_length[s]:
            token = np.int64(guess_ids[s, n])
            previous = np.int64(text[width + n - 1])
            f = features[s, n]
            _describe(f, 0, 0, n, 0, n, luck[s], previous, token, tag[s], seed[s])
            so_far *= _chance(f, model)
            if so_far < min_reach:
                break
            trails[s, n] = guess_trails[s, n]
            text[width + n] = token
            token_ids[s, n] = token
            reach[s, n] = so_far
            n += 1
        length[s] = n


@njit(cache=True)
def _note_choices(slots, counts, token_ids, length, choice_length, choice_ids):
    """Set each slot's choices (counts[i] of token_ids each); those of a draft that was not the last one are left."""
    at = 0
    for i in range(slots.shape[0]):
        s = slots[i]
        choice_length[s] = 0
        if counts[i] <= length[s] + 1:
            choice_length[s] = counts[i]
            for k in range(counts[i]):
                choice_ids[s, k] = token_ids[at + k]
        at += counts[i]


@njit(cache=True)
def _branch(s, num_right, tables, clocks, p, seed, guesses, choices, drafts, scratch):
    """Take what the target said after the rejection: n-grams for the pool, and the next guess.

    Draft token i, verified, and the target's choice after it are of two successive Jacobi iterates, so the trail of the
    one with the other at its end is an n-gram of the trajectory (Fu et al. 2024, section 3.2).
    """
    guess_length, guess_ids, guess_trails = guesses
    choice_length, choice_ids = choices
    _, token_ids, _, _, trails = drafts
    most = trails.shape[2]
    verified = choice_length[s] - 1
    n = np.int64(0)
    for i in range(num_right + 1, verified + 1):
        scratch[:most] = trails[s, i - 1]
        scratch[most] = token_ids[s, i - 1]
        scratch[most + 1] = choice_ids[s, i]
        start = 0
        while scratch[start] < 0:  # the text began here
            start += 1
        clocks[p] = _put_all(tables[p], clocks[p], scratch, start, most + 2, seed, False)
        if n < guess_ids.shape[1]:
            guess_ids[s, n] = choice_ids[s, i]
            guess_trails[s, n] = scratch[1 : most + 1]
            n += 1
    guess_length[s] = n


@njit(cache=True)
def _observe_batch(
    slots,
    counts,
    token_ids,
    pools,
    tail,
    tail_length,
    prompt_left,
    luck,
    namespace,
    guesses,
    choices,
    drafts,
    model,
    luck_rate,
):
    """Judge each slot's last draft by its new tokens (counts[i] of token_ids each), then append them.

    prompt_left: tokens of the prompt that are still to come and are not to enter the pool. choices: (length,
    token_ids), the target's own at the verified positions of the last draft and after it.
    """
    tables, clocks, pool_of = pools
    _, seed = namespace
    guess_length, guess_ids, guess_trails = guesses
    length, draft_ids, _, features, _ = drafts
    width = tail.shape[1]
    scratch = np.empty(drafts[4].shape[2] + 2, dtype=np.int32)
    at = 0
    for i in range(slots.shape[0]):
        s = slots[i]
        new = token_ids[at : at + counts[i]]
        at += counts[i]
        if counts[i] == 0:
            continue
        p = pool_of[s]
        right = np.int64(0)
        if length[s] > 0:
            right = _judge(draft_ids[s], features[s], length[s], new, model)
            luck[s] += luck_rate * (min(right, 1) - luck[s])
        if choices[0][s] > right + 1:
            _branch(s, right, tables, clocks, p, seed[s], guesses, choices, drafts, scratch)
        else:  # the older guess goes on behind what has been said since
            kept = max(guess_length[s] - counts[i], 0)
            for k in range(kept):
                guess_ids[s, k] = guess_ids[s, k + counts[i]]
                guess_trails[s, k] = guess_trails[s, k + counts[i]]
            guess_length[s] = kept
        length[s] = 0
        choices[0][s] = 0
        for token in new:
            tail[s, :-1] = tail[s, 1:]
            tail[s, width - 1] = token
            tail_length[s] = min(tail_length[s] + 1, width)
            if prompt_left[s] > 0:
                prompt_left[s] -= 1
            else:
                start = width - tail_length[s]
                clocks[p] = _put_all(tables[p], clocks[p], tail[s], start, width, seed[s], True)
