"""Numba kernel of the meter: a step's outcomes into the page of numbers."""

from numba import njit


@njit(cache=True)
def _count_verified(page, places, most, drafters, sizes, accepted, reach):
    """Count what became of drafts.

    Args:
        page: float64, see `page.new_page`; written.
        places: where in it are, each from its first value on: drafts and accepted tokens by drafter; draft and accepted
            tokens by position; tokens, promised and accepted ones by bin of reach.
        most: (positions, bins); later positions are counted with the last but one.
        drafters: int64 (drafts,), index of who made each.
        sizes: int64 (drafts,), its verified tokens.
        accepted: int64 (drafts,), how many of them were accepted.
        reach: float64 (sum of sizes,), of each token; what is none is taken for the nearest that is, NaN for 0.

    """
    by_drafter, accepted_by_drafter, drafted, held, tokens, promised, kept = places
    positions, bins = most
    at = 0
    for i in range(len(sizes)):
        page[by_drafter + drafters[i]] += 1.0
        page[accepted_by_drafter + drafters[i]] += accepted[i]
        for k in range(sizes[i]):
            position = min(k, positions)
            promise = min(reach[at], 1.0) if reach[at] > 0 else 0.0
            j = min(int(promise * bins), bins - 1)
            page[drafted + position] += 1.0
            page[tokens + j] += 1.0
            page[promised + j] += promise
            if k < accepted[i]:
                page[held + position] += 1.0
                page[kept + j] += 1.0
            at += 1
