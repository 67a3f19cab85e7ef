//! Hidden subcommands: the processes that the bench starts from its own binary.

use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::Subcommand;
use rustix::process::Signal;

use crate::error::BenchError;
use crate::process::tie_to_parent;
use crate::target::System;
use crate::{echo, hogs, worker};

/// A part of the bench that is a process of its own.
#[derive(Debug, Subcommand)]
pub enum Subprocess {
    /// One client of a bench run; speaks with it over stdin and stdout
    #[command(name = "bench-worker", hide = true)]
    Worker {
        /// Its bench's process
        #[arg(long)]
        parent: u32,
    },
    /// A busy loop
    #[command(name = "bench-hog", hide = true)]
    Hog {
        /// Its bench's process
        #[arg(long)]
        parent: u32,
    },
    /// The other end of the bare loop over TCP
    #[command(name = "bench-echo", hide = true)]
    Echo {
        /// Its bench's process
        #[arg(long)]
        parent: u32,
    },
    /// Becomes another program that ends with its bench
    #[command(name = "bench-exec", hide = true)]
    Exec {
        /// Its bench's process
        #[arg(long)]
        parent: u32,
        /// Ask it to end, rather than kill it
        #[arg(long)]
        gently: bool,
        /// The program and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
}

impl Subprocess {
    /// Runs it, in a program that measures `systems`.
    ///
    /// # Errors
    /// Why it could not be started, or could not go on.
    pub fn run(self, systems: &[&dyn System]) -> Result<(), BenchError> {
        match self {
            Subprocess::Worker { parent } => {
                tie_to_parent(parent, Signal::KILL)?;
                worker::serve(systems).map_err(BenchError::os("reach the bench"))
            }
            Subprocess::Hog { parent } => {
                tie_to_parent(parent, Signal::KILL)?;
                hogs::spin()
            }
            Subprocess::Echo { parent } => {
                tie_to_parent(parent, Signal::KILL)?;
                echo::serve()
            }
            Subprocess::Exec { parent, gently, command } => {
                tie_to_parent(parent, if gently { Signal::TERM } else { Signal::KILL })?;
                let error = Command::new(&command[0]).args(&command[1..]).exec();
                Err(BenchError::os("start the program")(error))
            }
        }
    }
}
