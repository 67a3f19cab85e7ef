//! Processes that the bench starts: none outlives it.
//!
//! There are two mechanisms. Dropping [`Owned`] kills and reaps a child, which covers every orderly
//! end. And every child asks the kernel to kill it (or to ask it to end, if it has files to remove)
//! when its parent dies, which covers `kill -9`. The child itself has to ask for this, so foreign
//! programs are started through this binary (`bench-exec`), which asks and then becomes the
//! program, under the same pid.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};

use crate::error::BenchError;

/// A command that runs a hidden subcommand of this binary.
pub fn helper_command(subcommand: &str) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(subcommand).arg("--parent").arg(std::process::id().to_string());
    Ok(command)
}

/// A command that runs `program` so that it ends with this process.
pub fn tied_command(program: &Path) -> io::Result<Command> {
    let mut command = helper_command("bench-exec")?;
    command.arg("--").arg(program);
    Ok(command)
}

/// A command that runs a public subcommand of this binary, which is asked to end when this process
/// ends.
pub fn own_command(subcommand: &str) -> io::Result<Command> {
    let mut command = helper_command("bench-exec")?;
    command.args(["--gently", "--"]).arg(std::env::current_exe()?).arg(subcommand);
    // A log that the user asked the bench for would cost time.
    command.env_remove("RUST_LOG");
    Ok(command)
}

/// A child that is killed and reaped when dropped.
#[derive(Debug)]
pub struct Owned(Child);

impl Owned {
    /// Takes over a child.
    pub fn new(child: Child) -> Self {
        Owned(child)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// How it ended, in words, if it has ended.
    pub fn ended(&mut self) -> Option<String> {
        match self.0.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status_in_words(status)),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Asks it to end in good order.
    pub fn ask_to_end(&mut self) {
        // A reaped process gets no signal: its number may belong to another process by now.
        if self.ended().is_none()
            && let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw)
        {
            // Fails only for a process that is gone.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Kills it, if it still runs, and says how it ended.
    pub fn end(&mut self) -> String {
        // Fails only for a child that is reaped already.
        let _ = self.0.kill();
        match self.0.wait() {
            Ok(status) => status_in_words(status),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.end();
    }
}

/// CPU seconds that a live process has used, user and system.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(ticks(&stat)? as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// utime + stime: fields 14 and 15 of proc_pid_stat(5). The second field is a
/// name in parentheses that may itself hold blanks and parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Has the kernel send this process a signal when its parent ends, which must be process `parent`.
///
/// # Errors
/// [`BenchError::Os`], also if it has ended.
pub fn tie_to_parent(parent: u32, signal: Signal) -> Result<(), BenchError> {
    let failed = BenchError::os("be tied to the bench");
    if let Err(error) = set_parent_process_death_signal(Some(signal)) {
        return Err(failed(error.into()));
    }
    // It may have died before the line above.
    let expected = i32::try_from(parent).ok().and_then(Pid::from_raw);
    if getppid() != expected {
        return Err(failed(io::Error::other("its process has ended")));
    }
    Ok(())
}

fn status_in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "42 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 250 50 13 14";
        assert_eq!(ticks(stat), Some(300));
        assert_eq!(ticks("nonsense"), None);
    }

    #[test]
    fn this_process_has_used_some_cpu_time() {
        assert!(cpu_seconds(std::process::id()).is_some());
        assert_eq!(cpu_seconds(u32::MAX), None);
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        drop(Owned::new(child));
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
