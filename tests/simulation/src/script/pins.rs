//! Values that are read in place, and looked at again while their keys change.

use std::cell::RefCell;

use loch_engines::nessie::Pinned;
use loch_engines::operation::Value;
use loch_engines::{EngineError, Kv};
use loch_fabric::sim::SimEndpoint;
use loch_fabric::{Buf, Fabric};
use loch_history::{Answer, Ask, Outcome};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{Notes, key_name, own, patience, unless_dropped};
use crate::Client;
use crate::cluster::reconnect;
use crate::workload::Setting;

/// The most looks at a pinned value after the first.
const LOOKS_MAX: u32 = 4;

/// Pins the value of a checked key, and looks at it again and again: after a while, or after
/// another operation of the same lane. It must stay what it was.
pub(super) async fn operate(
    client: &Client,
    number: u32,
    setting: &Setting,
    notes: &Notes,
    random: &RefCell<ChaCha8Rng>,
) {
    let key = random.borrow_mut().random_range(0..setting.keys);
    let at = notes.called(client, number, key, Ask::Get);
    let called_ms = client.fabric().wall_ms();
    let patience = patience(setting, random);
    let name = key_name(key);
    let pins = own(client).pin(&name);
    let pinned = unless_dropped(client, patience, (setting, notes), pins).await;
    let pinned = match pinned {
        None => return notes.returned(at, Outcome::Unknown),
        Some(Err(error)) => {
            notes.returned(at, notes.failed(number, key, Ask::Get, &error));
            return reconnect(client.fabric()).await;
        }
        Some(Ok(pinned)) => pinned,
    };
    let Some(pinned) = pinned else {
        return notes.returned(at, Outcome::Known(Answer::Found(None)));
    };
    let first = match bytes_of(&pinned) {
        Ok(first) => first,
        Err(error) => return notes.absurd(format!("a pinned value of {key}: {error}")),
    };
    // A process that was stopped during a look may be dead, and its pin ended, when it goes on.
    if !client.fabric().is_alive() {
        return;
    }
    let value = Value::new(first.clone(), 0..first.len(), pinned.version(), pinned.expires_at_ms());
    let tag = notes.tag_of(&value, key, called_ms, setting);
    notes.told(key, pinned.version().as_u64());
    notes.returned(at, Outcome::Known(Answer::Found(Some((tag, pinned.version().as_u64())))));
    let looks = random.borrow_mut().random_range(1..=LOOKS_MAX);
    for look in 1..=looks {
        let (pauses, us) = {
            let mut random = random.borrow_mut();
            (random.random(), random.random_range(0..[20, 500, 5_000][look as usize % 3]))
        };
        if pauses {
            client.fabric().pause(us).await;
        } else {
            super::operate(client, number, setting, notes, random).await;
        }
        let changed = bytes_of(&pinned).is_ok_and(|now| now[..] != first[..]);
        if changed && client.fabric().is_alive() {
            notes.absurd(format!("value {tag} of {key} changed under a pin, by look {look}"));
        }
    }
}

/// The bytes of a pinned value, as they are now.
fn bytes_of(pinned: &Pinned<'_, SimEndpoint>) -> Result<Buf, EngineError> {
    // A value may begin anywhere, and only whole words can be loaded.
    let past = pinned.at().offset() % 8;
    let first = loch_fabric::RemoteAddr::new(pinned.at().region(), pinned.at().offset() - past);
    let mut words = Buf::new();
    pinned.fabric().load_bytes(first, past as usize + pinned.len(), &mut words)?;
    let mut bytes = Buf::new();
    bytes.extend_from_slice(&words[past as usize..]);
    Ok(bytes)
}
