//! Misuse of a node: after each of these it still serves.

mod host;
#[path = "host/raw.rs"]
mod raw;

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixListener;

use host::{Host, eventually, impatient};
use std::path::PathBuf;

use loch::{ByteSize, Cluster, EngineError, Error, FabricKind, Node, NodeConfig, TableConfig};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use raw::{PROTOCOL, Raw, frame, hello};
use serde_json::json;

#[test]
fn keys_values_and_names_out_of_bounds() {
    let host = Host::new();
    let _node = host.start("a");
    let cluster = host.connect("a");
    let table = cluster.table("default").unwrap();
    assert_eq!(table.put(b"", b"v").unwrap_err().engine(), Some(&EngineError::KeyEmpty));
    assert!(matches!(
        table.get(&[0; 65537]),
        Err(Error::Table { source: EngineError::KeyTooLong { .. }, .. })
    ));
    assert!(matches!(
        table.put(b"k", &vec![0; 8 << 20]),
        Err(Error::Table { source: EngineError::ValueTooLong { .. }, .. })
    ));
    for name in ["", "defaul", "default ", "\0", &"x".repeat(1 << 20)] {
        let error = cluster.table(name).err().unwrap();
        assert!(matches!(error, Error::NoSuchTable { .. }), "{error}");
    }
    host.assert_serves("a");
}

#[test]
fn garbage_on_the_socket() {
    let host = Host::new();
    let _node = host.start("a");
    let socket = host.socket("a");
    let refused = |bytes: &[u8]| {
        let mut raw = Raw::connect(&socket);
        raw.send(bytes);
        let code = raw.refusal();
        host.assert_serves("a");
        code
    };
    assert_eq!(refused(&u32::MAX.to_le_bytes()), "garbage", "a huge length");
    assert_eq!(refused(&[0; 4]), "garbage", "no length");
    assert_eq!(refused(b"GET / HTTP/1.1\r\n\r\n"), "garbage", "another protocol");
    assert_eq!(refused(&frame(&json!({"dance": {}}))), "garbage");
    assert_eq!(refused(&frame(&json!({"open_session": {}}))), "order");
    assert_eq!(refused(&frame(&hello(PROTOCOL + 1))), "protocol", "a newer version");
    assert_eq!(refused(&frame(&json!({"hello": {"protocol": PROTOCOL + 1}}))), "protocol");
    let almost =
        json!({"hello": {"protocol": PROTOCOL, "client": "x", "read_only": false, "x": 1}});
    assert_eq!(refused(&frame(&almost)), "garbage");

    let mut twice = Raw::admitted(&socket);
    twice.say(&hello(PROTOCOL));
    assert_eq!(twice.refusal(), "order");
    let longest = [&(64u32 << 10).to_le_bytes()[..], &vec![b'['; 64 << 10]].concat();
    assert_eq!(refused(&longest), "garbage", "nested too deep");
}

#[test]
fn frames_that_do_not_end() {
    let host = Host::new();
    let _node = host.start("a");
    let whole = frame(&hello(PROTOCOL));
    // All at once, so that the node holds that many halves, and then gone.
    let halves: Vec<Raw> = (0..whole.len())
        .map(|len| {
            let mut raw = Raw::connect(&host.socket("a"));
            raw.send(&whole[..len]);
            raw
        })
        .collect();
    host.assert_serves("a");
    drop(halves);
    host.assert_serves("a");
    // In pieces it is as good as whole.
    let mut pieces = Raw::connect(&host.socket("a"));
    whole.iter().for_each(|byte| pieces.send(&[*byte]));
    assert!(pieces.answer().unwrap()["welcome"].is_object());
}

#[test]
fn random_bytes_on_the_socket() {
    let host = Host::new();
    let _node = host.start("a");
    let mut rng = SmallRng::seed_from_u64(7);
    for round in 0..200 {
        let mut raw = if round % 2 == 0 {
            Raw::connect(&host.socket("a"))
        } else {
            Raw::admitted(&host.socket("a"))
        };
        let mut bytes = vec![0; rng.random_range(0..10_000)];
        rng.fill(&mut bytes[..]);
        raw.send(&bytes);
    }
    host.assert_serves("a");
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up() {
    let host = Host::new();
    let _node = host.start("a");
    let mut deaf = Raw::admitted(&host.socket("a"));
    deaf.stream.set_nonblocking(true).unwrap();
    let request = frame(&json!({"close_session": {"slot": 0, "incarnation": 1}}));
    // Until neither side takes any more.
    let (mut sent, mut rest) = (0, &request[..]);
    while let Ok(taken) = deaf.stream.write(rest) {
        rest = &rest[taken..];
        if rest.is_empty() {
            (sent, rest) = (sent + 1, &request[..]);
        }
        assert!(sent < 1 << 20, "the node takes requests without bound");
    }
    host.assert_serves("a");
    // When it listens at last it is told all that it asked.
    deaf.stream.set_nonblocking(false).unwrap();
    for _ in 0..sent {
        assert_eq!(deaf.answer().unwrap()["refused"]["code"], "no_such_session");
    }
}

#[test]
fn sessions_of_others() {
    let host = Host::new();
    let _node = host.start("a");
    let mut raw = Raw::admitted(&host.socket("a"));
    let session = raw.ask(&json!({"open_session": {}})).unwrap()["session"].clone();
    let (slot, incarnation) = (session["slot"].clone(), session["incarnation"].clone());
    for wrong in [
        json!({"slot": 0, "incarnation": incarnation}),
        json!({"slot": slot, "incarnation": 77}),
        json!({"slot": u32::MAX, "incarnation": incarnation}),
    ] {
        let answer = raw.ask(&json!({"close_session": wrong})).unwrap();
        assert_eq!(answer["refused"]["code"], "no_such_session");
    }
    let right = json!({"slot": slot, "incarnation": incarnation});
    assert!(raw.ask(&json!({"close_session": right})).unwrap()["closed"].is_object());
    let again = raw.ask(&json!({"close_session": right})).unwrap();
    assert_eq!(again["refused"]["code"], "no_such_session");

    let mut reader = Raw::connect(&host.socket("a"));
    reader.ask(&json!({"hello": {"protocol": PROTOCOL, "client": "x", "read_only": true}}));
    let answer = reader.ask(&json!({"open_session": {}})).unwrap();
    assert_eq!(answer["refused"]["code"], "read_only");
    host.assert_serves("a");
}

#[test]
fn sessions_run_out() {
    let host = Host::new();
    let _node = host.start("a");
    let cluster = host.connect("a");
    let tables: Vec<_> = (0..16).map(|_| cluster.table("default").unwrap()).collect();
    let error = cluster.table("default").err().unwrap();
    assert!(matches!(error, Error::SessionsExhausted { sessions: 16, .. }), "{error}");
    assert!(error.to_string().contains("a.sock"), "{error}");
    drop(tables);
    host.assert_serves("a");
}

/// Somebody who answers at a socket and is no node, or another version's.
#[test]
fn a_client_meets_what_is_no_node() {
    let host = Host::new();
    let told = |answer: Vec<u8>| {
        let path = host.dir.path().join("odd.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1000]);
                let _ = stream.write_all(&answer);
            });
            Cluster::connect_with(&path, impatient()).err().unwrap()
        });
        std::fs::remove_file(&path).unwrap();
        error
    };
    let newer =
        json!({"refused": {"code": "protocol", "text": "no", "protocol": PROTOCOL + 1, "more": 1}});
    let error = told(frame(&newer));
    let Error::ProtocolVersion { ours, theirs, .. } = error else { panic!("{error}") };
    assert_eq!((ours, theirs), (PROTOCOL, PROTOCOL + 1));
    for bytes in [
        vec![0xff; 100],
        frame(&json!({"closed": {}})),
        frame(&json!({"refused": {"code": "moonrise", "text": "later", "protocol": 3}})),
        b"\x10\0\0\0{\"wel".to_vec(),
        Vec::new(),
    ] {
        let error = told(bytes);
        let named = matches!(error, Error::NodeUnreachable { .. } | Error::Refused { .. });
        assert!(named && error.to_string().contains("odd.sock"), "{error}");
    }
}

#[test]
fn a_socket_without_a_node() {
    let host = Host::new();
    let missing = Cluster::connect_with(host.socket("a"), impatient()).err().unwrap();
    assert!(missing.to_string().contains("loch serve"), "{missing}");
    let far = host.dir.path().join("x".repeat(200));
    let error = Cluster::connect_with(far, impatient()).err().unwrap();
    assert!(matches!(error, Error::NodeUnreachable { .. }), "{error}");
    let mute = UnixListener::bind(host.socket("a")).unwrap();
    let error = Cluster::connect_with(host.socket("a"), impatient()).err().unwrap();
    let text = error.to_string();
    let words = ["did not answer in time", "`--wait`", "stopped"];
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    drop(mute);
    // A stale socket is left, and is replaced.
    let _node = host.start("a");
    host.assert_serves("a");
}

#[test]
fn a_second_node() {
    let host = Host::new();
    let _node = host.start("a");
    let error = Node::start(host.config("a")).err().unwrap();
    assert!(matches!(error, Error::SocketInUse { .. }), "{error}");
    let same_region =
        NodeConfig { socket: host.socket("b"), cluster: Vec::new(), ..host.config("a") };
    let error = Node::start(same_region).err().unwrap();
    assert!(matches!(error, Error::RegionInUse { .. }), "{error}");
    assert!(!host.socket("b").exists());
    host.assert_serves("a");
}

#[test]
fn a_region_of_another_configuration() {
    let host = Host::new();
    host.start("a").stop();
    let refused = |change: &dyn Fn(&mut NodeConfig), field: &str| {
        let mut config = host.config("a");
        change(&mut config);
        let error = Node::start(config).err().unwrap();
        assert!(matches!(error, Error::RegionMismatch { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(field) && text.contains("remove the file"), "{text}");
    };
    refused(&|c| c.memory = ByteSize::new(32 << 20), "16MiB");
    refused(&|c| c.sessions = 17, "sessions 16");
    refused(&|c| c.cluster.push("/somewhere/else.sock".into()), "nodes");
    let declared = |change: fn(&mut TableConfig), field: &str| {
        let mut table = TableConfig::default();
        change(&mut table);
        refused(&|c| c.tables = vec![table.clone()], field);
    };
    declared(|t| t.name = "other".into(), "table name \"default\"");
    declared(|t| t.set("ways", 2).unwrap(), "ways 3");
    declared(|t| t.set("bucket_slots", 2).unwrap(), "bucket_slots 4");
    declared(
        |t| t.set("eviction", "sieve").unwrap(),
        "eviction none, the configuration says sieve",
    );
    declared(|t| t.set("checksums", true).unwrap(), "checksums: false");
    declared(|t| t.set("index_slots", 1 << 12).unwrap(), "index_slots");
    declared(|t| t.value_max = Some(ByteSize::new(1000)), "value_max");
    declared(|t| t.memory = Some(ByteSize::new(10 << 20)), "memory");
    let _node = host.start("a");
    host.assert_serves("a");
}

#[test]
fn a_region_that_is_damaged() {
    let host = Host::new();
    let node = host.start("a");
    host.connect("a").table("default").unwrap().put(b"precious", b"data").unwrap();
    node.stop();
    let path = host.region("a");
    let sound = std::fs::read(&path).unwrap();
    let refused = |what: &str, damage: &dyn Fn(&File)| {
        let file = File::options().write(true).open(&path).unwrap();
        damage(&file);
        let damaged = std::fs::read(&path).unwrap();
        let error = Node::start(host.config("a")).err().unwrap();
        assert!(std::fs::read(&path).unwrap() == damaged, "{what}: it was touched");
        std::fs::write(&path, &sound).unwrap();
        assert!(!host.socket("a").exists());
        error
    };
    let write =
        |at: u64, bytes: &'static [u8]| move |file: &File| file.write_all_at(bytes, at).unwrap();
    for (what, error) in [
        ("magic", refused("magic", &write(0, b"X"))),
        ("header", refused("header", &write(20, b"\xff"))),
        ("directory", refused("directory", &write(4096, b"other"))),
        ("truncated", refused("truncated", &|f| f.set_len(1 << 20).unwrap())),
        ("extended", refused("extended", &|f| f.set_len(17 << 20).unwrap())),
        ("short", refused("short", &|f| f.set_len(10).unwrap())),
        ("empty", refused("empty", &|f| f.set_len(0).unwrap())),
    ] {
        assert!(matches!(error, Error::RegionDamaged { .. }), "{what}: {error}");
    }
    let other = refused("version", &write(8, b"\x07"));
    assert!(matches!(&other, Error::RegionVersion { have: 7, .. }), "{other}");
    assert!(other.to_string().contains("the release that made the file"), "{other}");
    let _node = host.start("a");
    let table = host.connect("a").table("default").unwrap();
    assert_eq!(&table.get(b"precious").unwrap().unwrap()[..], b"data");
}

#[test]
fn a_node_that_died_while_it_made_its_region() {
    let host = Host::new();
    let half = host.dir.path().join("a.region.new");
    std::fs::write(&half, "half a region").unwrap();
    std::fs::set_permissions(&half, Permissions::from_mode(0o600)).unwrap();
    let _node = host.start("a");
    assert!(!half.exists());
    host.assert_serves("a");
}

#[test]
fn configurations_that_cannot_be() {
    let host = Host::new();
    let refused = |change: fn(&mut NodeConfig), word: &str| {
        let mut config = host.config("a");
        change(&mut config);
        let error = Node::start(config).err().unwrap();
        assert!(error.to_string().contains(word), "{word}: {error}");
        let left = std::fs::read_dir(host.dir.path()).unwrap().count();
        assert_eq!(left, 0, "{word}: it left something behind");
        error
    };
    refused(|c| c.memory = ByteSize::new(64 << 10), "memory");
    if !cfg!(feature = "verbs") {
        let alone = |c: &mut NodeConfig| {
            c.fabric = FabricKind::Verbs;
            c.cluster.clear();
        };
        refused(alone, "no verbs backend");
    }
    let listens = |c: &mut NodeConfig| {
        c.fabric = FabricKind::Shm;
        c.listen = Some("127.0.0.1:7400".into());
    };
    refused(listens, "memory is shared here");
    let alone = |c: &mut NodeConfig| {
        c.fabric = FabricKind::Tcp;
        c.cluster.clear();
    };
    refused(alone, "give the address of this one");
    let twice = |c: &mut NodeConfig| {
        c.listen = Some("127.0.0.1:7400".into());
        c.cluster = ["127.0.0.1:7400", "127.0.0.1:7401"].map(PathBuf::from).to_vec();
    };
    refused(twice, "2 nodes");
    refused(|c| c.sessions = 0, "sessions");
    refused(|c| c.name = "..".repeat(40), "name");
    refused(|c| c.cluster = vec!["/elsewhere.sock".into()], "own socket");
    refused(|c| c.socket = "/nowhere/at/all.sock".into(), "cluster");
    let unknown = TableConfig::default().set("engine", "pilau").unwrap_err().to_string();
    assert!(unknown.contains("pilau") && unknown.contains("nessie-server"), "{unknown}");
    let large = |c: &mut NodeConfig| {
        c.memory = ByteSize::new(1 << 44);
        c.tables = vec![TableConfig { engine: "pilaf".parse().unwrap(), ..TableConfig::default() }];
    };
    let full = refused(large, "no room");
    assert!(matches!(full, Error::NoSpace { free: Some(_), .. }), "{full}");
    assert!(full.to_string().contains(" is free: give the node less memory"), "{full}");
    refused(|c| c.region = Some("/nowhere/at/all.region".into()), "/nowhere");
    let _node = host.start("a");
    host.assert_serves("a");
}

#[test]
fn memory_that_no_table_asked_for_is_not_taken() {
    let host = Host::new();
    let small = TableConfig { memory: Some(ByteSize::new(8 << 20)), ..TableConfig::default() };
    let mut config = host.config("a");
    (config.memory, config.tables) = (ByteSize::new(1 << 50), vec![small]);
    let _node = Node::start(config).unwrap();
    let bytes = host.connect("a").info().nodes[0].region_bytes;
    assert!((8 << 20..9 << 20).contains(&bytes), "{bytes}");
    host.assert_serves("a");
}

#[test]
fn a_connection_that_is_closed_ends_its_sessions() {
    let host = Host::new();
    let _node = host.start("a");
    let mut raw = Raw::admitted(&host.socket("a"));
    for _ in 0..16 {
        assert!(raw.ask(&json!({"open_session": {}})).unwrap()["session"].is_object());
    }
    let answer = raw.ask(&json!({"open_session": {}})).unwrap();
    assert_eq!(answer["refused"]["code"], "sessions_exhausted");
    drop(raw);
    let cluster = host.connect("a");
    eventually("all slots are free", || cluster.info().nodes[0].sessions_taken == 0);
    // The node closes on garbage, but a session may be in use: it ends with the process.
    let mut raw = Raw::admitted(&host.socket("a"));
    assert!(raw.ask(&json!({"open_session": {}})).unwrap()["session"].is_object());
    raw.send(&u32::MAX.to_le_bytes());
    assert_eq!(raw.refusal(), "garbage");
    host.assert_serves("a");
    assert_eq!(cluster.info().nodes[0].sessions_taken, 1);
}
