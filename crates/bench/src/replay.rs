//! Files of requests that are replayed as the users of a cache would make them.
//!
//! The content of a file tells its format:
//! * text: a line `key,size` for each request. The key is all in front of the last comma, the size
//!   is the number of bytes of the value. A first line that says `key,size`, a byte order mark
//!   and empty lines are passed over;
//! * libCacheSim's oracleGeneral: records of 24 bytes, little endian: time (4 bytes), object (8),
//!   size (4), next access (8). A zero byte among the first 24 tells it from text.
//!
//! Keys become record numbers in the order of their first requests, so that the keys on the wire
//! have the length of the run's options. Every client reads the whole file, so all clients number
//! the keys alike.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::error::BenchError;
use crate::options::Replay;
use crate::spec::{Spec, Stop, VALUE_SIZE_MAX};
use crate::trace::{Request, Trace};

/// Bytes of a record of oracleGeneral, and of a text file's beginning that has no zero.
const RECORD_BYTES: usize = 24;
/// The longest line: no cache has longer keys.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// The first line of a file may name its columns.
const HEADER: &[u8] = b"key,size";
/// Some programs begin text with it.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// How compressed files begin, and what makes them readable.
const COMPRESSED: [(&[u8], &str); 3] =
    [(&[0x1f, 0x8b], "gzip -d"), (&[0x28, 0xb5, 0x2f, 0xfd], "zstd -d"), (b"BZh", "bzip2 -d")];
/// A part of a line is quoted in an error up to this length.
const QUOTE_BYTES_MAX: usize = 60;

/// Fills in the facts of the file that is replayed, if there is one.
///
/// # Errors
/// [`BenchError::Usage`] if it cannot be replayed.
pub fn resolve(spec: Spec) -> Result<Spec, BenchError> {
    let Some(replay) = &spec.replay else { return Ok(spec) };
    let of_file =
        |problem| BenchError::usage(format!("--trace {}: {problem}", replay.file.display()));
    let Requests { all, sizes, longest } = read(&replay.file).map_err(of_file)?;
    if (all.len() as u64) < u64::from(spec.clients) {
        let requests = all.len();
        return Err(of_file(format!("{} clients share its {requests} requests", spec.clients)));
    }
    let replay = Replay {
        file: replay.file.clone(),
        requests: all.len() as u64,
        keys: sizes.len() as u64,
        value_bytes: sizes.iter().copied().map(u64::from).sum(),
        longest: longest.place,
    };
    Ok(Spec {
        records: replay.keys,
        value_size: longest.size.max(1) as usize,
        stop: match spec.stop {
            Stop::Ops(ops) => Stop::Ops(ops.min(replay.requests)),
            Stop::Seconds(_) => Stop::Ops(replay.requests),
        },
        replay: Some(replay),
        ..spec
    })
}

/// The requests of one of `clients` clients: of so many requests one.
///
/// # Errors
/// [`BenchError::Usage`] if the file is not what it was when the run began.
pub fn trace(replay: &Replay, client: u32, clients: u32) -> Result<Trace, BenchError> {
    let of_file = |problem| BenchError::usage(format!("{}: {problem}", replay.file.display()));
    let Requests { all, sizes, .. } = read(&replay.file).map_err(of_file)?;
    if (all.len() as u64, sizes.len() as u64) != (replay.requests, replay.keys) {
        return Err(of_file("it was changed since the run began".into()));
    }
    let own = all.into_iter().skip(client as usize).step_by(clients as usize);
    Ok(Trace::Replayed(own.collect()))
}

/// The requests of a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Requests {
    all: Vec<Request>,
    /// Bytes of the first value of each key.
    sizes: Vec<u32>,
    longest: Longest,
}

/// The first of the longest values of a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Longest {
    size: u32,
    /// Its line or record; empty if there are no values yet.
    place: String,
}

impl Requests {
    /// Adds a request of the key with this number, which the key has if it is `None` yet.
    fn add(
        &mut self,
        known: Option<u32>,
        size: u64,
        place: impl Fn() -> String,
    ) -> Result<u32, String> {
        let fits = u32::try_from(size).ok().filter(|size| *size as usize <= VALUE_SIZE_MAX);
        let size = fits.ok_or_else(|| {
            format!("a value of {size} bytes: the bench has values of up to {VALUE_SIZE_MAX} bytes")
        })?;
        let record = match known {
            Some(record) => record,
            None => {
                let next = u32::try_from(self.sizes.len());
                self.sizes.push(size);
                next.map_err(|_| "files with up to 2^32 keys are replayed".to_string())?
            }
        };
        if self.all.is_empty() || size > self.longest.size {
            self.longest = Longest { size, place: place() };
        }
        self.all.push(Request { record, size });
        Ok(record)
    }
}

/// Reads a file, or says what is wrong with it and where.
fn read(path: &Path) -> Result<Requests, String> {
    let unread = |error: io::Error| format!("it cannot be read: {error}");
    // It is looked at before it is opened: opening a pipe waits for the pipe's other end.
    if !fs::metadata(path).map_err(unread)?.is_file() {
        return Err("it is not a file: it is read several times, so write it to one".into());
    }
    parse(BufReader::new(File::open(path).map_err(unread)?))
}

fn parse(mut file: impl BufRead) -> Result<Requests, String> {
    let mut head = Vec::new();
    file.by_ref().take(RECORD_BYTES as u64).read_to_end(&mut head).map_err(unreadable)?;
    if let Some((_, tool)) = COMPRESSED.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(format!("it is compressed: decompress it with {tool}"));
    }
    let is_binary = head.contains(&0);
    let whole = head.chain(file);
    let requests = if is_binary { parse_records(whole)? } else { parse_lines(whole)? };
    if requests.all.is_empty() {
        return Err("it has no requests: write a line such as user:17,1024 for each".into());
    }
    Ok(requests)
}

fn parse_lines(mut file: impl BufRead) -> Result<Requests, String> {
    let (mut requests, mut records) = (Requests::default(), HashMap::<Box<[u8]>, u32>::new());
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let most = LINE_BYTES_MAX + 1;
        let bytes = file.by_ref().take(most).read_until(b'\n', &mut line).map_err(unreadable)?;
        if bytes == 0 {
            break;
        }
        let place = || format!("line {number}");
        let at = |problem: String| format!("{}: {problem}", place());
        if bytes as u64 == most {
            return Err(at(format!("it has more than {LINE_BYTES_MAX} bytes: write key,size")));
        }
        let start = if number == 1 && line.starts_with(BYTE_ORDER_MARK) {
            BYTE_ORDER_MARK.len()
        } else {
            0
        };
        let text = line[start..].trim_ascii();
        if text.is_empty() || (number == 1 && text == HEADER) {
            continue;
        }
        let (key, size) = fields(text).map_err(at)?;
        let known = records.get(key).copied();
        let record = requests.add(known, size, place).map_err(at)?;
        if known.is_none() {
            records.insert(key.into(), record);
        }
    }
    Ok(requests)
}

/// Key and size of a line.
fn fields(line: &[u8]) -> Result<(&[u8], u64), String> {
    let example = "write key,size, such as user:17,1024";
    let comma = line.iter().rposition(|byte| *byte == b',');
    let comma = comma.ok_or_else(|| format!("{} has no comma: {example}", quoted(line)))?;
    let (key, size) = (line[..comma].trim_ascii(), line[comma + 1..].trim_ascii());
    if key.is_empty() {
        return Err(format!("{} has no key: {example}", quoted(line)));
    }
    let bytes = std::str::from_utf8(size).ok().and_then(|size| size.parse().ok());
    let bytes = bytes.ok_or_else(|| {
        format!("{} is not a size: give the value's bytes as a number; {example}", quoted(size))
    });
    Ok((key, bytes?))
}

fn parse_records(mut file: impl Read) -> Result<Requests, String> {
    let (mut requests, mut records) = (Requests::default(), HashMap::<u64, u32>::new());
    for number in 1u64.. {
        let mut record = [0; RECORD_BYTES];
        match filled(&mut file, &mut record).map_err(unreadable)? {
            0 => break,
            RECORD_BYTES => {}
            cut => {
                return Err(format!(
                    "record {number} has {cut} bytes, and records of oracleGeneral have \
                     {RECORD_BYTES}: the file was cut off, or has another format; write it as \
                     lines key,size"
                ));
            }
        }
        let [_, _, _, _, rest @ ..] = record;
        let (object, rest) = rest.split_first_chunk().expect("16 bytes are left");
        let (size, _) = rest.split_first_chunk().expect("8 bytes are left");
        let (object, size) = (u64::from_le_bytes(*object), u32::from_le_bytes(*size));
        let known = records.get(&object).copied();
        let place = || format!("record {number}");
        let at = |problem| format!("{}: {problem}", place());
        let record = requests.add(known, size.into(), place).map_err(at)?;
        if known.is_none() {
            records.insert(object, record);
        }
    }
    Ok(requests)
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes read.
fn filled(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut bytes = 0;
    while bytes < buffer.len() {
        match file.read(&mut buffer[bytes..]) {
            Ok(0) => break,
            Ok(more) => bytes += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

fn unreadable(error: io::Error) -> String {
    format!("it cannot be read: {error}")
}

fn quoted(text: &[u8]) -> String {
    format!("\"{}\"", text[..text.len().min(QUOTE_BYTES_MAX)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(record: u32, size: u32) -> Request {
        Request { record, size }
    }

    #[test]
    fn keys_are_numbered_by_their_first_lines_and_may_have_commas() {
        let text = b"key,size\na,10\r\n\nb,c,0\na,12\n b , 7\nb,c,1";
        let all = [(0, 10), (1, 0), (0, 12), (2, 7), (1, 1)].map(|(key, size)| request(key, size));
        let longest = Longest { size: 12, place: "line 5".into() };
        let requests = Requests { all: all.to_vec(), sizes: vec![10, 0, 7], longest };
        for text in [&text[..], &[BYTE_ORDER_MARK, text].concat()] {
            assert_eq!(parse(text).unwrap(), requests);
        }
    }

    fn record(object: u64, size: u32) -> Vec<u8> {
        let parts = [&7u32.to_le_bytes()[..], &object.to_le_bytes(), &size.to_le_bytes()];
        [&parts.concat()[..], &(-1i64).to_le_bytes()].concat()
    }

    #[test]
    fn records_of_oracle_general_are_told_from_text() {
        let bytes = [record(9, 100), record(u64::MAX, 5), record(9, 100)].concat();
        let requests = parse(&bytes[..]).unwrap();
        assert_eq!(requests.all, [request(0, 100), request(1, 5), request(0, 100)]);
        assert_eq!(requests.longest, Longest { size: 100, place: "record 1".into() });
        let cut = parse(&bytes[..bytes.len() - 1]).unwrap_err();
        assert!(cut.contains("record 3") && cut.contains("23 bytes"), "{cut}");
        let long = parse(&record(1, u32::MAX)[..]).unwrap_err();
        assert!(long.contains("record 1") && long.contains("4294967295"), "{long}");
    }

    #[test]
    fn errors_name_the_line_and_the_way_out() {
        for (text, place, way_out) in [
            (&b""[..], "no requests", "user:17,1024"),
            (b"key,size\n", "no requests", "user:17,1024"),
            (b"a,1\nb\n", "line 2: \"b\"", "key,size"),
            (b"a,1\n\n,5\n", "line 3: \",5\"", "key,size"),
            (b"a,1\nkey,size\n", "line 2: \"size\"", "as a number"),
            (b"a,12kb\n", "line 1: \"12kb\"", "as a number"),
            (b"a,-1\n", "line 1: \"-1\"", "as a number"),
            (b"a,268435457\n", "line 1", "268435456"),
            (b"a,99999999999999999999\n", "line 1", "as a number"),
            (b"\x1f\x8b\x08\x00", "compressed", "gzip -d"),
            (b"\x28\xb5\x2f\xfd\x00", "compressed", "zstd -d"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(place) && error.contains(way_out), "{error}");
        }
        let endless = parse(&[b'x'; 70_000][..]).unwrap_err();
        assert!(endless.contains("line 1") && endless.contains("65536"), "{endless}");
    }

    #[test]
    fn what_is_no_file_is_named() {
        let error = read(Path::new("/nowhere/at/all.csv")).unwrap_err();
        assert!(error.contains("cannot be read"), "{error}");
        assert!(read(Path::new("/dev/null")).unwrap_err().contains("not a file"));
        // A pipe that nobody writes to: opening it would wait for ever.
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert!(read(&pipe).unwrap_err().contains("not a file"));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_requests_or_an_error(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Ok(requests) = parse(&bytes[..]) {
                let keys = requests.sizes.len() as u32;
                prop_assert!(requests.all.iter().all(|request| request.record < keys));
            }
        }
    }
}
