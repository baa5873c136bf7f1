from itertools import pairwise

Span = tuple[float, float]


def overlap(copies: list[Span], compute: list[Span]) -> float:
    """The share of copying time, 0.0 to 1.0, during which the GPU computes as well. 0.0 if nothing is copied.

    A span is (start, end) in seconds. Both lists come in any order, and spans of one list may overlap one another
    (two streams): time in which two copies run counts once.
    """
    copying = hidden = 0.0
    edges = sorted({edge for span in copies + compute for edge in span})
    for start, end in pairwise(edges):
        if any(first <= start and end <= last for first, last in copies):
            copying += end - start
            if any(first <= start and end <= last for first, last in compute):
                hidden += end - start
    return hidden / copying if copying else 0.0
