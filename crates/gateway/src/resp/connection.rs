//! Commands about the connection.

use super::options::{SYNTAX, is, number, shown};
use super::table::{COMMANDS, Command};
use super::{Next, Reply, Session};
use crate::clients::Client;
use crate::context::Context;
use crate::failure::Failure;
use crate::limits::NAME_BYTES_MAX;

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the \
                           default user. Are you sure your configuration is correct?";

pub(super) async fn execute(
    session: &mut Session,
    cx: &Context<'_>,
    client: &Client,
    command: &'static Command,
    request: &[&[u8]],
    output: &mut Vec<u8>,
) -> Result<Next, Failure> {
    match command.name {
        "hello" => hello(session, cx, client, request, output)?,
        "auth" => {
            if request.len() > 3 {
                return Err(SYNTAX.into());
            }
            let (user, password) = match request {
                [_, user, password] => (*user, *password),
                _ => (&b"default"[..], request[1]),
            };
            if cx.shared.password.is_none() && request.len() == 2 {
                return Err(NO_PASSWORD.into());
            }
            authenticate(session, cx, client, user, password)?;
            session.reply(output).ok();
        }
        "quit" => {
            session.reply(output).ok();
            return Ok(Next::Ends);
        }
        "reset" => {
            *session = Session::new(cx.shared.password.is_some());
            let mut said = client.said();
            said.name.clear();
            said.resp = 2;
            session.reply(output).simple("RESET");
        }
        "client" => return about_clients(session, (cx, client), command, request, output),
        _ => without_session(&mut session.reply(output), command, request)
            .expect("it is a command about the connection")?,
    }
    Ok(Next::Goes)
}

/// Executes a command that says nothing about the connection, though it belongs to this family.
/// None: it is another one.
pub(super) fn without_session(
    reply: &mut Reply<'_>,
    command: &Command,
    request: &[&[u8]],
) -> Option<Result<(), Failure>> {
    match (command.name, request) {
        ("ping", [_]) => reply.simple("PONG"),
        ("ping", [_, text]) | ("echo", [_, text]) => reply.bulk(text),
        ("ping", _) => return Some(Err("ERR wrong number of arguments for 'ping' command".into())),
        ("select", [_, database, ..]) => match number(database) {
            Ok(0) => reply.ok(),
            Ok(_) => return Some(Err("ERR DB index is out of range".into())),
            Err(failure) => return Some(Err(failure)),
        },
        ("command", _) => return Some(about_commands(reply, command, request)),
        _ => return None,
    }
    Some(Ok(()))
}

fn authenticate(
    session: &mut Session,
    cx: &Context<'_>,
    client: &Client,
    user: &[u8],
    password: &[u8],
) -> Result<(), Failure> {
    let is_right = cx.shared.password.as_ref().is_none_or(|right| right.is(password));
    if user != b"default" || !is_right {
        session.has_guessed = !session.is_known;
        cx.has_guessed(client);
        return Err(WRONG_PASSWORD.into());
    }
    session.is_known = true;
    cx.shared.clients.knows(client);
    Ok(())
}

fn hello(
    session: &mut Session,
    cx: &Context<'_>,
    client: &Client,
    request: &[&[u8]],
    output: &mut Vec<u8>,
) -> Result<(), Failure> {
    let resp = match request.get(1) {
        None => session.resp,
        Some(version) => match number(version) {
            Ok(resp @ (2 | 3)) => resp as u8,
            Ok(_) => return Err("NOPROTO unsupported protocol version".into()),
            Err(_) => {
                return Err("ERR Protocol version is not an integer or out of range".into());
            }
        },
    };
    let mut name = None;
    let mut options = request.get(2..).unwrap_or_default().iter();
    while let Some(option) = options.next() {
        match *option {
            o if is(o, "auth") => {
                let (Some(user), Some(password)) = (options.next(), options.next()) else {
                    return Err(wrong_hello(option).into());
                };
                authenticate(session, cx, client, user, password)?;
            }
            o if is(o, "setname") => match options.next() {
                Some(given) => name = Some(client_name(given)?),
                None => return Err(wrong_hello(option).into()),
            },
            _ => return Err(wrong_hello(option).into()),
        }
    }
    if !session.is_known {
        return Err(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise \
                    the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the \
                    client and select the RESP protocol version at the same time"
                .into(),
        );
    }
    session.resp = resp;
    client.said().resp = resp;
    if let Some(name) = name {
        client.said().name = name;
    }
    let mut reply = session.reply(output);
    reply.map(7);
    for (field, value) in [("server", "redis"), ("version", super::info::VERSION)] {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (field, value) in [("proto", i64::from(resp)), ("id", client.id as i64)] {
        reply.bulk(field.as_bytes());
        reply.integer(value);
    }
    for (field, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(())
}

fn wrong_hello(option: &[u8]) -> String {
    format!("ERR Syntax error in HELLO option '{}'", shown(option))
}

fn client_name(name: &[u8]) -> Result<String, Failure> {
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("ERR Names have up to {NAME_BYTES_MAX} bytes in this gateway").into());
    }
    match name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        true => Ok(String::from_utf8_lossy(name).into_owned()),
        false => {
            Err("ERR Client names cannot contain spaces, newlines or special characters.".into())
        }
    }
}

/// The subcommands of a command, as Redis shows them.
pub(super) fn help(reply: &mut Reply<'_>, command: &Command) {
    let unsupported = ["caching", "reply", "tracking", "help"];
    let known = command.subcommands.iter().filter(|(name, _)| !unsupported.contains(name));
    let name = command.name.to_ascii_uppercase();
    reply.array(known.clone().count() + 3);
    reply.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    known.for_each(|(subcommand, _)| reply.simple(&subcommand.to_ascii_uppercase()));
    ["HELP", "    Print this help."].iter().for_each(|line| reply.simple(line));
}

pub(super) fn subcommand(request: &[&[u8]]) -> String {
    request
        .get(1)
        .map(|name| String::from_utf8_lossy(name).to_ascii_lowercase())
        .unwrap_or_default()
}

fn about_commands(
    reply: &mut Reply<'_>,
    command: &Command,
    request: &[&[u8]],
) -> Result<(), Failure> {
    match (subcommand(request).as_str(), &request[1.min(request.len())..]) {
        ("", []) | ("info", [_]) => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| describe(reply, command));
        }
        ("info", [_, names @ ..]) => {
            reply.array(names.len());
            for name in names {
                match Command::of(name) {
                    Some(command) => describe(reply, command),
                    None => reply.null(),
                }
            }
        }
        ("count", [_]) => reply.integer(COMMANDS.len() as i64),
        ("list", [_]) => {
            reply.array(COMMANDS.len());
            COMMANDS.iter().for_each(|command| reply.bulk(command.name.as_bytes()));
        }
        ("docs", [_, names @ ..]) => {
            let known: Vec<&Command> = match names {
                [] => COMMANDS.iter().collect(),
                names => names.iter().filter_map(|name| Command::of(name)).collect(),
            };
            reply.map(known.len());
            for command in known {
                reply.bulk(command.name.as_bytes());
                reply.map(2);
                reply.bulk(b"group");
                reply.bulk(command.family.name().as_bytes());
                reply.bulk(b"arity");
                reply.integer(command.arity.into());
            }
        }
        ("getkeys", [_, name, _, ..]) => {
            let command = Command::of(name).filter(|c| c.takes(request.len() - 2));
            let command = command.ok_or("ERR Invalid command specified")?;
            let keys: Vec<usize> = command.keys(request.len() - 2).collect();
            if keys.is_empty() {
                return Err("ERR The command has no key arguments".into());
            }
            reply.array(keys.len());
            keys.iter().for_each(|key| reply.bulk(request[key + 2]));
        }
        ("help", [_]) => help(reply, command),
        _ => return Err(SYNTAX.into()),
    }
    Ok(())
}

fn describe(reply: &mut Reply<'_>, command: &Command) {
    reply.array(10);
    reply.bulk(command.name.as_bytes());
    reply.integer(command.arity.into());
    reply.set(command.flags.len());
    command.flags.iter().for_each(|flag| reply.simple(flag));
    let (first, last, step) = command.keys;
    [first, last, step].iter().for_each(|number| reply.integer((*number).into()));
    reply.set(1);
    reply.simple(&format!("@{}", command.family.name()));
    // Tips, specifications of keys, subcommands.
    (0..3).for_each(|_| reply.array(0));
}

fn about_clients(
    session: &mut Session,
    (cx, client): (&Context<'_>, &Client),
    command: &Command,
    request: &[&[u8]],
    output: &mut Vec<u8>,
) -> Result<Next, Failure> {
    let mut reply = session.reply(output);
    match (subcommand(request).as_str(), &request[2..]) {
        ("id", []) => reply.integer(client.id as i64),
        ("setname", [name]) => {
            client.said().name = client_name(name)?;
            reply.ok();
        }
        ("getname", []) => {
            let name = client.said().name.clone();
            reply.value((!name.is_empty()).then_some(name.as_bytes()));
        }
        ("setinfo", [attribute, value]) => {
            let value = client_name(value).map_err(|failure| {
                if value.len() > NAME_BYTES_MAX {
                    return failure;
                }
                let attribute = String::from_utf8_lossy(attribute).to_ascii_lowercase();
                format!("ERR {attribute} cannot contain spaces, newlines or special characters.")
                    .into()
            })?;
            match *attribute {
                a if is(a, "lib-name") => client.said().library = value,
                a if is(a, "lib-ver") => client.said().library_version = value,
                a => {
                    return Err(format!("ERR Unrecognized option '{}'", shown(a)).into());
                }
            }
            reply.ok();
        }
        ("info", []) => reply.verbatim(&line(client)),
        ("list", options) => {
            let all = cx.shared.clients.list();
            let ids: Option<Vec<u64>> = match options {
                [] => None,
                [kind, value] if is(kind, "type") => match is_normal(value)? {
                    true => None,
                    false => Some(Vec::new()),
                },
                [id, ids @ ..] if is(id, "id") && !ids.is_empty() => {
                    let ids = ids.iter().map(|id| number(id).map(|id| id as u64));
                    Some(ids.collect::<Result<_, _>>().map_err(|_| "ERR Invalid client ID")?)
                }
                _ => return Err(SYNTAX.into()),
            };
            let wanted = |client: &u64| ids.as_ref().is_none_or(|ids| ids.contains(client));
            let lines = all.iter().filter(|client| wanted(&client.id)).map(|c| line(c));
            reply.verbatim(&lines.collect::<String>());
        }
        ("help", []) => help(&mut reply, command),
        ("kill", options) => return kill(session, cx, client, options, output),
        ("no-evict" | "no-touch", [on]) if is(on, "on") || is(on, "off") => reply.ok(),
        ("reply", [on]) if is(on, "on") => reply.ok(),
        ("reply", [how]) if !is(how, "off") && !is(how, "skip") => return Err(SYNTAX.into()),
        (asked @ ("tracking" | "caching" | "reply"), _) => {
            let asked = asked.to_ascii_uppercase();
            return Err(format!("ERR CLIENT {asked} is not supported by this gateway").into());
        }
        _ => return Err(SYNTAX.into()),
    }
    Ok(Next::Goes)
}

/// Whether a type of clients is the one that there is.
fn is_normal(kind: &[u8]) -> Result<bool, Failure> {
    let known = ["normal", "master", "slave", "replica", "pubsub"];
    if !known.iter().any(|known| is(kind, known)) {
        return Err(format!("ERR Unknown client type '{}'", shown(kind)).into());
    }
    Ok(is(kind, "normal"))
}

/// Ends connections, by their address (the old form) or by filters. The client's own one ends
/// behind the answer.
fn kill(
    session: &Session,
    cx: &Context<'_>,
    me: &Client,
    options: &[&[u8]],
    output: &mut Vec<u8>,
) -> Result<Next, Failure> {
    let all = cx.shared.clients.list();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut spares_me = options.len() > 1;
    let mut chosen: Vec<_> = all.iter().collect();
    match options {
        [address] => chosen.retain(|client| client.address == text(address)),
        filters => {
            let mut filters = filters.iter();
            while let Some(filter) = filters.next() {
                let value = filters.next().ok_or(SYNTAX)?;
                match *filter {
                    f if is(f, "id") => {
                        let id =
                            number(value).map_err(|_| "ERR client-id should be greater than 0")?;
                        chosen.retain(|client| client.id == id as u64);
                    }
                    f if is(f, "addr") => chosen.retain(|client| client.address == text(value)),
                    f if is(f, "laddr") => chosen.retain(|client| client.local == text(value)),
                    f if is(f, "user") => chosen.retain(|_| *value == b"default"),
                    f if is(f, "type") => {
                        let is_normal = is_normal(value)?;
                        chosen.retain(|_| is_normal);
                    }
                    f if is(f, "skipme") && is(value, "yes") => spares_me = true,
                    f if is(f, "skipme") && is(value, "no") => spares_me = false,
                    _ => return Err(SYNTAX.into()),
                }
            }
        }
    }
    chosen.retain(|client| !(spares_me && client.id == me.id));
    let mut next = Next::Goes;
    for client in &chosen {
        if client.id == me.id {
            next = Next::Ends;
            continue;
        }
        client.kill();
        cx.shared.threads[client.thread].wake();
    }
    match (options.len(), chosen.len()) {
        (1, 0) => return Err("ERR No such client".into()),
        (1, _) => session.reply(output).ok(),
        (_, count) => session.reply(output).integer(count as i64),
    }
    Ok(next)
}

/// A client as `CLIENT LIST` shows it.
fn line(client: &Client) -> String {
    let said = client.said().clone();
    let age = client.since.elapsed().as_secs();
    let last = client.last_s.load(std::sync::atomic::Ordering::Relaxed);
    let idle = age.saturating_sub(last);
    let command = if said.command.is_empty() { "NULL" } else { said.command };
    format!(
        "id={} addr={} laddr={} fd=-1 name={} age={age} idle={idle} flags=N db=0 sub=0 psub=0 ssub=0 \
         multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 \
         events=r cmd={command} user=default redir=-1 resp={} lib-name={} lib-ver={}\n",
        client.id,
        client.address,
        client.local,
        said.name,
        said.resp.max(2),
        said.library,
        said.library_version,
    )
}
