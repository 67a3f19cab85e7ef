//! `loch gateway`.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use loch::{Cluster, NodeInfo};
use loch_gateway::{Address, Error, Gateway, GatewayConfig, PasswordSource};

use super::serve::{allow_many_connections, stop_signals};
use super::target::{Access, TableArgs};
use crate::outcome::{Answer, Usage};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  loch gateway                                127.0.0.1:6379 for clients of Redis, 127.0.0.1:11211
                                              for those of memcached
  loch gateway --resp unix:/run/loch/redis.sock --threads 4
  loch gateway --resp 0.0.0.0:6379 --password /etc/loch/password

A node has to run: loch serve. A gateway holds no data: it may be ended and started again, and several
may run beside each other. With SIGTERM, SIGINT or SIGHUP it answers what has come and ends (exit
code 0).";

/// Where clients of Redis connect if no address is given.
const RESP: &str = "127.0.0.1:6379";
/// Where clients of memcached connect if no address is given.
const MEMCACHED: &str = "127.0.0.1:11211";
/// The variable with the password, where it is not in a file.
const PASSWORD: &str = "LOCH_PASSWORD";
/// The pause between two looks whether the nodes of a gateway are up.
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// Let clients of Redis and of memcached use a table
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct GatewayArgs {
    #[command(flatten)]
    table: TableArgs,
    /// Where clients of Redis connect: HOST:PORT (all addresses of HOST) or unix:PATH; may be given
    /// more than once
    /// [default: 127.0.0.1:6379, if --memcached is not given either]
    #[arg(long, value_name = "ADDRESS")]
    resp: Vec<String>,
    /// Where clients of memcached connect: HOST:PORT (all addresses of HOST) or unix:PATH; may be
    /// given more than once
    /// [default: 127.0.0.1:11211, if --resp is not given either]
    #[arg(long, value_name = "ADDRESS")]
    memcached: Vec<String>,
    /// Serve /metrics for Prometheus there, to everybody who can connect: HOST:PORT (all addresses
    /// of HOST)
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
    /// File whose first line is the password that clients have to give; addresses beyond loopback
    /// need one [default: the password itself in $LOCH_PASSWORD, if there is one]
    #[arg(long, value_name = "FILE")]
    password: Option<PathBuf>,
    /// Let everybody in who reaches an address beyond loopback, where the network lets nobody else
    #[arg(long, conflicts_with = "password")]
    no_password: bool,
    /// Certificate that clients see at addresses HOST:PORT, in PEM; they have to speak TLS 1.3
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Keep commands of Redis that take longer, in microseconds, for SLOWLOG; -1: none
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 10_000)]
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    slowlog: i64,
    /// Threads that serve clients
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    threads: usize,
}

/// Runs `loch gateway`.
pub fn run(args: GatewayArgs) -> Result<Answer> {
    let addresses = |given: &[String]| -> Result<Vec<Address>> {
        let parsed = given.iter().map(|text| Address::all(text)).collect::<Result<Vec<_>, _>>();
        Ok(parsed.map_err(|error| Usage(error.to_string()))?.concat())
    };
    let (mut resp, mut memcached) = (addresses(&args.resp)?, addresses(&args.memcached)?);
    if resp.is_empty() && memcached.is_empty() {
        resp = addresses(&[RESP.to_owned()])?;
        memcached = addresses(&[MEMCACHED.to_owned()])?;
    }
    let http = args.http.as_deref().map(http_addresses).transpose()?.unwrap_or_default();
    let (password, is_open, threads) = (password(&args)?, args.no_password, args.threads);
    let (mut stop, _) = stop_signals().context("cannot watch for signals")?;
    allow_many_connections();
    let cluster = args.table.connect(Access::Write)?;
    let table = args.table.name().to_owned();
    let tls = args.tls_cert.zip(args.tls_key);
    let slower_than = u64::try_from(args.slowlog).ok().map(Duration::from_micros);
    let mut config = GatewayConfig {
        table,
        resp,
        memcached,
        http,
        password,
        is_open,
        tls,
        slower_than,
        threads,
    };
    let mut gateway = Gateway::start(cluster, config.clone()).map_err(wrong_call)?;
    let listens = |what: &str, addresses: Vec<Address>| {
        let each = |address: &Address| format!("{what} at {address}");
        addresses.iter().map(each).collect::<Vec<_>>()
    };
    let http = gateway.http();
    let http = http.iter().map(|address| format!("metrics at http://{address}/metrics"));
    let mut all = listens("RESP", gateway.resp());
    all.extend(listens("memcached", gateway.memcached()));
    all.extend(http);
    output::line(&format!(
        "the gateway to table {:?} is ready: {}",
        args.table.name(),
        all.join(", ")
    ))?;
    let (told, signals) = mpsc::channel();
    thread::spawn(move || stop.forever().try_for_each(|signal| told.send(signal)));
    let signal = loop {
        if let Ok(signal) = signals.recv_timeout(LOOK_PAUSE) {
            break signal;
        }
        let Some(cluster) = with_other_memory(&args.table, gateway.cluster()) else { continue };
        tracing::warn!("a node has come back with other memory: all connections end");
        // At the same addresses, also where the system has chosen the ports.
        config.resp = gateway.resp();
        config.memcached = gateway.memcached();
        config.http = gateway.http();
        gateway.stop();
        gateway = Gateway::start(cluster, config.clone()).map_err(wrong_call)?;
        tracing::info!("the gateway is ready again");
    };
    tracing::info!(signal = signal_hook::low_level::signal_name(signal), "stopping");
    gateway.stop();
    Ok(Answer::Done)
}

/// The password that clients have to give: that of a flag before that of the environment.
fn password(args: &GatewayArgs) -> Result<Option<PasswordSource>> {
    if let Some(path) = &args.password {
        return Ok(Some(PasswordSource::File(path.clone())));
    }
    let given = std::env::var_os(PASSWORD).map(|given| given.into_vec());
    if given.is_some() && args.no_password {
        let text = format!("--no-password: there is one in {PASSWORD}; leave one of them out");
        return Err(Usage(text).into());
    }
    Ok(given.map(PasswordSource::Given))
}

/// Where `/metrics` is served.
fn http_addresses(text: &str) -> Result<Vec<SocketAddr>> {
    Ok(Address::all_tcp(text).map_err(|error| Usage(format!("--http: {error}")))?)
}

/// The cluster as it is now, if a node of it has ended and come back with other memory. Tables that
/// were open before then stay in the old memory, which nobody else sees.
fn with_other_memory(table: &TableArgs, old: &Cluster) -> Option<Cluster> {
    let before = old.info().nodes;
    if before.iter().all(|node| node.up) {
        return None;
    }
    let is_other = |node: &NodeInfo| {
        let before = before.iter().find(|before| before.name == node.name);
        before.is_some_and(|before| before.identity != node.identity)
    };
    // While no node is up, the gateway serves what it has.
    let has_other = table.nodes_now()?.iter().any(is_other);
    has_other.then(|| table.connect(Access::Write).ok()).flatten()
}

/// Tells a wrong call from what the system or the cluster refused.
fn wrong_call(error: Error) -> anyhow::Error {
    match error {
        Error::Cluster(error) => error.into(),
        Error::Open { .. }
        | Error::Password { .. }
        | Error::Tls { .. }
        | Error::Twice { .. }
        | Error::Usage(_) => Usage(error.to_string()).into(),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `--http localhost:PORT` was the first of two addresses, where `--resp` was both.
    #[test]
    fn metrics_are_served_at_all_addresses_of_a_name_and_at_no_unix_socket() {
        let all = Address::all("localhost:9100").unwrap();
        let http = http_addresses("localhost:9100").unwrap();
        assert_eq!(http.into_iter().map(Address::Tcp).collect::<Vec<_>>(), all);
        let error = http_addresses("unix:/tmp/x").unwrap_err();
        assert!(error.downcast_ref::<Usage>().is_some(), "{error:#}");
        let text = error.to_string();
        assert!(text.contains("--http") && text.ends_with("HOST:PORT"), "{text}");
    }
}
