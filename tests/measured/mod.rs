//! Helpers for tests of the programs that measure: run them and read their output.

#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A command whose processes can be told from all others.
pub struct Run {
    name: String,
    command: Command,
    /// Its number, once it was started.
    pub process: u32,
}

impl Run {
    /// A run of `program`; `name` tells it from those of other tests.
    pub fn new(program: &str, name: &str, line: &str) -> Self {
        let mut command = Command::new(program);
        // Inherited by all that it starts.
        let name = format!("LOCH_BENCH_TEST={name}-{}", std::process::id());
        let (variable, value) = name.split_once('=').unwrap_or_default();
        command.env(variable, value).args(line.split_whitespace());
        Run { command, process: 0, name }
    }

    /// Runs it to its end.
    pub fn output(&mut self) -> Output {
        let child = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary under test starts");
        self.process = child.id();
        child.wait_with_output().expect("it can be waited for")
    }

    /// Ends it by a signal once it has put its files into shared memory.
    pub fn interrupted(&mut self, signal: Signal) -> Output {
        let child = self
            .command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary under test starts");
        self.process = child.id();
        let deadline = Instant::now() + Duration::from_secs(30);
        while !files(self.process).iter().any(|file| file.ends_with("0.sock")) {
            assert!(Instant::now() < deadline, "no node came up");
            thread::yield_now();
        }
        let process = i32::try_from(self.process).ok().and_then(Pid::from_raw);
        kill_process(process.expect("a process has a number"), signal).expect("it still runs");
        child.wait_with_output().expect("it can be waited for")
    }

    /// Asserts that all its processes have ended, and its files are gone.
    pub fn nothing_is_left(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline && !self.processes().is_empty() {
            thread::yield_now();
        }
        assert_eq!(self.processes(), Vec::<String>::new());
        assert_eq!(files(self.process), BTreeSet::new());
    }

    /// Its processes that still live.
    pub fn processes(&self) -> Vec<String> {
        let all = std::fs::read_dir("/proc").expect("there is a /proc").flatten();
        all.filter(|process| {
            let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|variable| variable == self.name.as_bytes())
        })
        .map(|process| process.file_name().to_string_lossy().into_owned())
        .collect()
    }
}

/// The files of a bench in shared memory.
pub fn files(process: u32) -> BTreeSet<PathBuf> {
    let prefix = format!("loch-bench-{process}-");
    let all = std::fs::read_dir("/dev/shm").expect("there is shared memory").flatten();
    all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .flat_map(|entry| {
            let inside = std::fs::read_dir(entry.path()).into_iter().flatten().flatten();
            inside.map(|file| file.path()).chain([entry.path()]).collect::<Vec<_>>()
        })
        .collect()
}

/// The one object of a run that has to succeed and to leave nothing.
pub fn object(program: &str, name: &str, options: &str) -> Value {
    let mut run = Run::new(program, name, &format!("bench --json --verify {options}"));
    let output = run.output();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options}: {stderr}");
    assert_eq!(stderr, "", "{options}");
    run.nothing_is_left();
    serde_json::from_slice(&output.stdout).expect("one object")
}

/// A field that has to be a number.
pub fn number(object: &Value, field: &str) -> f64 {
    object[field].as_f64().unwrap_or_else(|| panic!("{field}: {object}"))
}

/// The output of a simulated run, which has to succeed.
pub fn simulated(program: &str, options: &str) -> String {
    let line = format!("bench --fabric sim --json --verify --dist uniform {options}");
    let output = Command::new(program).args(line.split_whitespace()).output();
    let output = output.expect("the binary under test starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{options}: {stderr}");
    String::from_utf8(output.stdout).expect("JSON is text")
}

/// Its only object.
pub fn simulated_object(program: &str, options: &str) -> Value {
    let lines = simulated(program, options);
    serde_json::from_str(&lines).unwrap_or_else(|error| panic!("{options}: {error}: {lines}"))
}

/// The costs of a GET and of a PUT: verbs and round trips.
pub fn costs(object: &Value) -> [(f64, f64); 2] {
    ["get", "put"].map(|kind| {
        let of = |what: &str| number(object, &format!("{what}_per_{kind}"));
        (of("verbs"), of("round_trips"))
    })
}
