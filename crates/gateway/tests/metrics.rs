//! `/metrics`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use loch::{Cluster, EmbeddedConfig};
use loch_gateway::{Address, Gateway, GatewayConfig};

/// The answer to a GET of a path: its head and its body.
fn get(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: loch\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// The value of a line of the metrics.
fn value(metrics: &str, name: &str) -> f64 {
    let found = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
}

/// A gateway, and the address of its metrics.
fn with_metrics() -> (Gateway, SocketAddr) {
    let cluster = Cluster::embedded(EmbeddedConfig::default()).unwrap();
    let local: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let resp = vec![Address::Tcp(local)];
    let config = GatewayConfig { resp, http: vec![local], ..GatewayConfig::default() };
    let gateway = Gateway::start(cluster, config).unwrap();
    let address = gateway.http()[0];
    (gateway, address)
}

/// A connection over which this was said, and answered.
fn say(address: &Address, text: &str, answer: &str) -> TcpStream {
    let Address::Tcp(address) = address else { panic!("it was one of TCP") };
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut came = vec![0; answer.len()];
    stream.read_exact(&mut came).unwrap();
    assert_eq!(String::from_utf8(came).unwrap(), answer);
    stream
}

#[test]
fn figures_of_all_threads_are_counted_and_shown() {
    let cluster = Cluster::embedded(EmbeddedConfig::default()).unwrap();
    let local: Address = "127.0.0.1:0".parse().unwrap();
    let config = GatewayConfig {
        resp: vec![local.clone()],
        memcached: vec![local],
        http: vec!["127.0.0.1:0".parse().unwrap(); 2],
        threads: 2,
        ..GatewayConfig::default()
    };
    let gateway = Gateway::start(cluster, config).unwrap();
    let resp = &gateway.resp()[0];
    let mut stay = Vec::new();
    // One after the other: the two threads take the connections in turn.
    for _ in 0..4 {
        stay.push(say(
            resp,
            "SET a 1\r\nGET a\r\nGET b\r\nLPUSH a 1\r\n",
            "+OK\r\n$1\r\n1\r\n$-1\r\n-ERR",
        ));
    }
    stay.push(say(
        &gateway.memcached()[0],
        "touch a 100\r\nget a b\r\n",
        "TOUCHED\r\nVALUE a 0 1\r\n1\r\nEND\r\n",
    ));

    let addresses = gateway.http();
    assert_eq!(addresses.len(), 2);
    let (head, _) = get(addresses[1], "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let address = addresses[0];
    let (head, metrics) = get(address, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("openmetrics-text"), "{head}");
    assert!(metrics.contains("loch_gateway_build_info{table=\"default\",version="), "{metrics}");
    for (name, right) in [
        ("clients", 5.0),
        ("threads", 2.0),
        ("copied_bytes", 0.0),
        ("connections_total", 5.0),
        ("connections_rejected_total", 0.0),
        ("hits_total", 5.0),
        ("misses_total", 5.0),
        ("sets_total", 4.0),
        ("touches_total", 1.0),
        ("errors_total", 4.0),
        ("command_seconds_count{command=\"set\"}", 4.0),
        ("command_seconds_count{command=\"touch\"}", 1.0),
        ("command_seconds_bucket{le=\"+Inf\",command=\"set\"}", 4.0),
    ] {
        assert_eq!(value(&metrics, &format!("loch_gateway_{name}")), right, "{name}: {metrics}");
    }
    assert!(value(&metrics, "loch_gateway_received_bytes_total") > 100.0);
    assert!(value(&metrics, "loch_gateway_command_seconds_sum{command=\"set\"}") > 0.0);
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");

    let (head, _) = get(address, "/");
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");

    // Neither a client that asks for nothing nor one that keeps its connection holds up the end.
    let _silent = TcpStream::connect(address).unwrap();
    let mut keeps = TcpStream::connect(address).unwrap();
    keeps.write_all(b"GET /metrics HTTP/1.1\r\nHost: loch\r\n\r\n").unwrap();
    keeps.read_exact(&mut [0; 12]).unwrap();
    drop(stay);
    let began = Instant::now();
    gateway.stop();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

/// Each has 10 s, and there are places for 16.
#[test]
fn connections_that_ask_for_nothing_hold_up_no_scrape() {
    let (_gateway, address) = with_metrics();
    let begin = || {
        let mut half = TcpStream::connect(address).unwrap();
        half.write_all(b"GET /metrics HTT").unwrap();
        half
    };
    let mut half: Vec<TcpStream> = (0..200).map(|_| begin()).collect();
    let began = Instant::now();
    let (head, _) = get(address, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    // The oldest ones have given way.
    assert_eq!(half[0].read(&mut [0; 1]).unwrap_or(0), 0);
}

/// A connection that gives way is read from once more after it was told so. A panic of a connection
/// ends a server, as the program has it.
#[test]
fn connections_that_send_nothing_give_way_to_scrapes() {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_of_server = std::thread::current().name() == Some("loch-gateway-http");
        PANICS.fetch_add(usize::from(is_of_server), Ordering::Relaxed);
        before(panic);
    }));
    let (_gateway, address) = with_metrics();
    let mut silent: Vec<TcpStream> =
        (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    for _ in 0..2 {
        let (head, _) = get(address, "/metrics");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
    assert_eq!(silent[0].read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
}

#[test]
fn a_gateway_that_cannot_serve_its_metrics_does_not_start_and_leaves_no_socket() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("resp");
    let config = GatewayConfig {
        resp: vec![Address::Unix(socket.clone())],
        http: vec![taken.local_addr().unwrap()],
        ..GatewayConfig::default()
    };
    let cluster = Cluster::embedded(EmbeddedConfig::default()).unwrap();
    let error = Gateway::start(cluster, config).err().expect("the address is taken");
    assert!(error.to_string().contains(&taken.local_addr().unwrap().to_string()), "{error}");
    assert!(!socket.exists());
}
