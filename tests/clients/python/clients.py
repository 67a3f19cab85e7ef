"""Python's clients of Redis and memcached, with a gateway: redis-py, pymemcache and pylibmc.

  python clients.py HOST:PORT HOST:PORT PASSWORD

The addresses are the gateway's for RESP and for memcached. MEMCACHED_OPEN is the address of a
gateway without a password.
"""

import os
import sys
import time

import pylibmc
import pymemcache
import redis
from pymemcache import serde
from pymemcache.client.base import Client


def address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def strings(r):
    assert r.ping()
    assert r.set("k", "v") and r.get("k") == b"v"
    assert r.set("k", "w", nx=True) is None and r.set("k", "w", xx=True)
    assert r.set("k", "x", get=True) == b"w"
    assert r.getset("k", "y") == b"x" and r.getdel("k") == b"y" and r.get("k") is None
    assert r.setnx("n", 1) and not r.setnx("n", 2)
    assert r.incr("n") == 2 and r.incrby("n", 40) == 42 and r.decr("n") == 41
    assert r.incrbyfloat("f", 1.5) == 1.5
    assert r.append("s", "abc") == 3 and r.strlen("s") == 3 and r.getrange("s", 1, -1) == b"bc"
    assert r.setrange("s", 1, "XY") == 3 and r.get("s") == b"aXY"
    assert r.mset({"a": 1, "b": 2}) and r.mget("a", "none", "b") == [b"1", None, b"2"]
    assert r.setbit("bits", 7, 1) == 0 and r.getbit("bits", 7) == 1 and r.bitcount("bits") == 1
    long = bytes(range(256)) * 32768
    assert r.set("long", long) and r.get("long") == long


def keys(r):
    r.set("k", "v")
    assert r.exists("k", "none") == 1 and r.type("k") == b"string" and r.touch("k") == 1
    assert r.copy("k", "copy") and r.get("copy") == b"v"
    assert r.rename("copy", "moved") and r.get("copy") is None and r.get("moved") == b"v"
    assert r.delete("moved") == 1 and r.unlink("none") == 0
    assert r.object("encoding", "k") == b"embstr"
    for number in range(300):
        r.set(f"scan:{number}", number)
    assert len(set(r.scan_iter(match="scan:*", count=50))) == 300
    assert len(r.keys("scan:1*")) == 111 and r.randomkey() is not None
    assert r.dbsize() > 300


def expiry(r):
    assert r.set("e", "v", ex=100) and 99 <= r.ttl("e") <= 100 and r.pttl("e") <= 100_000
    assert r.persist("e") and r.ttl("e") == -1 and r.ttl("none") == -2
    assert r.expire("e", 50, gt=True) is False and r.expire("e", 50)
    at = int(time.time()) + 1000
    assert r.expireat("e", at) and r.expiretime("e") == at
    assert r.getex("e", px=1) == b"v"
    time.sleep(0.01)
    assert r.get("e") is None


def pipelines(r):
    with r.pipeline(transaction=False) as p:
        for number in range(1000):
            p.set(f"p{number}", number)
        for number in range(1000):
            p.get(f"p{number}")
        answers = p.execute()
    assert answers == [True] * 1000 + [str(number).encode() for number in range(1000)]
    with r.pipeline() as p:
        p.set("t", 1).incr("t").get("t")
        assert p.execute() == [True, 2, b"2"]

    def add(p):
        now = int(p.get("t"))
        p.multi()
        p.set("t", now + 1)

    r.transaction(add, "t")
    assert r.get("t") == b"3"
    with r.pipeline() as p:
        p.watch("t")
        r.set("t", 100)
        p.multi()
        p.set("t", 0)
        try:
            p.execute()
            raise AssertionError("somebody has changed the value")
        except redis.WatchError:
            pass


def server(r):
    assert r.info()["redis_mode"] == "standalone" and r.info("server")["redis_version"]
    assert r.config_get("maxmemory") and r.time()
    assert r.client_setname("me") and r.client_getname() in (b"me", "me")
    assert any(client["name"] == "me" for client in r.client_list())
    assert r.client_id() > 0 and r.command_count() > 50
    for wrong in (lambda: r.lpush("l", 1), lambda: r.select(1), lambda: r.incr("s")):
        try:
            wrong()
            raise AssertionError("that is an error")
        except redis.ResponseError:
            pass


def with_redis(host, port, password):
    for protocol in (2, 3):
        r = redis.Redis(host=host, port=port, protocol=protocol, password=password)
        r.flushall()
        for family in (strings, keys, expiry, pipelines, server):
            family(r)
        lock = r.lock("lock", timeout=5)
        # A lock is released by a script, which the gateway does not have; taking one is a SET.
        assert lock.acquire(blocking=False)
        r.close()
    wrong = redis.Redis(host=host, port=port, password="wrong")
    try:
        wrong.ping()
        raise AssertionError("the password is wrong")
    except (redis.AuthenticationError, redis.ResponseError):
        pass


def memcached(c):
    assert c.set("k", b"v") and c.get("k") == b"v" and c.get("none") is None
    assert c.add("new", b"1") and not c.add("new", b"2") and c.replace("new", b"3")
    assert c.append("new", b"4") and c.prepend("new", b"2") and c.get("new") == b"234"
    value, unique = c.gets("new")
    assert c.cas("new", b"5", unique) and not c.cas("new", b"6", unique)
    assert c.set_many({"a": b"1", "b": b"2"}) == []
    assert c.get_many(["a", "none", "b"]) == {"a": b"1", "b": b"2"}
    assert c.set("n", b"10") and c.incr("n", 5) == 15 and c.decr("n", 100) == 0
    assert c.touch("k", 100)
    assert c.delete("k", noreply=False) and c.get("k") is None
    assert c.set("e", b"v", expire=-1) and c.get("e") is None
    long = bytes(range(256)) * 4096
    assert c.set("long", long) and c.get("long") == long
    assert c.version() and c.stats()[b"pid"] > 0


def with_memcached(at, password):
    client = Client(at, default_noreply=False)
    client.set("auth", f"user {password}")
    client.flush_all()
    memcached(client)
    assert client.raw_command("mg k v", end_tokens=b"\r\n") == b"EN"
    pickled = Client(at, serde=serde.pickle_serde, default_noreply=False)
    pickled.set("auth", f"user {password}")
    pickled.set("object", {"a": [1, 2]})
    assert pickled.get("object") == {"a": [1, 2]}


def values_of_pylibmc(c):
    assert c.set("k", "v") and c.get("k") == "v" and c.get("none") is None
    assert c.add("new", "1") and not c.add("new", "2")
    assert c.replace("new", "3") and not c.replace("none", "3")
    assert c.append("new", "4") and c.prepend("new", "2") and c.get("new") == "234"
    assert not c.append("none", "4")
    value, unique = c.gets("new")
    assert value == "234" and c.gets("none") == (None, None)
    assert c.cas("new", "5", unique) and not c.cas("new", "6", unique) and c.get("new") == "5"
    refused_by_pylibmc(pylibmc.NotFound, lambda: c.cas("none", "6", 1))
    assert c.delete("new") and not c.delete("new") and c.get("new") is None
    # Objects have flags.
    objects = {"text": "ü", "bytes": b"\0", "number": 7, "true": True, "pickled": {"a": [1, 2]}}
    assert c.set_multi(objects) == [] and c.get_multi([*objects, "none"]) == objects
    assert c.add_multi({"number": 8, "another": 9}) == ["number"] and c.get("another") == 9
    assert c.delete_multi(["text", "bytes"]) and not c.delete_multi(["text", "number"])
    assert c.get_multi(["text", "bytes", "number", "true"]) == {"true": True}
    long = bytes(range(256)) * 4000
    assert c.set("long", long) and c.get("long") == long
    assert c.set("packed", long, min_compress_len=1000) and c.get("packed") == long


def pylibmc_families(c):
    values_of_pylibmc(c)
    assert c.set("n", 10) and c.incr("n", 5) == 15 and c.decr("n", 100) == 0 and c.get("n") == 0
    assert c.set_multi({"x": 1, "y": 2}) == []
    c.incr_multi(["x", "y"], delta=3)
    assert c.get_multi(["x", "y"]) == {"x": 4, "y": 5}
    refused_by_pylibmc(pylibmc.NotFound, lambda: c.incr("none"))
    c.set("word", "word")
    refused_by_pylibmc(pylibmc.ClientError, lambda: c.incr("word"))
    assert c.set("e", "v", time=1000) and c.touch("e", 2000) and c.get("e") == "v"
    assert not c.touch("none", 1)
    assert c.set("e", "v", time=1_000_000_000) and c.get("e") is None
    assert c.set("e", "v", time=-1) and c.get("e") is None
    ((_, stats),) = c.get_stats()
    assert int(stats["pid"]) > 0 and int(stats["curr_items"]) >= 5


def refused_by_pylibmc(error, ask):
    try:
        ask()
        raise AssertionError("that is an error")
    except error:
        pass


def with_pylibmc(at, password):
    c = pylibmc.Client([f"{at[0]}:{at[1]}"], behaviors={"cas": True, "tcp_nodelay": True})
    assert c.set("auth", f"user {password}")
    assert c.flush_all()
    pylibmc_families(c)
    # It does not wait for answers, and gathers what it sends: `get` sends all of it. The answer to
    # a password would be too much, so this gateway has none.
    silence = {"no_block": True, "_noreply": True, "buffer_requests": True}
    silent = pylibmc.Client([os.environ["MEMCACHED_OPEN"]], behaviors=silence)
    for number in range(1000):
        silent.set(f"p{number}", number)
    assert silent.get("p999") == 999
    names = [f"p{number}" for number in range(1000)]
    assert c.get_multi(names) == {name: number for number, name in enumerate(names)}
    wrong = pylibmc.Client([f"{at[0]}:{at[1]}"])
    refused_by_pylibmc(pylibmc.ClientError, lambda: wrong.set("auth", "user wrong"))


def main():
    resp, mc, password = address(sys.argv[1]), address(sys.argv[2]), sys.argv[3]
    with_redis(*resp, password)
    with_memcached(mc, password)
    with_pylibmc(mc, password)
    print(
        f"python: redis-py {redis.__version__}, pymemcache {pymemcache.__version__} and"
        f" pylibmc {pylibmc.__version__} passed"
    )


main()
