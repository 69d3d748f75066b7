"""Numba kernels of the suffix-tree drafter: vote on what follows, and describe how far votes can be trusted.

Where the suffix of a request's text occurred is found by `_index_kernels`. All kernels take flat arrays and scalars and
write into caller-owned buffers. Every value is int64 unless said.
"""

import numpy as np
from numba import njit

from drafters._index_kernels import (
    MAX_OCCURRENCES,
    NUM_ORDERS,
    SEPARATOR,
    _append,
    _hash_suffixes,
    _link,
    _live_occurrences,
    _occurrences,
)
from drafters._reach_kernels import NUM_TOKEN_BUCKETS, _bucket, _chance, _judge, _token_bucket

MOST_CREDIT = 1 << 30  # of one position; int32 holds it

# Features of a draft token, one of each group: the weights of their logistic sum give its chance of acceptance.
LENGTH_EDGES = np.array([2, 3, 4, 6, 8, 12, 20, 32, 48], dtype=np.int64)
SHARE_EDGES = np.array([0.15, 0.3, 0.5, 0.7, 0.85, 0.95, 0.9999], dtype=np.float64)
POSITION_EDGES = np.array([1, 2, 4, 8, 16], dtype=np.int64)
LUCK_EDGES = np.array([0.1, 0.25, 0.4, 0.55, 0.7, 0.85], dtype=np.float64)
VOTERS_EDGES = np.array([2, 3, 5, 9], dtype=np.int64)
DISSENT_EDGES = np.array([2, 3, 4, 6, 8], dtype=np.int64)
PROMPT_END_EDGES = np.array([1, 3, 5, 9, 17], dtype=np.int64)
NUM_LENGTHS = len(LENGTH_EDGES) + 1
NUM_SHARES = len(SHARE_EDGES) + 1
GROUP_SIZES = (
    NUM_LENGTHS * NUM_SHARES,  # match length and share of the votes
    len(POSITION_EDGES) + 1,  # position in the draft
    len(LUCK_EDGES) + 1,  # how often this request's drafts began rightly of late
    (len(VOTERS_EDGES) + 1) * 2,  # number of votes for it, and whether there were any against
    len(DISSENT_EDGES) + 2,  # the longest context against it
    len(PROMPT_END_EDGES) + 2,  # tokens from where it is read to the end of the prompt, if it is read there
    3 * NUM_LENGTHS,  # read from shared text, the prompt or the answer, and match length
    NUM_TOKEN_BUCKETS + 1,  # the token before it
    NUM_TOKEN_BUCKETS + 1,  # the token itself
)
NUM_GROUPS = len(GROUP_SIZES)
NUM_FITTED = NUM_GROUPS - 2  # groups with a prior; token ids mean something else for every tokenizer
OFFSETS = np.concatenate(([0], np.cumsum(GROUP_SIZES)[:-1])).astype(np.int64)
NUM_FEATURES = int(sum(GROUP_SIZES))


@njit(cache=True)
def _vote(tokens, weights, alive, count, ended):
    """Return (token, its share of the weight) with the largest weight among alive voters; (-1, 0) if none.

    ended: weight of the voters whose text ends here, so that they vote for no token.
    Ties go to the token that was met first, that is to the longer and newer occurrence.
    """
    best = np.int64(-1)
    best_weight = 0.0
    total = ended
    for j in range(count):
        if not alive[j]:
            continue
        total += weights[j]
        first = True
        weight = 0.0
        for i in range(count):
            if alive[i] and tokens[i] == tokens[j]:
                if i < j:
                    first = False
                    break
                weight += weights[i]
        if first and weight > best_weight:
            best = tokens[j]
            best_weight = weight
    return best, best_weight / total if total > 0 else 0.0


@njit(cache=True)
def _draft(
    own,
    end,
    prompt_end,
    live,
    shared,
    shared_end,
    tag,
    seed,
    pos,
    stops,
    lengths,
    weights,
    num_own,
    num_live,
    count,
    luck,
    model,
    max_n,
    min_reach,
    out,
):
    """Draft along the occurrences by vote; return (number of tokens, leader, source).

    Voters 0..num_own-1 read the request's own text (and, past its end, the draft itself, so that a period
    goes on), the next ones up to num_live-1 what other live requests said (`live`, each up to its stop), the others
    the shared text up to a SEPARATOR. Who disagrees with the winner drops out, and so does who has nothing more to
    read, on shared text after a last vote against all. Of the longest match that votes for the first token the
    position where it goes on is returned: as leader if it is the request's own text, as source if it is shared; the
    other one, or both where nobody votes or a live request leads, is -1.
    out: (token_ids int32 (>= max_n,), reach float64 (>= max_n,), features int16 (>= max_n, NUM_GROUPS)).
    """
    token_ids, reach, features = out
    own_mask = own.shape[0] - 1
    shared_mask = shared.shape[0] - 1
    alive = np.ones(count, dtype=np.bool_)
    tokens = np.empty(count, dtype=np.int64)
    luck_feature = OFFSETS[2] + _bucket(LUCK_EDGES, luck)
    so_far = 1.0
    leader = np.int64(-1)
    source = np.int64(-1)
    for n in range(max_n):
        ended = 0.0
        against = np.int64(0)
        for j in range(count):
            if not alive[j]:
                continue
            p = pos[j] + n
            if j < num_own:
                tokens[j] = own[p & own_mask] if p < end else token_ids[p - end]
            elif j < num_live:
                if p < stops[j]:
                    tokens[j] = live[p]
                else:
                    alive[j] = False
            else:
                tokens[j] = shared[p & shared_mask] if p < shared_end else SEPARATOR
                if tokens[j] == SEPARATOR:
                    alive[j] = False
                    ended += weights[j]
                    against = max(against, lengths[j])
                else:
                    tokens[j] -= tag
        best, share = _vote(tokens, weights, alive, count, ended)
        if best < 0:
            return n, leader, source
        longest = np.int64(0)
        voters = np.int64(0)
        first = np.int64(-1)
        for j in range(count):
            if not alive[j]:
                continue
            if tokens[j] == best:
                voters += 1
                if lengths[j] > longest:
                    longest = lengths[j]
                    first = j
            else:
                alive[j] = False
                against = max(against, lengths[j])
        if n == 0:
            if first < num_own:
                leader = pos[first]
            elif first >= num_live:
                source = pos[first]
        f = features[n]
        unanimous = 1 if share >= SHARE_EDGES[-1] else 0
        length = _bucket(LENGTH_EDGES, longest + n)
        previous = np.int64(0)
        if n > 0:
            previous = np.int64(token_ids[n - 1])
        elif end > 0:
            previous = np.int64(own[(end - 1) & own_mask])
        f[0] = OFFSETS[0] + length * NUM_SHARES + _bucket(SHARE_EDGES, share)
        f[1] = OFFSETS[1] + _bucket(POSITION_EDGES, n)
        f[2] = luck_feature
        f[3] = OFFSETS[3] + _bucket(VOTERS_EDGES, voters) * 2 + unanimous
        f[4] = OFFSETS[4] + (0 if unanimous else 1 + _bucket(DISSENT_EDGES, against))
        if first < num_own and pos[first] < prompt_end:
            f[5] = OFFSETS[5] + _bucket(PROMPT_END_EDGES, prompt_end - pos[first] - n)
            f[6] = OFFSETS[6] + NUM_LENGTHS + length
        else:
            f[5] = OFFSETS[5] + len(PROMPT_END_EDGES) + 1
            f[6] = OFFSETS[6] + (2 * NUM_LENGTHS if first < num_own else 0) + length
        f[7] = OFFSETS[7] + _token_bucket(previous, tag, seed)
        f[8] = OFFSETS[8] + _token_bucket(best, tag, seed)
        so_far *= _chance(f, model)
        if so_far < min_reach:
            return n, leader, source
        token_ids[n] = best
        reach[n] = so_far
    return max_n, leader, source


@njit(cache=True)
def _propose_batch(
    rows,
    max_n,
    live,
    region,
    end,
    prompt_end,
    luck,
    anchor,
    namespace,
    generation,
    entries,
    shared,
    shared_tail,
    shared_end,
    model,
    min_reach,
    drafts,
):
    """Draft for every slot in `rows` into drafts[slot]; max_n has one entry per row.

    live, shared: (text, prev, head); region: (offset, capacity) per slot; prompt_end: length of its
    prompt; namespace: (tag, seed) per slot, a tag of -1 for a request that reads no shared text; entries: see
    `_link`; drafts: (length, token_ids, reach, features, leader, source), indexed by slot; model: (weights,
    information) by feature.
    """
    text, prev, head = live
    offset, capacity = region
    tag, seed = namespace
    s_text, s_prev, s_head = shared
    length, token_ids, reach, features, leader, source = drafts
    hashes = np.zeros(NUM_ORDERS, dtype=np.int64)
    pos = np.empty(3 * MAX_OCCURRENCES, dtype=np.int64)
    stops = np.empty(3 * MAX_OCCURRENCES, dtype=np.int64)
    match = np.empty(3 * MAX_OCCURRENCES, dtype=np.int64)
    weight = np.empty(3 * MAX_OCCURRENCES, dtype=np.float64)
    for r in range(rows.shape[0]):
        s = rows[r]
        lo, hi = offset[s], offset[s] + capacity[s]
        own = text[lo:hi]
        n_own = _occurrences(
            own,
            prev[:, lo:hi],
            head[:, lo:hi],
            0,
            own,
            end[s],
            True,
            0,
            hashes,
            anchor[s],
            pos,
            match,
            weight,
        )
        n = n_live = n_own
        if tag[s] >= 0:
            _hash_suffixes(own, own.shape[0] - 1, end[s] - 1, end[s], tag[s], seed[s], hashes)
            n_live += _live_occurrences(
                entries,
                generation,
                text,
                own,
                offset,
                end,
                prompt_end,
                tag,
                hashes,
                s,
                pos[n_own:],
                stops[n_own:],
                match[n_own:],
                weight[n_own:],
            )
            n = n_live + _occurrences(
                s_text,
                s_prev,
                s_head,
                shared_tail,
                own,
                end[s],
                False,
                tag[s],
                hashes,
                -1,
                pos[n_live:],
                match[n_live:],
                weight[n_live:],
            )
        length[s], leader[s], source[s] = _draft(
            own,
            end[s],
            prompt_end[s],
            text,
            s_text,
            shared_end,
            tag[s],
            seed[s],
            pos,
            stops,
            match,
            weight,
            n_own,
            n_live,
            n,
            luck[s],
            model,
            max_n[r],
            min_reach,
            (token_ids[s], reach[s], features[s]),
        )


@njit(cache=True)
def _observe_batch(
    slots,
    counts,
    token_ids,
    live,
    region,
    end,
    prompt_end,
    luck,
    anchor,
    namespace,
    generation,
    entries,
    drafts,
    credit,
    model,
    luck_rate,
):
    """Judge each slot's last draft by its new tokens (counts[i] of token_ids each), then append them.

    entries: where what a slot with a namespace answers can be found by others, see `_link`.
    anchor: where in its own text each slot's last draft would go on, -1 for nowhere.
    credit: int32, by index of the shared text: tokens accepted of drafts that were led from there.
    """
    text, prev, head = live
    offset, capacity = region
    tag, seed = namespace
    length, draft_ids, _, features, leader, source = drafts
    at = 0
    for i in range(slots.shape[0]):
        s = slots[i]
        new = token_ids[at : at + counts[i]]
        at += counts[i]
        if length[s] > 0 and counts[i] > 0:
            right = _judge(draft_ids[s], features[s], length[s], new, model)
            luck[s] += luck_rate * (min(right, 1) - luck[s])
            if source[s] >= 0:
                c = source[s] & (credit.shape[0] - 1)
                credit[c] = min(credit[c] + right, MOST_CREDIT)
        if length[s] > 0 and leader[s] >= 0:
            anchor[s] = leader[s] + counts[i]
        elif anchor[s] >= 0:
            anchor[s] += counts[i]
        length[s] = 0
        lo, hi = offset[s], offset[s] + capacity[s]
        begin = max(end[s], prompt_end[s] - 1)
        end[s] = _append(text[lo:hi], prev[:, lo:hi], head[:, lo:hi], end[s], 0, new, 0, 0)
        if tag[s] >= 0:
            _link(entries, s, generation[s], text[lo:hi], max(begin, 0), end[s], tag[s], seed[s])


@njit(cache=True)
def _step(
    pending,
    rows,
    max_n,
    live,
    region,
    end,
    prompt_end,
    luck,
    anchor,
    namespace,
    generation,
    entries,
    shared,
    shared_tail,
    shared_end,
    credit,
    model,
    luck_rate,
    min_reach,
    drafts,
):
    """Observe what is pending, (slots, counts, token_ids), and draft for `rows`: one call from Python for both.

    Returns how many drafts were led by the shared text; -1, and nothing is done, if a slot may lack room.
    """
    slots, counts, new = pending
    capacity = region[1]
    for s in slots:
        if capacity[s] == 0 or end[s] + len(new) > capacity[s]:  # at most so many go to one slot
            return -1
    _observe_batch(
        slots,
        counts,
        new,
        live,
        region,
        end,
        prompt_end,
        luck,
        anchor,
        namespace,
        generation,
        entries,
        drafts,
        credit,
        model,
        luck_rate,
    )
    _propose_batch(
        rows,
        max_n,
        live,
        region,
        end,
        prompt_end,
        luck,
        anchor,
        namespace,
        generation,
        entries,
        shared,
        shared_tail,
        shared_end,
        model,
        min_reach,
        drafts,
    )
    num_led = 0
    for s in rows:
        num_led += drafts[5][s] >= 0
    return num_led
