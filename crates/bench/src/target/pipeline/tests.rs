//! The pipeline against a scripted server.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use super::*;
use crate::args::tests::spec;
use crate::measure::Budget;
use crate::measure::tests::with_run;
use crate::tally::Tally;

/// `G` + key and `P` + key + value; answered by `V` + value, `M`, `S` or `R`.
struct Toy {
    key: usize,
    value: usize,
}

impl Protocol for Toy {
    fn get(&self, key: &[u8], out: &mut Vec<u8>) {
        out.push(b'G');
        out.extend_from_slice(key);
    }

    fn put_head(&self, key: &[u8], _: usize, out: &mut Vec<u8>) {
        out.push(b'P');
        out.extend_from_slice(key);
    }

    fn put_tail(&self) -> &'static [u8] {
        b""
    }

    const STATISTICS: &'static [u8] = b"";

    fn parse_statistics<'a>(&self, _: &'a [u8]) -> Parsed<'a> {
        Parsed::Garbage
    }

    fn usage(_: &str) -> Option<Usage> {
        None
    }

    fn parse<'a>(&self, bytes: &'a [u8]) -> Parsed<'a> {
        match bytes {
            [] => Parsed::Partial(1),
            [b'V', value @ ..] if value.len() < self.value => Parsed::Partial(self.value + 1),
            [b'V', value @ ..] => Parsed::Whole(self.value + 1, Reply::Value(&value[..self.value])),
            [b'M', ..] => Parsed::Whole(1, Reply::Missing),
            [b'S', ..] => Parsed::Whole(1, Reply::Stored),
            [b'R', ..] => Parsed::Whole(1, Reply::Refused(b"R")),
            _ => Parsed::Garbage,
        }
    }
}

impl Toy {
    /// Answers every request, in writes of at most `piece` bytes.
    fn serve(&self, mut socket: UnixStream, piece: usize, answer: impl Fn(&[u8]) -> Vec<u8>) {
        let mut kind = [0];
        let mut rest = vec![0; self.key + self.value];
        while socket.read(&mut kind).is_ok_and(|read| read == 1) {
            let len = if kind[0] == b'P' { rest.len() } else { self.key };
            if socket.read_exact(&mut rest[..len]).is_err() {
                return;
            }
            let request = [&kind[..], &rest[..len]].concat();
            for piece in answer(&request).chunks(piece) {
                if socket.write_all(piece).is_err() {
                    return;
                }
            }
        }
    }
}

fn run_against(
    line: &str,
    piece: usize,
    answer: impl Fn(&[u8], &Workload) -> Vec<u8> + Send + 'static,
) -> (Result<(), TargetError>, Tally) {
    let spec = spec(line).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let toy = |spec: &crate::spec::Spec| Toy { key: spec.key_size, value: spec.value_size };
    let server = toy(&spec);
    let workload = Workload::new(&spec);
    let serving = thread::spawn(move || server.serve(theirs, piece, |r| answer(r, &workload)));
    let mut pipeline = Pipeline::over("toy", toy(&spec), ours.into(), spec.lanes);
    let mut result = Ok(());
    let budget = Budget { ops: 2000, ns: u64::MAX };
    let (tally, _) = with_run(line, budget, 1, |run| result = pipeline.run(run));
    drop(pipeline);
    serving.join().unwrap();
    (result, tally)
}

/// Answers a GET with the one record's value, stores every PUT.
fn honest(request: &[u8], workload: &Workload) -> Vec<u8> {
    if request[0] == b'P' {
        return b"S".to_vec();
    }
    let mut reply = vec![b'V'; workload.value_size() + 1];
    workload.write_value(0, 1, &mut reply[1..]);
    reply
}

#[test]
fn replies_in_any_pieces_give_the_same() {
    for piece in [1, 2, 3, 7, 64, 1 << 20] {
        for lanes in [1, 2, 3, 32] {
            let line = format!("--records 1 --reads 0.5 --value-size 37 --verify --lanes {lanes}");
            let (result, tally) = run_against(&line, piece, honest);
            result.unwrap();
            assert_eq!((tally.gets + tally.puts, tally.wrong_values), (2000, 0));
            assert!(tally.gets == tally.get_hits && tally.puts > 800);
        }
    }
}

/// Both directions overflow the socket: neither side may wait for the other.
#[test]
fn values_larger_than_the_socket_do_not_lock_up() {
    let line = "--records 1 --reads 0.5 --value-size 300KiB --verify --lanes 16";
    let (result, tally) = run_against(line, 1 << 20, honest);
    result.unwrap();
    assert_eq!((tally.gets + tally.puts, tally.wrong_values), (2000, 0));
}

#[test]
fn misses_and_refusals_are_no_errors_of_the_connection() {
    let (result, tally) = run_against("--records 1 --reads 0.5 --lanes 4", 9, |request, _| {
        if request[0] == b'P' { b"R".to_vec() } else { b"M".to_vec() }
    });
    result.unwrap();
    assert_eq!((tally.gets + tally.errors, tally.get_hits, tally.puts), (2000, 0, 0));
}

#[test]
fn an_answer_to_another_question_ends_the_run() {
    let (result, _) = run_against("--records 1 --reads 1", 9, |_, _| b"S".to_vec());
    assert!(matches!(result, Err(TargetError::Protocol { .. })), "{result:?}");
    let (result, _) = run_against("--records 1 --reads 1", 9, |_, _| b"!\r\n".to_vec());
    let message = result.unwrap_err().to_string();
    assert!(message.contains(r"!\r\n"), "{message}");
}

#[test]
fn a_cache_fills_its_misses_beside_the_operations_of_the_run() {
    for lanes in [1, 2, 32] {
        let line = format!("--eviction sieve --records 1 --reads 1 --lanes {lanes}");
        let (result, tally) =
            run_against(
                &line,
                9,
                |request, _| {
                    if request[0] == b'P' { b"S".to_vec() } else { b"M".to_vec() }
                },
            );
        result.unwrap();
        assert_eq!((tally.gets, tally.get_hits, tally.puts), (2000, 0, 2000), "{lanes} lanes");
        assert_eq!((tally.miss_bytes, tally.put_bytes), (2000 * 64, 2000 * 64));
    }
}

#[test]
fn a_cache_may_refuse_a_few_records_while_loading_and_a_store_none() {
    let load = |line: &str, parts: u64| {
        let spec = spec(line).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let toy = || Toy { key: spec.key_size, value: spec.value_size };
        let (server, puts) = (toy(), std::cell::Cell::new(0));
        let serving = thread::spawn(move || {
            server.serve(theirs, 9, |_| {
                puts.set(puts.get() + 1);
                if puts.get() % parts == 0 { b"R".to_vec() } else { b"S".to_vec() }
            });
        });
        let mut pipeline = Pipeline::over("toy", toy(), ours.into(), 1);
        let (mut loaded, workload) = (0, Workload::new(&spec));
        let result = pipeline.load(&workload, 0..spec.records, &mut |done| loaded = done);
        drop(pipeline);
        serving.join().unwrap();
        (result, loaded)
    };
    let cache = "--eviction sieve --records 2000";
    for (line, parts, is_enough) in
        [(cache, 20, true), (cache, 10, false), ("--records 2000", 1500, false)]
    {
        let (result, loaded) = load(line, parts);
        assert_eq!((result.is_ok(), loaded == 2000), (is_enough, is_enough), "{line} {parts}");
        if let Err(error) = result {
            assert!(matches!(error, TargetError::Refused { .. }), "{error}");
        }
    }
}
