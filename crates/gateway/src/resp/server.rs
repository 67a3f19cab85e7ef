//! Commands about the gateway.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::connection::{help, subcommand};
use super::glob::Pattern;
use super::info;
use super::options::{SYNTAX, is, number, shown};
use super::reply::Reply;
use super::table::Command;
use crate::context::Context;
use crate::failure::Failure;
use crate::store::Store;

pub(super) async fn execute(
    cx: &Context<'_>,
    store: Store<'_>,
    command: &'static Command,
    request: &[&[u8]],
    reply: &mut Reply<'_>,
) -> Result<(), Failure> {
    if !command.subcommands.is_empty() && is(request[1], "help") {
        help(reply, command);
        return Ok(());
    }
    match command.name {
        "time" => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            reply.array(2);
            reply.bulk(now.as_secs().to_string().as_bytes());
            reply.bulk(now.subsec_micros().to_string().as_bytes());
        }
        "info" => {
            let text = info::text(cx, &request[1..]).await?;
            reply.verbatim(&text);
        }
        "config" => config(cx, request, reply).await?,
        "slowlog" => slowlog(cx, request, reply)?,
        "memory" => memory(store, request, reply).await?,
        other => unreachable!("{other} is a command about the gateway"),
    }
    Ok(())
}

/// What clients ask of the configuration.
fn parameters(cx: &Context<'_>) -> Vec<(&'static str, String)> {
    let text = str::to_owned;
    let micros = |time: Duration| time.as_micros().to_string();
    vec![
        ("appendonly", text("no")),
        ("databases", text("1")),
        ("maxclients", cx.shared.clients.most.to_string()),
        ("maxmemory", cx.shared.table_bytes.to_string()),
        ("maxmemory-policy", text(cx.policy())),
        ("proto-max-bulk-len", crate::limits::ARGUMENT_BYTES_MAX.to_string()),
        ("save", text("")),
        (
            "slowlog-log-slower-than",
            cx.shared.slowlog.slower_than().map_or("-1".to_owned(), micros),
        ),
        ("slowlog-max-len", crate::slowlog::KEPT.to_string()),
        ("timeout", text("0")),
    ]
}

async fn config(cx: &Context<'_>, request: &[&[u8]], reply: &mut Reply<'_>) -> Result<(), Failure> {
    match (subcommand(request).as_str(), &request[2..]) {
        ("get", patterns @ [_, ..]) => {
            let (mut rest, mut found) = (parameters(cx), Vec::new());
            for pattern in patterns {
                let pattern = Pattern::parse(&pattern.to_ascii_lowercase())?;
                for parameter in std::mem::take(&mut rest) {
                    let is_one = pattern.matches(parameter.0.as_bytes(), cx.pace()).await;
                    if is_one { &mut found } else { &mut rest }.push(parameter);
                }
            }
            found.sort_unstable();
            reply.map(found.len());
            for (name, value) in found {
                reply.bulk(name.as_bytes());
                reply.bulk(value.as_bytes());
            }
        }
        ("set", pairs @ [_, _, ..]) if pairs.len() % 2 == 0 => {
            let known = parameters(cx);
            for pair in pairs.chunks_exact(2) {
                let asked = String::from_utf8_lossy(pair[0]).to_ascii_lowercase();
                let Some((_, value)) = known.iter().find(|(name, _)| *name == asked) else {
                    let asked = shown(pair[0]);
                    return Err(format!(
                        "ERR Unknown option or number of arguments for CONFIG SET - '{asked}'"
                    )
                    .into());
                };
                // To set what is there already is no change.
                if value.as_bytes() != pair[1] {
                    return Err(format!(
                        "ERR CONFIG SET failed (possibly related to argument '{asked}') - can't set \
                         immutable config"
                    )
                    .into());
                }
            }
            reply.ok();
        }
        ("resetstat", []) => {
            cx.shared.threads.iter().for_each(|thread| thread.figures.reset());
            reply.ok();
        }
        ("rewrite", []) => return Err("ERR The server is running without a config file".into()),
        _ => return Err(SYNTAX.into()),
    }
    Ok(())
}

fn slowlog(cx: &Context<'_>, request: &[&[u8]], reply: &mut Reply<'_>) -> Result<(), Failure> {
    let log = &cx.shared.slowlog;
    match (subcommand(request).as_str(), &request[2..]) {
        ("get", count @ ([] | [_])) => {
            let count = match count.first().map(|count| number(count)) {
                None => 10,
                Some(Ok(-1)) => usize::MAX,
                Some(Ok(count @ 0..)) => count as usize,
                Some(_) => {
                    return Err("ERR count should be greater than or equal to -1".into());
                }
            };
            let slow = log.last(count);
            reply.array(slow.len());
            for slow in slow {
                reply.array(6);
                [slow.id, slow.at_s, slow.took_us].iter().for_each(|n| reply.integer(*n as i64));
                reply.array(slow.arguments.len());
                slow.arguments.iter().for_each(|argument| reply.bulk(argument));
                reply.bulk(slow.address.as_bytes());
                reply.bulk(slow.name.as_bytes());
            }
        }
        ("len", []) => reply.integer(log.len() as i64),
        ("reset", []) => {
            log.reset();
            reply.ok();
        }
        _ => {
            return Err(
                "ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG \
                        HELP."
                    .into(),
            );
        }
    }
    Ok(())
}

async fn memory(store: Store<'_>, request: &[&[u8]], reply: &mut Reply<'_>) -> Result<(), Failure> {
    match (subcommand(request).as_str(), &request[2..]) {
        ("usage", [key, samples @ ..]) => {
            match samples {
                [] => (),
                [word, count, rest @ ..] if is(word, "samples") => {
                    number(count)?;
                    if !rest.is_empty() {
                        return Err(SYNTAX.into());
                    }
                }
                _ => return Err(SYNTAX.into()),
            }
            match store.read(key, |item| item.map(|item| item.data.len())).await? {
                // An index slot, the entry's header, key and bytes.
                Some(len) => reply.integer((8 + 16 + key.len() + len) as i64),
                None => reply.null(),
            }
        }
        _ => unreachable!("a request with another subcommand was refused"),
    }
    Ok(())
}
