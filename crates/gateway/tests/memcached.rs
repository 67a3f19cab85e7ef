//! The same requests to the gateway and to a real memcached, whose answers have to be the same,
//! byte by byte, except for CAS uniques.

mod support;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use loch_gateway::PasswordSource;
use support::{Client, Reference, differ};

/// A request a line; `\n` stands for the end of a line in it.
const SCENARIO: &str = include_str!("memcached.txt");

fn requests() -> Vec<(String, Vec<u8>)> {
    let lines = SCENARIO.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| (line.to_owned(), format!("{}\r\n", line.replace("\\n", "\r\n")).into_bytes()))
        .collect()
}

/// CAS uniques are any numbers.
fn without_cas(answer: &[u8]) -> Vec<u8> {
    let text = support::text(answer);
    let word = |word: &str| {
        let digits = word.strip_prefix('c').filter(|digits| !digits.is_empty());
        let is_cas = digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        if is_cas { "c#".to_owned() } else { word.to_owned() }
    };
    let line = |line: &str| {
        let mut words: Vec<String> = line.split(' ').map(word).collect();
        if words[0] == "VALUE" && words.len() == 5 {
            words[4] = "#".to_owned();
        }
        words.join(" ")
    };
    text.split("\r\n").map(line).collect::<Vec<_>>().join("\r\n").into_bytes()
}

#[test]
fn answers_are_those_of_memcached() {
    let Some(memcached) = Reference::memcached() else { return };
    let gateway = support::gateway();
    let (mut ours, mut theirs) = (gateway.memcached(), memcached.connect());
    let mut differences = Vec::new();
    for (line, request) in requests() {
        let answers =
            [&mut ours, &mut theirs].map(|client| without_cas(&client.memcached_answer(&request)));
        differences.extend(differ(&line, &answers[0], &answers[1]));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn a_pipeline_has_the_answers_of_its_requests_wherever_it_is_split() {
    let gateway = support::gateway();
    let requests = requests();
    let one_by_one: Vec<u8> = {
        let mut client = gateway.memcached();
        client.memcached_answer(b"flush_all\r\n");
        requests.iter().flat_map(|(_, request)| client.memcached_answer(request)).collect()
    };
    let bytes: Vec<u8> = requests.iter().flat_map(|(_, request)| request.clone()).collect();
    for size in [bytes.len(), 1, 7, 100, 1000] {
        let mut client = gateway.memcached();
        client.memcached_answer(b"flush_all\r\n");
        let (last, parts) = bytes.split_at(bytes.len() - bytes.len().min(1));
        last.chunks(size).for_each(|part| client.send(part));
        let answer = client.memcached_answer(parts);
        let (ours, theirs) = (without_cas(&answer), without_cas(&one_by_one));
        let (ours, theirs) = (support::text(&ours), support::text(&theirs));
        let differ = ours.lines().zip(theirs.lines()).enumerate().find(|(_, (a, b))| a != b);
        assert_eq!((ours.len(), differ), (theirs.len(), None), "in parts of {size} bytes");
    }
}

#[test]
fn cas_changes_what_nobody_has_changed() {
    let gateway = support::gateway();
    let mut client = gateway.memcached();
    let mut ask = |request: &str| support::text(&client.memcached_answer(request.as_bytes()));
    assert_eq!(ask("set k 5 0 1\r\na\r\n"), "STORED\r\n");
    let answer = ask("gets k\r\n");
    let unique = answer.lines().next().unwrap().rsplit(' ').next().unwrap().to_owned();
    assert_eq!(ask(&format!("cas k 5 0 1 {unique}\r\nb\r\n")), "STORED\r\n");
    assert_eq!(ask(&format!("cas k 5 0 1 {unique}\r\nc\r\n")), "EXISTS\r\n");
    assert_eq!(ask("get k\r\n"), "VALUE k 5 1\r\nb\r\nEND\r\n");
    // A unique that the client has chosen.
    assert_eq!(ask("ms k 1 E77\r\nd\r\n"), "HD\r\n");
    assert_eq!(ask("mg k c v\r\n"), "VA 1 c77\r\nd\r\n");
    assert_eq!(ask("ms k 1 C76\r\ne\r\n"), "EX\r\n");
    assert_eq!(ask("cas k 5 0 1 77\r\ne\r\n"), "STORED\r\n");
    // A value of before is stale: the first who reads it is to renew it.
    assert_eq!(ask("ms k 1 C1 I\r\nf\r\n"), "HD\r\n");
    assert!(ask("mg k v c\r\n").contains(" X W\r\nf\r\n"));
    assert!(ask("mg k v\r\n").contains(" Z X\r\nf\r\n"));
}

/// Memcached got the flags E, a unique that the client chooses, x, and N of `ms` after 1.6.18; and
/// what is said of an item for people, of the server and of its memory is not the same anywhere.
#[test]
fn what_no_other_server_answers_alike_is_answered() {
    let gateway = support::gateway();
    let mut client = gateway.memcached();
    let mut ask = |request: &str| support::text(&client.memcached_answer(request.as_bytes()));
    assert_eq!(ask("mg viv N30 E70 c v\r\n"), "VA 0 c70 W\r\n\r\n");
    assert_eq!(ask("ma n N0 J5 E71 c v\r\n"), "VA 1 c71\r\n5\r\n");
    assert_eq!(ask("ma n E72 c v\r\n"), "VA 1 c72\r\n6\r\n");
    assert_eq!(ask("md n I T30 E73\r\n"), "HD\r\n");
    assert_eq!(ask("mg n c v\r\n"), "VA 1 c73 X W\r\n6\r\n");
    assert_eq!(ask("ms log 1 MA N100\r\na\r\nms log 1 MA N100\r\nb\r\n"), "HD\r\nHD\r\n");
    assert_eq!(ask("mg log t v\r\n"), "VA 2 t100\r\nab\r\n");
    assert_eq!(
        ask("ms x 1 F9 T50\r\na\r\nmd x x\r\nmg x t v f\r\n"),
        "HD\r\nHD\r\nVA 0 t50 f0\r\n\r\n"
    );
    assert_eq!(ask("ms item 3 T100\r\nabc\r\n"), "HD\r\n");
    let told = ask("me item\r\n");
    assert!(told.starts_with("ME item exp=100 la=0 cas="), "{told}");
    assert!(told.ends_with(" fetch=no cls=1 size=7\r\n"), "{told}");
    assert!(ask("me n\r\n").starts_with("ME n exp="));
    for (request, line) in [
        ("stats\r\n", "STAT version "),
        ("stats settings\r\n", "STAT maxconns 10000\r\n"),
        ("stats slabs\r\n", "STAT active_slabs "),
        ("stats items\r\n", ""),
        ("stats latency\r\n", "STAT ma:calls 2\r\n"),
    ] {
        let said = ask(request);
        assert!(said.contains(line) && said.ends_with("END\r\n"), "{request}: {said}");
        assert!(said.lines().all(|line| line.starts_with("STAT ") || line == "END"), "{said}");
    }
    let refused = ask("cache_memlimit 100\r\n");
    assert!(refused.starts_with("SERVER_ERROR the memory of a table is declared"), "{refused}");
    client.send(b"mn\r\nquit\r\nmn\r\n");
    assert_eq!(support::text(&client.rest()), "MN\r\n");
}

/// Also where it has to change the item, or might.
#[test]
fn an_mg_counts_what_it_finds_and_leaves_no_trace_with_u() {
    let gateway = support::gateway();
    let mut client = gateway.memcached();
    let ask = |client: &mut Client, request: &str| {
        support::text(&client.memcached_answer(request.as_bytes()))
    };
    let found = |client: &mut Client| {
        let stats = ask(client, "stats\r\n");
        ["STAT get_hits ", "STAT get_misses "].map(|name| {
            let count = stats.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            count.parse::<u64>().unwrap()
        })
    };
    let mut counts = |request: &str, answer: &str| {
        let before = found(&mut client);
        assert_eq!(ask(&mut client, request), answer);
        let after = found(&mut client);
        (after[0] - before[0], after[1] - before[1])
    };
    assert_eq!(counts("mg none T10\r\n", "EN\r\n"), (0, 1));
    assert_eq!(counts("mg new N30\r\n", "HD W\r\n"), (0, 1));
    assert_eq!(counts("mg new N30\r\n", "HD Z\r\n"), (1, 0));
    assert_eq!(counts("mg new T30\r\n", "HD Z\r\n"), (1, 0));
    let mut ask = |request: &str| ask(&mut client, request);
    for way in ["u", "T30 u"] {
        assert_eq!(ask("ms k 1\r\na\r\n"), "HD\r\n");
        for _ in 0..2 {
            assert_eq!(ask(&format!("mg k {way} h\r\n")), "HD h0\r\n");
        }
    }
    assert_eq!(ask("mg k T30 h\r\nmg k u h\r\n"), "HD h0\r\nHD h1\r\n");
    // One that somebody is to renew.
    assert_eq!(ask("ms k 1\r\na\r\nmd k I\r\nmg k u h\r\n"), "HD\r\nHD\r\nHD h0 X W\r\n");
    for _ in 0..2 {
        assert_eq!(ask("mg k u h\r\n"), "HD h0 Z X\r\n");
    }
    assert_eq!(ask("mg k h\r\nmg k u h\r\n"), "HD h0 Z X\r\nHD h1 Z X\r\n");
}

#[test]
fn a_flush_with_a_delay_happens_later_unless_another_one_is_wanted() {
    let gateway = support::gateway();
    let mut client = gateway.memcached();
    let mut ask = |request: &str| support::text(&client.memcached_answer(request.as_bytes()));
    let is_there = "VALUE k 0 1\r\nv\r\nEND\r\n";
    for (delays, stays) in
        [(&["flush_all 2", "flush_all 1000"][..], true), (&["flush_all 1"], false)]
    {
        assert_eq!(ask("flush_all\r\nset k 0 0 1\r\nv\r\n"), "OK\r\nSTORED\r\n");
        for delay in delays {
            assert_eq!(ask(&format!("{delay}\r\n")), "OK\r\n");
        }
        let until = Instant::now() + Duration::from_secs(if stays { 3 } else { 20 });
        while Instant::now() < until && ask("get k\r\n") == is_there {}
        assert_eq!(ask("get k\r\n") == is_there, stays, "{delays:?}");
    }
    // At once, and the flush that was wanted before happens no more.
    ask("flush_all 1\r\nflush_all\r\nset k 0 0 1\r\nv\r\n");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(ask("get k\r\n"), is_there);
}

/// One before the start of the server is in `memcached.txt`.
#[test]
fn a_flush_at_a_moment_that_has_passed_happens_at_once() {
    let gateway = support::gateway();
    let mut client = gateway.memcached();
    client.memcached_answer(b"set k 0 0 1\r\na\r\n");
    // A moment has whole seconds, and has to be one after the start.
    std::thread::sleep(Duration::from_millis(1100));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let answer = client.memcached_answer(format!("flush_all {now}\r\nget k\r\n").as_bytes());
    assert_eq!(support::text(&answer), "OK\r\nEND\r\n");
}

#[test]
fn a_client_of_the_binary_protocol_is_refused_with_a_word() {
    let gateway = support::gateway();
    let mut client = gateway.memcached();
    client.send(&[&b"mn\r\n\x80\x0b"[..], &[0; 22]].concat());
    let said = support::text(&client.rest());
    assert!(said.starts_with("MN\r\nERROR the binary protocol is not served"), "{said}");
}

#[test]
fn a_value_that_is_too_long_is_passed_over_and_the_connection_goes_on() {
    let gateway = support::gateway();
    let mut client = gateway.memcached();
    client.memcached_answer(b"set k 0 0 1\r\na\r\n");
    let len = 65 << 20;
    client.send(format!("set k 0 0 {len}\r\n").as_bytes());
    client.send(&vec![b'x'; len]);
    let answer = client.memcached_answer(b"\r\nget k\r\n");
    assert_eq!(support::text(&answer), "SERVER_ERROR object too large for cache\r\nEND\r\n");
}

#[test]
fn a_value_that_is_too_long_with_its_flags_takes_the_old_one_with_it() {
    let gateway = support::gateway();
    let mut client = gateway.memcached();
    let settings = support::text(&client.memcached_answer(b"stats settings\r\n"));
    let most = settings.split("item_size_max ").nth(1).and_then(|rest| rest.lines().next());
    let most: usize = most.unwrap().parse().unwrap();
    for (line, len) in [
        (format!("set k 1 0 {most}"), most),
        (format!("ms k {most} F1"), most),
        (format!("ms k {} q", most + 1), most + 1),
        (format!("ms aw== {} MA b", most + 1), most + 1),
    ] {
        client.memcached_answer(b"set k 0 0 3\r\nold\r\n");
        client.send(format!("{line}\r\n").as_bytes());
        client.send(&vec![b'x'; len]);
        let answer = support::text(&client.memcached_answer(b"\r\nget k\r\n"));
        assert_eq!(answer, "SERVER_ERROR object too large for cache\r\nEND\r\n", "{line}");
    }
    client.memcached_answer(b"set k 0 0 3\r\nold\r\n");
    client.send(format!("replace k 1 0 {most}\r\n").as_bytes());
    client.send(&vec![b'x'; most]);
    let answer = support::text(&client.memcached_answer(b"\r\nget k\r\n"));
    assert!(answer.ends_with("cache\r\nVALUE k 0 3\r\nold\r\nEND\r\n"), "{answer}");
}

/// The answers of a `gat` of many long values wait for the client to take those before them.
#[test]
fn a_gat_of_many_long_values_goes_on_as_the_client_takes_them() {
    const KEYS: usize = 2000;
    let gateway = support::gateway();
    let (mut client, mut other) = (gateway.memcached(), gateway.memcached());
    let value = "v".repeat(100_000);
    other.memcached_answer(format!("set L 7 0 {}\r\n{value}\r\n", value.len()).as_bytes());
    other.memcached_answer(b"set s 0 0 1\r\na\r\n");
    client.send(format!("gat 0{}\r\nmn\r\n", " L s none".repeat(KEYS / 2)).as_bytes());
    let head = format!("VALUE L 7 {}\r\n", value.len());
    let both = format!("{head}{value}\r\nVALUE s 0 1\r\na\r\n");
    assert!(support::text(&client.exactly(both.len())) == both);
    let stats = support::text(&other.memcached_answer(b"stats\r\n"));
    let touches = stats.split("cmd_touch ").nth(1).and_then(|rest| rest.lines().next());
    let touches: usize = touches.unwrap().parse().unwrap();
    assert!(touches < KEYS, "{touches} values are answered, of which the client has taken 2");
    for _ in 1..KEYS / 2 {
        assert!(support::text(&client.exactly(both.len())) == both);
    }
    assert_eq!(support::text(&client.exactly(9)), "END\r\nMN\r\n");
}

#[test]
fn a_long_value_is_answered_with_its_time() {
    let gateway = support::gateway();
    let mut client = gateway.memcached();
    let value = "v".repeat(100_000);
    client.memcached_answer(format!("ms L {} F3 T100\r\n{value}\r\n", value.len()).as_bytes());
    for (request, head) in [
        ("mg L v t f", "VA 100000 t100 f3"),
        ("mg TA== b t v k", "VA 100000 t100 kTA== b"),
        ("mg L h l s v", "VA 100000 h1 l0 s100000"),
    ] {
        let answer = client.memcached_answer(format!("{request}\r\n").repeat(9).as_bytes());
        let whole = format!("{head}\r\n{value}\r\n").repeat(9);
        assert!(support::text(&answer) == whole, "{request}");
    }
    // A client that was told to renew it is not told again.
    client.memcached_answer(b"md L I T50\r\n");
    for head in ["VA 100000 t50 X W", "VA 100000 t50 Z X"] {
        let answer = support::text(&client.memcached_answer(b"mg L t v\r\n"));
        assert!(answer == format!("{head}\r\n{value}\r\n"), "{head}");
    }
}

#[test]
fn a_full_table_lets_all_delete() {
    let gateway = support::gateway();
    let mut client = gateway.memcached();
    let mut ask = |request: &str| support::text(&client.memcached_answer(request.as_bytes()));
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        assert_eq!(ask(&format!("ms {key} 1\r\n{key}\r\n")), "HD\r\n");
    }
    for len in [1 << 20, 1 << 10, 1] {
        let value = "v".repeat(len);
        let put = |key: usize| format!("ms {len}-{key} {len}\r\n{value}\r\n");
        let is_full = (0..100_000).any(|key| ask(&put(key)) != "HD\r\n");
        assert!(is_full, "values of {len} bytes");
    }
    let d = ask("gets d\r\n");
    let unique = d.lines().next().and_then(|line| line.rsplit(' ').next()).unwrap();
    assert_eq!(ask("md a\r\nmd Yg== b q\r\nmd c O1 k\r\n"), "HD\r\nHD O1 kc\r\n");
    assert_eq!(ask(&format!("md d C1\r\nmd d C{unique}\r\n")), "EX\r\nHD\r\n");
    assert_eq!(ask("get a b c d\r\n"), "END\r\n");
    let mut client = gateway.resp();
    for (request, answer) in [
        ("GETDEL e", "$1\r\ne\r\n"),
        ("EXPIRE f -1", ":1\r\n"),
        ("GETEX g PXAT 1", "$1\r\ng\r\n"),
        ("MULTI", "+OK\r\n"),
        ("DEL h", "+QUEUED\r\n"),
        ("EXEC", "*1\r\n:1\r\n"),
        ("EXISTS e f g h", ":0\r\n"),
    ] {
        client.send(format!("{request}\r\n").as_bytes());
        assert_eq!(support::text(&client.resp_answer()), answer, "{request}");
    }
}

#[test]
fn a_stranger_sends_little_and_one_request_after_the_other() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "pass word\n").unwrap();
    let config = loch_gateway::GatewayConfig {
        password: Some(PasswordSource::File(file.path().to_owned())),
        ..loch_gateway::GatewayConfig::default()
    };
    let gateway = support::gateway_with(config);
    let refused = "CLIENT_ERROR unauthenticated\r\n";
    for request in [
        "set auth 0 0 2049\r\n".to_owned(),
        "ms auth 1000000\r\n".to_owned(),
        format!("get {}", "k".repeat(2100)),
        format!("gat 0 {}\r\n", "k".repeat(2100)),
    ] {
        let mut client = gateway.memcached();
        client.send(format!("mn\r\n{request}").as_bytes());
        assert_eq!(support::text(&client.rest()), refused.repeat(2), "{request:.20}");
    }
    let mut client = gateway.memcached();
    let auth = "auth 0 0 14\r\nuser pass word\r\n";
    client.send(format!("get k\r\nadd {auth}set {auth}mn\r\nquit\r\n").as_bytes());
    let answer = format!("{refused}{refused}STORED\r\nMN\r\n");
    assert_eq!(support::text(&client.rest()), answer);
    let mut client = gateway.memcached();
    client.send(b"set auth 0 0 9\r\nuser pass\r\n");
    assert_eq!(client.line(), b"CLIENT_ERROR authentication failure\r\n");
}

#[test]
fn without_the_password_there_is_nothing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "secretly\n").unwrap();
    let config = loch_gateway::GatewayConfig {
        password: Some(PasswordSource::File(file.path().to_owned())),
        ..loch_gateway::GatewayConfig::default()
    };
    let gateway = support::gateway_with(config);
    let mut client = gateway.memcached();
    for (request, answer) in [
        ("get k\r\n", "CLIENT_ERROR unauthenticated\r\n"),
        ("set auth 0 0 9\r\nuser what\r\n", "CLIENT_ERROR authentication failure\r\n"),
        ("set auth 0 0 13\r\nuser secretly\r\n", "STORED\r\n"),
        ("set k 0 0 1\r\na\r\n", "STORED\r\n"),
        ("get auth k\r\n", "VALUE k 0 1\r\na\r\nEND\r\n"),
    ] {
        client.send(request.as_bytes());
        assert_eq!(support::text(&client.exactly(answer.len())), answer, "{request}");
    }
    let mut client = gateway.resp();
    for (request, answer) in [
        ("GET k", "-NOAUTH Authentication required."),
        ("HELLO 3", "-NOAUTH HELLO must be called"),
        ("AUTH what", "-WRONGPASS invalid"),
        ("AUTH default what", "-WRONGPASS invalid"),
        ("HELLO 2 AUTH default secretly", "*14"),
        ("GET k", "$1\r\na"),
        ("RESET", "+RESET"),
        ("GET k", "-NOAUTH"),
        ("AUTH secretly", "+OK"),
        ("GET k", "$1\r\na"),
    ] {
        client.send(format!("{request}\r\n").as_bytes());
        let said = support::text(&client.resp_answer());
        assert!(said.starts_with(answer), "{request}: {said}");
    }
}
