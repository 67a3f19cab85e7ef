//! Runs `loch bench`, and knows which peers are installed.

use std::path::Path;
use std::process::{Command, Output};

/// The output of `loch bench` with these arguments.
pub fn bench(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_loch"))
        .arg("bench")
        .args(arguments.split_whitespace())
        .output()
        .expect("the binary under test starts")
}

pub fn is_installed(program: &str) -> bool {
    let installed =
        ["/usr/bin", "/usr/local/bin"].iter().any(|d| Path::new(d).join(program).exists());
    if !installed {
        println!("skipped: {program} is not installed");
    }
    installed
}
