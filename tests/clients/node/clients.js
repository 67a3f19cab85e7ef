// Node's client of Redis, with a gateway: ioredis.
//
//   node clients.js HOST:PORT HOST:PORT PASSWORD     the gateway's addresses for RESP and memcached
//
// memjs, the client of memcached, speaks only the binary protocol, which the gateway refuses.
const assert = require("node:assert/strict");
const Redis = require("ioredis");

async function main([resp, , password]) {
  const [host, port] = resp.split(":");
  const redis = new Redis({ host, port: Number(port), password, maxRetriesPerRequest: 1 });
  await redis.flushall();
  assert.equal(await redis.ping(), "PONG");
  assert.equal(await redis.set("k", "v", "EX", 100), "OK");
  assert.equal(await redis.get("k"), "v");
  assert.ok((await redis.ttl("k")) > 90);
  assert.equal(await redis.set("k", "w", "NX"), null);
  assert.equal(await redis.incrby("n", 42), 42);
  assert.equal(await redis.append("s", "abc"), 3);
  assert.deepEqual(await redis.mget("k", "none", "n"), ["v", null, "42"]);
  const long = Buffer.alloc(3 << 20, "xyz");
  await redis.set("long", long);
  assert.ok((await redis.getBuffer("long")).equals(long));
  const pipeline = redis.pipeline();
  for (let i = 0; i < 500; i++) pipeline.set(`p${i}`, i).get(`p${i}`);
  const answers = await pipeline.exec();
  assert.ok(answers.every(([error, answer], i) => !error && answer === (i % 2 ? String(i >> 1) : "OK")));
  assert.deepEqual(await redis.multi().set("t", 1).incr("t").exec(), [[null, "OK"], [null, 2]]);
  await redis.watch("t");
  await redis.set("t", 5);
  assert.equal(await redis.multi().incr("t").exec(), null);
  const keys = new Set();
  for await (const page of redis.scanStream({ match: "p1*", count: 100 })) page.forEach((key) => keys.add(key));
  assert.equal(keys.size, 111);
  assert.equal(await redis.exists("k", "none"), 1);
  assert.equal(await redis.del("k"), 1);
  await assert.rejects(redis.lpush("l", 1), /unknown command/);
  assert.match(await redis.info("server"), /redis_version/);
  await redis.quit();
  console.log("node: ioredis passed");
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
