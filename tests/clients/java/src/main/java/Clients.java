import java.net.InetSocketAddress;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;

/**
 * Java's clients of Redis and memcached, with a gateway: Jedis, Lettuce and spymemcached. The
 * arguments are the gateway's addresses for RESP and for memcached, and the password.
 * MEMCACHED_OPEN is the address of a gateway without a password.
 */
public class Clients {
    static void want(boolean ok, String what) {
        if (!ok) {
            throw new AssertionError(what);
        }
    }

    public static void main(String[] arguments) throws Exception {
        HostAndPort resp = HostAndPort.from(arguments[0]);
        HostAndPort memcached = HostAndPort.from(arguments[1]);
        HostAndPort open = HostAndPort.from(System.getenv("MEMCACHED_OPEN"));
        withJedis(resp, arguments[2]);
        WithLettuce.run(resp.getHost(), resp.getPort(), arguments[2]);
        WithSpymemcached.run(
                new InetSocketAddress(memcached.getHost(), memcached.getPort()),
                arguments[2],
                new InetSocketAddress(open.getHost(), open.getPort()));
        System.out.println("java: Jedis, Lettuce and spymemcached passed");
    }

    private static void withJedis(HostAndPort address, String password) {
        var config = DefaultJedisClientConfig.builder().password(password).build();
        try (Jedis redis = new Jedis(address, config)) {
            redis.flushAll();
            want(redis.ping().equals("PONG"), "ping");
            want(redis.set("k", "v", SetParams.setParams().ex(100)).equals("OK"), "set");
            want(redis.get("k").equals("v") && redis.ttl("k") > 90, "get");
            want(redis.set("k", "w", SetParams.setParams().nx()) == null, "set nx");
            want(redis.incrBy("n", 42) == 42 && redis.decr("n") == 41, "numbers");
            want(redis.append("s", "abc") == 3 && redis.getrange("s", 1, -1).equals("bc"), "strings");
            want(redis.mget("k", "none", "n").equals(Arrays.asList("v", null, "41")), "mget");
            byte[] lengthy = new byte[3 << 20];
            Arrays.fill(lengthy, (byte) 7);
            redis.set("long".getBytes(), lengthy);
            want(Arrays.equals(redis.get("long".getBytes()), lengthy), "a long value");
            Pipeline pipeline = redis.pipelined();
            for (int i = 0; i < 500; i++) {
                pipeline.set("p" + i, "" + i);
            }
            want(pipeline.syncAndReturnAll().size() == 500, "a pipeline");
            Transaction transaction = redis.multi();
            transaction.set("t", "1");
            transaction.incr("t");
            want(transaction.exec().equals(List.of("OK", 2L)), "a transaction");
            Set<String> keys = new HashSet<>();
            String cursor = ScanParams.SCAN_POINTER_START;
            do {
                var page = redis.scan(cursor, new ScanParams().match("p1*").count(100));
                keys.addAll(page.getResult());
                cursor = page.getCursor();
            } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
            want(keys.size() == 111, "scan");
            want(redis.expire("k", 50) == 1 && redis.persist("k") == 1 && redis.ttl("k") == -1, "expiry");
            want(redis.del("k", "none") == 1 && !redis.exists("k"), "del");
            try {
                redis.lpush("l", "1");
                throw new AssertionError("there are no lists");
            } catch (JedisDataException refused) {
                want(refused.getMessage().contains("unknown command"), refused.getMessage());
            }
        }
    }
}
