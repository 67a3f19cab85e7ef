import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.CachedData;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.compat.log.SunLogger;
import net.spy.memcached.transcoders.Transcoder;

/** spymemcached, with memcached's text protocol: what it speaks by default. */
class WithSpymemcached {
    private static final Logger LOGGER = Logger.getLogger("net.spy.memcached");

    /** Against a gateway with a password, and an open one. */
    static void run(InetSocketAddress address, String password, InetSocketAddress open)
            throws Exception {
        System.setProperty("net.spy.log.LoggerImpl", SunLogger.class.getName());
        LOGGER.setLevel(Level.OFF); // It logs the errors that are wanted here.
        // A client that has lost its connection asks for the version first when it is back, which a
        // gateway with a password refuses. So does memcached.
        MemcachedClient client = client(address);
        try {
            Clients.want(client.set("auth", 0, "user " + password).get(), "the password");
            Clients.want(client.set("k", 0, "v").get() && client.get("k").equals("v"), "set");
        } finally {
            client.shutdown(5, TimeUnit.SECONDS);
        }
        client = client(open);
        try {
            Clients.want(client.get("k").equals("v"), "the value of the other gateway");
            Clients.want(client.flush().get() && client.get("k") == null, "flush_all");
            values(client);
            numbers(client);
            expiry(client);
            many(client);
            server(client);
            errors(client);
        } finally {
            client.shutdown(5, TimeUnit.SECONDS);
        }
    }

    private static MemcachedClient client(InetSocketAddress address) throws Exception {
        var options = new ConnectionFactoryBuilder().setOpTimeout(30_000).build();
        return new MemcachedClient(options, List.of(address));
    }

    private static void values(MemcachedClient client) throws Exception {
        Clients.want(client.set("k", 0, "v").get() && client.get("k").equals("v"), "set");
        Clients.want(client.get("none") == null, "get of nothing");
        Clients.want(client.add("new", 0, "1").get() && !client.add("new", 0, "2").get(), "add");
        Clients.want(client.replace("new", 0, "3").get(), "replace");
        Clients.want(!client.replace("none", 0, "3").get(), "replace of nothing");
        Clients.want(client.append("new", "4").get() && client.prepend("new", "2").get(), "append");
        Clients.want(client.get("new").equals("234"), "appended and prepended");
        CASValue<Object> seen = client.gets("new");
        Clients.want(seen.getValue().equals("234"), "gets");
        Clients.want(client.cas("new", seen.getCas(), "5") == CASResponse.OK, "cas");
        Clients.want(client.cas("new", seen.getCas(), "6") == CASResponse.EXISTS, "a cas too late");
        Clients.want(client.cas("none", 1, "6") == CASResponse.NOT_FOUND, "cas of nothing");
        Clients.want(client.get("new").equals("5"), "the value of the first cas");
        Clients.want(client.delete("new").get() && client.get("new") == null, "delete");
        Clients.want(!client.delete("new").get(), "delete of nothing");
        // Objects have flags: a list is serialised, a date is a number, a long text is packed.
        List<String> list = List.of("a", "b");
        Date date = new Date(1_700_000_000_000L);
        String text = "text ".repeat(100_000);
        client.set("list", 0, list).get();
        client.set("date", 0, date).get();
        client.set("text", 0, text).get();
        Clients.want(client.get("list").equals(list), "an object");
        Clients.want(client.get("date").equals(date), "a date");
        Clients.want(client.get("text").equals(text), "a text");
        byte[] lengthy = new byte[1_000_000];
        for (int i = 0; i < lengthy.length; i++) {
            lengthy[i] = (byte) (i * 31);
        }
        Clients.want(client.set("long", 0, lengthy, new Raw()).get(), "set of a long value");
        Clients.want(Arrays.equals(client.get("long", new Raw()), lengthy), "a long value");
    }

    private static void numbers(MemcachedClient client) throws Exception {
        client.set("n", 0, "10").get();
        Clients.want(client.incr("n", 5) == 15 && client.decr("n", 100) == 0, "incr, decr");
        Clients.want(client.incr("none", 1) == -1, "incr of nothing");
        // With a default, it adds what is not there.
        Clients.want(client.incr("counter", 1, 100) == 100, "incr with a default");
        Clients.want(client.incr("counter", 1, 100) == 101, "incr after the default");
    }

    private static void expiry(MemcachedClient client) throws Exception {
        Clients.want(client.set("e", 1000, "v").get() && client.get("e").equals("v"), "expiry");
        Clients.want(client.touch("e", 2000).get() && client.get("e").equals("v"), "touch");
        Clients.want(client.set("e", 1_000_000_000, "v").get(), "a time that has passed");
        Clients.want(client.get("e") == null, "get after the expiry");
    }

    private static void many(MemcachedClient client) throws Exception {
        // It sends requests of one key that wait as one request of many keys.
        Future<Boolean> last = null;
        for (int i = 0; i < 1000; i++) {
            last = client.set("p" + i, 0, "" + i);
        }
        Clients.want(last.get(), "pipelined sets");
        List<Future<Object>> gets = new ArrayList<>();
        for (int i = 0; i < 1000; i++) {
            gets.add(client.asyncGet("p" + i));
        }
        for (int i = 0; i < 1000; i++) {
            Clients.want(gets.get(i).get().equals("" + i), "a pipeline's " + i);
        }
        Map<String, Object> found = client.getBulk("p1", "none", "p999");
        Clients.want(found.equals(Map.of("p1", "1", "p999", "999")), "get of many keys");
    }

    private static void server(MemcachedClient client) {
        Clients.want(client.getVersions().values().iterator().next().equals("1.6.18"), "version");
        Map<String, String> stats = client.getStats().values().iterator().next();
        Clients.want(Long.parseLong(stats.get("pid")) > 0, "stats");
        Clients.want(Long.parseLong(stats.get("curr_items")) >= 1000, "stats' items");
    }

    /** After an error this client opens its connection again. */
    private static void errors(MemcachedClient client) throws Exception {
        client.set("word", 0, "word").get();
        try {
            client.asyncIncr("word", 1).get();
            throw new AssertionError("a word is no number");
        } catch (ExecutionException refused) {
            String message = refused.getCause().getMessage();
            Clients.want(message.contains("cannot increment or decrement non-numeric"), message);
        }
        Clients.want(client.get("word").equals("word"), "get after an error");
    }

    /** Bytes as they are: the client packs long values otherwise. */
    private static class Raw implements Transcoder<byte[]> {
        public boolean asyncDecode(CachedData data) {
            return false;
        }

        public CachedData encode(byte[] bytes) {
            return new CachedData(0, bytes, getMaxSize());
        }

        public byte[] decode(CachedData data) {
            return data.getData();
        }

        public int getMaxSize() {
            return CachedData.MAX_SIZE;
        }
    }
}
