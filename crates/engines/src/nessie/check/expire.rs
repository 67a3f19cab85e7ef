//! Expiry that gives memory back: the walk by which a node removes what has expired, without
//! anybody touching it.
//!
//! A node walks the entries in its own data table, wherever in the cluster the index shows them. It
//! looks at their headers by loads of its own memory, slab after slab, and posts no verb to another
//! node unless something has expired. An entry that seems to have expired tells a key, and no more:
//! a client may be writing the entry at that moment, and memory that is cut anew may look like
//! one. The node then looks the key up as a GET does, and removes the value that it finds if *that*
//! has expired (protocol G4). So the walk adds nothing to the protocol but another caller of a step
//! of it.
//!
//! # Invariants
//! 1. Nothing is removed because of what the walk has seen in memory: only because of an entry that
//!    a slot of the key showed in a look of its own, and that was validated.
//!
//! # Faults
//! A node that dies in the middle of a removal leaves what a client leaves: an entry without its
//! note. A key whose slots cannot be reached, or change all the time, is left to a later walk.

use loch_fabric::{Buf, Fabric, lanes};

use super::report::Expired;
use super::rules::Rules;
use super::walk::slab_of;
use crate::error::EngineError;
use crate::limits::{EXPIRY_LOOKS, EXPIRY_REMOVALS};
use crate::nessie::client::Client;
use crate::nessie::layout::dte::{EXPIRY_BYTES, EXTENSION_BYTES, HEADER_BYTES, Header, flags};
use crate::nessie::layout::slab::{Chunk, Class, Entry, FORMATTED_OFFSET, Slab};

/// Keys that are looked up side by side, over a network.
const LANES: usize = 16;
/// An entry is prefetched when this many others will be looked at before it.
const LOOKED_AT_SOON: u32 = 8;
/// The word of an entry that ends with its flags.
const FLAGS_WORD_OFFSET: u64 = 16;
const _: () = assert!(FLAGS_WORD_OFFSET as usize + 8 <= HEADER_BYTES);

/// A place in a node's data table: where the next piece of a walk begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpiryWalk {
    chunk: u32,
    /// The number of the entry in the slab that begins there.
    entry: u32,
}

/// What a piece of a walk has seen.
#[derive(Default)]
struct Seen {
    looks: usize,
    expiring: u64,
    /// The keys of entries that seem to have expired.
    keys: Vec<Vec<u8>>,
}

impl<F: Fabric> Client<F> {
    /// Looks at some of the entries in the home node's memory, from `walk` on, and removes values
    /// that have expired. The client is one of the node's own: it has that memory mapped.
    ///
    /// # Errors
    /// The fabric's. The next piece goes on behind the place where this one failed.
    pub async fn expire_some(&self, walk: &mut ExpiryWalk) -> Result<Expired, EngineError> {
        self.expire_some_by(self, walk).await
    }

    /// [`Client::expire_some`] by the rules of a protocol.
    pub(in crate::nessie) async fn expire_some_by(
        &self,
        rules: &impl Rules,
        walk: &mut ExpiryWalk,
    ) -> Result<Expired, EngineError> {
        let expired = self.expire_piece(rules, walk).await;
        // Between pieces this session is unused, and would go on announcing the verbs that it
        // posted.
        self.session.quiesce(&self.fabric).await?;
        expired
    }

    async fn expire_piece(
        &self,
        rules: &impl Rules,
        walk: &mut ExpiryWalk,
    ) -> Result<Expired, EngineError> {
        let mut seen = Seen::default();
        let is_over = loop {
            if u64::from(walk.chunk) >= self.map.shape.geometry.chunks {
                *walk = ExpiryWalk::default();
                break true;
            }
            if seen.is_enough() {
                break false;
            }
            self.look_at_slab(walk, &mut seen)?;
        };
        let (before, mut failed) = (self.counts.expired.get(), None);
        let removals = seen.keys.iter().map(|key| rules.expire_key(key));
        lanes::run(if self.is_near { 1 } else { LANES }, removals, |done| match done {
            Ok(()) => (),
            // Others use the key, and see for themselves that its value has expired.
            Err(EngineError::Timeout { .. }) => (),
            Err(error) => failed = Some(error),
        })
        .await;
        let removed = self.counts.expired.get() - before;
        failed.map_or(Ok(Expired { expiring: seen.expiring, removed, is_over }), Err)
    }

    /// Looks at entries of the slab where the walk is, and goes on behind them.
    fn look_at_slab(&self, walk: &mut ExpiryWalk, seen: &mut Seen) -> Result<(), EngineError> {
        seen.looks += 1;
        let dti = self.map.dti_of(self.session.home()).expect("the home node is in the map");
        let slab = Slab { dti, chunk: walk.chunk };
        let word = self.fabric.load(self.map.chunk_addr(dti, u64::from(walk.chunk)))?;
        let cut = slab_of(Chunk::from_word(word));
        let Some(class) = cut.and_then(|(id, chunks)| self.map.slab_class(walk.chunk, id, chunks))
        else {
            *walk = ExpiryWalk { chunk: walk.chunk + 1, entry: 0 };
            return Ok(());
        };
        let now_ms = self.fabric.wall_ms();
        let formatted = self.fabric.load(self.map.slab_addr(slab).add(FORMATTED_OFFSET))?;
        let formatted = formatted.min(u64::from(class.entries)) as u32;
        while walk.entry < formatted {
            if seen.is_enough() {
                return Ok(());
            }
            let entry = Entry { slab, number: walk.entry };
            walk.entry += 1;
            let soon = Entry { slab, number: walk.entry + LOOKED_AT_SOON };
            self.fabric.will_read(self.entry_addr(&class, soon));
            seen.looks += 1;
            if self.owner().is_used(&class, entry)? {
                self.look_at_entry(&class, entry, now_ms, seen)?;
            }
        }
        *walk = ExpiryWalk { chunk: walk.chunk + class.chunks, entry: 0 };
        Ok(())
    }

    /// Sees whether an entry says that it expires, and notes its key if it seems to have expired.
    /// Its bytes may be of several entries: see invariant 1.
    fn look_at_entry(
        &self,
        class: &Class,
        entry: Entry,
        now_ms: u64,
        seen: &mut Seen,
    ) -> Result<(), EngineError> {
        let at = self.entry_addr(class, entry);
        let word = self.fabric.load(at.add(FLAGS_WORD_OFFSET))?;
        if (word >> 48) as u16 & flags::EXPIRES == 0 {
            return Ok(());
        }
        seen.expiring += 1;
        let most = class.entry_bytes as usize;
        let (head, mut bytes) = (HEADER_BYTES + EXTENSION_BYTES + EXPIRY_BYTES, Buf::new());
        self.fabric.load_bytes(at, head.min(most), &mut bytes)?;
        let header = Header::read(&bytes).expect("an entry is longer than a header");
        let seems_over = header.expires_at_ms(&bytes).is_some_and(|at_ms| at_ms <= now_ms);
        if !seems_over || header.value_at() > most {
            return Ok(());
        }
        bytes.clear();
        self.fabric.load_bytes(at, header.value_at(), &mut bytes)?;
        seen.keys.push(bytes[header.key_at()..].to_vec());
        Ok(())
    }
}

impl Seen {
    fn is_enough(&self) -> bool {
        self.looks >= EXPIRY_LOOKS || self.keys.len() >= EXPIRY_REMOVALS
    }
}

#[cfg(test)]
mod tests {
    use loch_fabric::lanes::block_on;
    use zerocopy::IntoBytes;

    use super::*;
    use crate::nessie::client::tests::client;
    use crate::operation::PutOptions;
    use crate::operation::Version;

    /// The last entry of the region says that its key goes on behind the region.
    #[test]
    fn a_damaged_entry_is_passed_by() {
        let client = client(2 << 20);
        let value = [7; 4000];
        let put =
            |key: u64| block_on(client.put(&key.to_le_bytes(), &value, PutOptions::default()));
        (0..).find(|key| put(*key).is_err());
        let class = client.map.classes.of(HEADER_BYTES + 8 + value.len());
        let slab = *client.alloc.borrow_mut().list(class).slabs.iter().max().expect("some");
        let (entry, key_bytes) = (Entry { slab, number: class.entries - 1 }, 1 << 16);
        let at = client.entry_addr(&class, entry);
        assert!(class.place(entry).offset + key_bytes as u64 > client.map.data_bytes());
        let generation = client.fabric.load(at).unwrap();
        let header = Header::new(generation, Version::from_u64(1), key_bytes, 5, flags::EXPIRES);
        client.fabric.store(at, &[header.as_bytes(), &1u64.to_le_bytes()]).unwrap();
        let (mut walk, mut expiring) = (ExpiryWalk::default(), 0);
        loop {
            let done = block_on(client.expire_some(&mut walk)).unwrap();
            expiring += done.expiring;
            if done.is_over {
                break;
            }
        }
        assert_eq!(expiring, 1);
    }
}
