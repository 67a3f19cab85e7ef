"""The parts of scripts/hit-ratios.sh that are not `loch bench`: traces, policies, tables.

  traces FOLDER PUBLIC|--smoke         writes the traces, and prints the name of each file
  memory TRACE PERCENT                 prints the bytes of a cache of this share, or 0
  slots TRACE BYTES                    prints the slots of an index for a table of these bytes
  alone TRACE BYTES HELD WANTED        prints the bytes in which Loch, which held so many values in
                                       BYTES, holds as many as wanted; 0 if values differ in size
  policy TRACE POLICY BYTES PERCENT    simulates one policy of libCacheSim, and prints a row
  rows TRACE PERCENT LABEL             makes rows of the objects of `loch bench --json` on stdin
  table RESULTS                        prints the rows of a results file as Markdown

Traces are files of libCacheSim's oracleGeneral. Those of fixed seeds have the same footprint, the
bytes of the values of all keys, but for mixed sizes. Every run makes the same ones. Public ones are
as they are, up to a number of requests.
"""

import json
import sys
from pathlib import Path

MIB = 1 << 20
# One per cent of it is a whole number of MiB, which memcached needs.
FOOTPRINT_BYTES = 400 * MIB
KEYS, REQUESTS = 100_000, 600_000
# As many times more of all for values of many sizes: memcached gives each size class a page of 1 MiB
# beyond its limit, which then is less than the smallest cache.
MIXED_TIMES = 8
# The same at a size that shows that the script works, and nothing else.
SMOKE = {"footprint": 200 * MIB, "keys": 10_000, "requests": 30_000}
SEED = 7

# Of the public traces the first requests, and the smallest cache that is measured: memcached has
# pages of 1 MiB.
PUBLIC_REQUESTS = 1_000_000
MEMORY_MIN = 2 * MIB
# A key of 16 bytes, and what an entry has besides.
BESIDE_VALUE_BYTES = 64

ONLINE = ["LRU", "S3-FIFO", "SIEVE", "W-TinyLFU"]
POLICIES = {
    "LRU": "LRU",
    "S3-FIFO": "S3FIFO",
    "SIEVE": "Sieve",
    "W-TinyLFU": "WTinyLFU",
    "Belady": "Belady",
}
PEERS = ["memcached", "Redis LRU", "Redis LFU"]
# Loch in the memory that the values took which memcached held, if that was more than its limit.
SAME_BYTES = "Loch, same bytes"
LABELS = {"memcached": "memcached", "redis": "Redis LRU", "redis-lfu": "Redis LFU"}


NOTES = """
* *Memory* is a share of the trace's footprint, the bytes of the values of all keys, in whole MiB.
  Shares below 2 MiB are left out.
* Policies (libCacheSim) have nothing but values in it. Real systems keep keys, headers and the waste
  of size classes in the same memory: that is what their users get.
* memcached has it for its slabs (`-m`), and its hash table besides. It also gives each size class a
  first page of 1 MiB beyond the limit: where values have many sizes it holds some 25 MiB whatever
  the limit is. Where the values that it held in the end took more than the limit, Loch is compared
  with it in as much memory as these took (*Loch, same bytes*).
  Redis has it (`maxmemory`) beyond the megabyte that it uses when it is empty.
* Replays of minutes compress time: Redis tells uses apart that are a second apart (LRU), and lowers
  counts by the minute (LFU). At the pace of users it may find more.
* *Loch* has it for index and data, with 1.3 slots of the index for each value that fits if the
  shortest ones are kept.
* *Loch alone* has as much memory as it needs to hold about as many values as LRU does: its policy
  without its overhead. It is left out where values have different sizes: there the policies keep
  values of other sizes than LRU, and so numbers of values say nothing.
* Each zipf trace has 600,000 requests of 100,000 keys. *zipf 0.99 + scans*: a third of the requests
  are for keys that never return. *loop*: all keys in order, six times. *moving*: zipf 0.9 over a
  third of the keys, which moves on by a key every 9 requests. *phases*: zipf 0.9 over a fifth of the
  keys, five times another fifth. *mixed sizes*: zipf 0.9, sizes of a log-normal distribution, and eight
  times as many requests, keys and bytes.
* *CloudPhysics block IO* (114,000 requests) and *Twitter cluster 52* (its first 1,000,000) are
  the public traces that the source package of libcachesim has.
"""


def zipf(rng, keys, requests, theta):
    import numpy as np

    weights = np.cumsum(1 / np.arange(1, keys + 1) ** theta)
    ranks = np.searchsorted(weights / weights[-1], rng.random(requests))
    return rng.permutation(keys)[np.minimum(ranks, keys - 1)]


def generated(keys, requests):
    """The keys of each trace in order, and the sizes of the keys' values if they differ."""
    import numpy as np

    def rng(number):
        return np.random.default_rng([SEED, number])

    for number, theta in enumerate([0.7, 0.9, 0.99, 1.2]):
        yield f"zipf {theta}", zipf(rng(number), keys, requests, theta), None

    # After every two requests of zipf, one of keys that never return, in runs of many.
    run = requests // 150
    popular = zipf(rng(10), keys, requests * 2 // 3 // run * run, 0.99).reshape(-1, run)
    scans = keys + np.arange(len(popular) * run // 2).reshape(-1, run // 2)
    yield "zipf 0.99 + scans", np.concatenate([popular, scans], axis=1).ravel(), None

    yield "loop", np.tile(np.arange(keys), requests // keys), None

    # The window moves on by one key, in the order of popularity's permutation.
    window = keys // 3
    moves = np.arange(requests) * (keys - window) // requests
    yield "moving", zipf(rng(11), window, requests, 0.9) + moves, None

    phases = 5
    parts = [
        zipf(rng(20 + phase), keys // phases, requests // phases, 0.9) + phase * (keys // phases)
        for phase in range(phases)
    ]
    yield "phases", np.concatenate(parts), None

    keys, requests = keys * MIXED_TIMES, requests * MIXED_TIMES
    sizes = np.clip(np.exp(rng(30).normal(np.log(1000), 1.3, keys)), 64, 1 << 15)
    yield "mixed sizes", zipf(rng(31), keys, requests, 0.9), sizes


def write_traces(folder, smoke):
    import numpy as np

    keys, requests, footprint = KEYS, REQUESTS, FOOTPRINT_BYTES
    if smoke:
        keys, requests, footprint = SMOKE["keys"], SMOKE["requests"], SMOKE["footprint"]
    for name, keys_in_order, sizes in generated(keys, requests):
        used, ids = np.unique(keys_in_order, return_inverse=True)
        times = 1 if sizes is None else MIXED_TIMES
        sizes = np.ones(len(used)) if sizes is None else sizes[used]
        sizes = np.floor(sizes * footprint * times / sizes.sum())
        write(folder, name, ids, sizes[ids])


def write_public(folder, public):
    import numpy as np

    block_io = np.fromfile(public / "cloudPhysicsIO.oracleGeneral.bin", dtype=record_type())
    write(folder, "CloudPhysics block IO", block_io["id"], block_io["size"])
    keys, sizes = {}, []
    ids = []
    with open(public / "twitter_cluster52_10m.csv") as lines:
        next(lines)
        for line in lines:
            _, key, size, _ = line.split(",")
            ids.append(keys.setdefault(key, len(keys)))
            sizes.append(int(size))
            if len(ids) == PUBLIC_REQUESTS:
                break
    write(folder, "Twitter cluster 52", np.array(ids), np.array(sizes))


def record_type():
    return [("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")]


def write(folder, name, keys, sizes):
    """Writes a trace. A key keeps the size of its first request, so that all systems agree."""
    import numpy as np

    _, first, ids = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(ids, kind="stable")
    again = ids[order[1:]] == ids[order[:-1]]
    following = np.full(len(ids), -1, dtype="<i8")
    following[order[:-1][again]] = order[1:][again]
    records = np.zeros(len(ids), dtype=record_type())
    records["time"] = np.arange(len(ids)) // 1000
    records["id"] = ids + 1
    records["size"] = np.maximum(sizes[first][ids], 1)
    records["next"] = following
    file = folder / f"{name.replace(' ', '_')}.oracleGeneral.bin"
    records.tofile(file)
    print(file)


def value_bytes(file):
    """The bytes of each key's value."""
    import numpy as np

    records = np.fromfile(file, dtype=record_type())
    _, first = np.unique(records["id"], return_index=True)
    return records["size"][first].astype("u8")


def slots(file, memory):
    """1.3 slots of the index for each value that fits if the shortest ones are kept."""
    import numpy as np

    taken = np.cumsum(np.sort(value_bytes(file)) + BESIDE_VALUE_BYTES)
    return int(1.3 * np.searchsorted(taken, memory))


def has_one_size(file):
    """Whether all values are equally long, but for the last byte of their share."""
    import numpy as np

    sizes = np.fromfile(file, dtype=record_type())["size"]
    return int(sizes.max()) - int(sizes.min()) <= 1


def named(file):
    return Path(file).name.removesuffix(".oracleGeneral.bin").replace("_", " ")


def simulate(file, policy, size):
    import libcachesim

    reader = libcachesim.TraceReader(file, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    cache = getattr(libcachesim, POLICIES[policy])(size)
    misses, byte_misses = cache.process_trace(reader)
    return {
        "hit_ratio": round(1 - misses, 6),
        "byte_hit_ratio": round(1 - byte_misses, 6),
        "values_held": cache.get_n_obj(),
    }


def rows_of_bench(file, percent, label):
    for line in sys.stdin:
        found = json.loads(line)
        kept = ["memory_bytes", "hit_ratio", "byte_hit_ratio", "values_held", "bytes_held"]
        kept += ["evicted", "errors"]
        row = {"trace": named(file), "percent": percent, "system": LABELS.get(found["engine"], label)}
        print(json.dumps(row | {field: found.get(field) for field in kept}))


def cell(row, field):
    if row is None or row.get(field) is None:
        return "–"
    if field == "values_held":
        return f"{row[field]:,}"
    return f"{row[field]:.3f}"


def points(value):
    return f"{100 * value:+.1f}"


def table(lines, systems, field):
    yield "| | memory | " + " | ".join(systems) + " |"
    yield "| --- | ---: |" + " ---: |" * len(systems)
    for (trace, percent), of in lines.items():
        cells = [cell(of.get(system), field) for system in systems]
        yield f"| {trace} | {percent} % | " + " | ".join(cells) + " |"


def compared(lines):
    """How Loch compares with others, in points of the hit ratio."""

    def ratio(of, system):
        row = of.get(system)
        return None if row is None else row["hit_ratio"]

    def own_ratio(of, own, system):
        return ratio(of, SAME_BYTES if system == "memcached" and SAME_BYTES in of else own)

    yield "| Loch's hit ratio less that of | mean | worst | at |"
    yield "| --- | ---: | ---: | --- |"
    for own, others in [("Loch", [[peer] for peer in PEERS]), ("Loch", [ONLINE]), ("Loch alone", [ONLINE])]:
        for group in others:
            differences = []
            for at, of in lines.items():
                found = [ratio(of, system) for system in group]
                found = [value for value in found if value is not None]
                own_found = own_ratio(of, own, group[0])
                if found and own_found is not None:
                    differences.append((own_found - max(found), at))
            if not differences:
                continue
            worst, (trace, percent) = min(differences)
            mean = sum(difference for difference, _ in differences) / len(differences)
            other = group[0] if len(group) == 1 else f"the best online policy ({own})"
            yield f"| {other} | {points(mean)} | {points(worst)} | {trace}, {percent} % |"
    yield ""
    below = []
    for (trace, percent), of in lines.items():
        for peer in PEERS:
            own_found = own_ratio(of, "Loch", peer)
            if ratio(of, peer) is not None and own_found is not None:
                difference = own_found - ratio(of, peer)
                if difference < -0.0005:
                    below.append(f"{trace} at {percent} % ({peer} {points(-difference)})")
    yield "Loch is below a peer, by more than 0.05 points, at: " + (", ".join(below) or "none") + "."


def print_tables(results):
    objects = [json.loads(line) for line in open(results)]
    header = next(row for row in objects if "title" in row)
    lines = {}
    for row in objects:
        if "system" in row:
            lines.setdefault((row["trace"], row["percent"]), {})[row["system"]] = row
    print("# Hit ratios\n")
    print("`scripts/hit-ratios.sh` writes this file.")
    own = ((name, header.get(f"{name.lower()}_commit")) for name in ("Loch", "memcached"))
    own = "; ".join(f"{name}: {commit}" for name, commit in own if commit)
    own = f" ({own})" if own else ""
    print(f"Commit {header['commit']}{own}, {header['date']}: {header['host']}.\n")
    if header["lanes"] == 1:
        print("All systems had one request under way.\n")
    else:
        print(f"Loch had one request under way, memcached and Redis {header['lanes']}.\n")
    print(NOTES.strip())
    print("\n## Requests that hit\n")
    systems = [*POLICIES, *PEERS, "Loch", SAME_BYTES, "Loch alone"]
    print("\n".join(table(lines, systems, "hit_ratio")))
    print("\n## Loch beside the others\n")
    print("\n".join(compared(lines)))
    print("\n## Bytes that hit, where values have different sizes\n")
    mixed = {at: of for at, of in lines.items() if at[0] == "mixed sizes"}
    print("\n".join(table(mixed, systems, "byte_hit_ratio")))
    print("\n## Values held in the end\n")
    print("\n".join(table(lines, systems, "values_held")))


def main(command, *rest):
    if command == "traces":
        folder = Path(rest[0])
        folder.mkdir(parents=True, exist_ok=True)
        write_traces(folder, rest[1] == "--smoke")
        if rest[1] != "--smoke":
            write_public(folder, Path(rest[1]))
    elif command == "memory":
        footprint = int(value_bytes(rest[0]).sum())
        size = round(footprint * int(rest[1]) / 100 / MIB) * MIB
        print(size if size >= MEMORY_MIN else 0)
    elif command == "slots":
        print(slots(rest[0], int(rest[1])))
    elif command == "alone":
        size, held, wanted = map(int, rest[1:])
        print(size * wanted // held if has_one_size(rest[0]) else 0)
    elif command == "policy":
        file, policy, size, percent = rest
        row = {"trace": named(file), "percent": int(percent), "system": policy}
        row |= {"memory_bytes": int(size)} | simulate(file, policy, int(size))
        print(json.dumps(row))
    elif command == "rows":
        rows_of_bench(rest[0], int(rest[1]), rest[2])
    elif command == "table":
        print_tables(rest[0])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:]) if len(sys.argv) > 1 else sys.exit(__doc__)
