//! When keys expire.

use std::time::{SystemTime, UNIX_EPOCH};

use super::options::{Unit, is, number, shown};
use super::reply::Reply;
use super::strings::millis_left;
use crate::failure::Failure;
use crate::store::{Change, Expires, Item, Store, View};

pub(super) async fn execute(
    store: Store<'_>,
    command: &'static str,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    let key = request[1];
    match command {
        "expire" | "pexpire" | "expireat" | "pexpireat" => {
            let is_seconds = !command.starts_with('p');
            let unit = Unit { is_seconds, is_from_now: !command.ends_with("at") };
            let only = Only::parse(&request[3..])?;
            let at = unit.moment(number(request[2])?, command)?;
            let expire = |item: Option<&Item>| {
                if !item.is_some_and(|item| only.allows(item.expires_at, at)) {
                    return Ok((Change::Keep, false));
                }
                let expires = Expires::At(at);
                Ok((Change::Expire(expires), true))
            };
            reply.integer(store.update(key, expire).await?.0.into());
        }
        "persist" => {
            let persist = |item: Option<&Item>| match item {
                Some(item) if item.expires_at.is_some() => {
                    Ok((Change::Expire(Expires::Never), true))
                }
                _ => Ok((Change::Keep, false)),
            };
            reply.integer(store.update(key, persist).await?.0.into());
        }
        "ttl" => answer(store, key, reply, |at| rounded_s(millis_left(at))).await?,
        "pttl" => answer(store, key, reply, millis_left).await?,
        "expiretime" => answer(store, key, reply, |at| rounded_s(since_epoch(at))).await?,
        "pexpiretime" => answer(store, key, reply, since_epoch).await?,
        other => unreachable!("{other} is a command on expiry"),
    }
    Ok(())
}

fn rounded_s(millis: i64) -> i64 {
    millis / 1000 + (millis % 1000 + 500) / 1000
}

fn since_epoch(at: SystemTime) -> i64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

/// -2 for a key that is not there, -1 for one that does not expire.
async fn answer(
    store: Store<'_>,
    key: &[u8],
    reply: &mut Reply<'_>,
    time: impl Fn(SystemTime) -> i64,
) -> Result<(), Failure> {
    let left = |item: Option<View<'_>>| item.map_or(-2, |item| item.expires_at.map_or(-1, time));
    reply.integer(store.read(key, left).await?);
    Ok(())
}

/// On what conditions an expiry is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Only {
    has_none: bool,
    has_one: bool,
    later: bool,
    sooner: bool,
}

impl Only {
    fn parse(arguments: &[&[u8]]) -> Result<Self, Failure> {
        let mut only = Self::default();
        for argument in arguments {
            match *argument {
                a if is(a, "nx") => only.has_none = true,
                a if is(a, "xx") => only.has_one = true,
                a if is(a, "gt") => only.later = true,
                a if is(a, "lt") => only.sooner = true,
                a => {
                    return Err(format!("ERR Unsupported option {}", shown(a)).into());
                }
            }
        }
        if only.has_none && (only.has_one || only.later || only.sooner) {
            return Err(
                "ERR NX and XX, GT or LT options at the same time are not compatible".into()
            );
        }
        if only.later && only.sooner {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(only)
    }

    /// A key that does not expire expires later than any other.
    fn allows(self, now: Option<SystemTime>, at: SystemTime) -> bool {
        let is_allowed = [
            (self.has_none, now.is_none()),
            (self.has_one, now.is_some()),
            (self.later, now.is_some_and(|now| at > now)),
            (self.sooner, now.is_none_or(|now| at < now)),
        ];
        is_allowed.iter().all(|(asked, holds)| !asked || *holds)
    }
}
