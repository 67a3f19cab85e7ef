//! Clients at work on memory that somebody damages: the production engine over a small table of two
//! nodes, whose every byte the input may change, between operations and in the middle of them.
//!
//! An operation may answer anything, or any error. It must not panic, it must not write what is not
//! the table's, ask for more bytes than an entry can have, or go on for ever.

mod damage;
mod table;
mod watch;

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use loch_engines::Kv;
use loch_engines::nessie::{Client, Expect, PutOptions, release_dead};
use loch_fabric::lanes::block_on;
use loch_fabric::{Buf, RegionId};

use crate::input::Input;
use loch_engines::operation::Version;
use table::{OWNERS, VALUE_BYTES_MAX, World};
use watch::{Change, Watch};

/// Steps of a run: operations and damages.
const STEPS_MAX: usize = 32;
/// Keys that are asked for.
const KEYS: u8 = 24;
/// Bytes of values.
const LENS: [usize; 12] = [0, 8, 8, 8, 40, 100, 1000, 5000, 30_000, 66_000, 200_000, 300_000];
/// Verbs that an operation on a key may take: until its time is up, and what it may begin with
/// just before: the longest search for room in the index, or in memory.
const KEY_VERBS_MAX: u64 = 150_000;
/// Verbs that an operation on the whole table may take.
const TABLE_VERBS_MAX: u64 = 3_000_000;

/// A byte that chooses the table, and then steps.
///
/// # Panics
/// If an operation does what it must not.
pub fn memory(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let world = World::new(input.byte());
    let mut clients = [world.client(0), world.client(1)];
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            return;
        }
        let step = input.byte();
        let who = (step >> 4 & 1) as usize;
        match step & 7 {
            0..=2 => {
                let change = world.damage(&mut input);
                world.run.flip(change.at, change.flip);
            }
            3 | 4 => world.alone(&clients[who], Ask::read(&mut input), None),
            5 => {
                let change = world.damage(&mut input);
                world.alone(&clients[who], Ask::read(&mut input), Some(change));
            }
            6 => {
                let asks = [Ask::read(&mut input), Ask::read(&mut input)];
                let change = (step & 32 != 0).then(|| world.damage(&mut input));
                world.side_by_side(&clients, asks, change, input.byte());
            }
            // It is gone without a word, and comes back.
            _ => clients[who] = world.client(who as u8),
        }
    }
}

/// An operation.
#[derive(Clone, Copy, Debug)]
struct Ask {
    what: u8,
    key: u8,
    len: usize,
    arg: u8,
}

impl Ask {
    fn read(input: &mut Input<'_>) -> Self {
        Self {
            what: input.byte() % 16,
            key: input.byte() % KEYS,
            len: input.pick(&LENS),
            arg: input.byte(),
        }
    }

    fn verbs_max(self) -> u64 {
        if self.what >= 11 { TABLE_VERBS_MAX } else { KEY_VERBS_MAX }
    }
}

/// Short keys, one that does not fit the first READ of a move, and one of many lines.
fn key_of(key: u8) -> Vec<u8> {
    match key {
        22 => vec![b'k'; 200],
        23 => vec![b'l'; 3000],
        key => vec![b'a' + key; 1 + key as usize % 3],
    }
}

async fn act(client: &Client<Watch>, ask: Ask) {
    let key = &key_of(ask.key)[..];
    let value = &vec![ask.arg; ask.len][..];
    let expiry = (ask.arg & 3 == 3).then_some(1000 + (ask.arg >> 2) as u64);
    let options = PutOptions { expires_at_ms: expiry };
    let dti = ask.arg & 1;
    // Whatever they answer is as good as anything: it is the memory that lies.
    match ask.what {
        0 | 1 => {
            if let Ok(Some(found)) = client.get(key, Buf::new()).await {
                assert!(found.len() as u64 <= VALUE_BYTES_MAX, "{} bytes of value", found.len());
                let _ = (found.version(), found.expires_at_ms());
            }
        }
        2 | 3 => drop(client.put(key, value, options).await),
        4 => drop(client.put_if(key, value, Expect::Absent, options).await),
        5 => {
            let version = client.get(key, Buf::new()).await.ok().flatten().map(|f| f.version());
            let expect = Expect::Version(version.unwrap_or(Version::from_u64(1)));
            drop(client.put_if(key, value, expect, options).await);
        }
        6 => drop(client.delete(key).await),
        7 => drop(client.delete_if(key, Version::from_u64(ask.arg as u64)).await),
        8 if ask.arg & 1 == 0 => drop(client.fetch_add(key, ask.arg as u64).await),
        8 => drop(client.append(key, value).await),
        9 if ask.arg & 2 == 0 => drop(client.contains(key).await),
        9 => drop(client.get_and_touch(key, options, Buf::new()).await),
        10 => {
            if let Ok(mut reserved) = client.reserve(key, ask.len, options).await
                && reserved.write_at(0, value).is_ok()
                && ask.arg & 1 == 0
            {
                drop(reserved.commit().await);
            }
        }
        11 => drop(client.scrub(dti, 2000).await),
        12 => {
            if let Ok(report) = client.check().await {
                assert!(report.broken.len() <= 100, "a report is bounded");
            }
        }
        13 => drop(client.usage(dti).await),
        14 => {
            let owner = OWNERS[ask.arg as usize >> 1 & 3];
            drop(release_dead(client.fabric(), client.map(), dti, owner).await);
        }
        _ => drop(client.detach().await),
    }
}

impl World {
    fn damage(&self, input: &mut Input<'_>) -> Change {
        damage::read(input, &self.map, &self.run)
    }

    fn client(&self, who: u8) -> Client<Watch> {
        let fabric = Watch::new(Rc::clone(&self.run), RegionId(who), self.dear);
        self.client_over(who, fabric)
    }

    fn alone(&self, client: &Client<Watch>, ask: Ask, change: Option<Change>) {
        self.run.begin(ask.verbs_max(), change);
        block_on(act(client, ask));
    }

    /// Two clients, of which the bits of `turns` say who goes on.
    fn side_by_side(
        &self,
        clients: &[Client<Watch>; 2],
        asks: [Ask; 2],
        change: Option<Change>,
        mut turns: u8,
    ) {
        self.run.begin(asks[0].verbs_max() + asks[1].verbs_max(), change);
        let mut first = pin!(act(&clients[0], asks[0]));
        let mut second = pin!(act(&clients[1], asks[1]));
        let mut left = [true, true];
        while left != [false, false] {
            turns = turns.rotate_left(1);
            let who = if left == [true, true] { turns as usize & 1 } else { left[1] as usize };
            let over = if who == 0 { poll(first.as_mut()) } else { poll(second.as_mut()) };
            left[who] &= !over;
        }
    }
}

fn poll(future: Pin<&mut impl Future<Output = ()>>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
}
