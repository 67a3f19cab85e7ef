//! Feeds the targets what the fuzzer found, and what a seed makes of it: the short mode of
//! `scripts/fuzz.sh`, which needs no fuzzer.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use loch_fuzz::{TARGETS, Target};

/// Mutated inputs of each target, so that all take a few seconds together.
const MUTATIONS: [(&str, u64); 11] = [
    ("config", 20_000),
    ("entry", 60_000),
    ("functions", 1_500),
    ("gateway_memcached", 40_000),
    ("gateway_resp", 40_000),
    ("kv_direct_packet", 60_000),
    ("memory", 1_500),
    ("region_header", 15_000),
    ("tcp_agent", 50_000),
    ("tcp_client", 50_000),
    ("wire", 6_000),
];
/// Bytes of the longest input that is made.
const INPUT_BYTES_MAX: usize = 2048;
/// A file with an input for the target that `LOCH_FUZZ_TARGET` names.
const INPUT: &str = "LOCH_FUZZ_INPUT";

fn folder(kind: &str, target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(kind).join(target)
}

/// The inputs in a folder, in the order of their names.
fn inputs(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut paths: Vec<PathBuf> = match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
        Err(_) => Vec::new(),
    };
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Feeds a target one input, and says how to do that again if it fails.
fn feed(name: &str, target: Target, what: &str, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.input"));
        fs::write(&kept, input).unwrap();
        eprintln!(
            "{what} fails; repeat it with\n  LOCH_FUZZ_TARGET={name} {INPUT}={} cargo test -p \
             loch-fuzz one_input",
            kept.display()
        );
        std::panic::resume_unwind(panic);
    }
}

/// xorshift64*: the same inputs everywhere and for ever.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() >> 33) as usize % count.max(1)
    }
}

fn mutate(random: &mut Random, corpus: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
    let any = |random: &mut Random| match corpus.len() {
        0 => Vec::new(),
        len => corpus[random.below(len)].1.clone(),
    };
    let mut input = any(random);
    for _ in 0..=random.below(6) {
        let at = random.below(input.len() + 1);
        match random.below(7) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            2 if at < input.len() => input[at] = random.next() as u8,
            3 => drop(input.splice(at..at, random.next().to_le_bytes())),
            4 => {
                let to = (at + random.below(16)).min(input.len());
                input.drain(at..to);
            }
            5 => {
                let other = any(random);
                let from = random.below(other.len());
                input.truncate(at);
                input.extend_from_slice(other.get(from..).unwrap_or_default());
            }
            _ => {
                let more = (0..random.below(24)).map(|_| random.next() as u8);
                input.extend(more.collect::<Vec<_>>());
            }
        }
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

fn replay(name: &str) {
    let (_, target) = TARGETS.into_iter().find(|(n, _)| *n == name).unwrap();
    let mut corpus = inputs(&folder("corpus", name));
    assert!(!corpus.is_empty(), "there is a corpus for {name}");
    corpus.extend(inputs(&folder("regressions", name)));
    for (path, input) in &corpus {
        feed(name, target, &path.display().to_string(), input);
    }
    let (_, count) = MUTATIONS.into_iter().find(|(n, _)| *n == name).unwrap();
    let mut random = Random(0x4c6f_6368);
    for n in 0..count {
        let input = mutate(&mut random, &corpus);
        feed(name, target, &format!("mutation {n} of {name}"), &input);
    }
}

#[test]
fn no_text_is_too_much_for_a_configuration() {
    replay("config");
}

#[test]
fn words_and_headers_mean_one_thing_or_nothing() {
    replay("entry");
}

#[test]
fn functions_of_users_keep_within_their_limits() {
    replay("functions");
}

#[test]
fn requests_of_redis_are_the_same_however_they_are_split() {
    replay("gateway_resp");
}

#[test]
fn requests_of_memcached_are_the_same_however_they_are_split() {
    replay("gateway_memcached");
}

#[test]
fn packets_are_read_up_to_where_they_make_no_sense() {
    replay("kv_direct_packet");
}

#[test]
fn damaged_memory_makes_operations_fail_and_no_more() {
    replay("memory");
}

#[test]
fn what_passes_for_a_layout_lies_in_its_region() {
    replay("region_header");
}

#[test]
fn clients_over_tcp_change_what_their_keys_open_and_no_more() {
    replay("tcp_agent");
}

#[test]
fn nodes_over_tcp_change_reply_slots_and_no_more() {
    replay("tcp_client");
}

#[test]
fn however_bytes_come_they_mean_the_same() {
    replay("wire");
}

#[test]
fn one_input() {
    let (Ok(name), Ok(path)) = (std::env::var("LOCH_FUZZ_TARGET"), std::env::var(INPUT)) else {
        return;
    };
    let (_, target) = TARGETS.into_iter().find(|(n, _)| *n == name).expect("a target's name");
    target(&fs::read(path).unwrap());
}
