//! Two hosts with a wire between them: `vm/run --hosts 2 -- THIS_PROGRAM`, which sets `HOST` and
//! `HOSTS`. The second lends a region, the first uses it. They tell each other what there is to
//! tell by files in a folder that both see.

#![cfg(feature = "verbs")]

#[allow(dead_code, reason = "the suites share it")]
mod backends;
#[allow(dead_code, reason = "the suites share it")]
mod tools;

use std::path::Path;
use std::time::{Duration, Instant};

use backends::verbs::{Node, device};
use backends::{BYTES, all};
use loch_fabric::lanes::block_on;
use loch_fabric::verbs::{Access, Datagrams, Transport, VerbsEndpoint};
use loch_fabric::{Buf, Fabric, FabricError, Messages, UnreliableWrites};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tools::{HERE, THERE, at, bytes, pattern, put, word};

const FOLDER: &str = "/shared";
/// Guests boot one after the other.
const PATIENCE: Duration = Duration::from_secs(60);

fn tell(what: &str, value: &impl Serialize) {
    let file = Path::new(FOLDER).join(what);
    let unfinished = file.with_extension("unfinished");
    std::fs::write(&unfinished, serde_json::to_vec(value).expect("plain data"))
        .expect("it is there");
    std::fs::rename(unfinished, file).expect("it was just written");
}

fn hear<T: DeserializeOwned>(what: &str) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Ok(text) = std::fs::read(Path::new(FOLDER).join(what)) {
            return serde_json::from_slice(&text).expect("it was written whole");
        }
        assert!(Instant::now() < until, "the other host does not say {what}");
        std::thread::yield_now();
    }
}

#[test]
fn one_host_uses_the_memory_of_another() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let (Some(host), Some(2..)) = (number("HOST"), number("HOSTS")) else {
        println!("skipped, as it needs two hosts");
        return;
    };
    assert!(device().is_some(), "two hosts without a device");
    match host {
        1 => first(),
        2 => second(),
        _ => (),
    }
}

fn second() {
    let device = device().expect("it was looked for");
    let node = Node::new(&device);
    let mail = Datagrams::new(&device).expect("there is room");
    tell("address", &mail.address());
    let accept = |number: u32| {
        let offer = hear(&format!("offer{number}"));
        let (accepted, answer) = node.host.accept(&offer, &all(Access::Full)).expect("sound");
        tell(&format!("answer{number}"), &answer);
        accepted
    };
    let (reliable, _unreliable) = (accept(0), accept(1));
    let (from, asked) = block_on(mail.receive(Buf::new()));
    mail.send(from, &asked).expect("it is short");
    hear::<()>("cut");
    drop(reliable);
    tell("fenced", &node.region.word(0).load(std::sync::atomic::Ordering::Acquire));
    let _again = accept(2);
    hear::<()>("done");
}

fn first() {
    let device = device().expect("it was looked for");
    let node = Node::new(&device);
    let f = VerbsEndpoint::new(device.clone(), HERE, node.region.clone()).expect("there is room");
    let connect = |number: u32, transport| {
        tell(&format!("offer{number}"), &f.offer_over(THERE, transport).expect("there is room"));
        f.connect(THERE, BYTES, &hear(&format!("answer{number}"))).expect("the answer is sound");
    };
    connect(0, Transport::Reliable);
    connect(1, Transport::Unreliable);
    block_on(async {
        let image = pattern(100_000, 1);
        put(&f, at(THERE, 4096), &image).await;
        assert_eq!(bytes(&f, at(THERE, 4096), image.len()).await, image);
        for i in 0..20 {
            assert_eq!(f.fetch_add(at(THERE, 0), 1).await, Ok(i));
        }
        assert_eq!(f.compare_swap(at(THERE, 0), 20, 40).await, Ok(20));
        f.write_unreliable(at(THERE, 8), &7u64.to_le_bytes()).expect("it is in bounds");
        let until = Instant::now() + PATIENCE;
        while word(&f, at(THERE, 8)).await != 7 {
            assert!(Instant::now() < until, "it was lost");
        }
        let mail = Datagrams::new(&device).expect("there is room");
        let there = mail.peer(&hear("address")).expect("it can be reached");
        mail.send(there, b"from one host to another").expect("it is short");
        let (from, answer) = mail.receive(Buf::new()).await;
        assert_eq!((from, &answer[..]), (there, &b"from one host to another"[..]));
        tell("cut", &());
        let fenced: u64 = hear("fenced");
        let began = Instant::now();
        let unknown = FabricError::OutcomeUnknown { at: at(THERE, 0) };
        assert_eq!(f.fetch_add(at(THERE, 0), 1).await, Err(unknown));
        println!("noticed after {:?}", began.elapsed());
        connect(2, Transport::Reliable);
        assert_eq!((fenced, word(&f, at(THERE, 0)).await), (40, 40));
        tell("done", &());
    });
}
