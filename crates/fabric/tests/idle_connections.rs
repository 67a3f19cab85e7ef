//! An agent with a thousand connections at rest uses no processor, and little memory for each.
//!
//! The agent is a process of its own: this test, started again.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use loch_fabric::lanes::block_on;
use loch_fabric::shm::Region;
use loch_fabric::tcp::{Agent, AgentOptions, Answer, Client, TcpEndpoint};
use loch_fabric::{Access, Fabric, Grant, RegionId, RemoteAddr};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CONNECTIONS: usize = 1000;
/// What a connection may cost the agent's process.
const BYTES_MAX: u64 = 32 << 10;
const REGION_BYTES: u64 = 1 << 20;
const REST: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(20);
/// Tells a process that it is the agent, and whether that encrypts.
const IS_AGENT: &str = "LOCH_TEST_AGENT";
const ENCRYPTS: &str = "encrypts";

const HOME: RegionId = RegionId(0);
const AWAY: RegionId = RegionId(1);

/// Some descriptors more than connections.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = CONNECTIONS as u64 + 200;
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), ..limit };
        setrlimit(Resource::Nofile, raised).expect("the hard limit is higher");
    }
}

/// Not a test of its own: the process of the agent, until its standard input ends.
#[test]
#[ignore = "started by the other test"]
fn agent_process() {
    let Some(how) = std::env::var_os(IS_AGENT) else { return };
    raise_limit();
    let region = Arc::new(Region::anonymous(REGION_BYTES).unwrap());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let options = AgentOptions { encrypt: how == ENCRYPTS, ..AgentOptions::default() };
    let agent = Agent::start(region, listener, options).unwrap();
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{}", agent.address()).unwrap();
    let grants = [Grant { offset: 0, len: REGION_BYTES, access: Access::Full }];
    let mut let_in = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = Client { grants: &grants, replies: None, bells: Vec::new(), seat: None };
        let (accepted, answer) = agent.accept(client).unwrap();
        writeln!(out, "{}", serde_json::to_string(&answer).unwrap()).unwrap();
        let_in.push(accepted);
    }
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    /// Bytes of memory that it has touched.
    fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib << 10
    }

    /// Ticks of a processor that it has used: hundredths of a second.
    fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        [11, 12].map(|at: usize| fields[at].parse::<u64>().unwrap()).iter().sum()
    }
}

#[test]
fn a_thousand_connections_at_rest_cost_no_time_and_little_memory() {
    raise_limit();
    a_thousand_connections_cost_little("plain");
    a_thousand_connections_cost_little(ENCRYPTS);
}

fn a_thousand_connections_cost_little(how: &str) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "agent_process", "--ignored", "--nocapture"])
        .env(IS_AGENT, how)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut agent = Process(child);
    let mut lines = BufReader::new(agent.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let address: SocketAddr = lines.by_ref().find_map(|line| line.parse().ok()).unwrap();
    let answers: Vec<Answer> =
        lines.take(CONNECTIONS).map(|line| serde_json::from_str(&line).unwrap()).collect();
    let before = agent.memory();
    let home = Arc::new(Region::anonymous(1 << 16).unwrap());
    let connect = |answer: &Answer| {
        let endpoint = TcpEndpoint::new(HOME, home.clone());
        endpoint.connect(AWAY, REGION_BYTES, address, answer, PATIENCE).unwrap();
        // Each has done something, and rests then.
        block_on(endpoint.fetch_add(RemoteAddr::new(AWAY, 0), 1)).unwrap();
        endpoint
    };
    let endpoints: Vec<TcpEndpoint> = answers.iter().map(connect).collect();
    let each = agent.memory().saturating_sub(before) / CONNECTIONS as u64;
    println!("{how}: {each} bytes for each connection");
    assert!(each < BYTES_MAX, "{each} bytes for each connection");
    // The agent looks for a moment before it sleeps.
    let begun = Instant::now();
    loop {
        let ticks = agent.ticks();
        std::thread::sleep(REST);
        let used = agent.ticks() - ticks;
        println!("{used} hundredths of a second in a second at rest");
        if used == 0 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not come to rest");
    }
    let last = endpoints.last().unwrap();
    let added = block_on(last.fetch_add(RemoteAddr::new(AWAY, 0), 1)).unwrap();
    assert_eq!(added, CONNECTIONS as u64, "all of them were there, and still are");
}
