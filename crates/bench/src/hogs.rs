//! `--background-hogs`: processes that do nothing but take CPU time away.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::error::BenchError;
use crate::process::{Owned, helper_command};

/// Busy-looping processes; dropping them ends them.
#[derive(Debug)]
pub struct Hogs {
    _processes: Vec<Owned>,
}

impl Hogs {
    /// Starts `count` of them; all are spinning when it returns.
    pub fn start(count: u32) -> Result<Self, BenchError> {
        let processes = (0..count)
            .map(|_| {
                let mut child = helper_command("bench-hog")?
                    .stdin(Stdio::null())
                    .stdout(Stdio::piped())
                    .spawn()?;
                let output = child.stdout.take();
                let process = Owned::new(child);
                let mut line = String::new();
                output.map(|output| BufReader::new(output).read_line(&mut line)).transpose()?;
                Ok(process)
            })
            .collect::<std::io::Result<_>>()
            .map_err(BenchError::os("start a background hog"))?;
        Ok(Hogs { _processes: processes })
    }
}

/// The hidden subcommand: reports that it runs, and spins until it is killed.
pub fn spin() -> ! {
    let mut output = std::io::stdout();
    let _ = output.write_all(b"spinning\n").and_then(|()| output.flush());
    let mut turns = 0u64;
    loop {
        turns = std::hint::black_box(turns.wrapping_add(1));
    }
}
