//! The commands of Redis that the gateway has: their names, arguments and keys.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::options::shown_of;

/// What executes a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Bits,
    Connection,
    Expiry,
    Keys,
    Numbers,
    Scan,
    Server,
    Strings,
    Transaction,
}

impl Family {
    /// Whether its commands do nothing but read and change items.
    pub fn is_of_data(self) -> bool {
        use Family::{Bits, Expiry, Keys, Numbers, Strings};
        matches!(self, Bits | Expiry | Keys | Numbers | Strings)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Bits => "bitmap",
            Self::Connection => "connection",
            Self::Expiry | Self::Keys | Self::Scan => "generic",
            Self::Numbers | Self::Strings => "string",
            Self::Server => "server",
            Self::Transaction => "transactions",
        }
    }
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// In lower case.
    pub name: &'static str,
    /// The number of arguments, with the name; negative: at least so many.
    pub arity: i32,
    pub family: Family,
    /// The first key, the last one (from the end if negative), and the distance of two; 0: no keys.
    pub keys: (i32, i32, i32),
    pub flags: &'static [&'static str],
    /// Their names in lower case, and the number of arguments as for a command.
    pub subcommands: &'static [(&'static str, i32)],
}

/// Whether a command or subcommand of this arity takes so many arguments.
fn takes(arity: i32, arguments: usize) -> bool {
    match usize::try_from(arity) {
        Ok(exactly) => arguments == exactly,
        Err(_) => arguments >= arity.unsigned_abs() as usize,
    }
}

impl Command {
    pub fn takes(&self, arguments: usize) -> bool {
        takes(self.arity, arguments)
    }

    /// What is wrong with a request before anything of it is executed, if something is.
    pub fn refuses(&self, request: &[&[u8]]) -> Option<String> {
        let wrong_number =
            |name: &str| format!("ERR wrong number of arguments for '{name}' command");
        if !self.takes(request.len()) {
            return Some(wrong_number(self.name));
        }
        let asked = request.get(1).filter(|_| !self.subcommands.is_empty())?;
        let is_asked = |known: &&(&str, i32)| asked.eq_ignore_ascii_case(known.0.as_bytes());
        match self.subcommands.iter().find(is_asked) {
            Some((_, arity)) if takes(*arity, request.len()) => None,
            Some((name, _)) => Some(wrong_number(&format!("{}|{name}", self.name))),
            None => {
                let (asked, name) = (shown_of(asked, 128), self.name.to_ascii_uppercase());
                Some(format!("ERR unknown subcommand '{asked}'. Try {name} HELP."))
            }
        }
    }

    /// The places of the keys among so many arguments.
    pub fn keys(&self, arguments: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { arguments as i32 + last } else { last };
        let has_keys = first > 0;
        let places = first.max(1)..=last.min(arguments as i32 - 1);
        places.step_by(step.max(1) as usize).filter(move |_| has_keys).map(|place| place as usize)
    }

    /// The command of a name in any case.
    pub fn of(name: &[u8]) -> Option<&'static Self> {
        static BY_NAME: LazyLock<HashMap<&'static [u8], &'static Command>> =
            LazyLock::new(|| COMMANDS.iter().map(|c| (c.name.as_bytes(), c)).collect());
        let mut lower = [0; 16];
        let lower = lower.get_mut(..name.len())?;
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        BY_NAME.get(&*lower).copied()
    }
}

const READ: &[&str] = &["readonly", "fast"];
const WRITE: &[&str] = &["write", "denyoom", "fast"];
const REMOVE: &[&str] = &["write", "fast"];
const SCAN: &[&str] = &["readonly"];
const SAY: &[&str] = &["noscript", "loading", "stale", "fast"];
const ASK: &[&str] = &["loading", "stale"];

const fn command(
    name: &'static str,
    arity: i32,
    family: Family,
    keys: (i32, i32, i32),
    flags: &'static [&'static str],
) -> Command {
    Command { name, arity, family, keys, flags, subcommands: &[] }
}

impl Command {
    const fn with(self, subcommands: &'static [(&'static str, i32)]) -> Self {
        Self { subcommands, ..self }
    }
}

const OF_CLIENT: &[(&str, i32)] = &[
    ("id", 2),
    ("setname", 3),
    ("getname", 2),
    ("setinfo", 4),
    ("info", 2),
    ("list", -2),
    ("kill", -3),
    ("no-evict", 3),
    ("no-touch", 3),
    ("reply", 3),
    ("tracking", -3),
    ("caching", 3),
    ("help", 2),
];
const OF_COMMAND: &[(&str, i32)] =
    &[("info", -2), ("count", 2), ("list", -2), ("docs", -2), ("getkeys", -4), ("help", 2)];
const OF_CONFIG: &[(&str, i32)] =
    &[("get", -3), ("set", -4), ("resetstat", 2), ("rewrite", 2), ("help", 2)];
const OF_MEMORY: &[(&str, i32)] = &[("usage", -3), ("help", 2)];
const OF_OBJECT: &[(&str, i32)] =
    &[("encoding", 3), ("freq", 3), ("idletime", 3), ("refcount", 3), ("help", 2)];
const OF_SLOWLOG: &[(&str, i32)] = &[("get", -2), ("len", 2), ("reset", 2), ("help", 2)];

const ONE: (i32, i32, i32) = (1, 1, 1);
const TWO: (i32, i32, i32) = (1, 2, 1);
const ALL: (i32, i32, i32) = (1, -1, 1);
const PAIRS: (i32, i32, i32) = (1, -1, 2);
const NONE: (i32, i32, i32) = (0, 0, 0);

/// All of them, by family.
pub(crate) const COMMANDS: &[Command] = {
    use Family::{Bits, Connection, Expiry, Keys, Numbers, Scan, Server, Strings, Transaction};
    &[
        command("bitcount", -2, Bits, ONE, SCAN),
        command("getbit", 3, Bits, ONE, READ),
        command("setbit", 4, Bits, ONE, WRITE),
        command("auth", -2, Connection, NONE, SAY),
        command("client", -2, Connection, NONE, SAY).with(OF_CLIENT),
        command("command", -1, Connection, NONE, ASK).with(OF_COMMAND),
        command("echo", 2, Connection, NONE, SAY),
        command("hello", -1, Connection, NONE, SAY),
        command("ping", -1, Connection, NONE, SAY),
        command("quit", -1, Connection, NONE, SAY),
        command("reset", 1, Connection, NONE, SAY),
        command("select", 2, Connection, NONE, SAY),
        command("expire", -3, Expiry, ONE, REMOVE),
        command("expireat", -3, Expiry, ONE, REMOVE),
        command("expiretime", 2, Expiry, ONE, READ),
        command("persist", 2, Expiry, ONE, REMOVE),
        command("pexpire", -3, Expiry, ONE, REMOVE),
        command("pexpireat", -3, Expiry, ONE, REMOVE),
        command("pexpiretime", 2, Expiry, ONE, READ),
        command("pttl", 2, Expiry, ONE, READ),
        command("ttl", 2, Expiry, ONE, READ),
        command("copy", -3, Keys, TWO, WRITE),
        command("del", -2, Keys, ALL, REMOVE),
        command("exists", -2, Keys, ALL, READ),
        command("object", -2, Keys, (2, 2, 1), READ).with(OF_OBJECT),
        command("rename", 3, Keys, TWO, WRITE),
        command("renamenx", 3, Keys, TWO, WRITE),
        command("touch", -2, Keys, ALL, READ),
        command("type", 2, Keys, ONE, READ),
        command("unlink", -2, Keys, ALL, REMOVE),
        command("decr", 2, Numbers, ONE, WRITE),
        command("decrby", 3, Numbers, ONE, WRITE),
        command("incr", 2, Numbers, ONE, WRITE),
        command("incrby", 3, Numbers, ONE, WRITE),
        command("incrbyfloat", 3, Numbers, ONE, WRITE),
        command("dbsize", 1, Scan, NONE, READ),
        command("flushall", -1, Scan, NONE, REMOVE),
        command("flushdb", -1, Scan, NONE, REMOVE),
        command("keys", 2, Scan, NONE, SCAN),
        command("randomkey", 1, Scan, NONE, SCAN),
        command("scan", -2, Scan, NONE, SCAN),
        command("config", -2, Server, NONE, ASK).with(OF_CONFIG),
        command("info", -1, Server, NONE, ASK),
        command("memory", -2, Server, (2, 2, 1), SCAN).with(OF_MEMORY),
        command("slowlog", -2, Server, NONE, ASK).with(OF_SLOWLOG),
        command("time", 1, Server, NONE, ASK),
        command("append", 3, Strings, ONE, WRITE),
        command("get", 2, Strings, ONE, READ),
        command("getdel", 2, Strings, ONE, REMOVE),
        command("getex", -2, Strings, ONE, REMOVE),
        command("getrange", 4, Strings, ONE, SCAN),
        command("getset", 3, Strings, ONE, WRITE),
        command("mget", -2, Strings, ALL, READ),
        command("mset", -3, Strings, PAIRS, WRITE),
        command("msetnx", -3, Strings, PAIRS, WRITE),
        command("psetex", 4, Strings, ONE, WRITE),
        command("set", -3, Strings, ONE, WRITE),
        command("setex", 4, Strings, ONE, WRITE),
        command("setnx", 3, Strings, ONE, WRITE),
        command("setrange", 4, Strings, ONE, WRITE),
        command("strlen", 2, Strings, ONE, READ),
        command("substr", 4, Strings, ONE, SCAN),
        command("discard", 1, Transaction, NONE, SAY),
        command("exec", 1, Transaction, NONE, SAY),
        command("multi", 1, Transaction, NONE, SAY),
        command("unwatch", 1, Transaction, NONE, SAY),
        command("watch", -2, Transaction, ALL, SAY),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_known_by_its_name_in_any_case_and_knows_its_keys() {
        let command = |name: &str| Command::of(name.as_bytes()).unwrap();
        assert_eq!(command("GeT").name, "get");
        assert!(Command::of(b"lpush").is_none() && Command::of(&[b'x'; 99]).is_none());
        let keys = |name, arguments| command(name).keys(arguments).collect::<Vec<_>>();
        assert_eq!(keys("get", 2), [1]);
        assert_eq!(keys("mset", 5), [1, 3]);
        assert_eq!(keys("del", 4), [1, 2, 3]);
        assert_eq!(keys("copy", 5), [1, 2]);
        assert_eq!(keys("object", 2), [0; 0]);
        assert_eq!(keys("ping", 2), [0; 0]);
        assert!(command("get").takes(2) && !command("get").takes(3));
        assert!(command("set").takes(9) && !command("set").takes(2));
    }

    #[test]
    fn a_request_is_refused_for_its_subcommand_or_the_number_of_its_arguments() {
        let refuses = |text: &str| {
            let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
            Command::of(words[0]).unwrap().refuses(&words)
        };
        for right in ["command", "SLOWLOG Get 5 x", "get k", "object ENCODING k", "client id"] {
            assert_eq!(refuses(right), None, "{right}");
        }
        let number = |name| Some(format!("ERR wrong number of arguments for '{name}' command"));
        assert_eq!(refuses("get"), number("get"));
        assert_eq!(refuses("client"), number("client"));
        assert_eq!(refuses("Client Id x"), number("client|id"));
        let unknown = "ERR unknown subcommand 'What'. Try SLOWLOG HELP.".to_owned();
        assert_eq!(refuses("slowlog What"), Some(unknown));
    }

    #[test]
    fn every_command_is_there_once() {
        let mut names: Vec<_> = COMMANDS.iter().map(|command| command.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COMMANDS.len());
    }
}
