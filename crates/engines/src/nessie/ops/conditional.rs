//! PUTs with a condition, and fetch_add.
//!
//! Each of them is an update whose CAS expects the word that was tested. Their entries are not
//! BLIND: a PUT that loses to one of them starts over, and they themselves are never absorbed.

use std::cell::Cell;

use loch_fabric::{Buf, Fabric};

use super::draft::{Draft, DraftValue, Rule};
use super::read::Want;
use crate::epoch::Pin;
use crate::error::EngineError;
use crate::nessie::client::Client;
use crate::nessie::client::alloc::Own;
use crate::operation::{Conditional, Expect, PutOptions, Version};

impl<F: Fabric> Client<F> {
    /// Gives `key` the value `value` if the present value is as expected.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub async fn put_if(
        &self,
        key: &[u8],
        value: &[u8],
        expect: Expect,
        options: PutOptions,
    ) -> Result<Conditional, EngineError> {
        let draft = self.draft(key, DraftValue::Bytes(value), 0, options).await?;
        // To make room for the new value by evicting the one that it replaces would be in vain.
        let _spared = self.spare(draft.hash);
        let (own, epoch) = match self.entry_for(&draft, expect).await? {
            Ok(held) => held,
            Err(version) => return Ok(Conditional::Refused(version)),
        };
        self.write(&draft, own).await?;
        let installed = self.install(&draft, own, epoch, expect.into()).await?;
        Ok(installed.conditional(draft.version))
    }

    /// Takes an entry for a draft. A PUT that is refused needs none, and nothing has to go for it:
    /// if there is none at hand, returns the version of the present value if that is not as
    /// expected.
    async fn entry_for(
        &self,
        draft: &Draft<'_>,
        expect: Expect,
    ) -> Result<Result<(Own, Pin<'_, F>), Option<Version>>, EngineError> {
        if self.evicts() {
            if let Some(held) = self.take(self.map.classes.of(draft.entry_len()))? {
                return Ok(Ok(held));
            }
            if let Some(version) = Box::pin(self.refusal(draft, expect)).await? {
                return Ok(Err(version));
            }
        }
        match self.allocate(draft.entry_len()).await {
            Err(full @ EngineError::OutOfMemory { .. }) => {
                Box::pin(self.refusal(draft, expect)).await?.map(Err).ok_or(full)
            }
            held => held.map(Ok),
        }
    }

    /// If the present value is not as expected, its version. Linearization point of the refusal: as
    /// of a GET.
    async fn refusal(
        &self,
        draft: &Draft<'_>,
        expect: Expect,
    ) -> Result<Option<Option<Version>>, EngineError> {
        let _epoch = self.session.pin(&self.fabric)?;
        let found = self.look_up(draft.hash, draft.key, Want::Key, Buf::new(), None).await?;
        let version = found.map(|(header, _)| header.version);
        let expected = match expect {
            Expect::Absent => None,
            Expect::Version(version) => Some(version),
        };
        Ok((version != expected).then_some(version))
    }

    /// Adds `add`, wrapping, to the 8-byte little-endian number under `key` and returns the number
    /// before; a key without a value counts as 0.
    ///
    /// # Errors
    /// As [`Client::put`], and [`EngineError::NotACounter`].
    pub async fn fetch_add(&self, key: &[u8], add: u64) -> Result<u64, EngineError> {
        let number = DraftValue::Number(Cell::new(add));
        let draft = self.draft(key, number, 0, PutOptions::default()).await?;
        let _spared = self.spare(draft.hash);
        let (own, epoch) = self.allocate(draft.entry_len()).await?;
        self.write(&draft, own).await?;
        Ok(self.install(&draft, own, epoch, Rule::Add(add)).await?.before())
    }
}

#[cfg(test)]
mod tests {
    use loch_fabric::lanes::block_on;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::nessie::client::tests::client_with;
    use crate::nessie::layout::geometry::Options;
    use crate::scan::{Cursor, Listed};

    /// The values are so long that there is no memory for a second one.
    #[test]
    fn nothing_goes_for_a_put_that_is_refused_and_it_needs_no_memory() {
        for evicts in [false, true] {
            let client = client_with(4 << 20, Options { evicts, ..Options::default() });
            let long = vec![7; (client.map.data_bytes() * 3 / 5) as usize];
            let options = PutOptions::default();
            let version = block_on(client.put(b"long", &long, options)).unwrap();
            for (key, expect, found) in [
                (&b"long"[..], Expect::Absent, Some(version)),
                (b"long", Expect::Version(Version::default()), Some(version)),
                (b"other", Expect::Version(version), None),
            ] {
                let refused = block_on(client.put_if(key, &long, expect, options)).unwrap();
                assert_eq!(refused, Conditional::Refused(found), "{expect:?}");
            }
            let put = block_on(client.put_if(b"other", &long, Expect::Absent, options));
            assert_eq!(matches!(put, Ok(Conditional::Done(_))), evicts, "{put:?}");
            assert_eq!(block_on(client.contains(b"long")).unwrap(), !evicts);
        }
    }

    /// A few counters fit, since their keys are long.
    #[test]
    fn no_counter_begins_again_because_it_made_room_for_itself() {
        let client = client_with(2 << 20, Options { evicts: true, ..Options::default() });
        let (mut counts, mut found_again) = ([0; 40], 0);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for round in 0..400 {
            // Of a loop that is larger than the table, little may be found again.
            let number = rng.random_range(0..counts.len());
            let key = vec![number as u8; 60_000];
            let mut is_there = false;
            let mut at = Some(Cursor::default());
            while let Some(from) = at {
                let mut found = |listed: Listed<'_>| is_there |= *listed.key == *key;
                at = block_on(client.scan(&from, &mut found)).unwrap();
            }
            let before = block_on(client.fetch_add(&key, 1)).unwrap();
            if is_there {
                assert_eq!(before, counts[number], "round {round}");
                found_again += 1;
            }
            counts[number] = before + 1;
        }
        assert!((50..350).contains(&found_again), "{found_again}");
    }
}
