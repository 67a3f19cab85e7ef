import io.lettuce.core.ClientOptions;
import io.lettuce.core.GetExArgs;
import io.lettuce.core.KeyValue;
import io.lettuce.core.LettuceFutures;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisConnectionException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.SetArgs;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.resource.ClientResources;
import io.lettuce.core.resource.DefaultClientResources;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;

/** Lettuce, once with RESP2 and once with RESP3. */
class WithLettuce {
    private static final Logger LOGGER = Logger.getLogger("io.lettuce");

    static void run(String host, int port, String password) {
        LOGGER.setLevel(Level.WARNING); // Not that the server announces no maintenance.
        ClientResources resources = DefaultClientResources.create();
        for (ProtocolVersion version : List.of(ProtocolVersion.RESP2, ProtocolVersion.RESP3)) {
            RedisClient client = client(resources, host, port, password, version);
            try (StatefulRedisConnection<String, String> connection = client.connect()) {
                RedisCommands<String, String> redis = connection.sync();
                redis.flushall();
                strings(redis);
                keys(redis);
                expiry(redis);
                transactions(redis);
                pipelines(connection);
                server(redis);
            }
            longValues(client);
            try {
                client(resources, host, port, "wrong", version).connect();
                throw new AssertionError("the password is wrong");
            } catch (RedisConnectionException refused) {
                // Its cause is the answer, or that Lettuce has closed the connection meanwhile.
            }
        }
        resources.shutdown(0, 5, TimeUnit.SECONDS).syncUninterruptibly();
    }

    private static RedisClient client(
            ClientResources resources,
            String host,
            int port,
            String password,
            ProtocolVersion version) {
        RedisClient client = RedisClient.create(resources, RedisURI.builder()
                .withHost(host).withPort(port).withPassword(password.toCharArray())
                .withClientName("lettuce").withTimeout(Duration.ofSeconds(30)).build());
        client.setOptions(ClientOptions.builder().protocolVersion(version).build());
        return client;
    }

    private static void strings(RedisCommands<String, String> redis) {
        Clients.want(redis.ping().equals("PONG"), "ping");
        Clients.want(redis.set("k", "v").equals("OK") && redis.get("k").equals("v"), "set");
        Clients.want(redis.get("none") == null, "get of nothing");
        Clients.want(redis.set("k", "w", SetArgs.Builder.nx()) == null, "set nx");
        Clients.want(redis.setGet("k", "w").equals("v"), "set get");
        Clients.want(redis.getdel("k").equals("w") && redis.get("k") == null, "getdel");
        Clients.want(redis.setnx("n", "1") && !redis.setnx("n", "2"), "setnx");
        Clients.want(redis.incrby("n", 41) == 42 && redis.decr("n") == 41, "numbers");
        Clients.want(redis.incrbyfloat("f", 1.5) == 1.5, "incrbyfloat");
        Clients.want(redis.append("s", "abc") == 3 && redis.strlen("s") == 3, "append");
        Clients.want(redis.getrange("s", 1, -1).equals("bc"), "getrange");
        Clients.want(redis.setrange("s", 1, "XY") == 3 && redis.get("s").equals("aXY"), "setrange");
        Clients.want(redis.mset(Map.of("a", "1", "b", "2")).equals("OK"), "mset");
        Clients.want(redis.mget("a", "none", "b").equals(List.of(
                KeyValue.just("a", "1"), KeyValue.empty("none"), KeyValue.just("b", "2"))), "mget");
        Clients.want(redis.setbit("bits", 7, 1) == 0 && redis.getbit("bits", 7) == 1, "setbit");
        Clients.want(redis.bitcount("bits") == 1, "bitcount");
    }

    private static void keys(RedisCommands<String, String> redis) {
        redis.set("k", "v");
        Clients.want(redis.exists("k", "none") == 1 && redis.type("k").equals("string"), "exists");
        Clients.want(redis.copy("k", "copy") && redis.get("copy").equals("v"), "copy");
        Clients.want(redis.rename("copy", "moved").equals("OK"), "rename");
        Clients.want(redis.get("copy") == null && redis.get("moved").equals("v"), "renamed");
        Clients.want(redis.del("moved", "none") == 1 && redis.unlink("none") == 0, "del");
        for (int i = 0; i < 300; i++) {
            redis.set("scan:" + i, "" + i);
        }
        Set<String> found = new HashSet<>();
        ScanIterator.scan(redis, ScanArgs.Builder.matches("scan:*").limit(50))
                .forEachRemaining(found::add);
        Clients.want(found.size() == 300 && found.contains("scan:299"), "scan");
        Clients.want(redis.keys("scan:1*").size() == 111 && redis.dbsize() > 300, "keys");
    }

    private static void expiry(RedisCommands<String, String> redis) {
        redis.set("e", "v", SetArgs.Builder.ex(1000));
        Clients.want(redis.ttl("e") > 900 && redis.pttl("e") <= 1_000_000, "ttl");
        Clients.want(redis.persist("e") && redis.ttl("e") == -1, "persist");
        Clients.want(redis.expireat("e", 4_000_000_000L), "expireat");
        Clients.want(redis.expiretime("e") == 4_000_000_000L, "expiretime");
        Clients.want(redis.getex("e", GetExArgs.Builder.persist()).equals("v"), "getex");
        Clients.want(redis.ttl("e") == -1 && redis.ttl("none") == -2, "ttl of nothing");
        Clients.want(redis.expire("e", -1) && redis.get("e") == null, "expire");
    }

    private static void transactions(RedisCommands<String, String> redis) {
        redis.multi();
        redis.set("t", "1");
        redis.incr("t");
        Clients.want(redis.exec().stream().toList().equals(List.of("OK", 2L)), "a transaction");
        redis.watch("t");
        redis.set("t", "100");
        redis.multi();
        redis.set("t", "0");
        Clients.want(redis.exec().wasDiscarded() && redis.get("t").equals("100"), "watch");
        redis.multi();
        redis.set("t", "0");
        Clients.want(redis.discard().equals("OK") && redis.get("t").equals("100"), "discard");
    }

    private static void pipelines(StatefulRedisConnection<String, String> connection) {
        connection.setAutoFlushCommands(false);
        List<RedisFuture<?>> sets = new ArrayList<>();
        List<RedisFuture<String>> gets = new ArrayList<>();
        for (int i = 0; i < 1000; i++) {
            sets.add(connection.async().set("p" + i, "" + i));
        }
        for (int i = 0; i < 1000; i++) {
            gets.add(connection.async().get("p" + i));
        }
        connection.flushCommands();
        connection.setAutoFlushCommands(true);
        var all = new ArrayList<>(sets);
        all.addAll(gets);
        Duration wait = Duration.ofSeconds(60);
        Clients.want(LettuceFutures.awaitAll(wait, all.toArray(RedisFuture[]::new)), "a pipeline");
        for (int i = 0; i < 1000; i++) {
            String value = gets.get(i).toCompletableFuture().join();
            Clients.want(value.equals("" + i), "a pipeline's " + i);
        }
    }

    private static void longValues(RedisClient client) {
        try (var connection = client.connect(ByteArrayCodec.INSTANCE)) {
            byte[] lengthy = new byte[3 << 20];
            for (int i = 0; i < lengthy.length; i++) {
                lengthy[i] = (byte) (i * 31);
            }
            byte[] key = "long".getBytes();
            Clients.want(connection.sync().set(key, lengthy).equals("OK"), "set of a long value");
            Clients.want(Arrays.equals(connection.sync().get(key), lengthy), "a long value");
        }
    }

    private static void server(RedisCommands<String, String> redis) {
        Clients.want(redis.info("server").contains("redis_mode:standalone"), "info");
        Clients.want(redis.clientGetname().equals("lettuce") && redis.clientId() > 0, "client");
        Clients.want(redis.clientList().contains("name=lettuce"), "client list");
        Clients.want(redis.configGet("maxmemory").containsKey("maxmemory"), "config get");
        Clients.want(redis.commandCount() > 50 && redis.time().size() == 2, "command count, time");
        try {
            redis.lpush("l", "1");
            throw new AssertionError("there are no lists");
        } catch (RedisCommandExecutionException refused) {
            Clients.want(refused.getMessage().contains("unknown command"), refused.getMessage());
        }
        try {
            redis.auth("wrong");
            throw new AssertionError("the password is wrong");
        } catch (RedisCommandExecutionException refused) {
            Clients.want(refused.getMessage().startsWith("WRONGPASS"), refused.getMessage());
        }
        Clients.want(redis.ping().equals("PONG"), "ping after an error");
    }
}
