//! Answers that are nowhere else once their commands are executed, so that they are held until the
//! client takes them.

use super::options::is;
use super::table::Command;
use crate::context::Context;
use crate::limits::LONG_BYTES;

/// Whether a command may have a long answer that is held until the client takes it.
pub(super) fn is_held(command: &Command, request: &[&[u8]]) -> bool {
    match command.name {
        "getdel" | "getex" | "getset" | "keys" | "scan" | "slowlog" => true,
        "client" => request.get(1).is_some_and(|asked| is(asked, "list")),
        "echo" | "ping" => request.get(1).is_some_and(|text| text.len() >= LONG_BYTES),
        "set" => request.iter().skip(3).any(|option| is(option, "get")),
        _ => false,
    }
}

/// Whether clients have left too many such answers for this command to be executed.
pub(super) fn is_refused(cx: &Context<'_>, command: &Command, request: &[&[u8]]) -> bool {
    is_held(command, request) && !cx.shared.copies.may_hold()
}
