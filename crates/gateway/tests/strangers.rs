//! Clients that have not given the password of a gateway.

mod support;

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use loch_gateway::{GatewayConfig, PasswordSource};
use support::{Ours, text};
use tempfile::NamedTempFile;

fn gateway() -> (Ours, NamedTempFile) {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(b"secretly\n").unwrap();
    let password = Some(PasswordSource::File(file.path().to_owned()));
    (support::gateway_with(GatewayConfig { password, ..GatewayConfig::default() }), file)
}

/// Some thousand times as many a second would be possible.
#[test]
fn a_client_that_guesses_is_served_a_guess_at_a_time_and_is_counted() {
    const GUESSES: usize = 6;
    let (gateway, _file) = gateway();
    let began = Instant::now();
    let mut client = gateway.resp();
    client.send("AUTH wrong\r\nHELLO 2 AUTH default wrong\r\n".repeat(GUESSES / 2).as_bytes());
    for _ in 0..GUESSES {
        assert!(client.line().starts_with(b"-WRONGPASS"));
    }
    let least = Duration::from_millis(250) * (GUESSES as u32 - 1);
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    let began = Instant::now();
    let mut other = gateway.memcached();
    other.send("set a 0 0 6\r\nu what\r\n".repeat(GUESSES).as_bytes());
    for _ in 0..GUESSES {
        assert_eq!(text(&other.line()), "CLIENT_ERROR authentication failure\r\n");
    }
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
    // The right one is right all the same, and whoever knows it is not held up by a wrong one.
    client.send(b"AUTH secretly\r\nINFO stats\r\n");
    assert_eq!(client.line(), b"+OK\r\n");
    let stats = text(&client.resp_answer());
    let counted = format!("acl_access_denied_auth:{}\r\n", 2 * GUESSES);
    assert!(stats.contains(&counted), "{stats}");
}

#[test]
fn a_client_that_does_not_give_the_password_has_to_go_after_a_while() {
    let (gateway, _file) = gateway();
    let began = Instant::now();
    let mut silent = [gateway.resp(), gateway.memcached()];
    let mut known = gateway.resp();
    known.send(b"AUTH secretly\r\n");
    assert_eq!(known.line(), b"+OK\r\n");
    for client in &mut silent {
        assert_eq!(text(&client.rest()), "");
        assert!(began.elapsed() >= Duration::from_secs(9), "{:?}", began.elapsed());
    }
    known.send(b"PING\r\n");
    assert_eq!(known.line(), b"+PONG\r\n");
}

#[test]
fn a_request_before_the_password_is_short() {
    let (gateway, _file) = gateway();
    let mut client = gateway.resp();
    let text = |len: usize| format!("${len}\r\n{}\r\n", "a".repeat(len));
    client.send(format!("*3\r\n$4\r\nAUTH\r\n{}{}", text(16_000), text(4_000)).as_bytes());
    assert!(client.line().starts_with(b"-WRONGPASS"));
    client.send(format!("*3\r\n$4\r\nAUTH\r\n{}{}", text(16_000), text(16_000)).as_bytes());
    assert_eq!(
        support::text(&client.rest()),
        "-ERR Protocol error: unauthenticated bulk length\r\n"
    );
}

/// Counts lines of the log.
struct Lines(&'static AtomicUsize);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("loch_gateway") && *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Each was a line.
#[test]
fn requests_of_http_and_guesses_cause_few_lines_of_the_log() {
    static LINES: AtomicUsize = AtomicUsize::new(0);
    tracing::subscriber::set_global_default(Lines(&LINES)).unwrap();
    let (gateway, _file) = gateway();
    let began = Instant::now();
    for _ in 0..500 {
        let mut client = gateway.resp();
        client.send(b"POST / HTTP/1.1\r\n");
        client.rest();
        let mut client = gateway.resp();
        client.send(b"AUTH wrong\r\n");
        client.line();
    }
    // One of each kind in ten seconds, from this gateway and those of other tests.
    let intervals = 1 + began.elapsed().as_secs() as usize / 10;
    let lines = LINES.load(Ordering::Relaxed);
    assert!((1..=6 * intervals).contains(&lines), "{lines} lines");
}
