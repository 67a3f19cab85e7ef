//! The client processes of one run.
//!
//! Owns their pipes and their lives: dropping the fleet ends all of them, whatever goes wrong in a
//! client or in the bench.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::process::{Owned, helper_command};
use crate::wire::{FromClient, ToClient, say};

/// How often a wait checks the clock and the interruption.
const POLL: Duration = Duration::from_millis(50);
/// How long clients may take to leave in good order.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
/// SIGINT, which a terminal sends to the whole process group.
const INTERRUPTED_STATUS: &str = "signal 2";

/// Running clients, one process each.
pub struct Fleet<'a> {
    system: &'static str,
    clients: Vec<Client>,
    events: Receiver<Event>,
    interrupted: &'a AtomicBool,
}

/// A part of the run that all its clients have to finish.
pub struct Phase<'a> {
    /// Its name in errors.
    pub name: &'static str,
    /// How many clients take part.
    pub clients: usize,
    /// How long it may take.
    pub limit: Option<Duration>,
    /// Called now and then with the time since it began.
    pub tick: &'a dyn Fn(Duration),
}

/// What an answer means for a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// This client goes on.
    More,
    /// This client has finished the phase.
    Finished,
    /// The answer belongs to another phase.
    Unexpected,
}

struct Client {
    process: Owned,
    /// Closed to let it leave.
    stdin: Option<ChildStdin>,
}

enum Event {
    Said(usize, FromClient),
    /// It closed its stdout, or wrote something that is no message.
    Ended(usize),
}

impl<'a> Fleet<'a> {
    /// Starts `count` clients.
    pub fn start(
        system: &'static str,
        count: u32,
        interrupted: &'a AtomicBool,
    ) -> Result<Self, BenchError> {
        let (sender, events) = channel();
        let clients = (0..count as usize)
            .map(|number| Client::start(number, sender.clone()))
            .collect::<io::Result<_>>()
            .map_err(BenchError::os("start a client"))?;
        Ok(Fleet { system, clients, events, interrupted })
    }

    /// Sends one client a message.
    pub fn tell(&mut self, client: usize, message: &ToClient) -> Result<(), BenchError> {
        let told = match &mut self.clients[client].stdin {
            Some(stdin) => say(stdin, message),
            None => Ok(()),
        };
        told.map_err(|_| self.died(client))
    }

    /// Sends every client the same message.
    pub fn tell_all(&mut self, message: &ToClient) -> Result<(), BenchError> {
        (0..self.clients.len()).try_for_each(|client| self.tell(client, message))
    }

    /// Hands every answer to `take` until all clients of the phase have finished it.
    pub fn gather(
        &mut self,
        phase: &Phase<'_>,
        mut take: impl FnMut(usize, FromClient) -> Step,
    ) -> Result<(), BenchError> {
        let began = Instant::now();
        let mut left = phase.clients;
        while left > 0 {
            (phase.tick)(began.elapsed());
            self.check_interrupted()?;
            match self.events.recv_timeout(POLL) {
                Ok(Event::Said(client, FromClient::Failed(message))) => {
                    self.check_interrupted()?;
                    return Err(self.failed(client, message));
                }
                Ok(Event::Said(client, answer)) => match take(client, answer) {
                    Step::More => {}
                    Step::Finished => left -= 1,
                    Step::Unexpected => {
                        let message = format!("answered out of turn while {}", phase.name);
                        return Err(self.failed(client, message));
                    }
                },
                Ok(Event::Ended(client)) => return Err(self.died(client)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.died(0)),
            }
            if let Some(limit) = phase.limit.filter(|limit| began.elapsed() > *limit) {
                return Err(BenchError::Stuck {
                    system: self.system,
                    phase: phase.name,
                    limit_s: limit.as_secs(),
                });
            }
        }
        Ok(())
    }

    /// Lets the clients leave: they disconnect in good order when their stdin closes. Clients that
    /// are too slow are ended.
    pub fn finish(mut self) {
        for client in &mut self.clients {
            client.stdin = None;
        }
        let deadline = Instant::now() + LEAVE_LIMIT;
        let mut left = self.clients.len();
        while left > 0 {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Event::Ended(_)) => left -= 1,
                Ok(Event::Said(..)) => {}
                Err(_) => return,
            }
        }
    }

    fn check_interrupted(&self) -> Result<(), BenchError> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        Ok(())
    }

    fn failed(&self, client: usize, message: String) -> BenchError {
        BenchError::Client { system: self.system, client, message }
    }

    fn died(&mut self, client: usize) -> BenchError {
        let process = &mut self.clients[client].process;
        let pid = process.pid();
        let status = process.end();
        if status == INTERRUPTED_STATUS || self.check_interrupted().is_err() {
            return BenchError::Interrupted;
        }
        BenchError::ClientDied { system: self.system, client, pid, status }
    }
}

impl Client {
    fn start(number: usize, events: Sender<Event>) -> io::Result<Self> {
        let mut child = client_command()?.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let process = Owned::new(child);
        if let Some(stdout) = stdout {
            thread::Builder::new()
                .name(format!("client-{number}"))
                .spawn(move || listen(number, stdout, &events))?;
        }
        Ok(Client { process, stdin })
    }
}

/// Passes on a client's messages; ends when the client does.
fn listen(number: usize, stdout: ChildStdout, events: &Sender<Event>) {
    for line in BufReader::new(stdout).lines() {
        let Some(said) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else {
            break;
        };
        if events.send(Event::Said(number, said)).is_err() {
            return;
        }
    }
    // This fails only if the fleet is gone.
    let _ = events.send(Event::Ended(number));
}

/// The command of a client. Glibc asks for huge pages for what the client allocates, if nobody has
/// chosen otherwise: maps inside a client then have the same pages as the memory of nodes.
fn client_command() -> io::Result<Command> {
    const TUNABLES: &str = "GLIBC_TUNABLES";
    let mut command = helper_command("bench-worker")?;
    if env::var_os(TUNABLES).is_none() {
        command.env(TUNABLES, "glibc.malloc.hugetlb=1");
    }
    Ok(command)
}
