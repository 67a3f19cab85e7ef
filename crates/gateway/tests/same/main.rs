//! Random sequences of requests to the gateway and to a real Redis or memcached, whose answers have
//! to be the same, except for what `docs/gateway.md` says.
//!
//! A sequence is made from its seed. Two clients send it, in pipelines that are cut anywhere. A
//! sequence that is answered otherwise is made smaller as long as it still is, and is shown with
//! the command that repeats it. `LOCH_SEED` is the seed of the only sequence, and `LOCH_SEQUENCES`
//! the number of sequences from there on:
//!
//! ```sh
//! LOCH_SEED=1000000 LOCH_SEQUENCES=30000 cargo test -p loch-gateway --test same -- --nocapture
//! ```

mod allowed;
mod memcached;
mod memcached_allowed;
mod resp;
mod resp_allowed;
mod sequence;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use self::sequence::{Dialect, Found, Pair, Step, text_of};
use self::support::Reference;

/// The sequences of a run of all tests.
const SEQUENCES: u64 = 2000;
/// The sequences that are tried to make a failing one smaller, at most.
const TRIES: usize = 500;
/// The sequences that fail before a run ends.
const FAILURES: usize = 8;
/// One of this many sequences may end where the documents say that an answer differs.
const COMPARED_TO_THE_END: u64 = 4;

#[test]
fn random_requests_of_redis_are_answered_as_by_redis() {
    let Some(redis) = Reference::redis() else { return };
    // The slow log depends on the machine, and is no answer to compare.
    let mut client = redis.connect();
    client.send(b"CONFIG SET slowlog-log-slower-than -1\r\n");
    assert_eq!(client.resp_answer(), b"+OK\r\n");
    let pair = Pair::new(redis);
    compare(&pair, &resp::Resp, "redis");
}

#[test]
fn random_requests_of_memcached_are_answered_as_by_memcached() {
    let Some(memcached) = Reference::memcached() else { return };
    let pair = Pair::new(memcached);
    compare(&pair, &memcached::Memcached, "memcached");
}

/// The document is about all that is allowed to differ.
#[test]
fn each_difference_that_is_allowed_rests_on_a_sentence_of_the_document() {
    let document = include_str!("../../../../docs/gateway.md");
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let document = flat(document);
    for allowed in resp::Resp.allowed().iter().chain(memcached::Memcached.allowed()) {
        let sentence = flat(allowed.sentence);
        assert!(document.contains(&sentence), "docs/gateway.md does not say: {sentence}");
    }
}

fn compare(pair: &Pair, dialect: &dyn Dialect, test: &str) {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let (seed, count): (Option<u64>, Option<u64>) = (number("LOCH_SEED"), number("LOCH_SEQUENCES"));
    let count = count.unwrap_or(if seed.is_some() { 1 } else { SEQUENCES });
    let first = seed.unwrap_or(0);
    let (mut ended, mut failures) = (BTreeMap::new(), Vec::new());
    for seed in first..first + count {
        let steps = dialect.sequence(&mut ChaCha8Rng::seed_from_u64(seed));
        let command = format!(
            "LOCH_SEED={seed} cargo test -p loch-gateway --test same of_{test} -- --nocapture"
        );
        let compared = Compared { command: &command, steps: &steps };
        let found = pair.compare(dialect, &steps);
        drop(compared);
        match found {
            Found::Same => (),
            Found::Documented(sentence) => *ended.entry(sentence).or_insert(0u64) += 1,
            Found::Differs(first) => {
                let (fewer, differs) = smaller(pair, dialect, steps.clone(), first);
                failures.push(format!(
                    "{differs}\nThe requests:\n{}Repeat it with\n  {command}",
                    text_of(&fewer)
                ));
                if failures.len() == FAILURES {
                    break;
                }
            }
        }
    }
    let failures = failures.join("\n\n");
    assert!(failures.is_empty(), "\n{failures}\n");
    let sum = ended.values().sum::<u64>();
    println!("{test}: {count} sequences from seed {first} on, of which {sum} end early:");
    ended.iter().for_each(|(sentence, count)| println!("  {count}: {sentence}"));
    assert!(count < 100 || sum < count / COMPARED_TO_THE_END, "{sum} of {count} end early");
}

/// A sequence, which is shown with the command that repeats it if the comparison itself fails.
struct Compared<'a> {
    command: &'a str,
    steps: &'a [Step],
}

impl Drop for Compared<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}repeat it with\n  {}", text_of(self.steps), self.command);
        }
    }
}

/// Leaves out steps, requests and cuts, as long as the answers still differ.
fn smaller(
    pair: &Pair,
    dialect: &dyn Dialect,
    mut steps: Vec<Step>,
    mut differs: String,
) -> (Vec<Step>, String) {
    let mut tries = 0;
    let mut is_worse = |steps: &[Step], differs: &mut String| {
        tries += 1;
        match (tries <= TRIES).then(|| pair.compare(dialect, steps)) {
            Some(Found::Differs(text)) => {
                *differs = text;
                true
            }
            _ => false,
        }
    };
    loop {
        let before = text_of(&steps);
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.remove(at);
            if is_worse(&fewer, &mut differs) {
                steps = fewer;
                continue;
            }
            let mut uncut = steps.clone();
            uncut[at].cuts.clear();
            if !steps[at].cuts.is_empty() && is_worse(&uncut, &mut differs) {
                steps = uncut;
            }
            let mut request = 0;
            while request < steps[at].requests.len() && steps[at].requests.len() > 1 {
                let mut fewer = steps.clone();
                fewer[at].requests.remove(request);
                if is_worse(&fewer, &mut differs) {
                    steps = fewer;
                } else {
                    request += 1;
                }
            }
            at += 1;
        }
        if text_of(&steps) == before {
            return (steps, differs);
        }
    }
}
