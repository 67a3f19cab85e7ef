//! The end of a command: its exit code, and the line that says why.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | the answer is no: the key has no value, a condition did not hold, a check found something |
//! | 2 | usage: the call has to be corrected, whatever the state of the cluster |
//! | 3 | the cluster failed, or this host did; a second signal to `loch serve` |
//! | 130 | `loch bench` or `loch demo` was interrupted |

use std::io::Write;
use std::process::ExitCode;

use anyhow::Error;
use loch::ErrorKind;
use loch_bench::error::BenchError;

/// Exit code of a call that has to be corrected.
pub const USAGE: u8 = 2;
/// Exit code of a cluster or host that failed.
pub const FAILED: u8 = 3;

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Done,
    /// The answer is no, and that is no error.
    No,
}

/// The call has to be corrected.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

impl From<Answer> for ExitCode {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Done => ExitCode::SUCCESS,
            Answer::No => ExitCode::from(1),
        }
    }
}

/// The exit code that an error stands for.
pub fn exit_code(error: &Error) -> u8 {
    if let Some(error) = error.downcast_ref::<BenchError>() {
        return error.exit_code();
    }
    if error.downcast_ref::<Usage>().is_some() {
        return USAGE;
    }
    match error.downcast_ref::<loch::Error>() {
        Some(error) if error.kind() == ErrorKind::Usage => USAGE,
        _ => FAILED,
    }
}

/// The chain of causes on one line. A cause that the words before it end with is not repeated.
///
/// A parser's message quotes the lines with the error, drawn behind bars; only its words are kept.
pub fn one_line(error: &Error) -> String {
    let mut text = String::new();
    for words in error.chain().map(ToString::to_string) {
        if !text.ends_with(&words) {
            text += if text.is_empty() { "" } else { ": " };
            text += &words;
        }
    }
    let is_drawing = |line: &&str| {
        let line = line.trim_start().trim_start_matches(|c: char| c.is_ascii_digit());
        line.trim_start().starts_with('|')
    };
    let lines = text.lines().filter(|line| !is_drawing(line));
    let lines = lines.map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(": ")
}

/// Writes a line about `command` to standard error. If that is closed, the line is lost.
pub fn tell(command: &str, line: &str) {
    let _ = writeln!(std::io::stderr(), "loch {command}: {line}");
}

/// Makes a panic, which is a bug of Loch's wherever it happens, end the process with one line.
pub fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let what = panic.payload_as_str().unwrap_or("no message");
        let what = what.lines().collect::<Vec<_>>().join(" ");
        let _ = writeln!(
            std::io::stderr(),
            "loch: this is a bug of Loch, please report it: {what} ({} at {})",
            env!("CARGO_PKG_VERSION"),
            place.unwrap_or_default()
        );
        std::process::exit(FAILED.into());
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    fn of_table(source: loch::EngineError) -> loch::Error {
        loch::Error::Table { table: "t".into(), source }
    }

    #[test]
    fn who_has_to_act_is_told_by_the_exit_code() {
        let code = |error: loch::Error| exit_code(&Error::new(error).context("reading k"));
        assert_eq!(code(of_table(loch::EngineError::KeyEmpty)), 2);
        assert_eq!(code(of_table(loch::EngineError::Timeout { timeout_us: 1 })), 3);
        assert_eq!(code(loch::NodeConfig::from_toml("x = 1").unwrap_err()), 2);
        let unreachable =
            loch::Error::NodeUnreachable { socket: "/s".into(), remedy: "start it".into() };
        assert_eq!(code(unreachable), 3);
        assert_eq!(exit_code(&Usage("no".into()).into()), 2);
        assert_eq!(exit_code(&BenchError::Interrupted.into()), 130);
        assert_eq!(exit_code(&Error::msg("something else")), 3);
    }

    #[test]
    fn causes_stand_on_one_line_without_drawings() {
        let config = loch::NodeConfig::from_toml("name = \"a\"\nmemry = 1").unwrap_err();
        let line = one_line(&Error::new(config).context("cannot start"));
        assert!(!line.contains(['\n', '^', '|']), "{line}");
        assert!(line.starts_with("cannot start: configuration"), "{line}");
        assert!(line.contains("line 2") && line.contains("unknown field `memry`"), "{line}");
        let empty = Error::new(of_table(loch::EngineError::KeyEmpty)).context("reading");
        let line = "reading: table \"t\": the key is empty: a key has 1 to 65536 bytes";
        assert_eq!(one_line(&empty), line);
        let io = std::fs::read("/nowhere").context("reading").unwrap_err();
        assert!(one_line(&io).starts_with("reading: No such file"), "{io:#}");
    }
}
