//! MULTI, EXEC and WATCH.
//!
//! A transaction whose commands name one key is atomic: they are executed on a draft of the item,
//! which one conditional PUT stores, or nobody sees any of them. With WATCH of the same key the
//! draft has to be of the version that was watched.
//!
//! A transaction on several keys is executed one command after the other, and other clients may
//! come in between. With WATCH that would be a lie, because WATCH is there for nothing else: then
//! EXEC is an error, unless a watched key has changed.

use std::cell::RefCell;
use std::time::Instant;

use loch::Version;

use super::table::{Command, Family};
use super::{Reply, Session, execute_data, execute_other, tell};
use crate::clients::Client;
use crate::context::Context;
use crate::failure::Failure;
use crate::limits::{EXEC_BYTES_MAX, QUEUED_BYTES_MAX, QUEUED_MAX, UPDATE_TIME};
use crate::store::Store;

const SEVERAL_KEYS: &str = "ERR EXEC after WATCH is atomic on one key only in this gateway: watch the key that all commands \
     of the transaction change, and no other one";

const TOO_LONG: &str = "ERR the answers of the transaction are too long: this command was not \
                        executed";

/// A command that waits for EXEC, and its arguments.
type Queued = (&'static Command, Vec<Vec<u8>>);

/// What a client has said between MULTI and EXEC, and what it watches.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// The commands so far, after MULTI.
    queue: Option<Vec<Queued>>,
    bytes: usize,
    has_failed: bool,
    watched: Vec<(Vec<u8>, Option<Version>)>,
}

impl Transaction {
    pub fn is_open(&self) -> bool {
        self.queue.is_some()
    }

    /// Whether a command is executed at once, although a transaction is open.
    pub fn runs_at_once(&self, command: &Command) -> bool {
        command.family == Family::Transaction && command.name != "unwatch"
            || ["quit", "reset"].contains(&command.name)
    }

    /// A command that cannot be executed makes EXEC fail.
    pub fn is_wrong(&mut self) {
        self.has_failed |= self.is_open();
    }

    pub fn queue(
        &mut self,
        command: &'static Command,
        request: &[&[u8]],
    ) -> Result<(), &'static str> {
        let bytes: usize = request.iter().map(|argument| argument.len() + 32).sum();
        let queue = self.queue.as_mut().expect("a transaction is open");
        if queue.len() >= QUEUED_MAX || self.bytes + bytes > QUEUED_BYTES_MAX {
            self.has_failed = true;
            return Err("ERR the transaction has too many commands, or too long ones");
        }
        self.bytes += bytes;
        queue.push((command, request.iter().map(|argument| argument.to_vec()).collect()));
        Ok(())
    }
}

impl Session {
    pub(super) async fn transact(
        &mut self,
        (cx, client): (&Context<'_>, &Client),
        command: &'static Command,
        request: &[&[u8]],
        output: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        match command.name {
            "multi" => {
                if self.transaction.is_open() {
                    return Err("ERR MULTI calls can not be nested".into());
                }
                self.transaction.queue = Some(Vec::new());
                self.reply(output).ok();
            }
            "discard" => {
                if !self.transaction.is_open() {
                    return Err("ERR DISCARD without MULTI".into());
                }
                self.transaction = Transaction::default();
                self.reply(output).ok();
            }
            "watch" => {
                if self.transaction.is_open() {
                    return Err("ERR WATCH inside MULTI is not allowed".into());
                }
                for key in &request[1..] {
                    if self.transaction.watched.iter().any(|(watched, _)| watched == key) {
                        continue;
                    }
                    let version = cx.store.get(key).await?.map(|item| item.version);
                    self.transaction.watched.push((key.to_vec(), version));
                }
                self.reply(output).ok();
            }
            "unwatch" => {
                self.transaction.watched.clear();
                self.reply(output).ok();
            }
            "exec" => return self.exec((cx, client), output).await,
            other => unreachable!("{other} is a command on transactions"),
        }
        Ok(())
    }

    async fn exec(
        &mut self,
        (cx, client): (&Context<'_>, &Client),
        output: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let Transaction { queue, has_failed, watched, .. } = std::mem::take(&mut self.transaction);
        let queue = queue.ok_or("ERR EXEC without MULTI")?;
        if has_failed {
            return Err("EXECABORT Transaction discarded because of previous errors.".into());
        }
        let mut reply = self.reply(output);
        let mut keys: Vec<&[u8]> = Vec::new();
        for (command, request) in &queue {
            keys.extend(command.keys(request.len()).map(|key| &*request[key]));
        }
        keys.sort_unstable();
        keys.dedup();
        let is_of_one_key = keys.len() == 1 && queue.iter().all(|(c, _)| c.family.is_of_data());
        if let ([(key, version)], true) = (&watched[..], is_of_one_key)
            && *key == keys[0]
        {
            let draft = RefCell::new(cx.store.draft(key).await?);
            if draft.borrow().base() != *version {
                reply.null_array();
                return Ok(());
            }
            let start = reply.bytes.len();
            execute_queue((cx, client), cx.store.on(&draft), &queue, &mut reply).await;
            let done = cx.store.commit(draft.into_inner()).await;
            if !matches!(done, Ok(true)) {
                reply.bytes.truncate(start);
            }
            if !done? {
                reply.null_array();
            }
            return Ok(());
        }
        for (key, version) in &watched {
            if cx.store.get(key).await?.map(|item| item.version) != *version {
                reply.null_array();
                return Ok(());
            }
        }
        if !watched.is_empty() && !queue.is_empty() {
            return Err(SEVERAL_KEYS.into());
        }
        if !is_of_one_key {
            execute_queue((cx, client), cx.store, &queue, &mut reply).await;
            return Ok(());
        }
        let until = Instant::now() + UPDATE_TIME;
        while Instant::now() < until {
            let draft = RefCell::new(cx.store.draft(keys[0]).await?);
            let start = reply.bytes.len();
            execute_queue((cx, client), cx.store.on(&draft), &queue, &mut reply).await;
            let done = cx.store.commit(draft.into_inner()).await;
            if let Ok(true) = done {
                return Ok(());
            }
            reply.bytes.truncate(start);
            done?;
        }
        Err(Failure::Busy)
    }
}

async fn execute_queue(
    (cx, client): (&Context<'_>, &Client),
    store: Store<'_>,
    queue: &[Queued],
    reply: &mut Reply<'_>,
) {
    let start = reply.bytes.len();
    reply.array(queue.len());
    for (command, request) in queue {
        if reply.bytes.len() - start > EXEC_BYTES_MAX {
            tell(cx, Err(TOO_LONG.into()), reply);
            continue;
        }
        let request: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
        match command.family {
            family if family.is_of_data() => {
                execute_data((cx, client), store, command, &request, reply).await;
            }
            Family::Scan | Family::Server => {
                let start = reply.bytes.len();
                let done = execute_other(cx, store, command, &request, reply).await;
                if done.is_err() {
                    reply.bytes.truncate(start);
                }
                tell(cx, done, reply);
            }
            _ => match command.name {
                "ping" if request.len() == 1 => reply.simple("PONG"),
                "ping" | "echo" => reply.bulk(request[1]),
                "select" if request[1] == b"0" => reply.ok(),
                // WATCH ends with EXEC.
                "unwatch" => reply.ok(),
                name => {
                    let name = name.to_ascii_uppercase();
                    let said =
                        format!("ERR {name} is not possible in a transaction of this gateway");
                    tell(cx, Err(said.into()), reply);
                }
            },
        }
    }
}
