//! Requests of memcached.

use std::time::Duration;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::allowed::Allowed;
use super::memcached_allowed::{ALLOWED, is_same};
use super::sequence::{CAS, Chance, Dialect, Request, Step, Then, at_weight, weight_of};
use super::support::{Client, Ours, text};

pub struct Memcached;

/// A data block lacks fewer bytes than these lines have, which are sent behind it.
const PADDING: [u8; 64] = *b"mn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\nmn\r\n";
/// A request that nothing else asks, and its answer.
const SENTINEL: (&[u8], &[u8]) = (b"mg ~sentinel O~sentinel\r\n", b"EN O~sentinel\r\n");

impl Dialect for Memcached {
    fn sequence(&self, random: &mut ChaCha8Rng) -> Vec<Step> {
        let mut maker = Maker { random, times: 0 };
        let mut steps = Vec::new();
        for _ in 0..maker.up_to(8) + 1 {
            let count = maker.up_to(8) + 1;
            // Neighbours of one kind are executed together.
            let alike =
                ["get $keys", "mg $key -vcfkqsO", "ms $key $len", "$any"][maker.up_to(12).min(3)];
            let mut requests = Vec::new();
            for _ in 0..count {
                let is_any = alike == "$any";
                requests.push(if is_any { maker.request() } else { maker.filled(alike) });
            }
            // A long value that is taken for a line is too long for one.
            if requests.iter().any(|request| request.then == Then::Breaks) {
                requests.retain(|request| request.bytes.len() < 1000);
                // Servers choose uniques of other lengths, of which one may be a part of a block.
                for request in &mut requests {
                    while let Some(at) =
                        request.bytes.windows(CAS.len()).position(|part| part == CAS)
                    {
                        request.bytes.splice(at..at + CAS.len(), *b"9");
                    }
                }
            }
            let client = usize::from(maker.one_in(3));
            steps.push(Step::new(client, requests, maker.random));
        }
        steps
    }

    fn connect(&self, ours: &Ours) -> Client {
        ours.memcached()
    }

    fn flush(&self, client: &mut Client) {
        assert_eq!(client.memcached_answer(b"flush_all\r\n"), b"OK\r\n");
    }

    /// All answers to a step at once: a request that wants no answer has none.
    fn answers(&self, client: &mut Client, step: &Step) -> Vec<Vec<u8>> {
        if step.breaks() {
            client.send(&PADDING);
        }
        client.send(SENTINEL.0);
        let mut all = Vec::new();
        while !all.ends_with(SENTINEL.1) {
            all.extend(client.line());
        }
        all.truncate(all.len() - SENTINEL.1.len());
        vec![all]
    }

    fn is_same(&self, _: &[Request], ours: &[u8], theirs: &[u8], slack: Duration) -> bool {
        is_same(ours, theirs, slack)
    }

    fn unique_in(&self, answer: &[u8]) -> Option<Vec<u8>> {
        let answer = text(answer);
        let unique = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["VALUE", _, _, _, unique] => Some(unique.to_owned()),
                ["VA" | "HD", ..] => {
                    words.iter().find_map(|word| word.strip_prefix('c')).map(str::to_owned)
                }
                _ => None,
            }
        };
        let is_number = |text: &String| text.parse::<u64>().is_ok_and(|unique| unique > 0);
        let last = answer.split("\r\n").filter_map(unique).filter(is_number).last();
        last.map(String::into_bytes)
    }

    fn allowed(&self) -> &'static [Allowed] {
        ALLOWED
    }
}

/// Makes requests.
struct Maker<'a> {
    random: &'a mut ChaCha8Rng,
    /// Times are far from each other.
    times: u64,
}

impl Chance for Maker<'_> {
    fn random(&mut self) -> &mut ChaCha8Rng {
        self.random
    }
}

impl Maker<'_> {
    fn key(&mut self) -> Vec<u8> {
        match self.up_to(300) {
            0 => vec![b'k'; 250],
            _ => self.any(&["k", "k", "k", "l", "l", "m"]),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.up_to(40) {
            0 => self.long_value(),
            1..4 => {
                let value = self.bytes();
                // Behind blanks, memcached reads on in its memory for a number. A line that begins
                // with 128 is one of the binary protocol here.
                let is_out = value.iter().all(u8::is_ascii_whitespace) || value[0] == 0x80;
                if is_out { b"other".to_vec() } else { value }
            }
            4..16 => self.any(&[
                // Of numbers from 2^63 on, memcached looks for a sign in the memory behind them.
                "0",
                "1",
                "5",
                "9",
                "10",
                "99",
                "4294967295",
                "18446744073709551616",
                "-1",
                "+5",
                "05",
                "5x",
            ]),
            _ => self.any(&["", "a", "abc", "hello", "a\r\nb"]),
        }
    }

    fn number(&mut self) -> Vec<u8> {
        self.any(&["1", "1", "2", "5", "10", "+1", "0", "4294967296", "-1", "x", "-0"])
    }

    fn flags(&mut self) -> Vec<u8> {
        self.any(&["0", "0", "0", "0", "1", "5", "4294967295", "4294967296", "x", "-1", "+7"])
    }

    fn time(&mut self) -> Vec<u8> {
        self.times += 1;
        match self.up_to(12) {
            0..6 => b"0".to_vec(),
            6..10 => (1000 * (self.times * 37 % 61 + 1)).to_string().into_bytes(),
            10 => self.any(&["-1", "-1", "4294967295", "2592001", "1000000000"]),
            _ => self.any(&["x", "33177117420", "9223372036854775808", "+100", "4294967396"]),
        }
    }

    fn noreply(&mut self, words: &mut Vec<Vec<u8>>) {
        if self.one_in(5) {
            words.push(b"noreply".to_vec());
        }
    }

    fn unique(&mut self) -> Vec<u8> {
        match self.up_to(8) {
            0 => self.any(&["0", "1", "x", "", "-1"]),
            _ => CAS.to_vec(),
        }
    }

    /// A flag of a meta command, with its token.
    fn flag(&mut self, likely: &str) -> Vec<u8> {
        let all = "bcfhklqstuvCDFIJLMNOPRT";
        let from = if self.one_in(10) { all } else { likely };
        let mut flag = vec![from.as_bytes()[self.up_to(from.len())]];
        let token = match flag[0] {
            b'C' => self.unique(),
            b'D' | b'J' => self.number(),
            b'F' => self.flags(),
            b'M' => self.any(&["S", "E", "A", "P", "R", "I", "D", "+", "-", "s", "", "set"]),
            b'N' | b'T' | b'R' => self.time(),
            b'O' => {
                let len = [1, 5, 31, 31, 32][self.up_to(5)];
                vec![b'o'; if self.one_in(6) { len } else { 3 }]
            }
            _ => Vec::new(),
        };
        flag.extend(token);
        flag
    }

    fn meta_flags(&mut self, words: &mut Vec<Vec<u8>>, likely: &str) {
        for _ in 0..self.up_to(6) {
            let flag = self.flag(likely);
            let is_there = words.iter().skip(2).any(|other| other.first() == flag.first());
            if !is_there || self.one_in(30) {
                words.push(flag);
            }
        }
        if words.iter().skip(2).any(|word| word == b"b") && !self.one_in(10) {
            words[1] = self.any(&["aw==", "aw==", "bA==", "Zm9v"]);
        }
    }

    /// A request with a data block, whose length stands at a place of its line.
    fn with_data(&mut self, mut words: Vec<Vec<u8>>, at: usize) -> Request {
        let data = self.value();
        if data.len() > 1000 {
            // Behind a line that is refused they are a line, for which they are too long.
            let from = if words[0] == b"ms" { 3 } else { 2 };
            let plain = [b"0".to_vec(), b"0".to_vec(), Vec::new(), b"1".to_vec()];
            words.truncate(from + if words[0] == b"ms" { 0 } else { 4 });
            words.iter_mut().skip(from).zip(plain).for_each(|(word, plain)| *word = plain);
        }
        let (len, mut then) = match self.up_to(60) {
            0 => then_of_wrong_length(data.len(), self.random.random_range(-9..=30i64)),
            1 => (self.any(&["x", "-1", "2147483648"]), Then::Goes),
            _ => (data.len().to_string().into_bytes(), Then::Goes),
        };
        words[at] = len;
        let is_sent = then != Then::Goes || words[at] == data.len().to_string().as_bytes();
        let mut bytes = words.join(&b" "[..]);
        bytes.extend_from_slice(b"\r\n");
        if is_sent {
            bytes.extend_from_slice(&data);
            bytes.extend_from_slice(b"\r\n");
        }
        // Whether the line is right, so that the data are data, is not known here.
        if data.contains(&b'\n') || words.len() > 7 {
            then = Then::Breaks;
        }
        Request { then, ..Request::new(words, bytes) }
    }

    /// Any request.
    fn request(&mut self) -> Request {
        let at = self.up_to(weight_of(REQUESTS));
        self.filled(at_weight(REQUESTS, at))
    }

    /// A request as [`REQUESTS`] describes it.
    fn filled(&mut self, request: &str) -> Request {
        let (mut words, mut len) = (Vec::new(), None);
        for word in request.split(' ') {
            match word {
                "$key" => words.push(self.key()),
                "$keys" => (0..self.up_to(3) + 1).for_each(|_| words.push(self.key())),
                "$flags" => words.push(self.flags()),
                "$time" => words.push(self.time()),
                "$number" => words.push(self.number()),
                "$unique" => words.push(self.unique()),
                "$noreply" => self.noreply(&mut words),
                "$len" => {
                    len = Some(words.len());
                    words.push(Vec::new());
                }
                meta if meta.starts_with('-') => self.meta_flags(&mut words, &meta[1..]),
                any => words.push(self.any(&any.split('|').collect::<Vec<_>>())),
            }
        }
        if let Some(len) = len {
            return self.with_data(words, len);
        }
        if self.one_in(60) {
            // Too few or too many words.
            if self.one_in(2) {
                words.pop();
            } else {
                words.push(self.number());
            }
        }
        let mut bytes = words.join(&b" "[..]);
        bytes.extend_from_slice(if self.one_in(8) { b"\n" } else { b"\r\n" });
        Request::new(words, bytes)
    }
}

/// How often a request is made, and its words: one of several, those that `filled` makes, or behind
/// a minus the flags of a meta command that are likely.
const REQUESTS: &[(usize, &str)] = &[
    (8, "get|get|gets $keys"),
    (2, "gat|gats $time $keys"),
    (8, "set $key $flags $time $len $noreply"),
    (4, "set $key 0 0 $len"),
    (6, "add|replace|append|prepend $key $flags $time $len $noreply"),
    (4, "cas $key $flags $time $len $unique $noreply"),
    (2, "delete $key $noreply"),
    (1, "delete $key 0|5 $noreply"),
    (6, "incr|decr $key $number $noreply"),
    (4, "touch $key $time $noreply"),
    (18, "mg $key -vvvvcfhklqstuNORTTb"),
    (12, "ms $key $len -bckOqCFIMMNT"),
    (4, "md $key -bkOqCIT"),
    (8, "ma $key -bckOqtvvvCDJMNT"),
    (1, "me $key"),
    (1, "me $key b|v"),
    (1, "version|verbosity|mn|flush_all|nonsense|shutdown|"),
    (1, "verbosity 1|x"),
    (1, "verbosity 1 2|2 3"),
    (1, "flush_all noreply|0|-1|x"),
    (1, "mn what"),
];

/// A length that is wrong by some bytes.
fn then_of_wrong_length(len: usize, by: i64) -> (Vec<u8>, Then) {
    let wrong = (len as i64 + by).max(0);
    (wrong.to_string().into_bytes(), Then::Breaks)
}
