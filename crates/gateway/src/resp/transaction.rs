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
use std::collections::HashMap;
use std::time::Instant;

use loch::Version;

use super::options::number;
use super::table::{Command, Family};
use super::{HELD, Reply, Session, connection, execute_data, execute_other, tell};
use crate::clients::Client;
use crate::context::Context;
use crate::copies::{Copies, Share};
use crate::failure::Failure;
use crate::limits::{
    EXEC_BYTES_MAX, OUTPUT_BYTES, QUEUED_ALL_BYTES_MAX, QUEUED_BYTES_MAX, QUEUED_FREE_BYTES,
    QUEUED_MAX, UPDATE_TIME, WATCHED_MAX,
};
use crate::store::Store;

const SEVERAL_KEYS: &str = "ERR EXEC after WATCH is atomic on one key only in this gateway: watch the key that all commands \
     of the transaction change, and no other one";

const TOO_MANY: &str = "ERR the transaction has too many commands, or too long ones";

const NO_ROOM: &str =
    "OOM the transactions of all clients have too many commands, or too long ones";

pub(super) const TOO_LONG: &str = "ERR the answers of the transaction are too long: this command was not \
                        executed";

/// A command that waits for EXEC, and its arguments.
type Queued = (&'static Command, Vec<Vec<u8>>);

/// What a client has said between MULTI and EXEC, and what it watches.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// The commands so far, after MULTI.
    queue: Option<Vec<Queued>>,
    /// The bytes of the commands and of the watched keys.
    bytes: usize,
    /// Their part of what the gateway has for all.
    share: Option<Share>,
    has_failed: bool,
    watched: HashMap<Vec<u8>, Option<Version>>,
}

/// What an argument or a key takes besides its bytes.
const OVERHEAD: usize = 64;

/// The bytes that an argument or a key takes.
fn taken(argument: &[u8]) -> usize {
    argument.len() + OVERHEAD
}

impl Transaction {
    /// Takes memory for so many bytes more, if there is enough for them.
    fn take(&mut self, copies: &Copies, more: usize) -> Result<(), &'static str> {
        if self.bytes + more > QUEUED_BYTES_MAX {
            return Err(TOO_MANY);
        }
        let after = self.bytes + more;
        let taken = self.share.as_ref().map_or(0, Share::bytes);
        // A little is anybody's, so those who have much hold up nobody else.
        if after > QUEUED_FREE_BYTES && after > taken {
            // Some at a time: it is shared by all threads.
            let part = QUEUED_FREE_BYTES.max(after - taken);
            let share = self.share.get_or_insert_with(|| Share::of(&copies.queued));
            if !share.grow(part, QUEUED_ALL_BYTES_MAX) {
                return Err(NO_ROOM);
            }
        }
        self.bytes = after;
        Ok(())
    }

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
        copies: &Copies,
        command: &'static Command,
        request: &[&[u8]],
    ) -> Result<(), &'static str> {
        let bytes = request.iter().map(|argument| taken(argument)).sum::<usize>();
        let has_room = self.queue.as_ref().is_some_and(|queue| queue.len() < QUEUED_MAX);
        let taken = if has_room { self.take(copies, bytes + OVERHEAD) } else { Err(TOO_MANY) };
        if taken.is_err() {
            self.has_failed = true;
            return taken;
        }
        let queue = self.queue.as_mut().expect("a transaction is open");
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
                    cx.pace().breathe().await;
                    let transaction = &mut self.transaction;
                    if transaction.watched.contains_key(*key) {
                        continue;
                    }
                    if transaction.watched.len() == WATCHED_MAX {
                        return Err("ERR this client watches too many keys".into());
                    }
                    transaction.take(&cx.shared.copies, taken(key))?;
                    let version = version(cx, key).await?;
                    transaction.watched.insert(key.to_vec(), version);
                }
                self.reply(output).ok();
            }
            "unwatch" => {
                // A transaction is not open: it would have queued the command.
                self.transaction = Transaction::default();
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
        // Without MULTI nothing is over: what the client watches stays watched.
        if !self.transaction.is_open() {
            return Err("ERR EXEC without MULTI".into());
        }
        // Its memory is given back when it has ended.
        let transaction = std::mem::take(&mut self.transaction);
        let Transaction { queue, has_failed, watched, share: _share, .. } = transaction;
        let queue = queue.expect("the transaction is open");
        if has_failed {
            return Err("EXECABORT Transaction discarded because of previous errors.".into());
        }
        let mut reply = self.reply(output);
        let (keys, longer) = keys_and_growth(cx, &queue).await;
        let is_of_one_key = keys.len() == 1 && queue.iter().all(|(c, _)| c.family.is_of_data());
        let watches_it = watched.len() == 1 && is_of_one_key;
        if let Some(version) = watched.get(keys.first().copied().unwrap_or_default())
            && watches_it
        {
            let draft = RefCell::new(cx.store.draft(keys[0], longer).await?);
            if draft.borrow().base() != *version {
                reply.null_array();
                return Ok(());
            }
            let start = reply.bytes.len();
            let _held = execute_queue((cx, client), cx.store.on(&draft), &queue, &mut reply).await;
            let done = cx.store.commit(draft.into_inner()).await;
            if !matches!(done, Ok(true)) {
                reply.bytes.truncate(start);
            }
            if !done? {
                reply.null_array();
            }
            return Ok(());
        }
        for (key, watched) in &watched {
            cx.pace().breathe().await;
            if version(cx, key).await? != *watched {
                reply.null_array();
                return Ok(());
            }
        }
        if !watched.is_empty() && !queue.is_empty() {
            return Err(SEVERAL_KEYS.into());
        }
        if !is_of_one_key {
            let _held = execute_queue((cx, client), cx.store, &queue, &mut reply).await;
            return Ok(());
        }
        let until = Instant::now() + UPDATE_TIME;
        while Instant::now() < until {
            let draft = RefCell::new(cx.store.draft(keys[0], longer).await?);
            let start = reply.bytes.len();
            let _held = execute_queue((cx, client), cx.store.on(&draft), &queue, &mut reply).await;
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

/// The keys that the commands name, each once, and the most bytes by which they make an item
/// longer.
async fn keys_and_growth<'q>(cx: &Context<'_>, queue: &'q [Queued]) -> (Vec<&'q [u8]>, usize) {
    let (mut keys, mut longer) = (Vec::<&[u8]>::new(), 0);
    for (command, request) in queue {
        cx.pace().breathe().await;
        keys.extend(command.keys(request.len()).map(|key| &*request[key]));
        // Of one key there may be a hundred thousand.
        if keys.len() > 1 && keys[keys.len() - 2] == keys[keys.len() - 1] {
            keys.pop();
        }
        longer = usize::saturating_add(longer, grows_by(command, request));
    }
    keys.sort_unstable();
    keys.dedup();
    (keys, longer.min(cx.shared.value_bytes_max as usize))
}

/// The version of a key's item, if there is one.
async fn version(cx: &Context<'_>, key: &[u8]) -> Result<Option<Version>, Failure> {
    cx.store.read(key, |item| item.map(|item| item.version)).await
}

/// The most bytes by which a command makes an item longer.
fn grows_by(command: &Command, request: &[Vec<u8>]) -> usize {
    let place = || number(&request[2]).ok().and_then(|at| usize::try_from(at).ok()).unwrap_or(0);
    match command.name {
        "setbit" => place() / 8 + 1,
        "setrange" => place().saturating_add(request[3].len()),
        // What it puts is in the request.
        _ => request.iter().skip(2).map(Vec::len).sum(),
    }
}

/// Executes the commands. Returns the share that their answers have of what the gateway holds:
/// others see it until the client is sent them.
async fn execute_queue(
    (cx, client): (&Context<'_>, &Client),
    store: Store<'_>,
    queue: &[Queued],
    reply: &mut Reply<'_>,
) -> Share {
    let start = reply.bytes.len();
    let mut held = Share::of(&cx.shared.copies.held);
    reply.array(queue.len());
    for (command, request) in queue {
        let len = reply.bytes.len() - start;
        held.set(len.saturating_sub(OUTPUT_BYTES));
        cx.pace().breathe().await;
        if len > EXEC_BYTES_MAX {
            tell(cx, Err(TOO_LONG.into()), reply);
            continue;
        }
        if len > OUTPUT_BYTES && !cx.shared.copies.may_hold() {
            tell(cx, Err(HELD.into()), reply);
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
            // WATCH ends with EXEC.
            _ if command.name == "unwatch" => reply.ok(),
            _ => {
                let start = reply.bytes.len();
                let done = connection::without_session(reply, command, &request);
                let done = done.unwrap_or_else(|| {
                    let name = command.name.to_ascii_uppercase();
                    let said =
                        format!("ERR {name} is not possible in a transaction of this gateway");
                    Err(said.into())
                });
                if done.is_err() {
                    reply.bytes.truncate(start);
                }
                tell(cx, done, reply);
            }
        }
    }
    held.set((reply.bytes.len() - start).saturating_sub(OUTPUT_BYTES));
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<Vec<u8>> {
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_transaction_has_so_many_bytes_and_a_little_of_them_is_no_part_of_all() {
        let copies = Copies::default();
        let mut transaction = Transaction::default();
        transaction.take(&copies, QUEUED_FREE_BYTES).unwrap();
        assert_eq!(copies.queued.bytes(), 0);
        let mut has = 0;
        for (more, part) in [
            (1, QUEUED_FREE_BYTES + 1),
            // Some at a time, and none while there are some.
            (1, QUEUED_FREE_BYTES),
            (QUEUED_FREE_BYTES - 1, 0),
        ] {
            transaction.take(&copies, more).unwrap();
            has += part;
            assert_eq!(copies.queued.bytes(), has);
        }
        transaction.take(&copies, QUEUED_BYTES_MAX - has).unwrap();
        assert_eq!(copies.queued.bytes(), QUEUED_BYTES_MAX);
        assert_eq!(transaction.take(&copies, 1), Err(TOO_MANY));
        let mut other = Transaction::default();
        assert_eq!(other.take(&copies, QUEUED_BYTES_MAX), Err(NO_ROOM));
        drop(transaction);
        assert_eq!(other.take(&copies, QUEUED_BYTES_MAX), Ok(()));
        drop(other);
        assert_eq!(copies.queued.bytes(), 0);
    }

    #[test]
    fn a_command_takes_its_bytes_and_those_of_the_list_that_it_is() {
        let mut transaction = Transaction { queue: Some(Vec::new()), ..Transaction::default() };
        let command = Command::of(b"set").unwrap();
        let request: [&[u8]; 3] = [b"SET", b"k", b"value"];
        transaction.queue(&Copies::default(), command, &request).unwrap();
        assert_eq!(transaction.bytes, 3 + 1 + 5 + 3 * OVERHEAD + OVERHEAD);
    }

    #[test]
    fn a_command_makes_an_item_longer_by_what_it_puts() {
        for (request, most) in [
            ("setbit k 7 1", 1),
            ("setbit k 800 1", 101),
            ("setrange k 100 abc", 103),
            ("append k abcd", 4),
            ("get k", 0),
        ] {
            let request = words(request);
            let command = Command::of(&request[0]).unwrap();
            assert_eq!(grows_by(command, &request), most, "{request:?}");
        }
    }
}
