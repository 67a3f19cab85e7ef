//! Operations on many keys in one batch.

use std::cell::RefCell;

use loch_engines::limits::BATCH_KEYS;
use loch_engines::operation::{ValueRef, Version};
use loch_engines::{EngineError, Kv};
use loch_fabric::Fabric;
use loch_history::{Answer, Ask, Outcome};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{Notes, key_name, own, patience, unless_dropped, value_of};
use crate::Client;
use crate::cluster::reconnect;
use crate::workload::Setting;

/// The most checked keys of a batch, and the number of others that may come before them: with
/// these it has two parts.
const BATCH_KEYS_MAX: usize = 6;
const OTHERS: usize = BATCH_KEYS - 3;

/// The keys of a batch, and how many others come before them. A key may be among them twice.
fn batch_of(setting: &Setting, random: &RefCell<ChaCha8Rng>) -> (Vec<u64>, usize) {
    let mut random = random.borrow_mut();
    let count = random.random_range(1..=BATCH_KEYS_MAX.min(setting.keys as usize + 1));
    let first = random.random_range(0..setting.keys);
    let keys = (0..count as u64).map(|key| (first + key) % setting.keys).collect();
    (keys, if random.random_bool(0.1) { OTHERS } else { 0 })
}

/// A batch of operations on some of the checked keys.
pub(super) async fn operate(
    client: &Client,
    number: u32,
    setting: &Setting,
    notes: &Notes,
    random: &RefCell<ChaCha8Rng>,
) {
    let (keys, others) = batch_of(setting, random);
    let writes = (number as usize) < setting.writers && random.borrow_mut().random();
    let deletes = setting.deletes > 0 && random.borrow_mut().random_bool(0.2);
    let asks: Vec<_> = keys
        .iter()
        .map(|_| match (writes, deletes) {
            (true, false) => Ask::Put(notes.next_value()),
            (true, true) => Ask::Delete,
            _ => Ask::Get,
        })
        .collect();
    let calls = keys.iter().zip(&asks).map(|(key, ask)| notes.called(client, number, *key, *ask));
    let batch = Begun {
        others: if writes { 0 } else { others },
        called: calls.collect(),
        answered: RefCell::new(vec![false; keys.len()]),
        keys: &keys,
        setting,
        notes,
    };
    let patience = patience(setting, random);
    let only_whether = random.borrow_mut().random_bool(0.1);
    let operates = async {
        match (writes, deletes) {
            (true, false) => batch.put(client, &asks).await,
            (true, true) => batch.delete(client).await,
            _ if only_whether => batch.contains(client).await,
            _ => batch.get(client).await,
        }
    };
    let done = unless_dropped(client, patience, (setting, notes), operates).await;
    let answered = batch.answered.take();
    for (at, key) in keys.iter().enumerate().filter(|(at, _)| !answered[*at]) {
        let outcome = match &done {
            None => {
                notes.dropped(client, batch.called[at]);
                continue;
            }
            Some(Ok(())) => {
                notes.absurd(format!("a batch did not answer for {key}"));
                Outcome::Unknown
            }
            // What has been done was answered, unless the error says that nobody knows.
            Some(Err(error)) => notes.failed(number, *key, asks[at], error),
        };
        notes.returned(batch.called[at], outcome);
    }
    reconnect(client.fabric()).await;
}

/// A batch under way: its checked keys come after some others, which nobody has.
struct Begun<'a> {
    keys: &'a [u64],
    others: usize,
    called: Vec<usize>,
    answered: RefCell<Vec<bool>>,
    setting: &'a Setting,
    notes: &'a Notes,
}

impl Begun<'_> {
    fn names(&self) -> Vec<Vec<u8>> {
        let others = (0..self.others).map(|other| format!("nobody-{other}").into_bytes());
        others.chain(self.keys.iter().map(|key| key_name(*key))).collect()
    }

    fn answer(&self, name: usize, answer: Answer) {
        match name.checked_sub(self.others) {
            Some(at) => {
                let is_answered = &mut self.answered.borrow_mut()[at];
                self.notes.answered(is_answered, self.called[at], answer);
            }
            None if answer == Answer::Found(None) => (),
            None => self.notes.absurd(format!("{answer:?} for nobody-{name}")),
        }
    }

    /// A pair was stored. A later one with the same key is stored after it.
    fn follow(&self, pair: usize) {
        let same = |later: &usize| self.keys[*later] == self.keys[pair];
        let Some(later) = (pair + 1..self.keys.len()).find(same) else { return };
        if self.answered.borrow()[later] {
            self.notes.absurd("the later of two pairs with the same key was stored first".into());
        }
        let now = self.notes.world.now_ns();
        self.notes.operations.borrow_mut()[self.called[later]].called = now;
    }

    async fn put(&self, client: &Client, asks: &[Ask]) -> Result<(), EngineError> {
        let pair = |(key, ask): (&u64, &Ask)| {
            let Ask::Put(value) = ask else { unreachable!("a batch of PUTs") };
            (key_name(*key), value_of(*value, self.setting, *key < self.setting.numbers))
        };
        let pairs: Vec<_> = self.keys.iter().zip(asks).map(pair).collect();
        let stored = |pair: usize, version: Version| {
            let version = version.as_u64();
            self.notes.told(self.keys[pair], version);
            self.follow(pair);
            self.answer(pair, Answer::Stored(version));
        };
        own(client).put_many(&pairs, stored).await
    }

    async fn delete(&self, client: &Client) -> Result<(), EngineError> {
        let deleted = |name, had_value| self.answer(name, Answer::Deleted(had_value));
        own(client).delete_many(&self.names(), deleted).await
    }

    async fn contains(&self, client: &Client) -> Result<(), EngineError> {
        let contained = |name, has_value| {
            self.answer(name, if has_value { Answer::Present } else { Answer::Found(None) });
        };
        own(client).contains_many(&self.names(), contained).await
    }

    async fn get(&self, client: &Client) -> Result<(), EngineError> {
        let called_ms = client.fabric().wall_ms();
        let found = |name: usize, found: Option<ValueRef<'_>>| {
            let value = found.map(|found| found.to_value());
            let key = name.checked_sub(self.others).map(|at| self.keys[at]);
            let found = value.zip(key).map(|(value, key)| {
                let tag = self.notes.tag_of(&value, key, called_ms, self.setting);
                let version = value.version().as_u64();
                self.notes.told(key, version);
                (tag, version)
            });
            self.answer(name, Answer::Found(found));
        };
        own(client).get_many(&self.names(), found).await
    }
}
