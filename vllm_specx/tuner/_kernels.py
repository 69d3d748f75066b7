"""Numba kernels of the tuner: the step-time model and the choice of lengths.

A step with b requests and m draft tokens takes, in units of the model's scale,

    t = base(b) + work(T) + few(T) + [m > 0] * (jump + jump_b * b) + passes * (pass + pass_b * b)   T = b + m, padded

`base` is linear between knots at powers of two, `work` is linear between such knots of T, from work(1) = 0 on. `few` is
a number of its own for each T up to FEW_MOST: products with few rows take their time by other laws than the number of
rows (with two rows they may be slower than with four). The rest never falls in m.
So t is a scalar product x * mean with the features

    0 .. NUM_BASE-1     hat functions of b
    WORK ..             tokens of T within each segment between two knots (mean: cost of a token)
    JUMP, JUMP + 1      1 and b, if there are draft tokens
    PASS, PASS + 1      passes, passes * b
    FEW ..              1 at T = 2, 3, .., FEW_MOST (between two of them, a share of each)

of which a Kalman filter keeps the mean and the covariance.
"""

import numpy as np
from numba import njit

NUM_BASE = 11  # b = 1, 2, 4, ..., 1024
NUM_WORK = 14  # T = 1..2, 2..4, ..., 8192..; the last segment has no end
WORK = NUM_BASE
JUMP = WORK + NUM_WORK
PASS = JUMP + 2
FEW = PASS + 2
FEW_MOST = 8
NUM_FEATURES = FEW + FEW_MOST - 1

ODD = np.log(8.0)  # a time so far off, in logarithms, is not noise

NUM_BINS = 64  # of reach, finer where it is small

# What a choice is made of: draft tokens, expected accepted tokens and their variance (at trust 1), the speedup that is
# possible if every step is an average one, the one that is believed, and the price of a unit of time.
DRAFT, EXPECTED, VARIANCE, POSSIBLE, SPEEDUP, PRICE = range(6)
NUM_CHOICE = 6


@njit(cache=True)
def _pad(num_tokens, sizes):
    """The batch size that is run; sizes is increasing and may be empty."""
    i = np.searchsorted(sizes, num_tokens)
    return float(sizes[i]) if i < len(sizes) else num_tokens


@njit(cache=True)
def _features(b, m, passes, sizes, x):
    """Write the features of a step into x, float64[NUM_FEATURES]."""
    x[:] = 0.0
    low, i = 1.0, 0
    while i < NUM_BASE - 1 and b >= 2 * low:
        low *= 2
        i += 1
    share = min(1.0, b / low - 1.0) if i < NUM_BASE - 1 else 0.0
    x[i] = 1 - share
    if share > 0:
        x[i + 1] = share
    total = _pad(b + m, sizes)
    if total < FEW_MOST + 1:
        k = int(total)
        if k >= 2:
            x[FEW + k - 2] = 1 - (total - k)
        if k < FEW_MOST:
            x[FEW + k - 1] = total - k
    rest = total - 1.0
    width = 1.0
    for j in range(NUM_WORK):
        part = rest if j == NUM_WORK - 1 else min(rest, width)
        x[WORK + j] = part
        rest -= part
        if rest <= 0:
            break
        width *= 2
    if m > 0:
        x[JUMP] = 1.0
        x[JUMP + 1] = b
    x[PASS] = passes
    x[PASS + 1] = passes * b


@njit(cache=True)
def _dot(x, y):
    total = 0.0
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@njit(cache=True)
def _few(mean, total):
    """The part of a time that is T's own; T is whole."""
    return mean[FEW + int(total) - 2] if 2 <= total <= FEW_MOST else 0.0


@njit(cache=True)
def _few_of(x, mean):
    part = 0.0
    for i in range(FEW, NUM_FEATURES):
        part += x[i] * mean[i]
    return part


@njit(cache=True)
def _times(mean, b, ms, passes, sizes, x, out):
    """Times of steps with ms[i] draft tokens (increasing) and passes[i] passes; positive, all but `few` not falling."""
    _features(b, 0.0, 0.0, sizes, x)
    plain = max(_dot(x, mean), 1e-6)
    least = plain - _few_of(x, mean)
    for i in range(len(ms)):
        _features(b, ms[i], passes[i], sizes, x)
        few = _few_of(x, mean)
        least = max(least, _dot(x, mean) - few)
        out[i] = max(least + few, 0.5 * plain)


@njit(cache=True)
def _curve(mean, b, passes, sizes, x, out):
    """The same for 0, 1, ..., len(out)-1 draft tokens: one addition each."""
    _features(b, 0.0, passes, sizes, x)
    out[0] = max(_dot(x, mean), 1e-6)
    least = out[0] - _few_of(x, mean)
    if len(out) == 1:
        return
    _features(b, 1.0, passes, sizes, x)
    at = _pad(b + 1.0, sizes)
    few = _few_of(x, mean)
    time = _dot(x, mean) - few  # without the part that is T's own
    segment, end = 0, 2.0
    while segment < NUM_WORK - 1 and at >= end:
        segment += 1
        end *= 2
    least = max(least, time)
    out[1] = max(least + few, 0.5 * out[0])
    next_size = np.searchsorted(sizes, at, side="right")
    for m in range(2, len(out)):
        tokens = b + float(m)
        if tokens > at:
            to = tokens
            if next_size < len(sizes):
                to = float(sizes[next_size])
                next_size += 1
            while segment < NUM_WORK - 1 and to > end:
                time += (end - at) * mean[WORK + segment]
                at = end
                segment += 1
                end *= 2
            time += (to - at) * mean[WORK + segment]
            at = to
            least = max(least, time)
        out[m] = max(least + _few(mean, at), 0.5 * out[0])


@njit(cache=True)
def _learn(mean, cov, prior_mean, prior_cov, x, plain, y, limits, state):
    """One step of the filter.

    Args:
        mean, cov: float64[d], float64[d, d]; updated.
        prior_mean, prior_cov: what they were in the beginning; doubt grows back towards the latter.
        x: features.
        plain: features of a plain step of the same batch.
        y: measured time, in units of the scale.
        limits: drift of everything together, return of doubt, clip, run of clips and mean error that are a change.
        state: relative noise variance; run of clipped errors of one sign; steps; mean of recent errors (in standard
            deviations); changes seen; run of absurd times of one sign; updated.

    Returns:
        The error of the prediction, relative to it; NaN if the time is absurd, then nothing was learned.

    """
    drift, doubt, clip, change, trend = limits
    d = len(mean)
    predicted = max(_dot(x, mean), 1e-6)
    level = predicted / max(_dot(x, prior_mean), 1e-6)
    error = y - predicted
    relative = error / predicted

    noise = state[0] * predicted * predicted
    together = drift
    apart = doubt * level * level
    px = np.empty(d)
    v = 0.0
    for i in range(d):
        total = 0.0
        for j in range(d):
            cov[i, j] = (1 - doubt) * cov[i, j] + apart * prior_cov[i, j] + together * mean[i] * mean[j]
            total += cov[i, j] * x[j]
        px[i] = total
        v += total * x[i]

    v = max(v, 0.0)  # rounding
    spread = np.sqrt(v + noise)
    # A step with drafts may well turn out to be as fast as a plain one.
    ratio = np.log(y / (predicted if error > 0 else min(predicted, max(_dot(plain, mean), 1e-6))))
    if abs(ratio) > max(ODD, 6 * spread / predicted) and ratio * error > 0:
        state[5] = np.copysign(abs(state[5]) + 1.0 if state[5] * ratio >= 0 else 1.0, ratio)
        return np.nan  # a stall, or a clock that jumped
    state[5] = 0.0
    state[3] += 0.1 * (min(max(error / spread, -clip), clip) - state[3])
    if abs(error) <= clip * spread:
        state[1] = 0.0
    else:
        sign = 1.0 if error > 0 else -1.0
        state[1] = state[1] + sign if state[1] * sign >= 0 else sign
    # The first steps may themselves be the odd ones: believe the others sooner. And nothing but a change is fast.
    run = abs(state[1]) >= (change if state[2] >= 16 else 2) or error < -2 * clip * spread
    if run or abs(state[3]) > trend:
        size = min(abs(relative), 3.0)
        v = 0.0
        for i in range(d):
            total = 0.0
            for j in range(d):
                cov[i, j] += size * size * (mean[i] * mean[j] + level * level * prior_cov[i, j])
                total += cov[i, j] * x[j]
            px[i] = total
            v += total * x[i]
        v = max(v, 0.0)
        spread = np.sqrt(v + noise)
        state[3] = 0.0
        state[4] += 1.0
        if run:
            state[1] *= 0.8  # should this not have been enough, go on at the next
    error = min(max(error, -clip * spread), clip * spread)

    gain = error / (v + noise)
    if v > 0 and _dot(x, mean) + v * gain < 0.2 * predicted:  # never through zero
        gain = (0.2 * predicted - _dot(x, mean)) / v
    for i in range(d):
        mean[i] += px[i] * gain
        for j in range(d):
            cov[i, j] -= px[i] * px[j] / (v + noise)

    excess = min(error * error, 6.25 * noise) - min(v, noise)
    state[0] = min(max(state[0] + 0.02 * (excess / (predicted * predicted) - state[0]), 4e-4), 0.06)
    state[2] += 1.0
    return relative


@njit(cache=True)
def _learn_from(b, m, passes, sizes, mean, cov, prior_mean, prior_cov, x, plain, y, limits, state):
    """`_learn` from a step of b requests, m draft tokens and so many passes; x and plain are written."""
    _features(b, m, passes, sizes, x)
    _features(b, 0.0, 0.0, sizes, plain)
    return _learn(mean, cov, prior_mean, prior_cov, x, plain, y, limits, state)


@njit(cache=True)
def _spread(cov, b, ms, passes, sizes, x, out):
    """Standard deviation of the time that ms[i] draft tokens and passes[i] passes add, float64[len(ms)]."""
    d = len(x)
    plain = np.empty(d)
    _features(b, 0.0, 0.0, sizes, plain)
    for i in range(len(ms)):
        _features(b, ms[i], passes[i], sizes, x)
        v = 0.0
        for j in range(d):
            x[j] -= plain[j]
        for j in range(d):
            if x[j] != 0:
                for k in range(d):
                    v += x[j] * cov[j, k] * x[k]
        out[i] = np.sqrt(max(v, 0.0))


@njit(cache=True)
def _gather(flat, lengths, max_n, fade, neg, starts, histogram):
    """Check and flatten reach; add it to the histogram of what drafts offer.

    Args:
        flat: float64[sum of lengths], as given.
        lengths: int64[b]; cut to max_n in place.
        max_n: most tokens of a row.
        fade: what older steps still weigh.
        neg: float64[len(flat)]; reach, negated, each row within [-1, 0] and non-decreasing, without gaps.
        starts: int64[b + 1]; where each row begins in neg.
        histogram: float64[2, NUM_BINS + 1]: tokens and sum of reach by bin of reach; last column: requests, -.

    Returns:
        Number of tokens in neg.

    """
    for j in range(NUM_BINS + 1):
        histogram[0, j] *= fade
        histogram[1, j] *= fade
    histogram[0, NUM_BINS] += len(lengths)
    at, to = 0, 0
    for i in range(len(lengths)):
        starts[i] = to
        n = min(lengths[i], max_n)
        last = 1.0
        for k in range(n):
            value = flat[at + k]
            if not value > 0.0:  # NaN too
                value = 0.0
            last = min(last, value)
            neg[to + k] = -last
            j = min(int(np.sqrt(last) * NUM_BINS), NUM_BINS - 1)
            histogram[0, j] += 1.0
            histogram[1, j] += last
        at += lengths[i]
        to += n
        lengths[i] = n
    starts[len(lengths)] = to
    return to


@njit(cache=True)
def _market(mean, b, sizes, x, histogram, trust):
    """Best speedup over plain decoding at b requests if every step were an average one.

    Drafts are offered down to some reach: with the mean number of draft tokens above it and their mean reach, a
    request gets 1 + trust * reach tokens in t / t0 plain steps.
    """
    requests = histogram[0, NUM_BINS]
    _features(b, 0.0, 0.0, sizes, x)
    plain = max(_dot(x, mean), 1e-6)
    least = plain - _few_of(x, mean)
    best = 1.0
    tokens, reach = 0.0, 0.0
    for j in range(NUM_BINS - 1, -1, -1):
        if histogram[0, j] <= 0:
            continue
        tokens += histogram[0, j] / requests
        reach += histogram[1, j] / requests
        _features(b, b * tokens, 0.0, sizes, x)
        few = _few_of(x, mean)
        least = max(least, _dot(x, mean) - few)
        best = max(best, (1 + trust * reach) * plain / max(least + few, 0.5 * plain))
    return best


@njit(cache=True)
def _best_prefix(sorted_neg, curve, trust, price):
    """Length of the prefix of the sorted reach that earns most; the shortest such."""
    best, best_m = 0.0, 0
    reach = 0.0
    for m in range(len(sorted_neg)):
        reach -= sorted_neg[m]
        value = trust * reach - price * (curve[m + 1] - curve[0])
        if value > best:
            best, best_m = value, m + 1
    return best_m


@njit(cache=True)
def _cut(neg, starts, sorted_neg, num_draft, lengths, choice):
    """Give the rows the first num_draft tokens of the sorted reach; of equal ones, those of the first rows.

    Args:
        neg, starts: as from _gather.
        sorted_neg: neg, sorted.
        num_draft: how many tokens to keep.
        lengths: int64[b]; written.
        choice: float64[NUM_CHOICE]; DRAFT, EXPECTED and VARIANCE are written.

    """
    threshold, num_equal = -2.0, 0
    if num_draft > 0:
        threshold = sorted_neg[num_draft - 1]
        while num_equal < num_draft and sorted_neg[num_draft - 1 - num_equal] == threshold:
            num_equal += 1
    expected, variance = 0.0, 0.0
    for i in range(len(lengths)):
        n = 0
        first, second = 0.0, 0.0
        for k in range(starts[i], starts[i + 1]):
            if neg[k] > threshold:
                break
            if neg[k] == threshold:
                if num_equal == 0:
                    break
                num_equal -= 1
            first -= neg[k]
            second -= (2 * n + 1) * neg[k]  # E[a^2] = sum of (2k+1) P(a > k)
            n += 1
        lengths[i] = n
        expected += first
        variance += max(0.0, second - first * first)
    choice[DRAFT] = num_draft
    choice[EXPECTED] = expected
    choice[VARIANCE] = variance


@njit(cache=True)
def _decide(sorted_neg, neg, starts, mean, sizes, x, histogram, had, trust, curve, lengths, choice):
    """Price the drafts and choose lengths.

    Args:
        sorted_neg, neg, starts, lengths: as in _cut.
        mean, sizes, x: of the cost model.
        histogram: as from _gather.
        had: tokens had over tokens possible, at about this batch.
        trust: share of reach that is accepted.
        curve: float64[len(neg) + 1]; written, times.
        choice: float64[NUM_CHOICE]; written.

    """
    b = float(len(lengths))
    _curve(mean, b, 0.0, sizes, x, curve)
    possible = _market(mean, b, sizes, x, histogram, trust)
    speedup = max(1.0, possible * had)
    price = speedup * b / curve[0]
    choice[POSSIBLE] = possible
    choice[SPEEDUP] = speedup
    choice[PRICE] = price
    _cut(neg, starts, sorted_neg, _best_prefix(sorted_neg, curve, trust, price), lengths, choice)
