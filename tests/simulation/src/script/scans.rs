//! Scans of the table, beside keys that are there all the time while they are changed and moved.

use std::cell::RefCell;
use std::collections::BTreeSet;

use loch_engines::Kv;
use loch_engines::operation::PutOptions;
use loch_engines::scan::{Cursor, Listed};
use loch_history::{Answer, Ask, Outcome};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{Notes, crowd_name, key_name, own, value_of};
use crate::Client;
use crate::cluster::reconnect;
use crate::workload::Setting;

/// Steps of a scan that fail before the client gives it up.
const FAILURES_MAX: u32 = 20;
/// Steps of a scan, which are many more than a table here has runs of buckets.
const STEPS_MAX: u32 = 2_000;

/// The name of a key that is never deleted.
pub fn stay_name(key: u64) -> Vec<u8> {
    format!("stay-{key}").into_bytes()
}

/// Puts a key that is never deleted.
pub(super) async fn put_stay(client: &Client, key: u64, setting: &Setting, notes: &Notes) {
    let value = value_of(notes.next_value(), setting, false);
    match client.put(&stay_name(key), &value, PutOptions::default()).await {
        Ok(_) => _ = notes.stays.borrow_mut().insert(key),
        Err(_) => reconnect(client.fabric()).await,
    }
}

/// Scans the table, or changes a key that is never deleted.
pub(super) async fn operate(
    client: &Client,
    number: u32,
    setting: &Setting,
    notes: &Notes,
    random: &RefCell<ChaCha8Rng>,
) {
    if random.borrow_mut().random_bool(0.3) {
        let key = random.borrow_mut().random_range(0..setting.stays);
        return put_stay(client, key, setting, notes).await;
    }
    let must_find: BTreeSet<u64> = notes.stays.borrow().clone();
    // Some scans take so long that the ring of moves does not hold all that happen meanwhile.
    let slow = random.borrow_mut().random_bool(0.1);
    let (mut at, mut found, mut failures) = (Cursor::default(), BTreeSet::new(), 0);
    for _ in 0..STEPS_MAX {
        let called = notes.world.now_ns();
        let mut names = Vec::new();
        let step = own(client).scan(&at, &mut |one: Listed<'_>| names.push(one.key.to_vec())).await;
        for name in &names {
            told(client, number, name, called, setting, notes);
        }
        found.extend(names);
        match step {
            Ok(Some(next)) => at = next,
            Ok(None) => {
                let missed = must_find.iter().find(|key| !found.contains(&stay_name(**key)));
                if let Some(key) = missed {
                    notes.absurd(format!("client {number}: a scan has missed stay-{key}"));
                }
                return;
            }
            Err(_) if failures < FAILURES_MAX && client.fabric().is_alive() => {
                failures += 1;
                reconnect(client.fabric()).await;
            }
            Err(_) => return,
        }
        if random.borrow_mut().random_bool(0.2) {
            let us = random.borrow_mut().random_range(0..if slow { 20_000 } else { 200 });
            loch_fabric::Fabric::pause(client.fabric(), us).await;
        }
    }
    notes.absurd(format!("client {number}: a scan has not ended after {STEPS_MAX} steps"));
}

/// A scan has found a key in a step that began at `called`.
fn told(client: &Client, number: u32, name: &[u8], called: u64, setting: &Setting, notes: &Notes) {
    let is_there =
        |count: u64, name_of: fn(u64) -> Vec<u8>| (0..count).find(|key| name_of(*key) == name);
    if let Some(key) = is_there(setting.keys, key_name) {
        let at = notes.called(client, number, key, Ask::Get);
        notes.operations.borrow_mut()[at].called = called;
        notes.returned(at, Outcome::Known(Answer::Present));
    } else if is_there(setting.crowd, crowd_name).or(is_there(setting.stays, stay_name)).is_none() {
        notes.absurd(format!("client {number}: a scan has found {name:?}, which never was"));
    }
}
