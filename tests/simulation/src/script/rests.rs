//! The rest of clients that have dropped futures, live on, and are not used any more.
//!
//! When all clients rest, and all verbs that they have posted are over, none of them announces an
//! operation, and each slab that one of them has taken out of use is in its hands: it goes on with
//! it when it is used again. A client that then leaves has no slab any more.
//!
//! Meanwhile a client announces each operation that it has under way, also one that it has begun
//! after others were dropped, and while the verbs of these settle.

use loch_engines::Kv;
use loch_engines::nessie::slab::{Chunk, Slab};
use loch_engines::region::session_addr;
use loch_fabric::Fabric;

use super::{Notes, own};
use crate::Client;
use crate::workload::Setting;

/// The pause between two looks whether the others rest, too.
const LOOK_US: u64 = 50;

/// Lets a client rest that has done its work, and looks at what it has left.
pub(super) async fn rest(client: &Client, setting: &Setting, notes: &Notes) {
    let fabric = client.fabric();
    client.leave();
    notes.resting.set(notes.resting.get() + 1);
    while notes.resting.get() < setting.clients || !fabric.is_settled(fabric.posted()) {
        fabric.pause(LOOK_US).await;
    }
    // Its stores may be on their way.
    fabric.pause(LOOK_US).await;
    if announces(client, notes) {
        return notes.absurd("a client that was left announces an operation".into());
    }
    // As the client's thread does in its next round.
    let rests = own(client).come_to_rest().await;
    fabric.pause(LOOK_US).await;
    if rests.is_err() || announces(client, notes) {
        return notes.absurd("a client that rests announces an operation".into());
    }
    let is_closed = |chunk: &Chunk| {
        matches!(chunk, Chunk::Forming { .. } | Chunk::Seized { .. } | Chunk::Closing { .. })
    };
    let lost = |(slab, chunk): &(Slab, Chunk)| is_closed(chunk) && !own(client).has_in_hand(*slab);
    if let Some(lost) = slabs_of(client, notes).into_iter().find(lost) {
        notes.absurd(format!("a client that rests has forgotten {lost:?}"));
    }
}

/// Looks at the announcement of a client that may have operations under way.
pub(super) fn look_at_work(client: &Client, notes: &Notes) {
    if own(client).is_working() && !announces(client, notes) {
        notes.absurd("a client that works announces no operation".into());
    }
}

/// Looks at what a client has left behind that has detached.
pub(super) fn has_left(client: &Client, notes: &Notes) {
    // The scrubber waits for the grace periods of the slabs that it was seizing.
    let is_left = |chunk: &Chunk| !matches!(chunk, Chunk::Seized { .. });
    if let Some(left) = slabs_of(client, notes).into_iter().find(|(_, chunk)| is_left(chunk)) {
        notes.absurd(format!("a client that has detached has left {left:?}"));
    }
}

fn announces(client: &Client, notes: &Notes) -> bool {
    let (home, incarnation) = (own(client).home(), own(client).incarnation());
    let slots = client.map().sessions()[0].1;
    let is_its = |slot: &u32| notes.world.load(session_addr(home, *slot)) == incarnation;
    let slot = (0..slots).find(is_its).expect("its session lives");
    notes.world.load(session_addr(home, slot).add(8)) & 1 == 1
}

/// The slabs that a client owns.
fn slabs_of(client: &Client, notes: &Notes) -> Vec<(Slab, Chunk)> {
    let (map, own) = (client.map(), own(client).incarnation() as u32);
    let chunks = map.shape.geometry.chunks as u32;
    let tables = 0..map.data_tables() as u8;
    let all = tables.flat_map(|dti| (0..chunks).map(move |chunk| Slab { dti, chunk }));
    let read = all.filter_map(|slab| {
        let word = notes.world.load(map.chunk_addr(slab.dti, slab.chunk.into()));
        Some((slab, Chunk::from_word(word)?))
    });
    let is_own = |(_, chunk): &(Slab, Chunk)| match chunk {
        Chunk::Leased { owner, .. }
        | Chunk::Forming { owner, .. }
        | Chunk::Seized { owner, .. }
        | Chunk::Closing { owner, .. } => *owner == own,
        _ => false,
    };
    read.filter(is_own).collect()
}
