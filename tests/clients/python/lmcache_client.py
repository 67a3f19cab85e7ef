"""LMCache with a gateway: the client of its `resp` backend, and the requests of `redis`.

  python lmcache_client.py HOST:PORT PASSWORD

The client of `resp` is LMCache's own, a library in C++ with a wrapper in Python. LMCache as a whole
needs PyTorch, but this library only names PyTorch's libraries and uses nothing of them. Empty ones
stand in for them here. The connector of `redis` needs PyTorch, so its requests are sent as it does.
"""

import asyncio
import ctypes
import importlib.util
import os
import select
import subprocess
import sys
import tempfile
import types
from importlib.metadata import version

import redis.asyncio

KV_BYTES = 4 << 20
# The standard library of GCC 12 lacks this function. It is called where a string replaces a part of
# itself, which the client does nowhere.
MISSING = (
    "void _ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE15_M_replace_coldEPcmPKcmm(void)"
    "{ __builtin_abort(); }"
)


def load():
    """LMCache's client of `resp`, without all else of LMCache."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("c10", "torch", "torch_cpu", "torch_python"):
            library = f"{folder}/lib{name}.so"
            build = ["cc", "-shared", "-fPIC", f"-Wl,-soname,lib{name}.so", "-o", library]
            source = MISSING if name == "c10" else ""
            subprocess.run([*build, "-x", "c", "-"], input=source, text=True, check=True)
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    root = importlib.util.find_spec("lmcache").submodule_search_locations[0]
    clients = "lmcache.v1.storage_backend.native_clients"
    # The packages around it, without what they would import.
    parts = clients.split(".")
    for depth in range(1, len(parts) + 1):
        package = types.ModuleType(".".join(parts[:depth]))
        package.__path__ = [os.path.join(root, *parts[1:depth])]
        sys.modules[package.__name__] = package
    import lmcache.lmcache_redis as native

    return native.LMCacheRedisClient, importlib.import_module(clients + ".resp_client").RESPClient


def key_of(number):
    """A key as LMCache makes them: model, tensor parallel ranks, hash of the tokens, type."""
    return f"meta-llama/Llama-3.1-8B@1@0@{number * 0x9E3779B97F4A7C15 % 2**64:x}@bfloat16"


def kv_of(number):
    return bytearray((bytes(range(256)) * (KV_BYTES // 256))[number:] + bytes(number))


async def with_resp(client_of, host, port, username, password):
    loop = asyncio.get_running_loop()
    client = client_of(host, port, 4, loop, username, password)
    keys = [key_of(number) for number in range(8)]
    kvs = [kv_of(number) for number in range(8)]
    assert await client.batch_exists(keys) == [False] * 8
    await client.batch_set(keys[:7], [memoryview(kv) for kv in kvs[:7]])
    assert await client.batch_exists(keys) == [True] * 7 + [False]
    await client.set(keys[7], memoryview(kvs[7]))
    assert await client.exists(keys[7]) and not await client.exists(key_of(8))
    found = [bytearray(KV_BYTES) for _ in keys]
    await client.batch_get(keys, [memoryview(kv) for kv in found])
    assert found == kvs
    # What is there already is put in its place.
    await client.set(keys[0], memoryview(kvs[5]))
    one = bytearray(KV_BYTES)
    await client.get(keys[0], memoryview(one))
    assert one == kvs[5]
    # Many at a time, as of several requests to a model.
    several = [bytearray(KV_BYTES) for _ in range(16)]
    await asyncio.gather(*(
        client.get(keys[number % 7 + 1], memoryview(kv)) for number, kv in enumerate(several)
    ))
    assert several == [kvs[number % 7 + 1] for number in range(16)]
    # Not a get of a key that is missing: this version waits for the rest of an answer of the length
    # that it expects, and so for ever, with Redis as well.
    client.close()


def with_native(native, host, port, password):
    """LMCache's second cache level uses the library without that wrapper, and deletes as well."""
    client = native(host, port, 2, "", password)
    keys = [key_of(number) for number in range(10)]

    def completed(future):
        while True:
            assert select.select([client.event_fd()], [], [], 60)[0], "no completion"
            for done, ok, error, results in client.drain_completions():
                assert done == future and ok, error
                return results

    assert completed(client.submit_batch_exists(keys)) == [True] * 8 + [False] * 2
    assert completed(client.submit_batch_delete(keys[1:9])) == [True] * 7 + [False]
    assert completed(client.submit_batch_exists(keys)) == [True] + [False] * 9
    kv = kv_of(3)
    completed(client.submit_batch_set([keys[9]], [memoryview(kv)]))
    found = bytearray(KV_BYTES)
    assert completed(client.submit_batch_get([keys[9]], [memoryview(found)])) == [True]
    assert found == kv
    assert completed(client.submit_batch_delete([keys[0], keys[9]])) == [True, True]
    client.close()


async def with_redis_url(host, port, password):
    """What the connector of `redis://` sends: two values for each key, and no batches."""
    url = f"redis://:{password}@{host}:{port}"
    pool = redis.asyncio.ConnectionPool.from_url(url, max_connections=150)
    connection = redis.asyncio.Redis.from_pool(pool)
    numbers = range(8)
    metadata = {number: bytes([number]) * 28 for number in numbers}

    async def put(number):
        await connection.set(key_of(number) + "kv_bytes", memoryview(kv_of(number)))
        await connection.set(key_of(number) + "metadata", metadata[number])

    async def get(number):
        return (
            await connection.get(key_of(number) + "metadata"),
            await connection.get(key_of(number) + "kv_bytes"),
        )

    await asyncio.gather(*(put(number) for number in numbers))
    assert await connection.exists(key_of(7) + "metadata") == 1
    assert await connection.exists(key_of(8) + "metadata") == 0
    found = await asyncio.gather(*(get(number) for number in numbers))
    assert found == [(metadata[number], bytes(kv_of(number))) for number in numbers]
    assert await get(8) == (None, None)
    # The bytes were evicted: then it deletes the metadata.
    for number in numbers:
        assert await connection.delete(key_of(number) + "kv_bytes") == 1
        assert await get(number) == (metadata[number], None)
        assert await connection.delete(key_of(number) + "metadata") == 1
    assert await connection.exists(key_of(7) + "metadata") == 0
    await connection.aclose()
    await pool.aclose()


async def forget_all(host, port, password):
    async with redis.asyncio.Redis(host=host, port=port, password=password) as connection:
        assert await connection.flushall()


def main():
    (host, port), password = sys.argv[1].rsplit(":", 1), sys.argv[2]
    if importlib.util.find_spec("lmcache") is None:
        assert not os.environ.get("CI"), "LMCache has no wheel for this Python"
        print("python: not with LMCache: it has no wheel for this Python")
        return
    native, client_of = load()
    asyncio.run(forget_all(host, port, password))
    for username in ("", "default"):
        asyncio.run(with_resp(client_of, host, int(port), username, password))
        with_native(native, host, int(port), password)
    asyncio.run(with_redis_url(host, port, password))
    print(f"python: LMCache {version('lmcache')}'s client of `resp` passed")


main()
