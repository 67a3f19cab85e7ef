//! Sequences of requests, and how they are sent to both servers.

use std::time::{Duration, Instant};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::allowed::{Allowed, Difference};
use super::support::{self, Client, Ours, Reference};

/// A request as a client sends it.
#[derive(Clone, Debug)]
pub struct Request {
    pub words: Vec<Vec<u8>>,
    /// All of it, in which [`CAS`] stands for the CAS unique that the server has told last.
    pub bytes: Vec<u8>,
    /// How it goes on with the connection.
    pub then: Then,
}

/// What a request does to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The next request is the next one.
    Goes,
    /// Its data block is not as long as it says, so that requests behind it may be a part of it.
    Breaks,
    /// The server ends the connection.
    Ends,
}

/// What a client sends at a time, and where it is cut.
#[derive(Clone, Debug)]
pub struct Step {
    pub client: usize,
    pub requests: Vec<Request>,
    pub cuts: Vec<usize>,
    /// Whether [`CAS`] stands for what is known at its beginning, and not before.
    pub begins: bool,
}

/// The place of a CAS unique, which no server has chosen yet.
pub const CAS: &[u8] = b"\x01cas\x01";

/// How a protocol is spoken.
pub trait Dialect {
    fn sequence(&self, random: &mut ChaCha8Rng) -> Vec<Step>;
    fn connect(&self, ours: &Ours) -> Client;
    /// Deletes all that is there.
    fn flush(&self, client: &mut Client);
    /// Reads the answers to a step, each by itself if they can be told apart.
    fn answers(&self, client: &mut Client, step: &Step) -> Vec<Vec<u8>>;
    /// Whether answers are the same, of which the times may be apart by this much.
    fn is_same(&self, requests: &[Request], ours: &[u8], theirs: &[u8], slack: Duration) -> bool;
    /// The CAS unique that an answer tells.
    fn unique_in(&self, answer: &[u8]) -> Option<Vec<u8>>;
    fn allowed(&self) -> &'static [Allowed];
}

/// A maker of requests, which leaves most to chance.
pub trait Chance {
    fn random(&mut self) -> &mut ChaCha8Rng;

    fn up_to(&mut self, count: usize) -> usize {
        self.random().random_range(0..count)
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.up_to(count) == 0
    }

    fn any(&mut self, of: &[&str]) -> Vec<u8> {
        of[self.up_to(of.len())].as_bytes().to_vec()
    }

    /// A few bytes of any kind, or none.
    fn bytes(&mut self) -> Vec<u8> {
        (0..self.up_to(12)).map(|_| self.random().random()).collect()
    }

    /// A value of one of the lengths at which something else is done with it.
    fn long_value(&mut self) -> Vec<u8> {
        vec![b'v'; [45, 100, 3000, 32 << 10, 40_000][self.up_to(5)]]
    }
}

/// The sum of the weights of descriptions of requests.
pub fn weight_of(requests: &[(usize, &str)]) -> usize {
    requests.iter().map(|(weight, _)| weight).sum()
}

/// The description at a place, if each of them is as long as its weight.
pub fn at_weight<'a>(requests: &[(usize, &'a str)], mut at: usize) -> &'a str {
    let chosen = requests.iter().find(|(weight, _)| {
        let is_it = at < *weight;
        at = at.saturating_sub(*weight);
        is_it
    });
    chosen.expect("it is below the sum").1
}

/// What came of a comparison.
pub enum Found {
    Same,
    /// It ends where the state of the servers is not the same any more, as this sentence says.
    Documented(&'static str),
    Differs(String),
}

/// The gateway and the real server.
pub struct Pair {
    ours: Ours,
    reference: Reference,
}

/// The answers of a server to the steps.
struct Run {
    answers: Vec<Vec<Vec<u8>>>,
    took: Duration,
}

impl Pair {
    pub fn new(reference: Reference) -> Self {
        Self { ours: support::small_gateway(), reference }
    }

    pub fn compare(&self, dialect: &dyn Dialect, steps: &[Step]) -> Found {
        let [ours, theirs] = self.both(dialect, steps);
        let is_certain = |(step, ours): (&Step, &Vec<_>)| ours.len() == step.requests.len();
        let are_certain = steps.iter().zip(&ours.answers).all(is_certain);
        match first_difference(dialect, steps, [&ours, &theirs]) {
            None => Found::Same,
            Some(found) if are_certain => found,
            Some(_) => self.compare_one_by_one(dialect, steps, &ours),
        }
    }

    /// Asks request by request, which says to which of them the answers differ. The gateway has to
    /// answer them in the same way as a pipeline.
    fn compare_one_by_one(&self, dialect: &dyn Dialect, steps: &[Step], pipelined: &Run) -> Found {
        let parts: Vec<Vec<Step>> = steps.iter().map(Step::one_by_one).collect();
        let all: Vec<Step> = parts.concat();
        let [ours, theirs] = self.both(dialect, &all);
        let slack = pipelined.took + ours.took;
        let mut answers = ours.answers.iter();
        for ((step, parts), together) in steps.iter().zip(&parts).zip(&pipelined.answers) {
            let together = together.concat();
            let alone: Vec<u8> =
                answers.by_ref().take(parts.len()).flatten().flatten().copied().collect();
            if !dialect.is_same(&step.requests, &together, &alone, slack) {
                let [together, alone] = [&together, &alone].map(|answer| support::text(answer));
                return Found::Differs(format!(
                    "a pipeline is answered otherwise than its requests\n  together {together:?}\n  \
                     alone    {alone:?}"
                ));
            }
        }
        first_difference(dialect, &all, [&ours, &theirs]).unwrap_or(Found::Same)
    }

    /// Sends the steps to both servers.
    fn both(&self, dialect: &dyn Dialect, steps: &[Step]) -> [Run; 2] {
        let ours = || dialect.connect(&self.ours);
        let theirs = || self.reference.connect();
        [run(dialect, steps, [ours(), ours()]), run(dialect, steps, [theirs(), theirs()])]
    }
}

fn run(dialect: &dyn Dialect, steps: &[Step], mut clients: [Client; 2]) -> Run {
    let began = Instant::now();
    dialect.flush(&mut clients[0]);
    // No server is that far.
    let mut latest = b"9000000000000000000".to_vec();
    let (mut answers, mut told) = (Vec::new(), Vec::new());
    for step in steps {
        if step.begins {
            told.clone_from(&latest);
        }
        let client = &mut clients[step.client];
        let bytes = step.bytes(&told);
        let mut at = 0;
        for cut in step.cuts.iter().copied().chain([bytes.len()]) {
            let cut = cut.min(bytes.len());
            // The server may have ended the connection after a part of what it refuses.
            client.try_send(&bytes[at..cut]);
            at = cut;
        }
        answers.push(dialect.answers(client, step));
        for answer in answers.last().into_iter().flatten() {
            latest = dialect.unique_in(answer).unwrap_or(latest);
        }
    }
    Run { answers, took: began.elapsed() }
}

fn first_difference(
    dialect: &dyn Dialect,
    steps: &[Step],
    [ours, theirs]: [&Run; 2],
) -> Option<Found> {
    let slack = ours.took + theirs.took;
    for (number, step) in steps.iter().enumerate() {
        let [ours, theirs] = [ours, theirs].map(|run| &run.answers[number]);
        let is_certain = ours.len() == step.requests.len();
        for (at, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            let requests = if is_certain { &step.requests[at..=at] } else { &step.requests[..] };
            if dialect.is_same(requests, ours, theirs, slack) {
                continue;
            }
            let difference =
                Difference { steps, step: number, request: at, requests, ours, theirs };
            match dialect.allowed().iter().find(|allowed| (allowed.is)(&difference)) {
                None => return Some(Found::Differs(difference.to_string())),
                Some(allowed) if allowed.ends => return Some(Found::Documented(allowed.sentence)),
                Some(_) => (),
            }
        }
    }
    None
}

impl Request {
    pub fn new(words: Vec<Vec<u8>>, bytes: Vec<u8>) -> Self {
        Self { words, bytes, then: Then::Goes }
    }

    /// A word as text, in lower case.
    pub fn word(&self, at: usize) -> String {
        self.words.get(at).map(|word| support::text(word).to_lowercase()).unwrap_or_default()
    }

    pub fn has(&self, word: &str) -> bool {
        (1..self.words.len()).any(|at| self.word(at) == word)
    }
}

impl Step {
    /// Of a client, cut at any places.
    pub fn new(client: usize, requests: Vec<Request>, random: &mut ChaCha8Rng) -> Self {
        let len: usize = requests.iter().map(|request| request.bytes.len()).sum();
        let count = if random.random_ratio(1, 2) { random.random_range(0..4) } else { 0 };
        let mut cuts: Vec<usize> = (0..count).map(|_| random.random_range(0..=len)).collect();
        cuts.sort_unstable();
        Self { client, requests, cuts, begins: true }
    }

    fn bytes(&self, unique: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for request in &self.requests {
            let mut rest = &request.bytes[..];
            while let Some(at) = rest.windows(CAS.len()).position(|part| part == CAS) {
                bytes.extend_from_slice(&rest[..at]);
                bytes.extend_from_slice(unique);
                rest = &rest[at + CAS.len()..];
            }
            bytes.extend_from_slice(rest);
        }
        bytes
    }

    /// Whether a request behind another one may be a part of its data.
    pub fn breaks(&self) -> bool {
        self.requests.iter().any(|request| request.then == Then::Breaks)
    }

    /// A step for each request, if requests can be told apart.
    fn one_by_one(&self) -> Vec<Self> {
        if self.breaks() {
            return vec![self.clone()];
        }
        let one = |(at, request): (usize, &Request)| Self {
            client: self.client,
            requests: vec![request.clone()],
            cuts: Vec::new(),
            begins: at == 0,
        };
        self.requests.iter().enumerate().map(one).collect()
    }
}

/// Steps for people, with lines that are not too long.
pub fn text_of(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        text += &format!("  client {}, cut at {:?}\n", step.client, step.cuts);
        for request in &step.requests {
            text += &format!("    {}\n", shown(&request.bytes));
        }
    }
    text
}

/// Bytes for people.
pub fn shown(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(300)];
    let rest = if head.len() < bytes.len() {
        format!(" … {} bytes", bytes.len())
    } else {
        String::new()
    };
    format!("{}{rest}", head.escape_ascii())
}
