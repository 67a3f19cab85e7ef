//! How many keys, how much memory: `INFO`, `DBSIZE` and `stats`.

mod support;

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use loch_gateway::GatewayConfig;
use support::{Client, Ours, gateway_with, small_gateway, text};

/// Threads of the process are measured by their names, so there is one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const KEYS: u32 = 200_000;

/// A gateway to a table with many keys.
fn filled(threads: usize) -> Ours {
    let gateway = gateway_with(GatewayConfig { threads, ..GatewayConfig::default() });
    let table = gateway.cluster.table("default").unwrap();
    let keys: Vec<_> = (0..KEYS).map(u32::to_le_bytes).collect();
    for keys in keys.chunks(1000) {
        let pairs: Vec<_> = keys.iter().map(|key| (key, b"value")).collect();
        table.put_many(&pairs).unwrap();
    }
    gateway
}

fn dbsize(client: &mut Client) -> String {
    client.send(b"DBSIZE\r\n");
    text(&client.resp_answer())
}

/// The processor time of the thread with this name, in nanoseconds.
fn processor_time(name: &str) -> u64 {
    let task = |task: fs::DirEntry| {
        let read = |file| fs::read_to_string(task.path().join(file)).ok();
        (read("comm")?.trim() == name).then(|| read("schedstat"))?
    };
    let mut tasks = fs::read_dir("/proc/self/task").unwrap().map(Result::unwrap);
    let taken = tasks.find_map(task).expect("there is such a thread");
    taken.split(' ').next().unwrap().parse().unwrap()
}

/// The processor times of the thread that serves, and of the one that looks, while this is done.
fn times(work: impl FnOnce()) -> [u64; 2] {
    let now = || ["loch-gateway-0", "loch-usage"].map(processor_time);
    let before = now();
    work();
    let after = now();
    [0, 1].map(|thread| after[thread] - before[thread])
}

#[test]
fn the_thread_that_serves_does_not_look_at_all_entries() {
    let _alone = alone();
    let gateway = filled(1);
    let (mut redis, mut memcached) = (gateway.resp(), gateway.memcached());
    let mut dbsize = || assert_eq!(dbsize(&mut redis), format!(":{KEYS}\r\n"));
    let mut stats = || {
        memcached.send(b"stats\r\n");
        let lines: Vec<_> = std::iter::repeat_with(|| text(&memcached.line()))
            .take_while(|line| line != "END\r\n")
            .collect();
        assert!(lines.contains(&format!("STAT curr_items {KEYS}\r\n")), "{lines:?}");
    };
    let mut redis = gateway.resp();
    let mut info = || {
        redis.send(b"INFO\r\n");
        let answer = text(&redis.resp_answer());
        assert!(answer.contains(&format!("db0:keys={KEYS},")), "{answer}");
    };
    for (name, ask) in
        [("DBSIZE", &mut dbsize as &mut dyn FnMut()), ("stats", &mut stats), ("INFO", &mut info)]
    {
        let [serving, looking] = times(ask);
        println!("{name}: {} us to serve, {} us to look", serving / 1000, looking / 1000);
        assert!(4 * serving < looking, "{name}: {serving} ns to serve, {looking} ns to look");
    }
}

#[test]
fn others_are_served_while_many_wait_for_a_look() {
    let _alone = alone();
    let gateway = filled(1);
    let (ends, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = gateway.resp();
            while !ends.load(Ordering::Relaxed) {
                other.send(b"PING\r\n");
                assert_eq!(text(&other.resp_answer()), "+PONG\r\n");
                answers.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut clients: Vec<_> = std::iter::repeat_with(|| gateway.resp()).take(50).collect();
        let [serving, looking] = times(|| {
            clients.iter_mut().for_each(|client| client.send(b"DBSIZE\r\n"));
            for client in &mut clients {
                assert_eq!(text(&client.resp_answer()), format!(":{KEYS}\r\n"));
            }
        });
        ends.store(true, Ordering::Relaxed);
        println!("{serving} ns to serve, {looking} ns to look");
    });
    let answers = answers.into_inner();
    assert!(answers >= 20, "another client got {answers} answers only");
}

#[test]
fn dbsize_of_a_small_table_is_exact() {
    let _alone = alone();
    let gateway = small_gateway();
    let (mut client, mut other) = (gateway.resp(), gateway.resp());
    for keys in 1..=300 {
        client.send(format!("SET key:{keys} value\r\n").as_bytes());
        assert_eq!(text(&client.resp_answer()), "+OK\r\n");
        assert_eq!(dbsize(&mut other), format!(":{keys}\r\n"));
    }
    client.send(b"FLUSHALL\r\n");
    assert_eq!(text(&client.resp_answer()), "+OK\r\n");
    assert_eq!(dbsize(&mut other), ":0\r\n");
}

/// The thread that looks ends at its next entry.
#[test]
fn a_gateway_ends_in_the_middle_of_a_look() {
    let _alone = alone();
    let mut gateway = filled(2);
    let mut client = gateway.resp();
    client.send(b"DBSIZE\r\n");
    gateway.gateway.take().unwrap().stop();
}
