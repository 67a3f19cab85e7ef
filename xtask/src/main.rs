//! Tasks of this repository that are too much for a shell script.
//!
//! `cargo run -p xtask -- tidy` checks the house rules; see [`tidy`].

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod modules;
mod rust_source;
mod tidy;
mod tree;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::tree::Tree;

const USAGE: &str = "usage: cargo run -p xtask -- tidy";

fn main() -> Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => Ok(tidy::run(&Tree::of_checkout()?)),
        _ => bail!(USAGE),
    }
}
