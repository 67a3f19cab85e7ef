//! Requests of Redis.

use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::allowed::Allowed;
use super::resp_allowed::{ALLOWED, is_same};
use super::sequence::{Chance, Dialect, Request, Step, Then, at_weight, weight_of};
use super::support::{Client, Ours};

pub struct Resp;

impl Dialect for Resp {
    fn sequence(&self, random: &mut ChaCha8Rng) -> Vec<Step> {
        let mut maker = Maker { random, times: 0 };
        let mut steps = Vec::new();
        for client in 0..2 {
            if maker.one_in(3) {
                let hello = maker.request(&["HELLO", "3"]);
                steps.push(Step::new(client, vec![hello], maker.random));
            }
        }
        for _ in 0..maker.up_to(7) + 1 {
            let requests = if maker.one_in(4) { maker.transaction() } else { maker.requests() };
            let client = usize::from(maker.one_in(3));
            steps.push(Step::new(client, requests, maker.random));
        }
        if maker.one_in(12) {
            let end = maker.end();
            steps.push(Step::new(0, vec![end], maker.random));
        }
        steps
    }

    fn connect(&self, ours: &Ours) -> Client {
        ours.resp()
    }

    fn flush(&self, client: &mut Client) {
        client.send(b"FLUSHALL\r\n");
        assert_eq!(client.resp_answer(), b"+OK\r\n");
    }

    fn answers(&self, client: &mut Client, step: &Step) -> Vec<Vec<u8>> {
        let answer = |request: &Request| match request.then {
            Then::Ends => client.rest(),
            _ => client.resp_answer(),
        };
        step.requests.iter().map(answer).collect()
    }

    fn is_same(&self, requests: &[Request], ours: &[u8], theirs: &[u8], slack: Duration) -> bool {
        is_same(&requests[0], ours, theirs, slack)
    }

    fn unique_in(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn allowed(&self) -> &'static [Allowed] {
        ALLOWED
    }
}

/// Makes requests.
struct Maker<'a> {
    random: &'a mut ChaCha8Rng,
    /// Times from now on are all different, so that the order of two of them is certain.
    times: u64,
}

impl Chance for Maker<'_> {
    fn random(&mut self) -> &mut ChaCha8Rng {
        self.random
    }
}

impl Maker<'_> {
    fn key(&mut self) -> Vec<u8> {
        match self.up_to(400) {
            0 => Vec::new(),
            1 => vec![b'k'; (64 << 10) + 1],
            2..10 => b"\xff\x00 \r\n".to_vec(),
            10..100 => b"user:1".to_vec(),
            _ => self.any(&["k", "k", "k", "l", "l", "m"]),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.up_to(40) {
            0 => self.long_value(),
            1..4 => self.bytes(),
            4..8 => self.number(),
            8..12 => self.float(),
            _ => self.any(&[
                "",
                "a",
                "abc",
                "hello world",
                "12",
                "0",
                "-3",
                "3.25",
                " 1",
                "01",
                "-0",
            ]),
        }
    }

    fn number(&mut self) -> Vec<u8> {
        self.any(&[
            "0",
            "1",
            "2",
            "3",
            "-1",
            "-2",
            "5",
            "7",
            "8",
            "10",
            "100",
            "-100",
            "1000000",
            "9223372036854775807",
            "-9223372036854775808",
            "9223372036854775808",
            "x",
            "",
            "1.5",
            "+1",
            " 1",
            "01",
            "-0",
        ])
    }

    /// A small number most of the time.
    fn index(&mut self) -> Vec<u8> {
        match self.up_to(5) {
            0 => self.number(),
            _ => (self.random.random_range(-6..12i32)).to_string().into_bytes(),
        }
    }

    fn float(&mut self) -> Vec<u8> {
        self.any(&[
            "0.5",
            "0.25",
            "-1.5",
            "3",
            "10.5",
            "0.1",
            "1e2",
            "-2.5e-1",
            ".5",
            "5.",
            "+3",
            "inf",
            "nan",
            "x",
            "1e",
            "9007199254740993",
            "9223372036854775807",
            "1000.1",
        ])
    }

    /// Seconds from now on.
    fn time(&mut self) -> u64 {
        self.times += 1;
        1000 * (self.times * 37 % 61 + 1)
    }

    /// A time of a unit, and whether it is in seconds.
    fn expiry(&mut self, in_seconds: bool, from_now: bool) -> Vec<u8> {
        let factor = if in_seconds { 1 } else { 1000 };
        match self.up_to(12) {
            0 => self.any(&["0", "-1", "x", "", "9223372036854775807", "99999999999999999"]),
            1 if !from_now => b"1".to_vec(),
            _ if from_now => (factor * self.time()).to_string().into_bytes(),
            _ => {
                let at = 33_177_117_420 + self.up_to(4) as u64;
                (factor * at).to_string().into_bytes()
            }
        }
    }

    fn with_options(&mut self, words: &mut Vec<Vec<u8>>, flags: &[&str]) {
        for _ in 0..self.up_to(4) {
            match self.up_to(3) {
                0 => {
                    let unit = self.any(&["EX", "PX", "EXAT", "PXAT", "ex"]);
                    let upper = unit.to_ascii_uppercase();
                    words.push(unit);
                    let time = self.expiry(upper.starts_with(b"EX"), !upper.ends_with(b"AT"));
                    if !self.one_in(20) {
                        words.push(time);
                    }
                }
                _ => words.push(self.any(flags)),
            }
        }
    }

    fn requests(&mut self) -> Vec<Request> {
        let count = self.up_to(8) + 1;
        // Neighbours of one kind are executed together.
        let alike = ["GET $key", "SET $key $value", "$any"][self.up_to(8).min(2)];
        let made = (0..count).map(|_| {
            let words = if alike == "$any" { self.words() } else { self.filled(alike) };
            self.encoded(words)
        });
        made.collect()
    }

    fn transaction(&mut self) -> Vec<Request> {
        let mut made = Vec::new();
        if self.one_in(3) {
            let key = self.key();
            made.push(vec![b"WATCH".to_vec(), key]);
        }
        made.push(vec![b"MULTI".to_vec()]);
        let key = self.key();
        for _ in 0..self.up_to(5) {
            let mut words = self.words();
            if words.len() > 1 && !self.one_in(6) {
                words[1].clone_from(&key);
            }
            made.push(words);
        }
        if !self.one_in(8) {
            made.push(vec![self.any(&["EXEC", "EXEC", "EXEC", "DISCARD"])]);
        }
        made.into_iter().map(|words| self.encoded(words)).collect()
    }

    /// A request that ends the connection.
    fn end(&mut self) -> Request {
        let bytes = self.any(&[
            "QUIT\r\n",
            "*1\r\n$x\r\n",
            "*1\r\n$-5\r\n",
            "*1\r\n+PING\r\n",
            "*x\r\n",
            "*3000000000\r\n",
            "GET \"k\r\n",
            "SET k 'a'b\r\n",
            "POST / HTTP/1.1\r\n",
            "*1\r\n$999999999999\r\n",
        ]);
        Request { then: Then::Ends, ..Request::new(vec![bytes.clone()], bytes) }
    }

    fn request(&mut self, words: &[&str]) -> Request {
        self.encoded(words.iter().map(|word| word.as_bytes().to_vec()).collect())
    }

    fn encoded(&mut self, words: Vec<Vec<u8>>) -> Request {
        let is_plain = |word: &Vec<u8>| {
            !word.is_empty()
                && word.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b':')
        };
        let mut bytes = Vec::new();
        if words.iter().all(is_plain) && words.concat().len() < 200 && self.one_in(4) {
            bytes = words.join(&b" "[..]);
            bytes.extend_from_slice(if self.one_in(3) { b"\n" } else { b"\r\n" });
        } else {
            bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in &words {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        Request::new(words, bytes)
    }

    /// The words of any request.
    fn words(&mut self) -> Vec<Vec<u8>> {
        let all = weight_of(REQUESTS);
        let at = self.up_to(all + all / 30);
        let mut words = self.filled(at_weight(REQUESTS, at % all));
        if at >= all {
            // Too few or too many words, or no command.
            match self.up_to(3) {
                0 if words.len() > 1 => _ = words.pop(),
                1 => words.push(self.value()),
                _ => words[0] = self.any(&["nonsense", "GETT", "LPUSHX2"]),
            }
        }
        words
    }

    /// The words of a request as [`REQUESTS`] describes it.
    fn filled(&mut self, request: &str) -> Vec<Vec<u8>> {
        let mut words = Vec::new();
        for word in request.split(' ') {
            match word {
                "$key" => words.push(self.key()),
                "$keys" => (0..self.up_to(4) + 1).for_each(|_| words.push(self.key())),
                "$pairs" => {
                    for _ in 0..self.up_to(3) + 1 {
                        words.extend([self.key(), self.value()]);
                    }
                }
                "$value" => words.push(self.value()),
                "$number" => words.push(self.number()),
                "$index" => words.push(self.index()),
                "$float" => words.push(self.float()),
                "$seconds" => words.push(self.expiry(true, true)),
                "$millis" => words.push(self.expiry(false, true)),
                "$at" => words.push(self.expiry(true, false)),
                "$at-millis" => words.push(self.expiry(false, false)),
                "$set" => {
                    self.with_options(&mut words, &["NX", "XX", "GET", "KEEPTTL", "get", "what"])
                }
                "$getex" => self.with_options(&mut words, &["PERSIST", "persist", "what"]),
                "$only" => {
                    for _ in 0..self.up_to(5).saturating_sub(2) {
                        words.push(self.any(&["NX", "XX", "GT", "LT", "gt", "what"]));
                    }
                }
                any => words.push(self.any(&any.split('|').collect::<Vec<_>>())),
            }
        }
        words
    }
}

/// How often a request is made, and its words: one of several, or made as `filled` says.
const REQUESTS: &[(usize, &str)] = &[
    (60, "GET $key"),
    (40, "SET $key $value"),
    (40, "SET $key $value $set"),
    (5, "SETEX $key $seconds $value"),
    (5, "PSETEX $key $millis $value"),
    (30, "SETNX|GETSET|APPEND $key $value"),
    (25, "GETDEL|STRLEN|TYPE|PERSIST|INCR|DECR|BITCOUNT $key"),
    (15, "TTL|PTTL|EXPIRETIME|PEXPIRETIME $key"),
    (20, "GETEX $key $getex"),
    (30, "MGET|DEL|UNLINK|EXISTS|TOUCH|WATCH $keys"),
    (9, "MSET|MSET|MSET|MSETNX $pairs"),
    (1, "MSET|MSETNX $pairs $key"),
    (20, "INCRBY|DECRBY $key $number"),
    (10, "INCRBYFLOAT $key $float"),
    (15, "GETRANGE|SUBSTR|BITCOUNT $key $index $index"),
    (5, "BITCOUNT $key $index $index BIT|BYTE|bit|what"),
    (10, "SETRANGE $key $index $value"),
    (10, "GETBIT $key $index"),
    (10, "SETBIT $key $index 0|1|1|2|x"),
    (4, "COPY $key $key"),
    (3, "COPY $key $key REPLACE|what|DB"),
    (3, "COPY $key $key DB 0|x|1 REPLACE|what|replace"),
    (10, "RENAME|RENAMENX $key $key"),
    (8, "EXPIRE $key $seconds $only"),
    (8, "PEXPIRE $key $millis $only"),
    (8, "EXPIREAT $key $at $only"),
    (8, "PEXPIREAT $key $at-millis $only"),
    (8, "OBJECT ENCODING|IDLETIME|REFCOUNT|FREQ|what $key"),
    (2, "OBJECT ENCODING|what $key $key"),
    (10, "KEYS *|user:*|?|[kl]|[^k]|nobody"),
    (5, "SCAN 0|0|0|x COUNT 1000|1000|0|x"),
    (3, "SCAN 0 COUNT 1000 MATCH *|k*|?"),
    (2, "SCAN 0 COUNT 1000 TYPE string|hash"),
    (10, "DBSIZE|RANDOMKEY|FLUSHALL|FLUSHDB|DBSIZE"),
    (20, "MULTI|EXEC|EXEC|DISCARD|UNWATCH"),
    (3, "PING|RESET"),
    (2, "PING|ECHO a"),
    (1, "PING a b"),
    (2, "SELECT 0|x|99"),
    (1, "CLIENT SETNAME me"),
    (1, "CLIENT GETNAME|what"),
    (2, "CLIENT ID|NO-EVICT|REPLY maybe"),
    (1, "CLIENT KILL ID 999999"),
    (1, "CLIENT LIST TYPE x"),
    (2, "CONFIG GET|what"),
    (1, "CONFIG GET save"),
    (1, "CONFIG SET a b c"),
    (2, "SLOWLOG what"),
    (2, "SLOWLOG LEN|GET x"),
    (1, "SLOWLOG GET 1 2"),
    (1, "MEMORY what|USAGE"),
    (1, "MEMORY USAGE nobody SAMPLES x"),
    (1, "COMMAND what"),
    (1, "COMMAND COUNT x"),
    (1, "COMMAND GETKEYS GET k"),
    (2, "HELLO 9|x"),
    (1, "AUTH a b c"),
    (1, "FLUSHALL what"),
];
