//! All packets survive the round trip; other bytes end where they make no sense.

use proptest::prelude::*;

use super::*;
use crate::functions::{Builtin, Element, Function, Lambda};
use crate::limits::{KEY_BYTES_MAX, PACKET_OPS_MAX};
use crate::operation::{Expect, Operation, Outcome, PutOptions, Version};

/// The parts of an operation of a test. There are few different ones, so that some operations equal
/// those before them.
#[derive(Clone, Debug)]
struct Choice {
    key: Vec<u8>,
    value: Vec<u8>,
    kind: u8,
    lambda: Lambda,
    words: (u64, Option<u64>, bool),
}

impl Choice {
    fn operation(&self) -> Operation<'_> {
        let Self { value, lambda, words: (version, expires_at_ms, flag), .. } = self;
        let (lambda, options) = (*lambda, PutOptions { expires_at_ms: *expires_at_ms });
        match self.kind {
            0 => Operation::Get,
            1 => Operation::Contains,
            2 => Operation::Put { value, options },
            3 => Operation::PutIf { value, expect: Expect::Absent, options },
            4 => Operation::PutIf {
                value,
                expect: Expect::Version(Version::from_u64(*version)),
                options,
            },
            5 => Operation::Delete { of: flag.then_some(Version::from_u64(*version)) },
            6 => Operation::Update(lambda),
            7 => Operation::UpdateAll { lambda, returns: *flag },
            8 => Operation::UpdateEach { lambda, operands: value, returns: *flag },
            9 => Operation::Reduce(lambda),
            10 => Operation::Filter(lambda),
            11 => Operation::Append(value),
            12 => Operation::Touch { of: None, options },
            13 => Operation::Touch { of: Some(Version::from_u64(*version)), options },
            14 => Operation::FetchAdd(*version),
            _ => Operation::GetAndTouch(options),
        }
    }

    fn reply(&self) -> Answered<'_> {
        let Self { value, words: (word, expires_at_ms, flag), .. } = self;
        let (word, number) = (*word, self.lambda.operand);
        match self.kind {
            0 => Ok(Outcome::Found {
                version: Version::from_u64(word),
                expires_at_ms: *expires_at_ms,
                value,
            }),
            1 => Ok(Outcome::Absent),
            2 => Ok(Outcome::Contained(*flag)),
            3 => Ok(Outcome::Stored(Version::from_u64(word))),
            4 => Ok(Outcome::Refused(flag.then_some(Version::from_u64(word)))),
            5 => Ok(Outcome::Deleted(*flag)),
            6 => Ok(Outcome::Scalar(word)),
            7 => Ok(Outcome::Updated(word)),
            8 => Ok(Outcome::Vector(value)),
            _ => Err(match number % 16 {
                0 => Failure::ValueTooLong { len: word, max: number },
                1 => Failure::OutOfMemory { bytes: word, capacity: number },
                2 => Failure::NotAVector { len: word, wanted: number },
                3 => Failure::NoFunction(word as u16),
                4 => Failure::UnfitFunction,
                5 => Failure::FunctionFailed(word as u16),
                6 => Failure::Unsupported,
                7 => Failure::Malformed,
                8 => Failure::NoRoom,
                9 => Failure::IndexFull { slots: word, moves: number },
                10 => Failure::Timeout { timeout_us: word },
                11 => Failure::NotACounter { len: word },
                12 => Failure::NoVersions,
                13 => Failure::Ambiguous,
                14 => Failure::Unreachable,
                _ => Failure::Damaged,
            }),
        }
    }

    /// The operation as it arrives: without the fields that its function does not use.
    fn arrives(&self) -> Operation<'_> {
        let mut operation = self.operation();
        let is_each = matches!(operation, Operation::UpdateEach { .. });
        if let Operation::Update(lambda)
        | Operation::UpdateAll { lambda, .. }
        | Operation::UpdateEach { lambda, .. }
        | Operation::Reduce(lambda)
        | Operation::Filter(lambda) = &mut operation
        {
            let mask = u64::MAX >> (64 - 8 * lambda.element.bytes());
            let has_second = lambda.function == Function::Builtin(Builtin::CompareSwap);
            lambda.operand &= if is_each { 0 } else { mask };
            lambda.second &= if has_second { mask } else { 0 };
        }
        operation
    }
}

fn lambdas() -> impl Strategy<Value = Lambda> {
    let words = prop_oneof![Just(1u64), Just(u64::MAX), any::<u64>()];
    let function = prop_oneof![
        Just(Function::Builtin(Builtin::Add)),
        Just(Function::Builtin(Builtin::CompareSwap)),
        Just(Function::Builtin(Builtin::Greater)),
        Just(Function::User(1)),
        any::<u16>().prop_map(Function::User),
    ];
    let element = prop_oneof![Just(Element::U64), prop::sample::select(&Element::ALL)];
    (function, element, words.clone(), words).prop_map(|(function, element, operand, second)| {
        Lambda { function, element, operand, second }
    })
}

fn choices() -> impl Strategy<Value = Choice> {
    let key = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 8),
        2 => prop::collection::vec(any::<u8>(), 1..300),
    ];
    let value = prop_oneof![
        2 => Just(b"the same".to_vec()),
        2 => prop::collection::vec(any::<u8>(), 8),
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ];
    let expiry = prop_oneof![Just(None), any::<u64>().prop_map(Some)];
    let words = (prop_oneof![Just(0u64), any::<u64>()], expiry, any::<bool>());
    (key, value, 0u8..15, lambdas(), words).prop_map(|(key, value, kind, lambda, words)| Choice {
        key,
        value,
        kind,
        lambda,
        words,
    })
}

/// Sequences with runs.
fn sequences() -> impl Strategy<Value = Vec<Choice>> {
    let runs = prop::collection::vec((choices(), 1usize..4), 1..12);
    runs.prop_map(|runs| runs.into_iter().flat_map(|(choice, times)| vec![choice; times]).collect())
}

fn packed(choices: &[Choice]) -> Writer {
    let mut packet = Writer::default();
    for choice in choices {
        let len = packet.len_with(&choice.key, &choice.operation());
        packet.push(&choice.key, &choice.operation());
        assert_eq!(packet.bytes().len(), len);
    }
    packet
}

fn replied(choices: &[Choice]) -> OutcomeWriter {
    let mut packet = OutcomeWriter::default();
    for choice in choices {
        let value_len = choice.reply().as_ref().map_or(0, |outcome| outcome.bytes().len());
        let most = packet.bytes().len() + value_len + OUTCOME_BYTES;
        packet.push(&choice.reply());
        assert!(packet.bytes().len() <= most);
    }
    packet
}

/// Looks at everything that a packet of operations may contain, and returns how many operations
/// make sense.
fn look(packet: &[u8]) -> usize {
    let Ok(cursor) = Cursor::new(packet) else {
        return 0;
    };
    let mut known = 0;
    let mut seen = 0;
    let mut is_malformed = false;
    for operation in cursor.all(packet) {
        seen += 1;
        match operation {
            Ok(operation) => {
                assert!(!is_malformed, "reading does not go on behind what makes no sense");
                assert!((1..=KEY_BYTES_MAX).contains(&operation.key(packet).len()));
                assert_eq!(operation.operation(packet).is_read(), operation.is_read());
                known += 1;
            }
            Err(_) => is_malformed = true,
        }
    }
    assert_eq!(seen, usize::from(u16::from_le_bytes([packet[0], packet[1]])));
    known
}

fn look_at_replies(packet: &[u8], count: usize) -> usize {
    let replies: Vec<_> = Outcomes::new(count).all(packet).collect();
    assert_eq!(replies.len(), count);
    let known = replies.iter().take_while(|reply| reply.is_ok()).count();
    assert!(replies[known..].iter().all(Result::is_err), "after an error nothing makes sense");
    known
}

proptest! {
    #[test]
    fn operations_survive_the_trip(sequence in sequences()) {
        let mut packet = packed(&sequence);
        for _ in 0..2 {
            prop_assert_eq!(packet.count(), sequence.len());
            prop_assert_eq!(packet.is_read(), sequence.iter().all(|op| op.operation().is_read()));
            let operations = Cursor::new(packet.bytes()).unwrap().all(packet.bytes());
            for (choice, operation) in sequence.iter().zip(operations) {
                let operation = operation.unwrap();
                prop_assert_eq!(operation.key(packet.bytes()), &choice.key);
                prop_assert_eq!(operation.operation(packet.bytes()), choice.arrives());
            }
            let first = packet.bytes().to_vec();
            packet.clear();
            for choice in &sequence {
                packet.push(&choice.key, &choice.operation());
            }
            prop_assert_eq!(packet.bytes(), first, "a cleared packet remembers nothing");
        }
    }

    #[test]
    fn replies_survive_the_trip(sequence in sequences()) {
        let mut packet = replied(&sequence);
        let replies = Outcomes::new(sequence.len()).all(packet.bytes());
        for (choice, reply) in sequence.iter().zip(replies) {
            prop_assert_eq!(reply, Ok(choice.reply()));
        }
        prop_assert_eq!(look_at_replies(packet.bytes(), sequence.len()), sequence.len());
        let first = packet.bytes().to_vec();
        packet.clear();
        for choice in &sequence {
            packet.push(&choice.reply());
        }
        prop_assert_eq!(packet.bytes(), first, "a cleared packet remembers nothing");
    }

    #[test]
    fn a_packet_that_is_cut_off_ends_there(sequence in sequences(), more in any::<u8>()) {
        let bytes = packed(&sequence).bytes().to_vec();
        for len in 0..bytes.len() {
            let known = look(&bytes[..len]);
            prop_assert!(known < sequence.len(), "{len} of {} bytes are all", bytes.len());
        }
        let longer = [&bytes[..], &[more]].concat();
        prop_assert_eq!(look(&longer), sequence.len() - 1, "what is left over belongs to no other");
        let bytes = replied(&sequence).bytes().to_vec();
        for len in 0..bytes.len() {
            let known = look_at_replies(&bytes[..len], sequence.len());
            prop_assert!(known < sequence.len(), "{len} of {} bytes are all", bytes.len());
        }
        let longer = [&bytes[..], &[more]].concat();
        prop_assert_eq!(look_at_replies(&longer, sequence.len()), sequence.len() - 1);
        let one_more = look_at_replies(&bytes, sequence.len() + 1);
        prop_assert!(one_more <= sequence.len(), "{one_more} replies to {}", sequence.len());
    }

    #[test]
    fn a_flipped_bit_makes_other_operations_or_none(sequence in sequences(), flip in any::<u32>()) {
        for mut bytes in [packed(&sequence).bytes().to_vec(), replied(&sequence).bytes().to_vec()] {
            let bit = flip as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            look(&bytes);
            look_at_replies(&bytes, sequence.len());
        }
    }

    #[test]
    fn hostile_bytes_are_looked_at_and_no_more(
        count in 1u16..100,
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0u8..13, 0x80u8..0x8d], 0..400),
    ) {
        look(&[&count.to_le_bytes()[..], &bytes].concat());
        look_at_replies(&bytes, usize::from(count));
    }
}

#[test]
fn what_is_as_before_costs_a_byte() {
    let mut packet = Writer::default();
    let mut after = |key: &[u8; 8], operation| {
        let before = packet.bytes().len();
        packet.push(key, &operation);
        packet.bytes().len() - before
    };
    let put = |value| Operation::Put { value, options: PutOptions::default() };
    let add = |operand| {
        let function = Function::Builtin(Builtin::Add);
        Operation::Update(Lambda { function, element: Element::U64, operand, second: 0 })
    };
    assert_eq!(after(b"00000000", Operation::Get), 1 + 1 + 8);
    assert_eq!(after(b"00000001", Operation::Get), 1 + 8);
    assert_eq!(after(b"00000002", put(b"01234567")), 1 + 1 + 1 + 8 + 8);
    assert_eq!(after(b"00000003", put(b"76543210")), 1 + 8 + 8);
    assert_eq!(after(b"00000004", put(b"76543210")), 1 + 8, "the value is as before, too");
    assert_eq!(after(b"00000005", Operation::Get), 1 + 8);
    assert_eq!(after(b"00000006", put(b"01234567")), 1 + 8 + 8, "a GET has no value to compare");
    assert_eq!(after(b"00000007", add(1)), 1 + 1 + 2 + 8 + 8);
    assert_eq!(after(b"00000008", add(2)), 1 + 8 + 8);
    assert_eq!(after(b"00000009", add(2)), 1 + 8);
}

#[test]
fn more_replies_than_fit_in_a_run_make_another() {
    let mut packet = OutcomeWriter::default();
    for _ in 0..300 {
        packet.push(&Ok(Outcome::Stored(Version::from_u64(0))));
    }
    // One, 128, 128 and 43.
    assert_eq!(packet.bytes().len(), 4);
    assert_eq!(look_at_replies(packet.bytes(), 300), 300);
    assert_eq!(look_at_replies(packet.bytes(), 299), 298, "one that nobody asked for");
    assert_eq!(look_at_replies(packet.bytes(), 301), 300);
}

#[test]
fn a_packet_says_how_many_operations_it_has() {
    let empty = Writer::default();
    assert_eq!(Cursor::new(empty.bytes()).unwrap_err(), Malformed { at: 0 });
    assert_eq!(Cursor::new(&[1]).unwrap_err(), Malformed { at: 0 });
    let max = PACKET_OPS_MAX as u16;
    assert!(Cursor::new(&(max + 1).to_le_bytes()).is_err());
    // One valid operation with nothing behind it: all others are malformed, and reading them soon
    // ends.
    let mut packet = Writer::default();
    packet.push(b"key", &Operation::Get);
    let mut bytes = packet.bytes().to_vec();
    bytes[..2].copy_from_slice(&max.to_le_bytes());
    assert_eq!(look(&bytes), 1);
    let mut cursor = Cursor::new(&bytes).unwrap();
    assert!(cursor.next(&bytes).unwrap().is_ok());
    assert!(cursor.next(&bytes).unwrap().is_err());
    assert_eq!(cursor.left(), usize::from(max) - 2);
}

#[test]
fn what_no_writer_writes_is_malformed() {
    let one = |operation: &[u8]| look(&[&[1, 0][..], operation].concat());
    assert_eq!(one(b"\x01\x02key"), 1);
    assert_eq!(one(b"\x00\x02key"), 0, "no code");
    assert_eq!(one(b"\x0c\x02key"), 0, "no such code");
    assert_eq!(one(b"\x21\x02key"), 0, "a GET has no flag EXTRA");
    assert_eq!(one(b"\x41\x02key"), 0, "a GET has no value");
    assert_eq!(one(b"\x81key"), 0, "no sizes before");
    assert_eq!(one(b"\x01\x80\x80\x04key"), 0, "a key of over 64 KiB");
    assert_eq!(one(b"\x07\x02\x03\x00key12345678"), 1, "add to an element of 64 bits");
    assert_eq!(one(b"\x07\x02\x08\x00key12345678"), 0, "no such element");
    assert_eq!(one(b"\x07\x02\x03\x0bkey12345678"), 0, "no such function");
    assert_eq!(one(b"\x09\x02\x07\x03\x0akey1234567"), 0, "operands shorter than the second one");
    assert_eq!(one(b"\x09\x02\x08\x03\x0akey12345678"), 1, "the second one, and no operands");
    let two = |first: &[u8], second: &[u8]| look(&[&[2, 0][..], first, second].concat());
    assert_eq!(two(b"\x03\x00\x08k12345678", b"\xc3k"), 2, "a PUT as before");
    assert_eq!(two(b"\x03\x00\x08k12345678", b"\x47\x00\x03\x00k"), 2, "its value as an operand");
    assert_eq!(two(b"\x03\x00\x08k12345678", b"\x47\x00\x02\x00k"), 1, "the operand is shorter");
    assert_eq!(two(b"\x03\x00\x08k12345678", b"\xc7k"), 1, "no function before");
}

#[test]
fn a_length_is_written_in_one_way() {
    for length in (0..32).flat_map(|bit| [1 << bit, (1u32 << bit) - 1, u32::MAX >> bit]) {
        let mut bytes = Vec::new();
        push_length(&mut bytes, length);
        assert_eq!(bytes.len(), length_len(length), "{length}");
        let mut at = 0;
        assert_eq!(take_length(&bytes, &mut at), Some(length));
        assert_eq!(at, bytes.len());
        assert_eq!(take_length(&bytes[..at - 1], &mut 0), None, "{length}: cut off");
        *bytes.last_mut().unwrap() |= 0x80;
        bytes.push(0);
        assert_eq!(take_length(&bytes, &mut 0), None, "{length}: longer than it needs");
    }
    assert_eq!(take_length(&[0xff, 0xff, 0xff, 0xff, 0x1f], &mut 0), None, "over 32 bits");
    assert_eq!(take_length(&[0x80, 0x80, 0x80, 0x80, 0x80, 1], &mut 0), None);
}
