//! What hostile peers cost the other clients of an agent: the latency of their verbs is measured
//! beside each kind of attack, and printed. `LOCH_LONG=1` measures for longer:
//! `LOCH_LONG=1 cargo test --release -p loch-fabric --lib hostile -- --nocapture`.
//!
//! Attackers do not stop for breath, and run on the processors of the agent and the clients. With
//! the priority of these, they take processor time from them as any program does. With the lowest
//! one, the numbers tell what the agent lets clients wait for, but attackers get less done.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::limits::TCP_STRANGERS_MAX;

/// Clients that are measured.
const CLIENTS: u64 = 2;
/// Threads of an attack.
const ATTACKERS: usize = 2;
/// Connections of an attacker that holds many.
const MANY: usize = 300;
/// Longer than any verb of the others takes, whatever the machine has to do besides.
const SANE: Duration = Duration::from_secs(10);

/// What a hostile peer does until it is told to stop. Returns how many connections or requests it
/// has begun.
type Attack = fn(&Node, &AtomicBool) -> u64;

const ATTACKS: [(&str, Attack); 9] = [
    ("nobody", |_, _| 0),
    ("garbage for a greeting", garbage_for_a_greeting),
    ("half a frame, and then nothing", half_frames),
    ("lengths beyond bounds", lengths_beyond_bounds),
    ("keys of others", keys_of_others),
    ("requests, and no answer taken", no_answer_taken),
    ("long WRITEs that are refused", refused_writes),
    ("connections without end", connections_without_end),
    ("an old token", old_token),
];

#[test]
fn the_verbs_of_others_go_on_beside_hostile_peers() {
    let time = match std::env::var_os("LOCH_LONG").is_some_and(|it| it == "1") {
        true => Duration::from_secs(5),
        false => Duration::from_millis(100),
    };
    for (nice, priority) in [(19, "the lowest"), (0, "the same")] {
        println!("Verbs of others beside hostile peers of {priority} priority, in µs:");
        println!("| hostile peers | begun a second | verbs a second | p50 | p99 | longest |");
        println!("| --- | --- | --- | --- | --- | --- |");
        for (name, attack) in ATTACKS {
            measured(name, time, nice, &[attack]);
        }
        measured("all of these", time, nice, &ATTACKS.map(|(_, attack)| attack));
    }
}

/// Measures the verbs of clients beside these attacks.
fn measured(name: &str, time: Duration, nice: i32, attacks: &[Attack]) {
    let (node, stops, attackers) = (Node::new(), AtomicBool::new(false), AtomicUsize::new(0));
    let (node, stops, attackers) = (&node, &stops, &attackers);
    let (mut took, begun) = std::thread::scope(|scope| {
        let start = |attack: Attack| {
            scope.spawn(move || {
                // It is the thread's own. Without it, the numbers are worse, and that is all.
                let _ = rustix::process::nice(nice);
                attackers.fetch_add(1, Ordering::Relaxed);
                attack(node, stops)
            })
        };
        let all = || attacks.iter().flat_map(|attack| [*attack; ATTACKERS]);
        let attacking: Vec<_> = all().map(start).collect();
        while attackers.load(Ordering::Relaxed) < attacking.len() {
            std::thread::yield_now();
        }
        // Some attacks have to get ready.
        std::thread::sleep(time / 4);
        let start = |client| scope.spawn(move || verbs(node, client, time));
        let clients: Vec<_> = (0..CLIENTS).map(start).collect();
        let took: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        stops.store(true, Ordering::Relaxed);
        let begun: u64 = attacking.into_iter().map(|it| it.join().expect("it has ended")).sum();
        let took = took.into_iter().flat_map(|took| took.expect("every verb is done"));
        (took.collect::<Vec<_>>(), begun)
    });
    took.sort_unstable();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    let a_second = |count: f64, time: Duration| count / time.as_secs_f64();
    println!(
        "| {name} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} |",
        a_second(begun as f64, time * 5 / 4),
        a_second(took.len() as f64, time),
        at(0.5),
        at(0.99),
        at(1.0)
    );
    assert!(took[took.len() - 1] < SANE, "{name}: a verb took {:?}", took[took.len() - 1]);
}

/// The time of each verb of a client that keeps to the rules: short and long ones.
fn verbs(node: &Node, client: u64, time: Duration) -> Vec<Duration> {
    let (_accepted, endpoint) = node.endpoint();
    let (word, place) = (at(client * 8), at((1 + client) << 20));
    let (begun, mut took, mut adds) = (Instant::now(), Vec::new(), 0);
    let mut timed = |verb: &mut dyn FnMut()| {
        let begun = Instant::now();
        verb();
        took.push(begun.elapsed());
    };
    while begun.elapsed() < time {
        timed(&mut || assert_eq!(block_on(endpoint.fetch_add(word, 1)), Ok(adds)));
        adds += 1;
        let bytes = vec![adds as u8; 4096];
        timed(&mut || {
            assert_eq!(block_on(endpoint.write(place, Buf::from(bytes.clone()))).1, Ok(()))
        });
        timed(&mut || {
            let (buf, done) = block_on(endpoint.read(place, 64, Buf::new()));
            assert_eq!((&buf[..], done), (&bytes[..64], Ok(())));
        });
    }
    took
}

fn goes_on(stops: &AtomicBool) -> bool {
    !stops.load(Ordering::Relaxed)
}

/// Reads until the agent has closed the connection, or for a moment.
fn until_closed(mut stream: TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
    while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {}
}

/// A connection; none while the system has none left.
fn connection(node: &Node) -> Option<TcpStream> {
    TcpStream::connect(node.agent.address()).ok()
}

/// A client that was let in, and behaves from then on as it likes.
fn admitted(node: &Node, access: Access) -> Option<(Accepted, Raw)> {
    let (accepted, answer) = node.agent.accept(client(&all(access))).unwrap();
    let mut stream = connection(node)?;
    stream.set_read_timeout(Some(Duration::from_millis(200))).ok()?;
    stream.write_all(Hello::new(answer.token, false).as_bytes()).ok()?;
    stream.read_exact(&mut [0; WELCOME_BYTES]).ok()?;
    Some((accepted, Raw { stream, answer, tag: 0 }))
}

fn garbage_for_a_greeting(node: &Node, stops: &AtomicBool) -> u64 {
    let mut begun = 0;
    while goes_on(stops) {
        let Some(mut stream) = connection(node) else { continue };
        let _ = stream.write_all(&[b'l'; 4096]);
        until_closed(stream);
        begun += 1;
    }
    begun
}

fn half_frames(node: &Node, stops: &AtomicBool) -> u64 {
    let (mut held, mut rights) = (Vec::new(), Vec::new());
    for number in (0..MANY).take_while(|_| goes_on(stops)) {
        if number % 2 == 0 {
            let stranger = connection(node);
            held.extend(stranger.and_then(|mut it| it.write_all(b"loch-").ok().map(|()| it)));
            continue;
        }
        let Some((accepted, mut client)) = admitted(node, Access::Full) else { continue };
        let request = client.request(Verb::Write, 0, 4 << 20, 1 << 20);
        let begun = [request.header().as_bytes(), &[7; 1000]].concat();
        let part = if number % 4 == 1 { 20 } else { begun.len() };
        let _ = client.stream.write_all(&begun[..part]);
        held.push(client.stream);
        rights.push(accepted);
    }
    while goes_on(stops) {
        std::thread::sleep(Duration::from_millis(1));
    }
    held.len() as u64
}

fn lengths_beyond_bounds(node: &Node, stops: &AtomicBool) -> u64 {
    let mut begun = 0;
    while goes_on(stops) {
        let Some((_accepted, mut client)) = admitted(node, Access::Full) else { continue };
        let mut header = client.request(Verb::Write, 0, 4 << 20, 8).header();
        header.as_mut_bytes()[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        let _ = client.stream.write_all(header.as_bytes());
        until_closed(client.stream);
        begun += 1;
    }
    begun
}

fn keys_of_others(node: &Node, stops: &AtomicBool) -> u64 {
    let (Some((_other, other)), Some((_accepted, mut client))) =
        (admitted(node, Access::Full), admitted(node, Access::Full))
    else {
        return 0;
    };
    let mut requests = Vec::new();
    for _ in 0..100 {
        let mut request = client.request(Verb::Read, 0, 0, 8);
        request.key = other.answer.grants[0].rkey;
        requests.extend_from_slice(request.header().as_bytes());
    }
    let (mut refused, mut begun) = ([0; 100 * ANSWER_BYTES], 0);
    while goes_on(stops) {
        let _ = client.stream.write_all(&requests);
        let _ = client.stream.read_exact(&mut refused);
        begun += 100;
    }
    begun
}

/// As many as the sockets hold; then the agent waits for the client, and the client for the agent.
fn no_answer_taken(node: &Node, stops: &AtomicBool) -> u64 {
    let mut clients: Vec<_> = (0..8).filter_map(|_| admitted(node, Access::Full)).collect();
    for (_, client) in &clients {
        let _ = client.stream.set_nonblocking(true);
    }
    let mut begun = 0;
    while goes_on(stops) {
        for (_, client) in &mut clients {
            let request = client.request(Verb::Read, 0, 0, 4 << 20);
            begun += u64::from(client.stream.write(request.header().as_bytes()).is_ok());
        }
        std::thread::yield_now();
    }
    begun
}

fn refused_writes(node: &Node, stops: &AtomicBool) -> u64 {
    let Some((_accepted, mut client)) = admitted(node, Access::Read) else { return 0 };
    let (long, mut begun) = (vec![7; 1 << 20], 0);
    while goes_on(stops) {
        let request = client.request(Verb::Write, 0, 4 << 20, long.len() as u32);
        let _ = client.stream.write_all(&[request.header().as_bytes(), &long].concat());
        let _ = client.stream.read_exact(&mut [0; ANSWER_BYTES]);
        begun += 1;
    }
    begun
}

/// As many at a time as an agent lets wait, and new ones for those.
fn connections_without_end(node: &Node, stops: &AtomicBool) -> u64 {
    let (mut held, mut begun) = (std::collections::VecDeque::new(), 0);
    while goes_on(stops) {
        held.extend(connection(node));
        begun += 1;
        if held.len() > TCP_STRANGERS_MAX / ATTACKERS / 4 {
            held.pop_front();
        }
    }
    begun
}

fn old_token(node: &Node, stops: &AtomicBool) -> u64 {
    let (accepted, answer) = node.agent.accept(client(&all(Access::Full))).unwrap();
    drop(accepted);
    let mut begun = 0;
    while goes_on(stops) {
        let Some(mut stream) = connection(node) else { continue };
        let _ = stream.write_all(Hello::new(answer.token, false).as_bytes());
        until_closed(stream);
        begun += 1;
    }
    begun
}
