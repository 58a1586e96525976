"""How the peers of single calls are measured, as functions_bench.c and index_bench.c do it."""
import time


def timed(once, seconds, warm_up=2, least=8):
    begun = last = time.perf_counter()
    best, n = float("inf"), 0
    while n < least or last - begun < seconds:
        once()
        now = time.perf_counter()
        best = min(best, now - last) if n >= warm_up else best
        last, n = now, n + 1
    return best
