//! The key and the flags of a meta command: one letter for each thing that a client wants or wants
//! to know, some with a token behind it.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::request::{self, Number, number};
use super::{BAD_LINE, expires};
use crate::failure::Failure;
use crate::item::Traits;
use crate::limits::MEMCACHED_KEY_BYTES;
use crate::store::Expires;

const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";

/// All flags but the `x` of `md`: as with memcached, a command takes those of the others as well,
/// and passes over them.
const KNOWN: &[u8] = b"bcfhklqstuvCDEFIJLMNOPRT";
/// The most words of a command, with its name and its key.
const WORDS_MAX: usize = 19;
/// The most bytes of an opaque token with its flag.
const OPAQUE_BYTES_MAX: usize = 32;

/// A command's key and flags.
pub(super) struct Meta<'a> {
    pub key: Vec<u8>,
    /// The key as it was given.
    pub given: &'a [u8],
    pub is_base64: bool,
    pub flags: Vec<(u8, &'a [u8])>,
    /// The flags that the answer to the command tells.
    told: &'static [u8],
}

impl<'a> Meta<'a> {
    /// Of the words of a command.
    pub fn of(words: &[&'a [u8]]) -> Result<Self, Failure> {
        let (first, told): (_, &[u8]) = match words[0] {
            b"mg" => (2, b"cfhklstvO"),
            b"ms" => (3, b"ckO"),
            b"md" => (2, b"kO"),
            _ => (2, b"cktvO"),
        };
        let given = words.get(1).filter(|key| key.len() <= MEMCACHED_KEY_BYTES).ok_or(BAD_LINE)?;
        if words.len() > WORDS_MAX {
            return Err(match words[0] {
                b"mg" => "CLIENT_ERROR options flags are too long".into(),
                _ => "CLIENT_ERROR options flags too long".into(),
            });
        }
        let clears = words[0] == b"md";
        let flags = parse(given, words.get(first..).unwrap_or_default(), clears);
        let flags = flags.map_err(|wrong| match words[0] {
            b"md" | b"ma" => "CLIENT_ERROR invalid or duplicate flag",
            _ => wrong,
        })?;
        let is_base64 = flags.iter().any(|(flag, _)| *flag == b'b');
        let key = decoded(given).filter(|_| is_base64).unwrap_or_else(|| given.to_vec());
        Ok(Self { key, given, is_base64, flags, told })
    }

    /// Of the words of an `me`, which has one flag.
    pub fn of_debug(words: &[&'a [u8]]) -> Result<Self, Failure> {
        let given = words.get(1).filter(|key| key.len() <= MEMCACHED_KEY_BYTES).ok_or(BAD_LINE)?;
        let is_base64 = words.get(2).is_some_and(|flag| *flag == b"b");
        let key = if is_base64 { decoded(given).ok_or(BAD_LINE)? } else { given.to_vec() };
        Ok(Self { key, given, is_base64, flags: Vec::new(), told: b"" })
    }

    pub fn token(&self, flag: u8) -> Option<&'a [u8]> {
        self.flags.iter().find(|(other, _)| *other == flag).map(|(_, token)| *token)
    }

    pub fn has(&self, flag: u8) -> bool {
        self.token(flag).is_some()
    }

    /// Whether the answer is to tell what a flag asks for.
    pub fn tells(&self, flag: u8) -> bool {
        self.told.contains(&flag) && self.has(flag)
    }

    /// The number behind a flag.
    pub fn number<T: Number>(&self, flag: u8) -> Option<T> {
        number(self.token(flag)?)
    }

    pub fn expiry(&self, flag: u8) -> Option<Expires> {
        self.number(flag).map(expires)
    }

    /// The expiry of an item where a flag stands, or behind all flags if it does not: as memcached,
    /// one flag after the other is done.
    pub fn expiry_at(&self, flag: u8, before: Expires, is_new: bool) -> Expires {
        let ahead = self.flags.iter().take_while(|(other, _)| *other != flag);
        let changes = ahead.filter(|(flag, _)| *flag == b'T' || *flag == b'N' && is_new);
        let last = changes.last().and_then(|(_, token)| number(token));
        last.map_or(before, expires)
    }

    /// The expiry that a command leaves, and the one that its `t` tells.
    pub fn expiries(&self, before: Expires, is_new: bool) -> (Expires, Expires) {
        let [after, told] = [0, b't'].map(|flag| self.expiry_at(flag, before, is_new));
        (after, told)
    }

    /// The client flags and the CAS unique that a command gives an item.
    pub fn traits(&self) -> Traits {
        let flags = self.token(b'F').and_then(request::flags).unwrap_or(0);
        Traits { flags, cas: self.number(b'E'), ..Traits::default() }
    }

    /// Refuses a token that the answer could not repeat.
    pub fn check_opaque(&self) -> Result<(), Failure> {
        match self.token(b'O') {
            Some(token) if !is_short(token) => Err("CLIENT_ERROR opaque token too long".into()),
            _ => Ok(()),
        }
    }
}

/// Whether an opaque token is short enough.
pub(super) fn is_short(opaque: &[u8]) -> bool {
    opaque.len() < OPAQUE_BYTES_MAX
}

fn decoded(key: &[u8]) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(key).ok().filter(|key| !key.is_empty())
}

/// The flags in these words, of a command that may clear an item. An error says what is wrong with
/// the first one that cannot be, or with the last token or key that cannot.
fn parse<'a>(
    key: &[u8],
    words: &[&'a [u8]],
    clears: bool,
) -> Result<Vec<(u8, &'a [u8])>, &'static str> {
    let mut flags: Vec<(u8, &[u8])> = Vec::with_capacity(words.len());
    let mut wrong = None;
    for word in words {
        let (flag, token) = word.split_first().expect("a word has a letter");
        if *flag >= 127 || flags.iter().any(|(other, _)| other == flag) {
            return Err("CLIENT_ERROR duplicate flag");
        }
        if !(KNOWN.contains(flag) || clears && *flag == b'x') {
            return Err("CLIENT_ERROR invalid flag");
        }
        flags.push((*flag, token));
        let (is_right, problem) = match flag {
            b'b' => (decoded(key).is_some(), "CLIENT_ERROR error decoding key"),
            b'N' | b'T' | b'R' => (number::<i64>(token).is_some(), BAD_TOKEN),
            b'C' | b'E' => (number::<u64>(token).is_some(), BAD_TOKEN),
            b'F' => (request::flags(token).is_some(), wrong.unwrap_or(BAD_LINE)),
            b'J' => (number::<u64>(token).is_some(), "CLIENT_ERROR invalid numeric initial value"),
            b'D' => (number::<u64>(token).is_some(), "CLIENT_ERROR invalid numeric delta value"),
            b'M' => (token.len() == 1, "CLIENT_ERROR incorrect length for M token"),
            _ => continue,
        };
        if !is_right {
            wrong = Some(problem);
        }
    }
    wrong.map_or(Ok(flags), Err)
}
