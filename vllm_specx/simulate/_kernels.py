"""Numba kernels of the simulation: a fleet's steps, one event after the other.

Events are restarts, arrivals and ends of steps. Of those at the same time restarts come first, then arrivals, then the
replica with the lowest number. `loop.run` is the same in plain Python with any drafts; here they are recorded ones.
The arrays are those of `state`.
"""

import numpy as np
from numba import njit

from vllm_specx.simulate import state as names

ROUND_ROBIN, RANDOM, LEAST_LOADED = range(3)
PLAIN, PRIVATE, SHARED = range(3)
NUM_PARTS = names.NUM_PARTS
STEPS, REQUEST_STEPS, DRAFTS, STEP_TOKENS = names.STEPS, names.REQUEST_STEPS, names.DRAFTS, names.STEP_TOKENS
FIRST_TOKENS, IN_TIME, LOST, BUSY, LARGEST = (
    names.FIRST_TOKENS,
    names.IN_TIME,
    names.LOST,
    names.BUSY,
    names.LARGEST,
)


@njit(cache=True)
def _set(tree, leaf, value):
    """Change a leaf of a winner tree."""
    i = len(tree) // 2 + leaf
    tree[i] = value
    i //= 2
    while i:
        tree[i] = min(tree[2 * i], tree[2 * i + 1])
        i //= 2


@njit(cache=True)
def _least(tree):
    """The first leaf with the least value."""
    i = 1
    while i < len(tree) // 2:
        i = 2 * i if tree[2 * i] <= tree[2 * i + 1] else 2 * i + 1
    return i - len(tree) // 2


@njit(cache=True)
def _next_sync(at, first, interval):
    """The first exchange at `at` or later, of those at first, first + interval, ..."""
    if at <= first:
        return first
    return at if interval == 0.0 else first + np.ceil((at - first) / interval) * interval


@njit(cache=True)
def _last_sync(at, first, interval):
    """The last exchange at `at` or before; -inf if there was none."""
    if at < first:
        return -np.inf
    return at if interval == 0.0 else first + np.floor((at - first) / interval) * interval


@njit(cache=True, inline="always")
def _num_seen(rules, s, begin, r, tenant, heard):
    """How many answers to a tenant, which begin at `begin` of s.texts, a replica has in memory.

    What it said itself since its start, it knows; and if memory is shared, what the store had at `heard`.
    """
    most, own = rules.most_seen, s.own[r, tenant]
    if rules.memory == PLAIN:
        return 0
    if rules.memory == PRIVATE or heard == -np.inf:
        return min(most, own)
    # Texts are in the order in which they ended: [begin, low) ended so early that the store has all of them at `heard`.
    low, end = begin, begin + s.num_texts[tenant]
    high = end
    while low < high:
        middle = (low + high) // 2
        if s.texts[0, middle] <= heard - rules.interval - 2 * rules.transfer:
            low = middle + 1
        else:
            high = middle
    seen = low - begin
    for j in range(low, end):
        if seen >= most:
            break
        seen += s.texts[2, j] <= heard or (s.texts[1, j] == r and s.texts[0, j] >= s.boot[r])
    return min(most, seen)


@njit(cache=True)
def _level(levels, seen, coin):
    """One of the two levels beside `seen`, by how close they are on a logarithmic scale."""
    i = np.searchsorted(levels, seen, side="right") - 1
    if i + 1 >= len(levels):
        return i
    low, high = np.log1p(levels[i]), np.log1p(levels[i + 1])
    return i + 1 if coin < (np.log1p(seen) - low) / (high - low) else i


@njit(cache=True)
def _seconds(grid, b, m):
    """Time of a step that decodes b requests, with m draft tokens in all."""
    if b == 0:
        return grid[0, 0]
    n = m // b
    share = m / b - n
    if share == 0.0:
        return grid[b, n]
    return grid[b, n] + share * (grid[b, n + 1] - grid[b, n])


@njit(cache=True)
def _route(routing, turn, pick, is_up, num_running, num_waiting):
    """The replica for a request, of those that are up, or of all if none is; and the one whose turn is next."""
    num = len(is_up)
    num_up = 0
    for r in range(num):
        num_up += is_up[r]
    any_up = num_up > 0
    left = int(pick * (num_up if any_up else num)) if routing == RANDOM else -1
    best = -1
    for k in range(num):
        r = (turn + k) % num if routing != RANDOM else k
        if any_up and not is_up[r]:
            continue
        if routing == ROUND_ROBIN or left == 0:
            return r, (r + 1) % num
        left -= 1
        if best < 0 or num_running[r] + num_waiting[r] < num_running[best] + num_waiting[best]:
            best = r
    return best, (best + 1) % num


@njit(cache=True, inline="always")
def _restart(rules, s, r, now):
    """Take a replica down; return how many requests it leaves, in s.moved."""
    if s.num_running[r]:
        s.counts[BUSY] += now - s.began[r]
    num = s.num_running[r]
    for k in range(num):
        q = s.running[r, k]
        s.counts[LOST] += s.known[q]
        s.counts[IN_TIME] -= s.known[q]  # restarts come within the duration
        s.known[q] = 0
        s.first[q] = np.nan
        s.moved[k] = q
    while s.head[r] >= 0:
        s.moved[num] = s.head[r]
        num += 1
        s.head[r] = s.link[s.head[r]]
    s.tail[r] = -1
    s.num_running[r] = s.num_waiting[r] = 0
    s.is_up[r] = False
    s.boot[r] = now + rules.away
    s.own[r] = 0
    _set(s.tree, r, s.boot[r])
    return num


@njit(cache=True, inline="always")
def _queue(s, r, q, now):
    """Append a request to a replica's queue; wake it if it rests."""
    s.link[q] = -1
    if s.tail[r] < 0:
        s.head[r] = q
    else:
        s.link[s.tail[r]] = q
    s.tail[r] = q
    s.num_waiting[r] += 1
    if s.is_up[r] and s.tree[len(s.tree) // 2 + r] == np.inf:
        _set(s.tree, r, now)


@njit(cache=True, inline="always")
def _end_step(w, rules, s, r, now):
    """Add the tokens of the step; let those go that have all of theirs."""
    num = s.num_running[r]
    if num == 0:
        return
    left = firsts = tokens = 0
    for k in range(num):
        q = s.running[r, k]
        if s.coming[q] > 0:
            if s.known[q] == 0:
                s.first[q] = now
                firsts += 1
            else:
                tokens += s.coming[q]
            s.known[q] += s.coming[q]
            if s.known[q] == w.outputs[w.row[q]]:
                s.finish[q] = now
                s.where[q] = r
                g = w.tenant[q]
                j = w.first_of[g] + s.num_texts[g]
                s.num_texts[g] += 1
                s.own[r, g] += 1
                s.texts[0, j] = now
                s.texts[1, j] = r
                s.texts[2, j] = _next_sync(now, s.boot[r] + w.shift[r], rules.interval) + rules.transfer
                continue
        s.running[r, left] = q
        left += 1
    s.num_running[r] = left
    part = min(NUM_PARTS - 1, int(NUM_PARTS * now / rules.duration))
    s.parts[0, part] += s.num_decoding[r]
    s.parts[1, part] += s.num_drafts[r]
    s.parts[2, part] += tokens
    s.counts[STEPS] += 1
    s.counts[REQUEST_STEPS] += s.num_decoding[r]
    s.counts[DRAFTS] += s.num_drafts[r]
    s.counts[STEP_TOKENS] += tokens
    s.counts[FIRST_TOKENS] += firsts
    s.counts[BUSY] += now - s.began[r]
    if now <= rules.duration:
        s.counts[IN_TIME] += tokens + firsts


@njit(cache=True, inline="always")
def _admit(w, rules, s, r, now):
    """Take requests from the queue into the batch."""
    heard = _last_sync(now - rules.transfer, s.boot[r] + w.shift[r], rules.interval)
    while s.num_running[r] < rules.max_num_seqs and s.head[r] >= 0:
        q = s.head[r]
        s.head[r] = s.link[q]
        if s.head[r] < 0:
            s.tail[r] = -1
        s.num_waiting[r] -= 1
        s.running[r, s.num_running[r]] = q
        s.num_running[r] += 1
        s.prompt_left[q] = w.prompts[w.row[q]]
        s.seen[q] = _num_seen(rules, s, w.first_of[w.tenant[q]], r, w.tenant[q], heard)
        s.level[q] = _level(w.levels, s.seen[q], w.coin[q])


@njit(cache=True, inline="always")
def _begin_step(w, rules, s, r, now):
    """Decode all that have a first token, and read prompts as far as there is room; its end is the next event."""
    num = s.num_running[r]
    b = m = num_prompt = 0
    for k in range(num):
        b += s.known[s.running[r, k]] > 0
    num_thresholds = w.drafts.shape[1]
    for k in range(num):
        q = s.running[r, k]
        if s.known[q] > 0:
            level, at = s.level[q], w.offsets[w.row[q]] + s.known[q]
            t = w.best[b, level]
            if t == num_thresholds:
                s.coming[q] = 1
            else:
                m += w.drafts[level, t, at]
                s.coming[q] = w.commits[level, t, at]
    room = max(0, rules.max_num_batched_tokens - b - m)
    for k in range(num):
        q = s.running[r, k]
        if s.known[q] == 0:
            chunk = min(room - num_prompt, s.prompt_left[q])
            s.prompt_left[q] -= chunk
            num_prompt += chunk
            s.coming[q] = s.prompt_left[q] == 0
    s.counts[LARGEST] = max(s.counts[LARGEST], num)
    s.began[r], s.num_decoding[r], s.num_drafts[r] = now, b, m
    _set(s.tree, r, now + (_seconds(w.grid, b, m) + num_prompt * rules.per_prompt_token))


@njit(cache=True)
def _simulate(w, rules, s):
    """Run a fleet: `state.World`, `state.Rules`, `state.State`."""
    i = k = turn = 0
    while True:
        arrival = w.arrival[i] if i < len(w.arrival) else np.inf
        restart = w.restart_at[k] if k < len(w.restart_at) else np.inf
        now = min(arrival, restart, s.tree[1])
        if now > rules.end or now == np.inf:
            return
        if now in (restart, arrival):
            if now == restart:
                num = _restart(rules, s, w.restart_of[k], now)
                k += 1
            else:
                s.moved[0] = i
                num = 1
                i += 1
            for j in range(num):
                q = s.moved[j]
                r, turn = _route(rules.routing, turn, w.pick[q], s.is_up, s.num_running, s.num_waiting)
                _queue(s, r, q, now)
            continue
        r = _least(s.tree)
        s.is_up[r] = True
        _end_step(w, rules, s, r, now)
        _admit(w, rules, s, r, now)
        if s.num_running[r]:
            _begin_step(w, rules, s, r, now)
        else:
            _set(s.tree, r, np.inf)
