"""Numba kernels that index token streams and find where the suffix of a request's text occurred.

A *store* is a token text with an index over its suffixes, kept as hash chains: for every order k in ORDERS,
`prev[o, i]` is the distance from position i back to the latest earlier position whose last k tokens fall
into the same bucket, and `head[o, b]` is 1 + the latest position of bucket b (0: none). Walking a chain and
comparing backwards visits the suffix tree's subtree below the context, newest leaf first, in O(1) memory and
time per appended token and without a root to walk down from. A text is a ring of 2**m tokens: absolute
position p lives at index p & (2**m - 1), and positions below `tail` are gone. Documents are separated by
SEPARATOR, which no context contains, so no match crosses a boundary; what was forgotten is overwritten with it.

There are two kinds. A request's own text is int32 token ids. The shared text is int64: each token carries the tag
of its document's namespace (`tag + token id`), and a request adds its own tag to what it compares, so that it
matches documents of its namespace only. The hash of a shared context starts from the namespace's seed.

What live requests are saying is found through one more index, a ring of *entries*: each stands for a token of a
request's answer and says where the text is, (slot, generation, position), and `prev[o, e]` and `head[o, b]` chain the
entries as above. An entry whose slot is of another generation by now leads nowhere.

All kernels take flat arrays and scalars and write into caller-owned buffers. Every value is int64 unless said.
"""

import numpy as np
from numba import njit

ORDERS = np.array([8, 4, 2, 1], dtype=np.int64)  # context lengths with a chain of their own, longest first
NUM_ORDERS = len(ORDERS)
SEPARATOR = -1
MAX_MATCH = 32  # a match is measured up to this length; longer ones vote and calibrate alike
MAX_STEPS = 48  # links followed per chain
MAX_PER_ORDER = 8  # occurrences taken per chain
MAX_OCCURRENCES = 24  # occurrences taken per store; the longest contexts are asked first
LENGTH_WEIGHT = 2.2 ** np.minimum(np.arange(MAX_MATCH + 1), 16)  # a longer context is trusted more
RECENCY = 0.9  # each older occurrence of a context weighs this much less
HASH_MULTIPLIER = 0x9E3779B97F4A7C1  # odd, below 2**63
HASH_SHIFT = 29

NEAR = 16  # tokens: an occurrence this close to where the last draft was read from continues it
NEAR_BONUS = 4.0  # and its vote counts for more
PROMPT_TAIL = 16  # prompt tokens before an answer that count as its context where it is shared


@njit(cache=True)
def _mix(h, mask):
    h = h * HASH_MULTIPLIER
    return (h ^ (h >> HASH_SHIFT)) & mask


@njit(cache=True)
def _hash_suffixes(text, mask, last, num_tokens, tag, seed, out):
    """Hash the last k of the `num_tokens` tokens that end at `last`, for each order k that they suffice for.

    Every token counts as tag + token. out (NUM_ORDERS,) receives what `_mix` makes a bucket of; returned is the first
    order that was written, the longest.
    """
    h = np.int64(seed)
    o = NUM_ORDERS
    for d in range(min(ORDERS[0], num_tokens)):
        h = h * HASH_MULTIPLIER + (tag + text[(last - d) & mask]) + 1
        if d + 1 == ORDERS[o - 1]:
            o -= 1
            out[o] = h
    return o


@njit(cache=True)
def _append(text, prev, head, pos, start, token_ids, tag, seed):
    """Append token_ids (int32) at absolute position pos of a document that began at `start`; return the new end.

    tag, seed: of the document's namespace; 0 for a request's own text.
    """
    mask = text.shape[0] - 1
    bucket_mask = head.shape[1] - 1
    hashes = np.empty(NUM_ORDERS, dtype=np.int64)
    for t in range(token_ids.shape[0]):
        i = pos & mask
        text[i] = np.int64(token_ids[t]) + tag
        first = _hash_suffixes(text, mask, pos, pos - start + 1, 0, seed, hashes)
        for o in range(NUM_ORDERS):
            prev[o, i] = 0
            if o >= first:
                b = _mix(hashes[o], bucket_mask)
                q = head[o, b]
                if q > 0:
                    prev[o, i] = pos + 1 - q
                head[o, b] = pos + 1
        pos += 1
    return pos


@njit(cache=True)
def _match_length(text, q, tail, context, c_mask, c_end, tag):
    """Length of the common suffix of text[..q] and tag + context[..c_end], at most MAX_MATCH."""
    mask = text.shape[0] - 1
    limit = min(MAX_MATCH, min(q - tail, c_end) + 1)
    n = 0
    while n < limit and text[(q - n) & mask] == tag + context[(c_end - n) & c_mask]:
        n += 1
    return n


@njit(cache=True)
def _occurrences(
    text, prev, head, tail, context, end, own, tag, hashes, anchor, out_pos, out_len, out_weight
):
    """Find where the suffix of a request's text (context[..end-1]) occurred in a store; return how many.

    `own`: the store is the request's own text, so chains start at its last position instead of a bucket.
    tag, hashes: of the request's namespace, and of its suffixes there, where the store is shared; not used for its own.
    `anchor`: occurrences within NEAR of it weigh NEAR_BONUS more; -1 for none.
    out_pos receives the position after each occurrence, out_len its match length, out_weight (float64) its
    vote; the longest contexts come first, the newest first within an order.
    """
    mask = text.shape[0] - 1
    c_mask = context.shape[0] - 1
    bucket_mask = head.shape[1] - 1
    last = end - 1
    count = 0
    above = np.int64(1 << 40)
    for o in range(NUM_ORDERS):
        k = ORDERS[o]
        if end < k or count >= MAX_OCCURRENCES:
            continue
        if own:
            step = prev[o, last & mask]
            q = last - step if step > 0 else np.int64(-1)
        else:
            q = head[o, _mix(hashes[o], bucket_mask)] - 1
        steps = 0
        found = 0
        recency = 1.0
        while q >= tail and steps < MAX_STEPS and found < MAX_PER_ORDER and count < MAX_OCCURRENCES:
            steps += 1
            n = _match_length(text, q, tail, context, c_mask, last, tag)
            if k <= n < above:  # longer ones were met on a longer order's chain
                out_pos[count] = q + 1
                out_len[count] = n
                out_weight[count] = LENGTH_WEIGHT[n] * recency
                if anchor >= 0 and abs(q + 1 - anchor) <= NEAR:
                    out_weight[count] *= NEAR_BONUS
                recency *= RECENCY
                count += 1
                found += 1
            step = prev[o, q & mask]
            if step <= 0:
                break
            q -= step
        above = k
    return count


@njit(cache=True)
def _link(entries, s, generation, text, begin, end, tag, seed):
    """Enter positions begin..end-1 of a request's text as places whose next token can be drafted.

    entries: (slot, generation, position, all int32; prev int32, head; count (1,)).
    """
    slot, generations, position, prev, head, count = entries
    mask = slot.shape[0] - 1
    bucket_mask = head.shape[1] - 1
    if mask < 0:
        return
    hashes = np.empty(NUM_ORDERS, dtype=np.int64)
    for p in range(begin, end):
        e = count[0]
        i = e & mask
        slot[i] = s
        generations[i] = generation
        position[i] = p
        first = _hash_suffixes(text, text.shape[0] - 1, p, p + 1, tag, seed, hashes)
        for o in range(NUM_ORDERS):
            prev[o, i] = 0
            if o >= first:
                b = _mix(hashes[o], bucket_mask)
                q = head[o, b]
                if q > 0 and e + 1 - q <= mask:
                    prev[o, i] = e + 1 - q
                head[o, b] = e + 1
        count[0] = e + 1


@njit(cache=True)
def _live_occurrences(
    entries,
    generations,
    text,
    own,
    offset,
    end,
    prompt_end,
    tag,
    hashes,
    s,
    out_pos,
    out_end,
    out_len,
    out_weight,
):
    """Find where the suffix of slot s's text occurred in what other live requests of its namespace said.

    text: of all live requests; own: of s alone; offset, end, prompt_end, tag, generations: by slot. out_pos receives
    the index in `text` after each occurrence, out_end that of its request's end; the rest is as in `_occurrences`.
    """
    slot, generation, position, prev, head, entered = entries
    mask = slot.shape[0] - 1
    bucket_mask = head.shape[1] - 1
    if mask < 0:
        return 0
    oldest = entered[0] - mask - 1
    size = end[s]
    count = 0
    above = np.int64(1 << 40)
    for o in range(NUM_ORDERS):
        k = ORDERS[o]
        if size < k or count >= MAX_OCCURRENCES:
            continue
        e = head[o, _mix(hashes[o], bucket_mask)] - 1
        steps = 0
        found = 0
        recency = 1.0
        while (
            e >= 0 and e >= oldest and steps < MAX_STEPS and found < MAX_PER_ORDER and count < MAX_OCCURRENCES
        ):
            steps += 1
            i = e & mask
            r = slot[i]
            p = np.int64(position[i])
            if r >= 0 and r != s and generation[i] == generations[r] and tag[r] == tag[s] and p + 1 < end[r]:
                at = offset[r] + p
                tail = offset[r] + max(0, prompt_end[r] - PROMPT_TAIL)
                n = _match_length(text, at, tail, own, own.shape[0] - 1, size - 1, 0)
                if k <= n < above:
                    out_pos[count] = at + 1
                    out_end[count] = offset[r] + end[r]
                    out_len[count] = n
                    out_weight[count] = LENGTH_WEIGHT[n] * recency
                    recency *= RECENCY
                    count += 1
                    found += 1
            step = prev[o, i]
            if step <= 0:
                break
            e -= step
        above = k
    return count
