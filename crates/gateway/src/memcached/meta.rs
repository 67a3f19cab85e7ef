//! The meta commands.

use std::time::SystemTime;

use loch::{EngineError, Error, Version};

use super::flags::{Meta, is_short};
use super::request::Data;
use super::text::numeric;
use super::{BAD_LINE, Request, TOO_LARGE, line, replace, seconds_left, tell, write_value};
use crate::context::Context;
use crate::failure::Failure;
use crate::figures::add;
use crate::gets::{Format, Found};
use crate::item::{self, Traits};
use crate::limits::MEMCACHED_KEY_BYTES;
use crate::output::Output;
use crate::store::{Change, Expires, Item};
use crate::uses::{Use, Uses};

/// What a command did, and the item after it.
struct Outcome {
    /// `HD`, or why not.
    code: &'static str,
    item: Option<Item>,
    /// How the item was used before.
    used: Use,
    /// This client is to renew the item; another one was told so before.
    is_won: bool,
    was_won: bool,
    /// There was no item before.
    is_new: bool,
}

impl Outcome {
    fn refused(code: &'static str) -> Self {
        let used = Use::default();
        Self { code, item: None, used, is_won: false, was_won: false, is_new: false }
    }

    fn done(item: Option<Item>) -> Self {
        Self { item, ..Self::refused("HD") }
    }
}

pub(super) async fn execute(
    cx: &Context<'_>,
    request: Request<'_>,
    output: &mut Vec<u8>,
) -> Result<(), Failure> {
    let words = request.words;
    if words[0] == b"me" {
        return debug(cx, &Meta::of_debug(words)?, output).await;
    }
    if words.len() < 2 {
        return Err("ERROR".into());
    }
    if words[0] == b"ms" && request.data == Data::None {
        return Err(BAD_LINE.into());
    }
    let meta = Meta::of(words)?;
    let mode = meta.token(b'M').map_or(0, |token| token[0]);
    let modes: &[u8] = if words[0] == b"ms" { b"\0SEAPR" } else { b"\0I+D-" };
    if matches!(words[0], b"ms" | b"ma") && !modes.contains(&mode) {
        let verb = String::from_utf8_lossy(words[0]);
        return Err(format!("CLIENT_ERROR invalid mode for {verb} M token").into());
    }
    meta.check_opaque()?;
    let outcome = match words[0] {
        b"mg" => get(cx, &meta).await?,
        b"ms" => match request.data {
            Data::Block(data) => set(cx, &meta, mode, data).await?,
            Data::TooLarge { .. } => {
                // As with `replace`, in each mode.
                cx.store.delete(&meta.key).await?;
                return Err(TOO_LARGE.into());
            }
            _ => return Err("CLIENT_ERROR bad data chunk".into()),
        },
        b"md" => delete(cx, &meta).await?,
        _ => count(cx, &meta, mode).await?,
    };
    meta.answer(words[0], &outcome, output);
    Ok(())
}

/// Answers an `mg` that does nothing but read; a long value is sent from where it is. Returns the
/// bytes of the answer, about; none if the request needs more than that.
pub(super) async fn get_in_place<'t>(
    cx: &Context<'t>,
    words: &[&[u8]],
    output: &mut Output<'t>,
) -> Option<usize> {
    let only_reads = |meta: &Meta<'_>| !b"TNR".iter().any(|flag| meta.has(*flag));
    let meta = Meta::of(words).ok().filter(only_reads)?;
    meta.check_opaque().ok()?;
    let counters = &cx.figures().counters;
    let value = match cx.store.pin(&meta.key).await {
        Ok(Some(value)) => value,
        Ok(None) => {
            add(&counters.misses, 1);
            meta.answer(b"mg", &Outcome::refused("EN"), &mut output.bytes);
            return Some(0);
        }
        Err(Error::Table { source: EngineError::TooManyPins { .. }, .. }) => return None,
        Err(error) => {
            tell(cx, error.into(), &mut output.bytes);
            return Some(0);
        }
    };
    let (traits, data) = item::split(&value);
    if traits.is_stale || traits.is_won {
        return None;
    }
    add(&counters.hits, 1);
    let found = Found { traits, version: value.version(), len: data.len() };
    let uses = cx.store.uses();
    let facts = Facts::of_found(&found, value.expires_at(), uses.of(found.version));
    if !meta.has(b'u') {
        uses.read(found.version);
    }
    meta.head("HD", Some(&facts), &mut output.bytes);
    output.bytes.extend_from_slice(b"\r\n");
    if !meta.tells(b'v') {
        return Some(0);
    }
    write_value(&meta.key, value, found.len, b"\r\n", output);
    Some(found.len)
}

impl Meta<'_> {
    fn answer(&self, verb: &[u8], outcome: &Outcome, output: &mut Vec<u8>) {
        let Outcome { code, item, used, is_won, was_won, is_new } = outcome;
        let is_quiet = match verb {
            b"mg" => *code == "EN",
            // A number that begins is told in any case.
            b"ma" => *code == "HD" && !is_new,
            _ => *code == "HD",
        };
        if is_quiet && self.has(b'q') {
            return;
        }
        let facts = match item {
            Some(item) => Some(Facts::of(item, *used)),
            // As with memcached: nothing was stored, and the CAS unique is 0.
            None => (verb == b"ms").then(Facts::default),
        };
        self.head(code, facts.as_ref(), output);
        if let Some(item) = item.as_ref().filter(|_| verb == b"mg") {
            let marks = [(*was_won, " Z"), (item.traits.is_stale, " X"), (*is_won, " W")];
            marks.iter().filter(|(is, _)| *is).for_each(|(_, mark)| output.extend(mark.bytes()));
        }
        output.extend_from_slice(b"\r\n");
        if let Some(item) = item.as_ref().filter(|_| self.tells(b'v')) {
            output.extend_from_slice(item.data());
            output.extend_from_slice(b"\r\n");
        }
    }

    /// The code, or the length of the value, and what the flags add.
    fn head(&self, code: &str, item: Option<&Facts>, output: &mut Vec<u8>) {
        match item.filter(|_| self.tells(b'v')) {
            Some(item) => output.extend(format!("VA {}", item.len).bytes()),
            None => output.extend_from_slice(code.as_bytes()),
        }
        for (flag, token) in self.flags.iter().filter(|(flag, _)| self.tells(*flag)) {
            answer_flag(*flag, token, (self.given, self.is_base64), item, output);
        }
    }
}

/// What flags tell of an item.
#[derive(Default)]
struct Facts {
    flags: u32,
    cas: u64,
    len: usize,
    expires_at: Option<SystemTime>,
    used: Use,
}

impl Facts {
    fn of(item: &Item, used: Use) -> Self {
        let (flags, len) = (item.traits.flags, item.data().len());
        Self { flags, cas: item.cas(), len, expires_at: item.expires_at, used }
    }

    fn of_found(found: &Found, expires_at: Option<SystemTime>, used: Use) -> Self {
        Self { flags: found.traits.flags, cas: found.cas(), len: found.len, expires_at, used }
    }
}

/// What a flag adds to the answer about a key, which was given in base64 or not.
fn answer_flag(
    flag: u8,
    token: &[u8],
    (key, is_base64): (&[u8], bool),
    item: Option<&Facts>,
    output: &mut Vec<u8>,
) {
    match (flag, item) {
        (b'O', _) => {
            output.extend_from_slice(b" O");
            output.extend_from_slice(token);
        }
        (b'k', _) => {
            output.extend_from_slice(b" k");
            output.extend_from_slice(key);
            if is_base64 {
                output.extend_from_slice(b" b");
            }
        }
        (b'c', Some(item)) => output.extend(format!(" c{}", item.cas).bytes()),
        (b'f', Some(item)) => output.extend(format!(" f{}", item.flags).bytes()),
        (b's', Some(item)) => output.extend(format!(" s{}", item.len).bytes()),
        (b't', Some(item)) => match item.expires_at {
            None => output.extend_from_slice(b" t-1"),
            Some(at) => output.extend(format!(" t{}", seconds_left(at)).bytes()),
        },
        (b'h', Some(item)) => output.extend(format!(" h{}", u8::from(item.used.is_read)).bytes()),
        (b'l', Some(item)) => output.extend(format!(" l{}", item.used.idle_s).bytes()),
        _ => (),
    }
}

/// An `mg` that does nothing but read, and asks for nothing that [`Found`] does not tell.
pub(super) struct PlainGet<'a> {
    pub key: &'a [u8],
    flags: &'a [&'a [u8]],
}

impl<'a> PlainGet<'a> {
    /// The words of a request as such an `mg`, if they are one.
    pub fn of(words: &'a [&'a [u8]]) -> Option<Self> {
        let [b"mg", key, flags @ ..] = words else { return None };
        let is_plain = |flag: &&[u8]| match flag[0] {
            b'O' => is_short(&flag[1..]),
            flag => b"vkcfsqhl".contains(&flag),
        };
        let repeats = |at: usize| flags[..at].iter().any(|flag| flag[0] == flags[at][0]);
        let fits = key.len() <= MEMCACHED_KEY_BYTES
            && flags.iter().all(is_plain)
            && !(0..flags.len()).any(repeats);
        fits.then_some(Self { key, flags })
    }

    fn has(&self, flag: u8) -> bool {
        self.flags.iter().any(|other| other[0] == flag)
    }
}

/// The answers to these.
pub(super) struct Values<'a>(pub Vec<PlainGet<'a>>, pub &'a Uses);

impl Format for Values<'_> {
    fn head(&self, key: usize, found: Option<&Found>, output: &mut Vec<u8>) {
        let get = &self.0[key];
        let code = match found {
            None if get.has(b'q') => return,
            None => "EN",
            Some(found) if get.has(b'v') => &format!("VA {}", found.len),
            Some(_) => "HD",
        };
        output.extend_from_slice(code.as_bytes());
        let facts = found.map(|found| Facts::of_found(found, None, self.1.of(found.version)));
        for flag in get.flags {
            answer_flag(flag[0], &flag[1..], (get.key, false), facts.as_ref(), output);
        }
        output.extend_from_slice(b"\r\n");
    }

    fn tail(&self, key: usize, is_hit: bool) -> &'static [u8] {
        if is_hit && self.has_value(key) { b"\r\n" } else { b"" }
    }

    fn has_value(&self, key: usize) -> bool {
        self.0[key].has(b'v')
    }

    /// The client that reads a stale item may be told to renew it.
    fn is_all(&self, found: &Found) -> bool {
        !found.traits.is_stale && !found.traits.is_won
    }
}

/// The item as an update has left it. One whose time has passed is gone, and told all the same.
fn after(item: Option<Item>, version: Option<Version>) -> Option<Item> {
    let mut item = item?;
    item.version = version.unwrap_or(item.version);
    Some(item)
}

async fn get(cx: &Context<'_>, meta: &Meta<'_>) -> Result<Outcome, Failure> {
    let (touched, vivified) = (meta.expiry(b'T'), meta.expiry(b'N'));
    let recached_s = meta.expiry(b'R').map(|until| until.time().map_or(0, seconds_left));
    let own_cas = meta.number(b'E');
    let changes = touched.is_some() || vivified.is_some() || recached_s.is_some();
    let (counters, uses) = (&cx.figures().counters, cx.store.uses());
    let store = cx.store.answers(meta.has(b'v'));
    let found = match changes {
        true => None,
        false => store.get(&meta.key).await?.map(|item| (item.traits.is_stale, item)),
    };
    match found {
        None if !changes => {
            add(&counters.misses, 1);
            return Ok(Outcome::refused("EN"));
        }
        Some((is_stale, item)) if !is_stale || item.traits.is_won => {
            add(&counters.hits, 1);
            let (was_won, used) = (item.traits.is_won, uses.of(item.version));
            if !meta.has(b'u') {
                uses.read(item.version);
            }
            return Ok(Outcome { was_won, used, ..Outcome::done(Some(item)) });
        }
        _ => (),
    }
    let look = |item: Option<&Item>| {
        let Some(item) = item else {
            if vivified.is_none() {
                return Ok((Change::Keep, Outcome::refused("EN")));
            }
            let (expires, told) = meta.expiries(Expires::Never, true);
            let traits = Traits { is_won: true, cas: own_cas, ..Traits::default() };
            let made = Some(Item::new(Vec::new(), traits, told));
            let change = Change::Put { data: Vec::new(), traits, expires };
            return Ok((change, Outcome { is_won: true, is_new: true, ..Outcome::done(made) }));
        };
        let (was_won, before) = (item.traits.is_won, item.expires_at.into());
        let left_s = meta.expiry_at(b'R', before, false).time().map(seconds_left);
        let is_due = recached_s.zip(left_s).is_some_and(|(s, left_s)| left_s < s);
        let is_won = !was_won && (item.traits.is_stale || is_due);
        let traits = Traits { is_won: was_won || is_won, ..item.traits };
        let (expires, told) = meta.expiries(before, false);
        let mut seen = item.clone();
        (seen.traits, seen.expires_at) = (traits, told.time());
        let change = match is_won || touched.is_some() {
            true => Change::Put { data: item.data().to_vec(), traits, expires },
            false => Change::Keep,
        };
        let used = uses.of(item.version);
        Ok((change, Outcome { used, is_won, was_won, ..Outcome::done(Some(seen)) }))
    };
    let (outcome, version) = store.update(&meta.key, look).await?;
    let is_hit = outcome.item.is_some() && !outcome.is_new;
    if let Some(version) = version.filter(|_| is_hit && !meta.has(b'u')) {
        uses.read(version);
    }
    add(if is_hit { &counters.hits } else { &counters.misses }, 1);
    Ok(Outcome { item: after(outcome.item, version), ..outcome })
}

async fn set(cx: &Context<'_>, meta: &Meta<'_>, mode: u8, data: &[u8]) -> Result<Outcome, Failure> {
    let (traits, new) = (meta.traits(), meta.expiry(b'T').unwrap_or(Expires::Never));
    let vivified = meta.expiry(b'N');
    let (mode, joins) = (if mode == 0 { b'S' } else { mode }, matches!(mode, b'A' | b'P'));
    // 0 is no condition where values are joined, and no item's unique elsewhere.
    let unique = meta.number::<u64>(b'C').filter(|unique| *unique != 0 || !joins);
    add(&cx.figures().counters.sets, 1);
    // Of what is put, the CAS unique alone can be asked for.
    let done = |traits, expires| Outcome::done(Some(Item::new(Vec::new(), traits, expires)));
    if mode == b'S' && unique.is_none() {
        let version = replace(cx, &meta.key, data, (traits, new)).await?;
        let outcome = done(traits, new);
        return Ok(Outcome { item: after(outcome.item, Some(version)), ..outcome });
    }
    let put = |item: Option<&Item>| {
        let differs = unique.zip(item).is_some_and(|(unique, item)| unique != item.cas());
        let stales = meta.has(b'I') && unique != Some(0);
        let refused = match (mode, item) {
            (b'S' | b'R', None) if unique.is_some() => Some("NF"),
            (b'E', Some(_)) | (b'R', None) => Some("NS"),
            (b'A' | b'P', None) if vivified.is_none() => Some("NS"),
            (_, Some(_)) if differs && (joins || !stales) => Some("EX"),
            _ => None,
        };
        if let Some(code) = refused {
            return Ok((Change::Keep, Outcome::refused(code)));
        }
        let (data, traits, expires) = match (mode, item) {
            // The item is then no longer stale and nobody's to renew.
            (b'A' | b'P', Some(item)) => {
                let (old, flags) = (item.data(), item.traits.flags);
                let parts = if mode == b'A' { [old, data] } else { [data, old] };
                (parts.concat(), Traits { flags, ..traits }, item.expires_at.into())
            }
            (b'A' | b'P', None) => (data.to_vec(), traits, vivified.expect("it was looked for")),
            // An older value than the one that is there is stale, and keeps its time.
            (_, Some(item)) if differs => {
                let is_won = item.traits.is_won;
                let traits = Traits { is_stale: true, is_won, ..traits };
                (data.to_vec(), traits, item.expires_at.into())
            }
            _ => (data.to_vec(), traits, new),
        };
        Ok((Change::Put { data, traits, expires }, done(traits, expires)))
    };
    let (outcome, version) = cx.store.update(&meta.key, put).await?;
    Ok(Outcome { item: after(outcome.item, version), ..outcome })
}

async fn delete(cx: &Context<'_>, meta: &Meta<'_>) -> Result<Outcome, Failure> {
    let (unique, touched) = (meta.number::<u64>(b'C'), meta.expiry(b'T'));
    let own_cas = meta.number(b'E');
    let (stales, clears) = (meta.has(b'I'), meta.has(b'x'));
    if unique.is_none() && !stales && !clears {
        let is_deleted = cx.store.delete(&meta.key).await?;
        return Ok(Outcome::refused(if is_deleted { "HD" } else { "NF" }));
    }
    let delete = |item: Option<&Item>| {
        let Some(item) = item else { return Ok((Change::Keep, "NF")) };
        if unique.is_some_and(|unique| unique != item.cas()) {
            return Ok((Change::Keep, "EX"));
        }
        if !stales && !clears {
            return Ok((Change::Delete, "HD"));
        }
        let (flags, data) = match clears {
            true => (0, Vec::new()),
            false => (item.traits.flags, item.data().to_vec()),
        };
        let is_stale = stales || item.traits.is_stale;
        let is_won = item.traits.is_won && !stales;
        let traits = Traits { flags, is_stale, is_won, cas: own_cas };
        let expires = touched.filter(|_| stales).unwrap_or(item.expires_at.into());
        Ok((Change::Put { data, traits, expires }, "HD"))
    };
    Ok(Outcome::refused(cx.store.update(&meta.key, delete).await?.0))
}

async fn count(cx: &Context<'_>, meta: &Meta<'_>, mode: u8) -> Result<Outcome, Failure> {
    let delta = meta.number::<u64>(b'D').unwrap_or(1);
    let first = meta.number::<u64>(b'J').unwrap_or(0);
    // As memcached: 0 is no condition.
    let unique = meta.number::<u64>(b'C').filter(|unique| *unique != 0);
    let (vivified, own_cas) = (meta.expiry(b'N'), meta.number(b'E'));
    let adds = matches!(mode, 0 | b'I' | b'+');
    let count = |item: Option<&Item>| {
        let is_new = item.is_none();
        let (number, traits, before) = match item {
            None if vivified.is_none() => return Ok((Change::Keep, Outcome::refused("NF"))),
            None => (first, Traits { cas: own_cas, ..Traits::default() }, Expires::Never),
            Some(item) => {
                let differs = unique.is_some_and(|unique| unique != item.cas());
                // As memcached: an empty item is no number, whatever its unique is.
                if differs && !item.data().is_empty() {
                    return Ok((Change::Keep, Outcome::refused("EX")));
                }
                let before = numeric(item.data())?;
                let after = match adds {
                    true => before.wrapping_add(delta),
                    false => before.saturating_sub(delta),
                };
                let traits = Traits { cas: own_cas, ..item.traits };
                (after, traits, item.expires_at.into())
            }
        };
        let (expires, told) = meta.expiries(before, is_new);
        let data = number.to_string().into_bytes();
        let mut made = Item::new(data.clone(), traits, told);
        made.version = item.map_or(made.version, |item| item.version);
        let outcome = Outcome { is_new, ..Outcome::done(Some(made)) };
        Ok((Change::Put { data, traits, expires }, outcome))
    };
    let (outcome, version) = cx.store.update(&meta.key, count).await?;
    Ok(Outcome { item: after(outcome.item, version), ..outcome })
}

/// `me`: what is known of an item, for people.
async fn debug(cx: &Context<'_>, meta: &Meta<'_>, output: &mut Vec<u8>) -> Result<(), Failure> {
    let Some(item) = cx.store.get(&meta.key).await? else {
        line(output, "EN");
        return Ok(());
    };
    output.extend_from_slice(b"ME ");
    output.extend_from_slice(meta.given);
    let expires = item.expires_at.map_or("-1".to_owned(), |at| seconds_left(at).to_string());
    let Use { is_read, idle_s } = cx.store.uses().of(item.version);
    let fetched = if is_read { "yes" } else { "no" };
    let (cas, size) = (item.cas(), meta.key.len() + item.data().len());
    let told = format!(" exp={expires} la={idle_s} cas={cas} fetch={fetched} cls=1 size={size}");
    line(output, &told);
    Ok(())
}
