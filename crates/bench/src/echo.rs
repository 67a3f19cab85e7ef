//! The bare loop over TCP: request and reply messages of given lengths, and no work besides.
//!
//! The echo is a process of its own with one thread, as a node has one that drives its
//! connections. It stands for one node, and does nothing but answer each request of so many bytes
//! with so many others. A client keeps a number of requests under way on its one connection.
//! Neither end looks at what it receives, keeps it or sends something else than zeros: there are
//! no headers, keys, checks and regions, and each message is the next bytes of the stream. The
//! sockets of both ends do not block. An end that finds nothing to do waits as Loch's threads do
//! ([`Idle`]): it spins, then yields its core between two looks, and at last sleeps.
//!
//! Each call of the system costs more than a short message. So all that has arrived is answered
//! together, and a client waits for some replies, or for all that are under way, before it sends
//! as many new requests together: each of these ways is tried ([`Exchange::rate`]).

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use loch_fabric::Idle;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;

use crate::error::BenchError;
use crate::process::{Owned, helper_command};

/// Bytes that one call of the system moves at most.
const BUFFER_BYTES: usize = 1 << 20;
/// How long a client waits for the echo to take its connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// An echo that is busy looks for new connections once in this many turns.
const TURNS_PER_ACCEPT: u32 = 256;
/// How long each way to send requests together is tried.
const TRIAL: Duration = Duration::from_millis(60);

/// The process; dropping it ends it.
#[derive(Debug)]
pub struct Echo {
    /// Where it listens.
    pub address: SocketAddr,
    _process: Owned,
}

impl Echo {
    /// Starts it.
    ///
    /// # Errors
    /// The system's errors; an error of its own kind if the process does not say where it listens.
    pub fn start() -> io::Result<Self> {
        let mut command = helper_command("bench-echo")?;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take();
        let process = Owned::new(child);
        let mut line = String::new();
        output.map(|output| BufReader::new(output).read_line(&mut line)).transpose()?;
        let address = line.trim().parse().map_err(io::Error::other)?;
        Ok(Self { address, _process: process })
    }
}

/// The hidden subcommand: says where it listens, and answers until it is killed.
///
/// # Errors
/// [`BenchError::Os`].
pub fn serve() -> Result<(), BenchError> {
    let serve = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut output = io::stdout();
        writeln!(output, "{}", listener.local_addr()?)?;
        output.flush()?;
        answer_all(&listener)
    };
    serve().map_err(BenchError::os("answer the bare loop"))
}

/// Answers on all connections that come.
fn answer_all(listener: &TcpListener) -> io::Result<()> {
    let (mut answering, mut buffer) = (Vec::<Answering>::new(), vec![0; BUFFER_BYTES]);
    let (mut idle, mut turns) = (Idle::default(), 0u32);
    listener.set_nonblocking(true)?;
    loop {
        let mut has_come = false;
        turns = turns.wrapping_add(1);
        // A client that is done ends its connection.
        answering.retain_mut(|it| match it.turn(&mut buffer) {
            Ok(come) => {
                has_come |= come;
                true
            }
            Err(_) => false,
        });
        if has_come {
            idle.end();
        }
        let sleeps = !has_come && (answering.is_empty() || idle.go_on());
        if sleeps {
            let listening = PollFd::new(listener, PollFlags::IN);
            let ends = answering.iter().map(|it| it.end.watched());
            sleep(&mut std::iter::once(listening).chain(ends).collect::<Vec<_>>())?;
        }
        if sleeps || turns.is_multiple_of(TURNS_PER_ACCEPT) {
            match listener.accept() {
                Ok((stream, _)) => answering.extend(Answering::greet(stream).ok()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => (),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Sleeps until one of these sockets is ready.
fn sleep(watched: &mut [PollFd<'_>]) -> io::Result<()> {
    retry_on_intr(|| poll(watched, None))?;
    Ok(())
}

/// The lengths of the two messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// Of a request, at least 1.
    pub request: u64,
    /// Of a reply, at least 1.
    pub reply: u64,
}

/// An end of a connection.
#[derive(Debug)]
struct End {
    stream: TcpStream,
    /// The length of a message that comes.
    len: u64,
    /// Bytes of the next one that have come.
    begun: u64,
    /// Bytes that are to be sent.
    owed: u64,
}

impl End {
    fn new(stream: TcpStream, len: u64) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, len, begun: 0, owed: 0 })
    }

    /// Receives once. Returns how many messages have come whole; `None` if nothing has come.
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<u64>> {
        match self.stream.read(buffer) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(come) => {
                self.begun += come as u64;
                let whole = self.begun / self.len;
                self.begun %= self.len;
                Ok(Some(whole))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The events for which a thread that sleeps waits.
    fn watched(&self) -> PollFd<'_> {
        let flags = match self.owed {
            0 => PollFlags::IN,
            _ => PollFlags::IN | PollFlags::OUT,
        };
        PollFd::new(&self.stream, flags)
    }

    /// Sends what the socket takes.
    fn send(&mut self, buffer: &[u8]) -> io::Result<()> {
        while self.owed > 0 {
            let some = buffer.len().min(usize::try_from(self.owed).unwrap_or(usize::MAX));
            match self.stream.write(&buffer[..some]) {
                Ok(sent) => self.owed -= sent as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// The echo's end.
struct Answering {
    end: End,
    reply: u64,
}

impl Answering {
    /// Takes the lengths, which a client sends first.
    fn greet(mut stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut lengths = [[0; 8]; 2];
        stream.read_exact(lengths.as_flattened_mut())?;
        let [request, reply] = lengths.map(u64::from_le_bytes);
        Ok(Self { end: End::new(stream, request.max(1))?, reply })
    }

    /// Answers what has come. Returns whether anything has.
    fn turn(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let come = self.end.receive(buffer)?;
        self.end.owed += come.unwrap_or(0) * self.reply;
        self.end.send(buffer)?;
        Ok(come.is_some())
    }
}

/// A client's end.
#[derive(Debug)]
pub struct Exchange {
    end: End,
    request: u64,
    buffer: Vec<u8>,
}

impl Exchange {
    /// Connects to the echo at `address`.
    ///
    /// # Errors
    /// The system's errors.
    pub fn connect(address: SocketAddr, lengths: Lengths) -> io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        let Lengths { request, reply } = lengths;
        stream.write_all([request, reply].map(u64::to_le_bytes).as_flattened())?;
        Ok(Self { end: End::new(stream, reply)?, request, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Requests a second that are answered, with `depth` of them under way: the best of three ways
    /// to send them, which are one by one, half of them together, and all together.
    ///
    /// # Errors
    /// The system's errors.
    pub fn rate(&mut self, depth: u64) -> io::Result<f64> {
        let mut together = vec![1, depth / 2, depth];
        together.retain(|requests| *requests > 0);
        together.dedup();
        together.into_iter().try_fold(0.0, |best: f64, requests| {
            Ok(best.max(self.rate_of(depth, requests, TRIAL)?))
        })
    }

    /// The same for requests that leave when so many of them can be sent. Ends when all are
    /// answered.
    fn rate_of(&mut self, depth: u64, together: u64, time: Duration) -> io::Result<f64> {
        let began = Instant::now();
        let (mut answered, mut free, mut sent) = (0, depth, 0);
        let mut idle = Idle::default();
        loop {
            let is_over = began.elapsed() >= time;
            if is_over && answered == sent {
                return Ok(answered as f64 / began.elapsed().as_secs_f64());
            }
            // If nothing is under way, all are free.
            if free >= together && !is_over {
                self.end.owed += free * self.request;
                sent += free;
                free = 0;
            }
            self.end.send(&self.buffer)?;
            match self.end.receive(&mut self.buffer)? {
                Some(come) => {
                    answered += come;
                    free += come;
                    idle.end();
                }
                None if idle.go_on() => sleep(&mut [self.end.watched()])?,
                None => (),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        // It sleeps when its connections have ended.
        thread::spawn(move || answer_all(&listener));
        address
    }

    #[test]
    fn each_request_has_one_reply_whatever_their_lengths() {
        let address = echo();
        for (request, reply) in [(1, 1), (24, 80), (100, 3 << 20), (3 << 20, 16)] {
            let mut exchange = Exchange::connect(address, Lengths { request, reply }).unwrap();
            for (depth, together) in [(1, 1), (7, 1), (7, 3), (7, 7)] {
                let rate = exchange.rate_of(depth, together, Duration::from_millis(5)).unwrap();
                assert!(rate > 0.0, "{request} {reply} {depth} {together}");
                let End { begun, owed, .. } = exchange.end;
                assert_eq!((begun, owed), (0, 0), "nothing is under way");
            }
        }
    }

    /// A client whose time was over just when it was about to send waited for a reply to nothing.
    #[test]
    fn a_client_waits_for_replies_only_while_requests_are_under_way() {
        let lengths = Lengths { request: 8, reply: 8 };
        let mut exchange = Exchange::connect(echo(), lengths).unwrap();
        for us in 0..500 {
            exchange.rate_of(2, 2, Duration::from_micros(us % 50)).unwrap();
        }
    }

    #[test]
    fn clients_share_an_echo() {
        let address = echo();
        let lengths = Lengths { request: 64, reply: 64 };
        let mut exchanges = [(); 3].map(|()| Exchange::connect(address, lengths).unwrap());
        for exchange in &mut exchanges {
            assert!(exchange.rate(4).unwrap() > 0.0);
        }
    }
}
